"""What a seed draws about the jobs of a run: their time, who ends them, and how its scheduler answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from clusterrun.model.orders import Survival

REPLACED = ("requeue", "stopped takeover", "time limit", "old epoch", "mute disk", "echoes", "mute takeover")
"""Faults that start, or end, what only a scheduler does here; and what its worlds do not know yet."""


@dataclass(frozen=True)
class Ending:
    """Who runs at ``at`` is ended, after ``grace`` seconds of a preemption; ``again``: to be requeued."""

    at: float
    why: str
    grace: float = 0.0
    again: bool = False


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
    """A run that goes on in other jobs."""
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
