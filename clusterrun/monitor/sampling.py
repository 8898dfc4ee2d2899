"""Samples what this node's ranks use, every few seconds, and often while somebody watches; judges nothing.

Each sample is one line of JSON in a file of this node. After the first hour a line stands for a
minute, so that a month of training does not fill a disk. While somebody looks (``top``), the
newest sample stands in a second, small file as well.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from clusterrun.atomic_file import write_whole
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any, replace
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.usage import UNKNOWN, NodeUse, UsageMean, merged
from clusterrun.monitor import counters
from clusterrun.monitor.gpu_reader import GpuWatch

FIRST_SECONDS = 2.0
"""After the start of the ranks: a short run is to be seen as well."""
FINE_SECONDS = 3600.0
COARSE_SECONDS = 60.0
LEAST_EVERY = 0.5
MOST_WATCHED_SECONDS = 600.0


class Sampling:
    """A part of the observer; ``period`` is in seconds, ``name`` the node's, ``place`` its number."""

    def __init__(self, period: float, name: str, place: int, gpus: GpuWatch) -> None:
        self._period, self._name, self._place, self._gpus = period, name, place, gpus
        self._paths: AttemptPaths | None = None
        self._pids: Mapping[int, int] = {}
        self._before: counters.Counted | None = None
        self._began = 0.0
        self._at: float | None = None
        self._light_at = 0.0
        self._waiting: list[NodeUse] = []
        self._sums = Sums()
        self._every = period
        self._watched_until = 0.0

    def started(self, now: float, paths: AttemptPaths, pids: Mapping[int, int]) -> None:
        self._paths, self._pids, self._began = paths, pids, now
        self._before, self._waiting, self._sums = counters.count(now, pids), [], Sums()
        self._at = self._light_at = now + min(FIRST_SECONDS, self._period)

    def wakes_at(self) -> float | None:
        return self._at

    def run(self, now: float) -> list[str]:
        if self._paths is None or self._before is None:
            return []
        watched = now < self._watched_until
        use = self._sums.with_whole(self._sample(now))
        if watched:
            with suppress(OSError):  # a disk that is full loses the sample, not the run
                write_whole(self._paths.now(self._place), _line(use), sync=False)
        self._waiting.append(use)
        if now >= self._light_at:
            self._keep(now)
            self._light_at = now + self._period
        self._at = min(self._light_at, now + self._every) if watched else self._light_at
        return []

    def ended(self, now: float) -> list[str]:
        """A rank has ended: what it used since the last sample counts too."""
        if self._before is not None and now - self._before.at > LEAST_EVERY:
            self.run(now)
        self._keep(now, last=True)
        return []

    def asked(self, wish: Mapping[str, Any]) -> list[str]:
        """``{"sample": {"every": seconds, "seconds": for how long}}``: somebody looks."""
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

    def _sample(self, now: float) -> NodeUse:
        after = counters.count(now, self._pids)
        before, self._before = self._before or after, after
        seconds = max(after.at - before.at, 1e-3)
        taken, total = counters.memory()
        return NodeUse(
            node=self._name,
            at=round(time.time(), 2),
            seconds=round(seconds, 2),
            cores=round((after.busy - before.busy) / seconds, 2),
            cores_total=os.cpu_count() or 1,
            memory=taken,
            memory_total=total,
            received=round(max(0, after.received - before.received) / seconds),
            sent=round(max(0, after.sent - before.sent) / seconds),
            ranks=counters.ranks_between(before, after),
            gpus=self._gpus.look(),
            gpus_said=self._gpus.said,
        )

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
    """Means and peaks since the start, from one sample to the next."""

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
        self._add_gpus(use)
        mean = self._busy / self._known if self._known else UNKNOWN
        whole = UsageMean(
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
        return replace(use, whole=whole)

    def _add_gpus(self, use: NodeUse) -> None:
        known = [gpu for gpu in use.gpus if gpu.busy >= 0]
        if known:
            busy = sum(gpu.busy for gpu in known) / len(known)
            self._known += use.seconds
            self._busy += use.seconds * busy
            self._peak("busy", busy)
        for gpu in known:
            self._used[gpu.index] = self._used.get(gpu.index, False) or gpu.busy > 0
        for gpu in use.gpus:
            if gpu.memory_total > 0:
                self._peak("gpu_memory", gpu.memory / gpu.memory_total)
            if gpu.watts >= 0:
                self._joules, self._drawn = self._joules + use.seconds * gpu.watts, True

    def _peak(self, name: str, value: float) -> None:
        self._most[name] = max(self._most[name], value)


def _line(use: NodeUse) -> bytes:
    return json.dumps(encode(use), separators=(",", ":")).encode() + b"\n"
