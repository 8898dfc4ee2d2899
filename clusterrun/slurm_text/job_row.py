"""Read this job's number, restarts and row of squeue. Starts no program and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def own_id(environment: Mapping[str, str]) -> str:
    """Return the job's number, '' without a scheduler. A task of an array has a compound number: ``41_7``.

    The plain number of a task may also be the number of the whole array. A command with that number would
    affect all tasks.
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def job_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return the job's number, as ``own_id`` does, and the number of its restarts before this start."""
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    return own_id(environment), int(restarts) if restarts.isdecimal() else 0


def question(job_id: str, fields: Sequence[str]) -> tuple[str, ...]:
    return ("squeue", "-h", "-t", "all", "-j", job_id, "-O", ",".join(f"{name}:|" for name in fields))


def cells(lines: Sequence[str], fields: Sequence[str]) -> list[str]:
    """Return the value of each field; none if the answer is not exactly one row."""
    rows = [line.split("|") for line in lines if line.count("|") == len(fields)]
    return [cell.strip() for cell in rows[0][:-1]] if len(rows) == 1 else []
