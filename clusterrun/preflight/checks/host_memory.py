"""The node's memory: how much there is and how much is free, against the other nodes."""

from __future__ import annotations

import statistics

from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.model.size import gibibytes
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number

NAME = "host-memory"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "/proc/meminfo could not be read within 10 s", "")
_TOLERATED = 0.05
_MODULE = "a memory module may have failed: dmidecode -t memory"
_STRANGERS = "somebody else's processes? ps aux --sort -rss on the node"


def probe(request: RunNeeds) -> object:
    with open("/proc/meminfo", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    size, free = (int(lines[word].split()[0]) << 10 for word in ("MemTotal", "MemAvailable"))
    return {"size": size, "free": free}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of a node with less memory than most, or with little of it free while others have it free."""
    share = chosen(request.limits)["memory_free"]
    sizes = {node: number(reading, "size") or 0.0 for node, reading in readings.items()}
    free = {node: number(reading, "free") or 0.0 for node, reading in readings.items()}
    known = [node for node in readings if sizes[node] > 0]
    if not known:
        return
    usual = statistics.median_low(sizes[node] for node in known)
    usual_free = statistics.median_low(free[node] for node in known)
    for node in known:
        if len(known) > 2 and sizes[node] < (1 - _TOLERATED) * usual:
            said = f"{gibibytes(sizes[node])} of memory, {gibibytes(usual)} on most nodes"
            yield node, Finding(NAME, Grade.WARN, said, _MODULE)
        if free[node] < share * sizes[node] and free[node] < share * usual_free:
            said = f"{gibibytes(free[node])} of {gibibytes(sizes[node])} memory free"
            said += f", {gibibytes(usual_free)} on most nodes"
            yield node, Finding(NAME, Grade.WARN, said, _STRANGERS)
