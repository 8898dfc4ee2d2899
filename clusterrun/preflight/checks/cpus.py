"""Check the processors that ranks may use: their number, the cgroup limit, and the load of other programs."""

from __future__ import annotations

import os
import statistics

from clusterrun import proc
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.tasks import Findings, Readings, RunNeeds
from clusterrun.preflight.untrusted import number

NAME = "cpus"
LIMIT = 10.0
LATE = Finding(NAME, Grade.UNDETERMINED, "the usable processors could not be read within 10 s", "")
_REMEDY = "more --cpus-per-rank, or --srun cpu-bind=none: ranks that share a processor are slow"
_QUOTA = "look at the cgroup of the job (cpu.max, cpu.cfs_quota_us) and of slurmd above it"
_BUSY = "look at who else runs there: top, squeue --nodelist; leftovers of earlier jobs must be ended"
# A finding requires this many runnable processes per processor, this multiple of the other nodes' load, and
# this many nodes.
CROWDED, TIMES_OTHERS, FEWEST = 1.2, 3.0, 3
_CGROUPS = "/proc/self/cgroup"
_TREE = "/sys/fs/cgroup"


def probe(request: RunNeeds) -> object:
    """Return the usable processors, the cgroup limit, and the runnable processes per processor."""
    with open("/proc/loadavg", encoding="ascii") as file:
        load, _, _, running, _ = file.read().split()
    wanting = min(float(load), float(running.partition("/")[0]))
    every = os.cpu_count() or 1
    return {"usable": len(os.sched_getaffinity(0)), "quota": quota(), "load": round(wanting / every, 3)}


def quota(cgroups: str = _CGROUPS, tree: str = _TREE) -> float | None:
    """Return the processors that the cgroups of this process and their parents allow. None means all."""
    quotas = []
    with open(cgroups, encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                folder = os.path.join(tree, "cpu" if controllers else "")
                parts = path.strip("/").split("/")
                quotas += [_allowed(os.path.join(folder, *parts[:depth])) for depth in range(len(parts) + 1)]
    return min((limit for limit in quotas if limit is not None), default=None)


def _allowed(folder: str) -> float | None:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        fields = " ".join(proc.text(os.path.join(folder, name)) for name in names).split()
        if len(fields) == 2:
            # Quota and period. ``max`` or -1 is no limit.
            most, period = (int(field) if field.isdigit() else 0 for field in fields)
            return most / period if period and fields[0].isdigit() else None
    return None


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn of a node that offers its ranks fewer processors than other nodes, or is much busier."""
    usable = {node: number(reading, "usable") for node, reading in readings.items()}
    most = max((count for count in usable.values() if count), default=0.0)
    for node, count in usable.items():
        if count and count < request.ranks and count < most:
            message = f"{count:.0f} processors for {request.ranks} ranks, {most:.0f} on other nodes"
            yield node, Finding(NAME, Grade.WARN, message, _REMEDY)
    allowed: dict[str, float] = {}
    for node, reading in readings.items():
        quota_of_node = number(reading, "quota")
        allowed[node] = float("inf") if quota_of_node is None else quota_of_node
    most = max(allowed.values(), default=0.0)
    for node, count in allowed.items():
        if count < request.ranks and count < most:
            others = "all" if most == float("inf") else f"{most:g}"
            message = f"its cgroup lets the job use {count:g} processors, {others} elsewhere"
            yield node, Finding(NAME, Grade.WARN, message, _QUOTA)
    loads = {
        node: load for node, reading in readings.items() if (load := number(reading, "load")) is not None
    }
    for node, load in loads.items():
        elsewhere = [other for name, other in loads.items() if name != node]
        usual = statistics.median(elsewhere) if len(loads) >= FEWEST else load
        if load >= CROWDED and load >= TIMES_OTHERS * usual:
            message = f"{load:.1f} runnable processes per processor, {usual:.1f} on other nodes"
            yield node, Finding(NAME, Grade.WARN, message, _BUSY)
