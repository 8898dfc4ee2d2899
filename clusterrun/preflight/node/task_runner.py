"""Tasks of an examiner that take time: local checks in children, a round of dialling; judges nothing.

Of each ``tick`` tells whether it is over, and ``answer`` is then its answer.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from clusterrun.model.frozen import replace
from clusterrun.preflight import registry
from clusterrun.preflight.node.dialer import Dialer
from clusterrun.preflight.node.forked_call import ForkedCall, call
from clusterrun.preflight.node.listener import READ, Watch
from clusterrun.preflight.tasks import DialAnswer, DialTask, LocalAnswer, LocalTask, ProbeReading

# A check that waited for a processor for so much of its limit says nothing about what it looked at.
STARVED_SHARE = 0.25
_RUNS = "(R"
"""As a child's state is told: it had work to do, and waited for a processor at most."""


class WatchedChild:
    """A child whose output is read as it comes; over when it has closed it, or at its limit."""

    def __init__(self, child: ForkedCall, watch: Callable[..., None]) -> None:
        self.child = child
        self.lines: list[dict[str, object]] = []
        self.over = self.late = False
        self.doing = ""
        self.starved = 0.0  # seconds that it waited for a processor until its limit
        self.seconds = 0.0
        self._watch = watch
        watch(child.output, READ, lambda _: self._read())

    def tick(self) -> None:
        if not self.over and time.monotonic() >= self.child.until:
            self.late = True
            self.starved = self.child.seconds_without_processor()
            self.doing = self.child.kill()
            self._finish()

    def end(self) -> None:
        if not self.over:
            self.child.kill()
            self._finish()

    def _read(self) -> None:
        for line in self.child.lines():
            try:
                self.lines.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                self.lines.append({"why": "its answer is no JSON"})
        if self.child.closed:
            self._finish()

    def _finish(self) -> None:
        self.over = True
        self.seconds = time.monotonic() - self.child.began
        self.child.leave(self._watch)


class RunningChecks:
    """All checks of a ``LocalTask`` at once, each in a child within its own limit."""

    def __init__(self, task: LocalTask, run_dir: str, home: str, watch: Callable[..., None]) -> None:
        self._asked = replace(task.asked, run_dir=run_dir, home=home)
        self._readings: list[ProbeReading] = []
        self._children: dict[str, WatchedChild] = {}
        for name in task.checks:
            check = registry.check_named(name)
            if check is None:
                self._readings.append(ProbeReading(name, "", 0.0, "this node's version has no such check"))
                continue
            work = partial(map, check.probe, [self._asked])
            try:
                self._children[name] = WatchedChild(call(work, check.LIMIT), watch)
            except OSError as error:
                why = f"no process could be made: {error.strerror}"
                self._readings.append(ProbeReading(name, "", 0.0, why))

    def due_at(self) -> float:
        return min((one.child.until for one in self._children.values() if not one.over), default=0.0)

    def tick(self) -> bool:
        for one in self._children.values():
            one.tick()
        return all(one.over for one in self._children.values())

    def hurry(self, seconds: float) -> None:
        for one in self._children.values():
            one.child.until = min(one.child.until, one.child.began + seconds)

    def answer(self) -> LocalAnswer:
        own = [_reading(name, one) for name, one in self._children.items()]
        for one in self._children.values():
            one.child.code()  # takes the ended child, if it has ended
        return LocalAnswer((*self._readings, *own))

    def end(self) -> None:
        for one in self._children.values():
            one.end()


def _reading(name: str, one: WatchedChild) -> ProbeReading:
    seconds = round(one.seconds, 3)
    if one.late and one.starved >= STARVED_SHARE * seconds:
        why = f"no answer within {seconds:.0f} s, of which it waited {one.starved:.0f} s for a processor"
        return ProbeReading(name, "", seconds, f"{why}: this node is overloaded")
    if one.late:
        return ProbeReading(name, "", seconds, f"killed after {seconds:.1f} s: {one.doing}", True)
    for line in one.lines:
        if "value" in line:
            return ProbeReading(name, json.dumps(line["value"]), seconds)
    whys = [str(line["why"]) for line in one.lines if "why" in line]
    return ProbeReading(name, "", seconds, whys[0] if whys else "it ended without an answer")


class RunningDial:
    """One ``DialTask``: names are resolved in a child, for a resolver may hang longer than any limit."""

    def __init__(self, task: DialTask, heard: set[int], watch: Watch) -> None:
        self._heard, self._limit = heard, task.limit
        self._dialler = Dialer(task, watch)
        self._names: list[WatchedChild] = []
        names = task.names
        if names:
            with suppress(OSError):  # the checks say that no process can be made
                self._names.append(WatchedChild(call(lambda: map(_resolved, names), task.limit), watch))

    def due_at(self) -> float:
        return self._dialler.due_at()

    def tick(self) -> bool:
        self._dialler.tick()
        for one in self._names:
            one.tick()
        return self._dialler.done and all(one.over for one in self._names)

    def answer(self) -> DialAnswer:
        lines = [line for one in self._names for line in one.lines]
        found = [value for line in lines if isinstance(value := line.get("value"), list)]
        resolved = tuple((str(name), str(addresses)) for name, addresses, _ in found)
        taken = [float(seconds) for *_, seconds in found]
        for one in self._names:
            one.child.code()
            if one.late and _RUNS not in one.doing:  # else the node had no time for it
                taken.append(self._limit - sum(taken))
        mean = round(sum(taken) / max(1, len(taken)), 3)
        return DialAnswer(resolved, self._dialler.dialled(), tuple(sorted(self._heard)), time.time(), mean)

    def end(self) -> None:
        for one in self._names:
            one.end()


def _resolved(name: str) -> tuple[str, str, float]:
    """A name, its addresses (separated by spaces; none where it cannot be resolved), and the seconds."""
    began = time.monotonic()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return name, " ".join(addresses), round(time.monotonic() - began, 3)
