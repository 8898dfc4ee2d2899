"""Sample the resource use of this node's ranks every few seconds, and more often during ``top``.

Each sample is one line of JSON in a file of this node. After the first hour a line covers a minute, so that a
month of training does not fill a disk. During ``top`` the newest sample is also in a second, small file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from clusterrun import proc
from clusterrun.atomic_file import write_whole
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any, frozen, replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.usage import UNKNOWN, NodeUse, RankUse, UsageMean, merged
from clusterrun.monitor.gpu_reader import GpuWatch

# Seconds after the start of the ranks. This early sample covers short runs.
FIRST_SECONDS = 2.0
FINE_SECONDS = 3600.0
COARSE_SECONDS = 60.0
LEAST_EVERY = 0.5
MOST_WATCHED_SECONDS = 600.0
PAGE = os.sysconf("SC_PAGE_SIZE")
INFINIBAND = "/sys/class/infiniband"
# InfiniBand counts data in words of four bytes.
WORD = 4


@frozen
class Counted:
    """Counters of the node and its ranks at one moment."""

    at: float  # steady clock, seconds
    busy: float  # processor seconds of all cores
    received: int  # bytes
    sent: int  # bytes
    # For each rank: its number, processor seconds of its process tree, bytes of memory.
    ranks: tuple[tuple[int, float, int], ...]


def count(now: float, pids: Mapping[int, int]) -> Counted:
    """Read all counters. ``pids`` are by rank. A rank that has ended is left out."""
    cells = proc.content("/proc/stat").partition(b"\n")[0].split()[1:9]
    ticks = [int(cell) for cell in cells]
    busy = (sum(ticks) - sum(ticks[3:5])) / proc.TICKS  # without idling, and waiting for a disk
    # The bytes of all networks except the loopback.
    received = sent = 0
    for line in proc.content("/proc/net/dev").split(b"\n")[2:]:
        name, _, rest = line.partition(b":")
        cells = rest.split()
        if len(cells) > 8 and name.strip() != b"lo":
            received, sent = received + int(cells[0]), sent + int(cells[8])
    for device in proc.listed(INFINIBAND):
        for port in proc.listed(f"{INFINIBAND}/{device}/ports"):
            received += WORD * _number(f"{INFINIBAND}/{device}/ports/{port}/counters/port_rcv_data")
            sent += WORD * _number(f"{INFINIBAND}/{device}/ports/{port}/counters/port_xmit_data")
    ranks = tuple((rank, *used) for rank, pid in pids.items() if (used := _process(pid)))
    return Counted(now, busy, received, sent, ranks)


def ranks_between(before: Counted, after: Counted) -> tuple[RankUse, ...]:
    seconds = max(after.at - before.at, 1e-3)
    earlier = {rank: used for rank, used, _ in before.ranks}
    return tuple(
        RankUse(rank, round(max(0.0, used - earlier.get(rank, used)) / seconds, 3), memory)
        for rank, used, memory in after.ranks
    )


def use_between(node: str, before: Counted, after: Counted, gpus: GpuWatch) -> NodeUse:
    """Return how the node and its ranks used the machine between two counts."""
    seconds = max(after.at - before.at, 1e-3)
    total, available = proc.memory()
    return NodeUse(
        node=node,
        at=round(time.time(), 2),
        seconds=round(seconds, 2),
        cores=round((after.busy - before.busy) / seconds, 2),
        cores_total=os.cpu_count() or 1,
        memory=total - available,
        memory_total=total,
        received=round(max(0, after.received - before.received) / seconds),
        sent=round(max(0, after.sent - before.sent) / seconds),
        ranks=ranks_between(before, after),
        gpus=gpus.look(),
        gpus_reason=gpus.reason,
    )


def _number(path: str) -> int:
    text = proc.content(path).strip()
    return int(text) if text.isdigit() else 0


def _process(pid: int) -> tuple[float, int] | None:
    """Return the processor seconds and the bytes of memory of a process and its descendants."""
    process = proc.find_alive(pid)
    if process is None:
        return None
    seconds, resident = process.seconds, _memory(pid, shared=True)
    for child in proc.below(pid):
        moment = proc.find_alive(child)
        if moment is not None:
            seconds += moment.seconds
            # Memory that workers share with the rank counts once.
            resident += _memory(child, shared=False)
    return seconds, resident


def _memory(pid: int, shared: bool) -> int:
    cells = proc.content(f"/proc/{pid}/statm").split()
    if len(cells) < 3:
        return 0
    return (int(cells[1]) - (0 if shared else int(cells[2]))) * PAGE


class Sampling:
    """The part of the observer that samples.

    ``period`` is in seconds, ``name`` is the node's name, ``place`` its number in the allocation.
    """

    def __init__(self, period: float, name: str, place: int, gpus: GpuWatch) -> None:
        self._period, self._name, self._place, self._gpus = period, name, place, gpus
        self._paths: AttemptPaths | None = None
        self._pids: Mapping[int, int] = {}
        self._before: Counted | None = None
        self._began = 0.0
        self._at: float | None = None
        self._light_at = 0.0
        self._waiting: list[NodeUse] = []
        self._sums = Sums()
        self._every = period
        self._watched_until = 0.0

    def started(self, now: float, paths: AttemptPaths, pids: Mapping[int, int]) -> None:
        self._paths, self._pids, self._began = paths, pids, now
        self._before, self._waiting, self._sums = count(now, pids), [], Sums()
        self._at = self._light_at = now + min(FIRST_SECONDS, self._period)

    def wakes_at(self) -> float | None:
        return self._at

    def run(self, now: float) -> list[str]:
        if self._paths is None or self._before is None:
            return []
        watched = now < self._watched_until
        after = count(now, self._pids)
        before, self._before = self._before or after, after
        use = self._sums.with_whole(use_between(self._name, before, after, self._gpus))
        if watched:
            with suppress(OSError):  # a full disk loses the sample, not the run
                write_whole(self._paths.now(self._place), _line(use), sync=False)
        self._waiting.append(use)
        if now >= self._light_at:
            self._keep(now)
            self._light_at = now + self._period
        self._at = min(self._light_at, now + self._every) if watched else self._light_at
        return []

    def ended(self, now: float) -> list[str]:
        """Take a last sample after the end of a rank, for its use since the sample before."""
        if self._before is not None and now - self._before.at > LEAST_EVERY:
            self.run(now)
        self._keep(now, last=True)
        return []

    def asked(self, wish: Mapping[str, Any]) -> list[str]:
        """Sample more often for a while on the request ``{"sample": {"every": …, "seconds": …}}``."""
        if "sample" not in wish or self._at is None:
            return []
        try:
            every, seconds = float(wish["sample"]["every"]), float(wish["sample"]["seconds"])
        except (KeyError, TypeError, ValueError):
            return []
        now = time.monotonic()
        self._every = max(LEAST_EVERY, every)
        self._watched_until = now + min(seconds, MOST_WATCHED_SECONDS)
        self._at = min(self._at, now + LEAST_EVERY)
        return [json.dumps({"sampling": True})]

    def _keep(self, now: float, last: bool = False) -> None:
        if not self._waiting or self._paths is None:
            return
        use = merged(self._waiting)
        coarse = now - self._began > FINE_SECONDS
        if coarse and not last and use.seconds < COARSE_SECONDS - self._period / 2:
            return
        self._waiting = []
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            suppress(OSError),
            open(os.open(self._paths.samples(self._place), flags, 0o600), "wb", 0) as file,
        ):
            file.write(_line(use))


class Sums:
    """Means and peaks since the start, updated with each sample."""

    def __init__(self) -> None:
        self._seconds = self._cores = self._known = self._busy = self._joules = 0.0
        self._most = {"cores": UNKNOWN, "memory": UNKNOWN, "busy": UNKNOWN, "gpu_memory": UNKNOWN}
        self._used: dict[int, bool] = {}
        self._drawn = False

    def with_whole(self, use: NodeUse) -> NodeUse:
        self._seconds += use.seconds
        cores = sum(rank.cores for rank in use.ranks)
        self._cores += use.seconds * cores
        if use.ranks:
            self._peak("cores", cores)
            self._peak("memory", sum(rank.memory for rank in use.ranks))
        measured = [gpu for gpu in use.gpus if gpu.busy >= 0]
        if measured:
            busy = sum(gpu.busy for gpu in measured) / len(measured)
            self._known += use.seconds
            self._busy += use.seconds * busy
            self._peak("busy", busy)
        for gpu in measured:
            self._used[gpu.index] = self._used.get(gpu.index, False) or gpu.busy > 0
        for gpu in use.gpus:
            if gpu.memory_total > 0:
                self._peak("gpu_memory", gpu.memory / gpu.memory_total)
            if gpu.watts >= 0:
                self._joules, self._drawn = self._joules + use.seconds * gpu.watts, True
        mean = self._busy / self._known if self._known else UNKNOWN
        whole_usage = UsageMean(
            round(self._seconds, 1),
            round(self._cores / self._seconds, 2) if self._seconds else 0.0,
            round(mean, 1),
            round(self._most["cores"], 2),
            self._most["memory"],
            round(self._most["busy"], 1),
            round(self._most["gpu_memory"], 4),
            len(self._used),
            sum(not used for used in self._used.values()) if self._used else -1,
            round(self._joules) if self._drawn else UNKNOWN,
        )
        return replace(use, whole=whole_usage)

    def _peak(self, name: str, value: float) -> None:
        self._most[name] = max(self._most[name], value)


def _line(use: NodeUse) -> bytes:
    return json.dumps(encode(use), separators=(",", ":")).encode() + b"\n"
