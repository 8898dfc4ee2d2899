"""The observer of one node: takes questions as lines, answers in lines, and sleeps in between.

It is a process of its own: whatever hangs while it looks, the agent's heartbeat does not. It knows
its parts only as things that want to be woken and that may answer a wish.
"""

from __future__ import annotations

import json
import os
import select
import time

from clusterrun.atomic_file import write_all
from clusterrun.diagnosis.evidence import LookOptions
from clusterrun.model.document import BadDocument, decode
from clusterrun.model.orders import Orders, WatchOrders
from clusterrun.model.paths import RunPaths
from clusterrun.monitor.collector import Look, text_of
from clusterrun.monitor.gpu_reader import VISIBLE, GpuWatch, visible_to
from clusterrun.monitor.heartbeat import Digests
from clusterrun.monitor.sampling import Sampling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Protocol

    from clusterrun.model.paths import AttemptPaths

    class Part(Protocol):
        """One thing that the observer does."""

        def started(self, now: float, paths: AttemptPaths, pids: Mapping[int, int]) -> None:
            """New ranks run; ``pids`` are by rank."""

        def wakes_at(self) -> float | None:
            """When ``run`` is wanted (steady clock)."""

        def run(self, now: float) -> list[str]:
            """What is due: bodies to send unasked."""

        def ended(self, now: float) -> list[str]:
            """A rank has just ended: bodies to send unasked."""

        def asked(self, number: int, wish: Mapping[str, Any]) -> list[str]:
            """A question: the answers, where it is for this part."""


LEAST_PERIOD = 1.0
DIGESTS_PER_HANG = 4
_MOST_LINE = 1 << 20
_PORTION = 1 << 16


class Collecting:
    """A part of the observer: looks thoroughly when asked."""

    def __init__(self, node: str, path: str) -> None:
        self._node, self._path = node, path
        self._paths: AttemptPaths | None = None
        self._pids: Mapping[int, int] = {}

    def started(self, now: float, paths: AttemptPaths, pids: Mapping[int, int]) -> None:
        self._paths, self._pids = paths, pids

    def wakes_at(self) -> float | None:
        return None

    def run(self, now: float) -> list[str]:
        return []

    def ended(self, now: float) -> list[str]:
        return []

    def asked(self, number: int, wish: Mapping[str, Any]) -> list[str]:
        """``{"collect": {"seconds": …, "records": …}}``."""
        if "collect" not in wish or self._paths is None:
            return []
        wanted = decode(LookOptions, wish["collect"])
        return [text_of(Look(self._node, self._paths, self._pids, self._path).collect(wanted))]


class Observer:
    """The loop over the parts; ``source`` and ``sink`` are descriptors."""

    def __init__(self, run_dir: str, parts: list[Part], source: int, sink: int) -> None:
        self._paths = RunPaths(run_dir)
        self._parts = parts
        self._source, self._sink = source, sink
        self._rest = b""
        self._poll = select.poll()
        self._poll.register(source, select.POLLIN)
        self._lives: dict[int, int] = {}

    def serve(self) -> int:
        """Until the other end closes."""
        while True:
            for descriptor, _ in self._poll.poll(self._pause()):
                if descriptor != self._source:
                    self._ended(descriptor)
                elif not self._read():
                    return 0
            now = time.monotonic()
            for part in self._parts:
                wakes_at = part.wakes_at()
                if wakes_at is not None and wakes_at <= now:
                    self._send(0, part.run(now))

    def _pause(self) -> float | None:
        times = [at for at in (part.wakes_at() for part in self._parts) if at is not None]
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def _read(self) -> bool:
        data = os.read(self._source, _PORTION)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line)
        return bool(data) and len(self._rest) <= _MOST_LINE

    def _line(self, line: bytes) -> None:
        message = json.loads(line)
        number, wish = int(message["number"]), json.loads(message["body"])
        if "ranks" in wish:
            self._started(int(wish["epoch"]), {int(rank): int(pid) for rank, pid in wish["ranks"].items()})
            return
        answers = [body for part in self._parts for body in _asked(part, number, wish)]
        self._send(number, answers or [json.dumps({"refused": "nobody here can answer that"})])

    def _started(self, epoch: int, pids: dict[int, int]) -> None:
        for descriptor in list(self._lives):
            self._forget(descriptor)
        for pid in pids.values():
            self._follow(pid)
        for part in self._parts:
            part.started(time.monotonic(), self._paths.attempt(epoch), pids)

    def _follow(self, pid: int) -> None:
        """Have the end of a rank wake us, where the kernel can."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return
        self._lives[descriptor] = pid
        self._poll.register(descriptor, select.POLLIN)

    def _forget(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)
        del self._lives[descriptor]

    def _ended(self, descriptor: int) -> None:
        self._forget(descriptor)
        for part in self._parts:
            self._send(0, part.ended(time.monotonic()))

    def _send(self, number: int, bodies: list[str]) -> None:
        for body in bodies:
            write_all(self._sink, json.dumps({"number": number, "body": body}).encode("ascii") + b"\n")


def _asked(part: Part, number: int, wish: Mapping[str, Any]) -> list[str]:
    try:
        return part.asked(number, wish)
    except BadDocument as error:
        return [json.dumps({"refused": error.seen})]


def main(run_dir: str, node: int, node_name: str, environment: Mapping[str, str]) -> int:
    """Observe node number ``node`` until stdin ends."""
    path, watch = environment.get("PATH", ""), _watch(run_dir)
    given = next((environment[name] for name in VISIBLE if name in environment), None)
    gpus = GpuWatch(path, visible_to(given))
    parts: list[Part] = [
        Digests(_period(watch)),
        Sampling(watch.sample_seconds, node_name, node, gpus),
        Collecting(node_name, path),
    ]
    try:
        return Observer(run_dir, parts, 0, 1).serve()
    except BrokenPipeError:  # the agent is gone, and with it whoever would listen
        return 0


def _watch(run_dir: str) -> WatchOrders:
    """How the ranks are to be watched; as usual where the orders cannot be read."""
    try:
        with open(RunPaths(run_dir).orders, "rb") as file:
            return decode(Orders, json.loads(file.read())).watch
    except (OSError, ValueError, BadDocument):
        return WatchOrders()


def _period(watch: WatchOrders) -> float:
    """Seconds between two digests: a hang is to be told from a pause."""
    if not watch.hang_seconds:
        return watch.sample_seconds
    return min(watch.sample_seconds, max(LEAST_PERIOD, watch.hang_seconds / DIGESTS_PER_HANG))
