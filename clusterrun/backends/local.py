"""A plan to this machine, through submitit's local executor: one task, the coordinator.

This file is also the program that watches the task (``python -m clusterrun.backends.local``): it
leaves the terminal's session, so that a Ctrl-C there cannot reach the run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit.local.local import Controller, LocalExecutor, LocalJob

from clusterrun import system
from clusterrun.local import processes
from clusterrun.model.errors import SchedulerError
from clusterrun.model.paths import RunPaths
from clusterrun.script.environment import dropped, scrubbed
from clusterrun.script.plan import Plan, Submission
from clusterrun.slurm.submit_once import Log

START_SECONDS = 60.0
TEN_YEARS = 10 * 366 * 86400
"""submitit ends a task after its time; the time limit of a run is the coordinator's to keep."""


def submit(plan: Plan, environment: Mapping[str, str], log: Log) -> Submission:
    """Start ``plan`` on this machine; its script stands in the run directory already.

    The job id is that of the coordinator's process. Raises ``SchedulerError``.
    """
    job = LocalPlanExecutor(plan, scrubbed(environment)).send()
    return Submission(job.job_id, dropped(environment))


class LocalPlanExecutor(LocalExecutor):
    """submitit's executor, with a controller that outlives the terminal and starts its task once."""

    def __init__(self, plan: Plan, environment: Mapping[str, str]) -> None:
        self.folder = Path(plan.run_dir)
        self.parameters = {}
        self._plan = plan
        self._environment = environment

    def send(self) -> LocalJob[Any]:
        """Start the plan, and return submitit's handle on the job."""
        return self._submit_command(shlex.join(self._plan.argv))

    def _submit_command(self, command: str) -> LocalJob[Any]:
        environment = {
            **self._environment,
            "SUBMITIT_LOCAL_NTASKS": "1",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(TEN_YEARS),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
            "SUBMITIT_EXECUTOR": "local",
        }
        argv = (sys.executable, "-m", "clusterrun.backends.local")
        try:
            done = system.run(argv, START_SECONDS, env=environment, cwd=self._plan.spec.cwd)
        except system.ProgramTimeout as error:
            raise SchedulerError(f"the run could not be started: {error.seen}", _look(self._plan)) from error
        job_id = done.out.strip()
        if done.code != 0 or not job_id:
            last = (done.err.strip().splitlines() or ["no word of explanation"])[-1]
            raise SchedulerError(f"the run could not be started: {last}", _look(self._plan))
        return StartedJob(folder=self.folder, job_id=job_id, tasks=[0])


class StartedJob(LocalJob[Any]):
    """submitit's handle on a run; forgetting it touches no file, for a disk may refuse that at any moment."""

    def __del__(self) -> None:
        """Nothing: the run's process is not ours, and nobody keeps a list of it."""


def _look(plan: Plan) -> str:
    return f"see {RunPaths(plan.run_dir).job_output}"


def main() -> None:
    """Start the task in a session of its own, say its job id on stdout, then watch it to its end."""
    if os.fork():
        os._exit(0)
    os.setsid()
    # submitit names its files by patterns, and a run directory may have a % in its path.
    folder = tempfile.mkdtemp(prefix="clusterrun-")
    controller = Controller(Path(folder))
    for name in [name for name in os.environ if name.startswith("SUBMITIT_")]:
        del os.environ[name]
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    controller.start_tasks()
    shutil.rmtree(folder)  # the script itself writes to job.out
    print(processes.identity(controller.tasks[0].pid), flush=True)
    # Whoever started us waits until nobody holds its pipes any more.
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        controller.wait(freq=4)
    finally:
        controller.kill_tasks()


if __name__ == "__main__":
    main()
