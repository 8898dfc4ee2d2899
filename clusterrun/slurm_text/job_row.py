"""This job in the scheduler's eyes: its number, its restarts, one row of squeue; starts and means nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def job_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """The job's number, empty without a scheduler, and how often it had been restarted when it began."""
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    return environment.get("SLURM_JOB_ID", ""), int(restarts) if restarts.isdecimal() else 0


def question(job_id: str, fields: Sequence[str]) -> tuple[str, ...]:
    """The argument list that asks for so many fields of one job."""
    return ("squeue", "-h", "-t", "all", "-j", job_id, "-O", ",".join(f"{name}:|" for name in fields))


def cells(lines: Sequence[str], fields: Sequence[str]) -> list[str]:
    """The value of each field; nothing where the answer is not exactly one row."""
    rows = [line.split("|") for line in lines if line.count("|") == len(fields)]
    return [cell.strip() for cell in rows[0][:-1]] if len(rows) == 1 else []
