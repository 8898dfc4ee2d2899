"""The `srun` that runs a command beside a job's steps on one of its nodes; knows no run."""

from __future__ import annotations

STEP_SECONDS = 60
"""How long Slurm may take to grant the step; it shares all that the job has, so it waits for nobody."""


def step(job_id: str, node: str, terminal: bool) -> tuple[str, ...]:
    """The argument list in front of the command.

    ``--overlap`` shares CPUs, memory and GPUs with the ranks (without it the step would wait until
    they end), and one task on one node keeps Slurm from spreading it.
    """
    return (
        "srun",
        f"--jobid={job_id}",
        "--overlap",
        f"--immediate={STEP_SECONDS}",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        "--quiet",
        *(("--pty",) if terminal else ("--unbuffered",)),
    )
