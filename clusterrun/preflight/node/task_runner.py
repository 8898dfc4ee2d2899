"""Run the tasks of an examiner that take time: local checks in children, and a round of dialling.

``tick`` returns whether a task is complete. ``answer`` then returns its answer.
"""

from __future__ import annotations

import json
import select
import time
from collections.abc import Callable
from functools import partial

from clusterrun.model.frozen import replace
from clusterrun.preflight import registry
from clusterrun.preflight.node.dialer import Dialer
from clusterrun.preflight.node.forked_call import ForkedCall, call
from clusterrun.preflight.node.listener import READ, Watch
from clusterrun.preflight.tasks import DialAnswer, DialTask, LocalAnswer, LocalTask, PeerTask, ProbeReading
from clusterrun.runtime.overload import explains_wait


class WatchedChild:
    """A child and its output. It is over if the child closes its output, or at its limit."""

    def __init__(self, call: ForkedCall, watch: Callable[..., None]) -> None:
        self.call = call
        self.lines: list[dict[str, object]] = []
        self.over = self.late = False
        self.doing = ""
        self.starved = 0.0  # seconds that it waited for a processor until its limit
        self.seconds = 0.0
        self._watch = watch
        watch(call.output, READ, lambda _: self._read())

    def tick(self) -> None:
        is_due = not self.over and time.monotonic() >= self.call.until
        # This process may be late itself: an answer that waits to be read was given in time.
        while is_due and not self.call.closed and select.select([self.call.output], [], [], 0)[0]:
            self._read()
        if is_due and not self.call.closed:
            self.late = True
            self.starved = self.call.seconds_without_processor()
            self.doing = self.call.kill()
            self._finish()

    def end(self) -> None:
        if not self.over:
            self.call.kill()
            self._finish()

    def _read(self) -> None:
        for line in self.call.lines():
            try:
                self.lines.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                self.lines.append({"why": "its answer is no JSON"})
        if self.call.closed:
            self._finish()

    def _finish(self) -> None:
        self.over = True
        self.seconds = time.monotonic() - self.call.began
        self.call.leave(self._watch)


class RunningChecks:
    """Run all checks of a task at the same time, each in a child within its own limit."""

    def __init__(
        self, task: LocalTask | PeerTask, run_dir: str, home: str, watch: Callable[..., None]
    ) -> None:
        needs = replace(task.needs, run_dir=run_dir, home=home)
        self._readings: list[ProbeReading] = []
        self._children: dict[str, WatchedChild] = {}
        for name in task.checks:
            check = registry.check_named(name)
            if check is None:
                self._readings.append(ProbeReading(name, "", "this node's version has no such check"))
                continue
            work = partial(map, check.probe, [needs])
            try:
                self._children[name] = WatchedChild(call(work, check.LIMIT), watch)
            except OSError as error:
                why = f"no process could be started: {error.strerror}"
                self._readings.append(ProbeReading(name, "", why))

    def due_at(self) -> float:
        return min((child.call.until for child in self._children.values() if not child.over), default=0.0)

    def tick(self) -> bool:
        for child in self._children.values():
            child.tick()
        return all(child.over for child in self._children.values())

    def hurry(self, seconds: float) -> None:
        for child in self._children.values():
            child.call.until = min(child.call.until, child.call.began + seconds)

    def answer(self) -> LocalAnswer:
        readings = [_reading(name, child) for name, child in self._children.items()]
        for child in self._children.values():
            child.call.code()  # Reaps the child if it ended.
        return LocalAnswer((*self._readings, *readings))

    def end(self) -> None:
        for child in self._children.values():
            child.end()


def _reading(name: str, child: WatchedChild) -> ProbeReading:
    seconds = child.seconds
    if child.late and explains_wait(child.starved, seconds):
        why = f"no answer within {seconds:.0f} s, of which it waited {child.starved:.0f} s for a processor"
        return ProbeReading(name, "", f"{why}: this node is overloaded")
    if child.late:
        return ProbeReading(name, "", f"killed after {seconds:.1f} s: {child.doing}", True)
    for line in child.lines:
        if "value" in line:
            return ProbeReading(name, json.dumps(line["value"]))
    whys = [str(line["why"]) for line in child.lines if "why" in line]
    return ProbeReading(name, "", whys[0] if whys else "it ended without an answer")


class RunningDial:
    """Execute one ``DialTask``."""

    def __init__(self, task: DialTask, heard: set[int], watch: Watch) -> None:
        self._heard, self._dialler = heard, Dialer(task, watch)

    def due_at(self) -> float:
        return self._dialler.due_at()

    def tick(self) -> bool:
        self._dialler.tick()
        return self._dialler.is_done

    def answer(self) -> DialAnswer:
        return DialAnswer(self._dialler.dialled(), tuple(sorted(self._heard)), time.time())
