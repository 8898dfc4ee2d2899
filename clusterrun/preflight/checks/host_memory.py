"""Compare the total and free memory of each node with the other nodes."""

from __future__ import annotations

import statistics

from clusterrun import proc
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
    size, free = proc.memory()
    return {"size": size, "free": free}


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of a node with less memory than most nodes, or with little free memory compared with them."""
    share = chosen(request.limits)["memory_free"]
    sizes = {node: number(reading, "size") or 0.0 for node, reading in readings.items()}
    free = {node: number(reading, "free") or 0.0 for node, reading in readings.items()}
    nodes = [node for node in readings if sizes[node] > 0]
    if not nodes:
        return
    usual = statistics.median_low(sizes[node] for node in nodes)
    usual_free = statistics.median_low(free[node] for node in nodes)
    for node in nodes:
        if len(nodes) > 2 and sizes[node] < (1 - _TOLERATED) * usual:
            message = f"{gibibytes(sizes[node])} of memory, {gibibytes(usual)} on most nodes"
            yield node, Finding(NAME, Grade.WARN, message, _MODULE)
        if free[node] < share * sizes[node] and free[node] < share * usual_free:
            message = f"{gibibytes(free[node])} of {gibibytes(sizes[node])} memory free"
            message += f", {gibibytes(usual_free)} on most nodes"
            yield node, Finding(NAME, Grade.WARN, message, _STRANGERS)
