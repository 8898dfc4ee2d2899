"""Read the clock of Slurm's controller: a third one, which shows which clock of two nodes is wrong."""

from __future__ import annotations

import re
import time

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes.run_program import answer, document
from clusterrun.preflight.tasks import Findings, ProbeReading, Readings, RunNeeds
from clusterrun.preflight.thresholds import DIAL_SECONDS
from clusterrun.preflight.untrusted import number

NAME = "controller-clock"
BETWEEN_NODES = True
LIMIT = DIAL_SECONDS + 1.0
LATE = Finding(NAME, Grade.PASS, f"scontrol did not answer within {LIMIT:g} s")


def probe(request: RunNeeds) -> object:
    """Return the controller's time, and this node's before and after. Only the first of two nodes asks."""
    if [peer.node for peer in request.peers] != [0, 1]:
        return {}
    asked_at = time.time()
    scontrol = ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "show", "config")
    match = re.search(r"data as of (\d+)", answer(*scontrol, seconds=DIAL_SECONDS).out)
    if not match:
        return {}
    # Slurm rounds down to whole seconds.
    return {"at": int(match[1]) + 0.5, "from": asked_at - 0.5, "to": time.time() + 0.5}


def times(reading: ProbeReading) -> tuple[float, float, float] | None:
    """Return the controller's time, and the node's before and after; None if they are unknown."""
    value = document(reading.value)
    at, asked_at, answered_at = (number(value, name) for name in ("at", "from", "to"))
    if at is None or asked_at is None or answered_at is None:
        return None
    return at, asked_at, answered_at


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Report nothing: ``consistency.clocks`` compares this clock with those of the nodes."""
    yield from ()
