"""The attempts of a run as lines for people: why each was made, where, how far it came, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterrun.cli.follow_run import words
from clusterrun.cli.terminal import local_time
from clusterrun.model.duration import clock_time, spoken
from clusterrun.model.hostlist import fold
from clusterrun.model.record import Attempt


def lineage(attempts: Sequence[Attempt], check: Callable[[int], str]) -> list[str]:
    """Every attempt, oldest first; the last words of a failure only where no newer attempt failed.

    ``check`` gives what the pre-flight check of an attempt found, in a line.
    """
    failed = max((one.epoch for one in attempts if one.failure), default=-1)
    jobs = len({one.job_id for one in attempts}) > 1
    return [line for one in attempts for line in _lines(one, check(one.epoch), jobs, one.epoch == failed)]


def _lines(attempt: Attempt, check: str, jobs: bool, newest_failure: bool) -> list[str]:
    job = f" in job {attempt.job_id}" if jobs and attempt.job_id else ""
    reason = attempt.reason or attempt.cause
    where = f", on {fold(attempt.nodes)}" if attempt.nodes else ""
    head = f"attempt {attempt.epoch}{f' ({reason})' if reason else ''}{job}, {_times(attempt)}{where}"
    lines = ["", head + (f": {attempt.outcome}" if attempt.outcome else "")]
    lines += [f"  pre-flight {check}"] if check else []
    lines += (
        [f"  reached    {far(attempt.step, attempt.checkpoint)}"]
        if max(attempt.step, attempt.checkpoint) >= 0
        else []
    )
    if attempt.failure:
        lines += [f"  first failure, {local_time(attempt.failure.at)}: {attempt.failure.why}"]
        lines += words(attempt) if newest_failure else []
    return lines


def _times(attempt: Attempt) -> str:
    began = local_time(attempt.started_at)
    if attempt.ended_at is None:
        return f"since {began}"
    took = spoken(max(0.0, attempt.ended_at - attempt.started_at))
    return f"{began} to {clock_time(attempt.ended_at, attempt.started_at)} ({took})"


def far(step: int, checkpoint: int) -> str:
    """How far a script came, as far as it reports that."""
    said = (("step", step), ("checkpoint", checkpoint))
    return ", ".join(f"{name} {number}" for name, number in said if number >= 0)
