"""Read the clock of Slurm's controller: a third one, which shows which clock of two nodes is wrong."""

from __future__ import annotations

import math
import re
import time

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes.run_program import answer, document
from clusterrun.preflight.tasks import Findings, LocalAnswer, Readings, RunNeeds
from clusterrun.preflight.thresholds import DIAL_SECONDS
from clusterrun.preflight.untrusted import number

NAME = "controller-clock"
BETWEEN_NODES = True
LIMIT = DIAL_SECONDS + 1.0
LATE = Finding(NAME, Grade.PASS, f"scontrol did not answer within {LIMIT:g} s")


def probe(request: RunNeeds) -> object:
    """Return how far the controller's clock is ahead, in seconds. Only the first of two nodes asks."""
    if [peer.node for peer in request.peers] != [0, 1]:
        return {}
    asked_at = time.time()
    scontrol = ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "config")
    match = re.search(r"data as of (\d+)", answer(*scontrol, seconds=DIAL_SECONDS).out)
    # Slurm rounds down to whole seconds.
    return {"least": int(match[1]) - time.time(), "most": int(match[1]) + 1 - asked_at} if match else {}


def bounds(answers: LocalAnswer | None) -> tuple[float, float]:
    """Return the least and the most by which it is ahead of the node's clock; infinite if unknown."""
    values = {reading.check: reading.value for reading in (answers.readings if answers else ())}
    reading = document(values.get(NAME, ""))
    least, most = number(reading, "least"), number(reading, "most")
    return (-math.inf, math.inf) if least is None or most is None else (least, most)


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Report nothing: ``consistency.clocks`` compares this clock with those of the nodes."""
    yield from ()
