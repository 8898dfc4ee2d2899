"""Reads this job's number, restarts and row of squeue; starts no program and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def own_id(environment: Mapping[str, str]) -> str:
    """The job's number, empty without a scheduler; of a task of an array the array's, and its own: ``41_7``.

    The plain number of one of the tasks is the number of the whole array, too: who gives it back, or
    cancels it, means all of them.
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def job_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """The job's number, as ``own_id`` says it, and how often it had been restarted when it began."""
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    return own_id(environment), int(restarts) if restarts.isdecimal() else 0


def question(job_id: str, fields: Sequence[str]) -> tuple[str, ...]:
    return ("squeue", "-h", "-t", "all", "-j", job_id, "-O", ",".join(f"{name}:|" for name in fields))


def cells(lines: Sequence[str], fields: Sequence[str]) -> list[str]:
    """The value of each field; nothing where the answer is not exactly one row."""
    rows = [line.split("|") for line in lines if line.count("|") == len(fields)]
    return [cell.strip() for cell in rows[0][:-1]] if len(rows) == 1 else []
