"""The processors that ranks may use: as many as asked for, not limited by a cgroup, not used by others."""

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
CROWDED, TIMES_OTHERS, FEWEST = 1.2, 3.0, 3
"""The fewest runnable processes per processor, times those of others, and nodes, for a finding."""
_CGROUPS = "/proc/self/cgroup"
_TREE = "/sys/fs/cgroup"


def probe(request: RunNeeds) -> object:
    """Processors that this process may run on; those that its cgroups allow; the runnable processes."""
    with open("/proc/loadavg", encoding="ascii") as file:
        load, _, _, running, _ = file.read().split()
    wanting = min(float(load), float(running.partition("/")[0]))
    every = os.cpu_count() or 1
    return {"usable": len(os.sched_getaffinity(0)), "quota": quota(), "load": round(wanting / every, 3)}


def quota(cgroups: str = _CGROUPS, tree: str = _TREE) -> float | None:
    """The processors that the cgroups of this process, and those above, let it use; None: all."""
    found = []
    with open(cgroups, encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                folder = os.path.join(tree, "cpu" if controllers else "")
                parts = path.strip("/").split("/")
                found += [_allowed(os.path.join(folder, *parts[:depth])) for depth in range(len(parts) + 1)]
    return min((one for one in found if one is not None), default=None)


def _allowed(folder: str) -> float | None:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        words = " ".join(proc.text(os.path.join(folder, name)) for name in names).split()
        if len(words) == 2:  # most and period; ``max`` or -1 is no limit
            most, period = (int(word) if word.isdigit() else 0 for word in words)
            return most / period if period and words[0].isdigit() else None
    return None


def judge(request: RunNeeds, readings: Readings) -> Findings:
    """Warn where there is less for the ranks of a node while other nodes have enough."""
    usable = {node: number(reading, "usable") for node, reading in readings.items()}
    most = max((count for count in usable.values() if count), default=0.0)
    for node, count in usable.items():
        if count and count < request.ranks and count < most:
            said = f"{count:.0f} processors for {request.ranks} ranks, {most:.0f} on other nodes"
            yield node, Finding(NAME, Grade.WARN, said, _REMEDY)
    quotas = {node: number(one, "quota") for node, one in readings.items()}
    allowed = {node: float("inf") if one is None else one for node, one in quotas.items()}
    most = max(allowed.values(), default=0.0)
    for node, one in allowed.items():
        if one < request.ranks and one < most:
            others = "all" if most == float("inf") else f"{most:g}"
            said = f"its cgroup lets the job use {one:g} processors, {others} elsewhere"
            yield node, Finding(NAME, Grade.WARN, said, _QUOTA)
    loads = {node: load for node, one in readings.items() if (load := number(one, "load")) is not None}
    for node, load in loads.items():
        elsewhere = [other for name, other in loads.items() if name != node]
        usual = statistics.median(elsewhere) if len(loads) >= FEWEST else load
        if load >= CROWDED and load >= TIMES_OTHERS * usual:
            said = f"{load:.1f} runnable processes per processor, {usual:.1f} on other nodes"
            yield node, Finding(NAME, Grade.WARN, said, _BUSY)
