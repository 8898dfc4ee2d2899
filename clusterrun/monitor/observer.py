"""The observer of one node: reads requests as lines, writes answers as lines, and sleeps in between.

It is a separate process, so that a look that hangs does not stop the agent's heartbeat.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping

from clusterrun.atomic_file import write_all
from clusterrun.diagnosis.evidence import LookOptions
from clusterrun.model.document import BadDocument, decode
from clusterrun.model.frozen import Any
from clusterrun.model.orders import Orders, WatchOrders
from clusterrun.model.paths import AttemptPaths, RunPaths
from clusterrun.monitor.collector import Look, text_of
from clusterrun.monitor.gpu_reader import VISIBLE, GpuWatch, visible_to
from clusterrun.monitor.heartbeat import Digests
from clusterrun.monitor.sampling import Sampling

LEAST_PERIOD = 1.0
DIGESTS_PER_HANG = 4
_MOST_LINE = 1 << 20
_PORTION = 1 << 16
_SOURCE, _SINK = 0, 1


class Observer:
    """Samples the ranks' use of resources, reports their progress, and looks thoroughly on request."""

    def __init__(self, run_dir: str, name: str, path: str, digests: Digests, sampling: Sampling) -> None:
        self._run, self._name, self._path = RunPaths(run_dir), name, path
        self._sampling, self._parts = sampling, (digests, sampling)
        self._paths: AttemptPaths | None = None
        self._pids: dict[int, int] = {}
        self._rest = b""
        self._poll = select.poll()
        self._poll.register(_SOURCE, select.POLLIN)
        # A pidfd for each rank, readable at its end. Empty if the kernel has no pidfds.
        self._lives: set[int] = set()

    def serve(self) -> int:
        while True:
            times = [at for part in self._parts if (at := part.wakes_at()) is not None]
            pause = max(0.0, min(times) - time.monotonic()) * 1000 if times else None
            for descriptor, _ in self._poll.poll(pause):
                if descriptor != _SOURCE:
                    self._forget(descriptor)
                    for part in self._parts:
                        self._send(0, part.ended(time.monotonic()))
                elif not self._read():
                    return 0
            now = time.monotonic()
            for part in self._parts:
                wakes_at = part.wakes_at()
                if wakes_at is not None and wakes_at <= now:
                    self._send(0, part.run(now))

    def _read(self) -> bool:
        data = os.read(_SOURCE, _PORTION)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for message in map(json.loads, lines):
            number, wish = int(message["number"]), json.loads(message["body"])
            if "ranks" in wish:
                self._started(
                    int(wish["epoch"]), {int(rank): int(pid) for rank, pid in wish["ranks"].items()}
                )
            else:
                answers = self._asked(wish)
                self._send(number, answers or [json.dumps({"refused": "the observer cannot answer that"})])
        return bool(data) and len(self._rest) <= _MOST_LINE

    def _started(self, epoch: int, pids: dict[int, int]) -> None:
        for descriptor in list(self._lives):
            self._forget(descriptor)
        for pid in pids.values():
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:
                continue
            self._lives.add(descriptor)
            self._poll.register(descriptor, select.POLLIN)
        self._paths, self._pids = self._run.attempt(epoch), pids
        for part in self._parts:
            part.started(time.monotonic(), self._paths, pids)

    def _asked(self, wish: Mapping[str, Any]) -> list[str]:
        """Answer ``{"collect": {"seconds": …, "records": …}}``, or pass another request to ``Sampling``."""
        if "collect" not in wish or self._paths is None:
            return self._sampling.asked(wish)
        try:
            options = decode(LookOptions, wish["collect"])
        except BadDocument as error:
            return [json.dumps({"refused": error.seen})]
        return [text_of(Look(self._name, self._paths, self._pids, self._path).collect(options))]

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        self._lives.remove(descriptor)

    def _send(self, number: int, bodies: list[str]) -> None:
        for body in bodies:
            write_all(_SINK, json.dumps({"number": number, "body": body}).encode("ascii") + b"\n")


def main(run_dir: str, node: int, node_name: str, environment: Mapping[str, str]) -> int:
    path, watch = environment.get("PATH", ""), _watch(run_dir)
    devices = next((environment[name] for name in VISIBLE if name in environment), None)
    gpus = GpuWatch(path, visible_to(devices))
    sampling = Sampling(watch.sample_seconds, node_name, node, gpus)
    try:
        return Observer(run_dir, node_name, path, Digests(_period(watch), gpus.look), sampling).serve()
    except BrokenPipeError:  # the agent has ended, so no process reads the answers
        return 0


def _watch(run_dir: str) -> WatchOrders:
    """Return the orders' settings of the watch; the defaults if the orders cannot be read."""
    try:
        with open(RunPaths(run_dir).orders, "rb") as file:
            return decode(Orders, json.loads(file.read())).watch
    except (OSError, ValueError, BadDocument):
        return WatchOrders()


def _period(watch: WatchOrders) -> float:
    """Return the seconds between two digests. Several must fit into ``hang_seconds``."""
    if not watch.hang_seconds:
        return watch.sample_seconds
    return min(watch.sample_seconds, max(LEAST_PERIOD, watch.hang_seconds / DIGESTS_PER_HANG))
