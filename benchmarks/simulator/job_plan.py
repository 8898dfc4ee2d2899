"""Draw the jobs of a run from a seed: time limits, ends, and answers of the scheduler."""

from __future__ import annotations

import random
from dataclasses import dataclass

from clusterrun.model.orders import Survival

# Faults that worlds with jobs do not have: the scheduler does the same, or the worlds cannot simulate it.
REPLACED = ("requeue", "stopped takeover", "time limit", "old epoch", "mute disk", "echoes", "mute takeover")


@dataclass(frozen=True)
class Ending:
    """The end of the job that runs at a time."""

    at: float
    why: str
    grace: float = 0.0  # seconds of notice before a preemption
    again: bool = False  # the job is requeued


@dataclass(frozen=True)
class JobPlan:
    """``seconds`` is each job's time limit, ``catches`` whether ranks make room at a notice."""

    survival: Survival
    seconds: float
    endings: tuple[Ending, ...]
    refuses: float
    mute: float
    catches: bool


def draw_jobs(chance: random.Random) -> JobPlan:
    """Return the plan of a run that continues in other jobs."""
    survival = Survival(
        requeue=chance.choice(("requeue", "chain")),
        resubmit=("sbatch", "{dependency}", "script.sh"),
        notice=chance.choice((5.0, 10.0, 20.0)),
        max_preemptions=chance.choice((0, 1, 2)),
        max_time_limits=chance.choice((0, 1, 2)),
        no_progress=chance.choice((0, 0, 2)),
    )
    seconds = chance.choice((30.0, 60.0, 90.0, 3600.0)) * chance.uniform(0.7, 1.3)
    return JobPlan(
        survival=survival,
        seconds=seconds,
        endings=tuple(_ending(chance, seconds) for _ in range(chance.choice((0, 0, 1, 1, 2, 3)))),
        refuses=chance.choice((0.0, 0.0, 0.3, 1.0)),
        mute=chance.choice((0.0, 0.1, 0.1, 0.5)),
        catches=chance.random() < 0.6,
    )


def _ending(chance: random.Random, seconds: float) -> Ending:
    if chance.random() < 0.2:  # while ranks end for the time limit
        return Ending(seconds - chance.uniform(0, 15), "cancelled")
    at = chance.uniform(0, 150) if chance.random() < 0.8 else chance.uniform(0, 6)
    why = chance.choice(("preemption", "preemption", "preemption", "requeue", "cancelled"))
    grace = chance.choice((0.0, 0.0, 15.0, 60.0)) if why == "preemption" else 0.0
    return Ending(at, why, grace, why == "requeue" or (why == "preemption" and chance.random() < 0.5))
