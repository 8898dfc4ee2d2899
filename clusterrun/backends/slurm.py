"""A plan to Slurm, through submitit: the script is the plan's, and it is sent exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from submitit.slurm.slurm import SlurmExecutor, SlurmJob

from clusterrun.script.environment import dropped, scrubbed
from clusterrun.script.plan import Plan, Submission
from clusterrun.slurm import submit_once
from clusterrun.slurm.client import SlurmClient
from clusterrun.system import Clock, RealClock


def submit(
    plan: Plan, environment: Mapping[str, str], log: submit_once.Log, clock: Clock | None = None
) -> Submission:
    """Queue ``plan``; its script stands in the run directory already.

    Raises ``SchedulerError`` (nothing is queued) and ``SchedulerUnreachable`` (not known: the run's
    token tells, later).
    """
    client = SlurmClient(scrubbed(environment))
    job = SlurmPlanExecutor(plan, client, log, clock or RealClock()).send()
    return Submission(job.job_id, dropped(environment))


class SlurmPlanExecutor(SlurmExecutor):
    """submitit's executor, with the script, the command and the reading of the answer from us."""

    def __init__(self, plan: Plan, client: SlurmClient, log: submit_once.Log, clock: Clock) -> None:
        super().__init__(plan.run_dir, python=plan.spec.python)
        self._plan = plan
        self._client = client
        self._log = log
        self._clock = clock

    def send(self) -> SlurmJob[None]:
        """Submit the plan, and return submitit's handle on the job."""
        return self._submit_command(self._plan.script)

    @classmethod
    def affinity(cls) -> int:
        """Always willing: whether Slurm is here was asked before, and sbatch will say it again."""
        return 2

    def _submit_command(self, command: str) -> SlurmJob[None]:
        job_id = submit_once.send(
            self._client,
            self._make_submission_command(Path(self.folder)),
            cwd=self._plan.spec.cwd,
            token=self._plan.token,
            partition=self._plan.spec.partition,
            clock=self._clock,
            log=self._log,
        )
        return SlurmJob(folder=self.folder, job_id=job_id, tasks=[0])

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return list(self._plan.argv)

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._plan.script
