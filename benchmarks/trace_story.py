"""Trace two stories through the machines and count their moves between files: ``-m benchmarks.trace_story``.

``exit``: one of a node's two ranks exits with code 3, the other is ended, the run's end is decided. The
story begins when the agent gets the exit, and ends when the run's last stage begins.

``pair``: seven nodes are checked, and one of them is faulty. The answer to a test of a pair ends a round of
tests, and the next round begins. The story is the round with most moves.

A move is a call from a function of one file of clusterrun to a function of another file. Making or copying
a value is no move.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterrun.agent.agent import Agent
from clusterrun.agent.events import LeftoversEnded, Told, Welcomed
from clusterrun.coordinator.actions import ReadProgress, Send
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import AgentJoined, EpochClaimed, MessageCame, Progressed
from clusterrun.model.orders import Orders
from clusterrun.model.world import Meeting, World
from clusterrun.preflight import tasks
from clusterrun.preflight.tasks import GroupTask
from clusterrun.protocol.messages import (
    Ack,
    Beat,
    Hello,
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    ReservePort,
    StartRanks,
)
from clusterrun.runtime.machine_events import Now, Tick
from tests.preflight.simulated import Cluster, Faults, orders

PACKAGE = str(Path(sys.modules[Coordinator.__module__].__file__ or "").parents[1]) + "/"
NO_MOVES = ("model/frozen.py",)
"""Files that make and copy values."""
LAST = "coordinator/shutdown.py"
WALL = 1000.0
ORDERS = Orders("r", "r", 1, 2, 0, 1, ("train",), "/")


class Trace:
    """The calls into other files, in order: file and function of both."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str, str]] = []
        self.calls = 0  # of functions of the package
        self.decided = False

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call" or frame.f_back is None or self.decided:
            return
        file, before = _file(frame), _file(frame.f_back)
        self.calls += bool(file)
        if file and before and file != before and not {file, before} & set(NO_MOVES):
            self.moves.append((before, file, frame.f_code.co_name))
            self.decided = file == LAST

    def of(self, work: Callable[[], Any]) -> Any:
        """Trace ``work`` and return its result."""
        sys.setprofile(self)
        try:
            return work()
        finally:
            sys.setprofile(None)


def _file(frame: Any) -> str:
    name = str(frame.f_code.co_filename)
    return name[len(PACKAGE) :] if name.startswith(PACKAGE) else ""


def story(trace: Trace) -> None:
    """Let a rank fail on a node with two ranks."""
    agent = Agent(0, 2)
    coordinator = Coordinator(ORDERS, "login", 42)
    for event in (Tick(), EpochClaimed(0), AgentJoined(0, Hello(0, "n0", "10.0.0.1", 1, -1))):
        coordinator.on(Now(0.0, WALL), event)
    for message in (Beat(0), PortReserved(0, 29000), RanksStarted(0)):
        coordinator.on(Now(1.0, WALL + 1.0), MessageCame(0, message))
    start = Told(StartRanks(0, World(("n0",), 2), 0, Meeting("10.0.0.1", 29000)))
    for told in (Welcomed(), Told(Ack(0, WALL)), Told(ReservePort(0)), start, RanksStarted(0)):
        agent.on(Now(1.0, WALL + 1.0), told)

    def coordinator_hears(time: float, event: Any) -> list[Any]:
        now = Now(time, WALL + time)
        coordinator.on(now, Tick())  # looks for silence, which is no part of the story
        actions: list[Any] = trace.of(lambda: coordinator.on(now, event))
        return actions

    def agent_hears(time: float, event: Any) -> list[Any]:
        actions = trace.of(lambda: agent.on(Now(time, WALL + time), event))
        messages = [action.message for action in actions if hasattr(action, "message")]
        return [action for message in messages for action in coordinator_hears(time, MessageCame(0, message))]

    agent_hears(1.5, RankExited(0, 1, 3))
    coordinator.on(Now(1.79, WALL + 1.79), Tick())
    now = Now(1.8, WALL + 1.8)
    orders = [one.message for one in trace.of(lambda: coordinator.on(now, Tick())) if isinstance(one, Send)]
    assert orders
    for order in orders:
        agent_hears(1.8, Told(order))
    agent_hears(1.9, RankExited(0, 0, -15))
    agent_hears(1.9, LeftoversEnded(0))
    requests = agent_hears(2.0, RanksGone(0))
    assert [one for one in requests if isinstance(one, ReadProgress)]
    coordinator_hears(2.0, Progressed(0))
    assert trace.decided


class PairRound(Cluster):
    """A simulated check that traces the answers to tests of pairs."""

    def __init__(self) -> None:
        super().__init__(orders(7), Faults(broken={2}))
        self.longest = Trace()
        self._is_pair = False  # the running tests are tests of pairs
        self._answered, self.machine.answered = self.machine.answered, self._traced  # type: ignore[method-assign]

    def _traced(self, now: float, node: int, number: int, body: str, wall: float | None = None) -> list[Any]:
        trace = Trace()
        asks = trace.of(lambda: self._answered(now, node, number, body, wall))
        group_tasks = [task for task in (tasks.task(ask.body) for ask in asks) if isinstance(task, GroupTask)]
        begins_round = any(task.kind == "pair" for task in group_tasks)
        if begins_round and self._is_pair and len(trace.moves) > len(self.longest.moves):
            self.longest = trace
        self._is_pair = begins_round or (self._is_pair and not group_tasks)
        return list(asks)


def main() -> int:
    """Print each move, and how many there were."""
    trace = Trace()
    story(trace)
    check = PairRound()
    check.outcome()
    for name, story_trace in (("exit", trace), ("pair", check.longest)):
        for number, (before, here, function) in enumerate(story_trace.moves, 1):
            print(f"{name} {number:4d}  {before:38s} -> {here}: {function}")
        files = {file for move in story_trace.moves for file in move[:2]}
        print(f"{name}: {len(story_trace.moves)} moves between {len(files)} files, {story_trace.calls} calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
