"""Short tapes for the two machines: events in, actions out, with clocks that a test sets; runs nothing."""

from __future__ import annotations

from typing import Any

from clusterrun.agent.actions import RenewLease, Tell
from clusterrun.agent.agent import Agent
from clusterrun.agent.events import Told, Welcomed
from clusterrun.coordinator.actions import ClaimEpoch, ReadProgress, SaveState, Send
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import AgentJoined, EpochClaimed, MessageCame, Progressed
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders
from clusterrun.model.record import RunState
from clusterrun.model.world import Meeting, World
from clusterrun.protocol.messages import (
    Ack,
    Beat,
    Farewell,
    Hello,
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    StartRanks,
    StopRanks,
)
from clusterrun.runtime.machine_events import Note, Now, Tick

WALL = 1000.0
ORDERS = Orders(
    run_id="r",
    run_name="r",
    nodes=2,
    ranks_per_node=2,
    gpus_per_node=0,
    cpus_per_rank=1,
    command=("train",),
    cwd="/",
    kill_wait=12.0,
)
WORLD = World(("n0", "n1"), 2)
MEETING = Meeting("10.0.0.1", 29000)


class Tape:
    """A machine and the time that it is shown; ``wall`` is ``WALL`` later than ``steady``.

    Questions how far ranks have come are answered at once, with ``reported``.
    """

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.saved: RunState | None = None
        self.reported: tuple[Any, ...] = (-1, -1)

    def at(self, time: float, *events: Any) -> list[Any]:
        """Return the actions at ``time`` for these events, or for the passing of time."""
        out: list[Any] = []
        for event in events or (Tick(),):
            out += self._on(time, event)
        for action in out:
            if isinstance(action, SaveState):
                self.saved = action.state
        return out

    def _on(self, time: float, event: Any) -> list[Any]:
        out = self.machine.on(Now(time, WALL + time), event)
        requested = [action for action in out if isinstance(action, ReadProgress)]
        out = [action for action in out if action not in requested]
        for action in requested:
            out += self._on(time, Progressed(action.epoch, *self.reported))
        return out

    def does(self, time: float, *events: Any) -> list[Any]:
        """Return the actions as ``at`` does, without notes, states and lease renewals."""
        return [
            action
            for action in self.at(time, *events)
            if not isinstance(action, (Note, SaveState, RenewLease))
        ]

    def state(self, time: float, *events: Any) -> RunState:
        """Return the state that is known at ``time``."""
        self.at(time, *events)
        assert self.saved is not None
        return self.saved


def start(epoch: int = 0) -> Told:
    """Return the order to start as node 0 gets it."""
    return Told(StartRanks(epoch, WORLD, 0, MEETING))


def agent(processes: int = 2, acknowledged: bool = True) -> Tape:
    """Return an agent of node 0 that was welcomed at 0 s; ``acknowledged``: its first heartbeat too."""
    tape = Tape(Agent(0, processes))
    tape.at(0.0, Welcomed())
    if acknowledged:
        tape.at(0.0, Told(Ack(0, WALL)))
    return tape


def hello(node: int, pid: int = 1, epoch: int = -1) -> Hello:
    """Return the first message of the agent of ``node``."""
    return Hello(node, f"n{node}", f"10.0.0.{node + 1}", pid, epoch)


def coordinator(**changes: Any) -> Tape:
    """Return a coordinator that waits for its agents at 0 s."""
    tape = Tape(Coordinator(replace(ORDERS, **changes), "login", 42))
    assert [a for a in tape.does(0.0) if isinstance(a, ClaimEpoch)] == [ClaimEpoch()]
    tape.at(0.0, EpochClaimed(0))
    return tape


def join(tape: Tape, time: float, nodes: int = 2) -> list[Any]:
    """Let agents of all nodes join (link number = node number) and send one heartbeat."""
    out: list[Any] = []
    for node in range(nodes):
        out += tape.does(time, AgentJoined(node, hello(node)), MessageCame(node, Beat(0)))
    return [action for action in out if not (isinstance(action, Send) and isinstance(action.message, Ack))]


def train(tape: Tape, time: float, epoch: int = 0, nodes: int = 2) -> None:
    """Play from all joined to all ranks running."""
    tape.at(time, MessageCame(0, PortReserved(epoch, 29000 + epoch)))
    for node in range(nodes):
        tape.at(time, MessageCame(node, RanksStarted(epoch)))


def training(**changes: Any) -> Tape:
    """Return a coordinator whose two nodes train since 1 s."""
    tape = coordinator(**changes)
    join(tape, 1.0)
    train(tape, 1.0)
    return tape


def told(actions: list[Any]) -> list[Any]:
    """Return the messages of an agent to the coordinator."""
    return [action.message for action in actions if isinstance(action, Tell)]


def sent(actions: list[Any]) -> list[tuple[int, Any]]:
    """Return the messages of a coordinator, each with its link."""
    return [(action.link, action.message) for action in actions if isinstance(action, Send)]


STOP = [(0, StopRanks(0, 8.0)), (1, StopRanks(0, 8.0))]
"""After a failure."""
END = [(0, StopRanks(0, 12.0)), (1, StopRanks(0, 12.0))]
"""When the run is ended from outside."""
FAREWELL = [(0, Farewell()), (1, Farewell())]


def failed(rank: int, at: float, code: int = 3, **more: Any) -> MessageCame:
    """Return the message that a rank failed at ``at`` seconds."""
    return MessageCame(rank // 2, RankExited(0, rank, code, WALL + at, **more))


def all_gone(tape: Tape, time: float, epoch: int = 0, **stuck: Any) -> list[Any]:
    """Let both nodes report that nothing is left."""
    return tape.at(time, MessageCame(0, RanksGone(epoch, **stuck)), MessageCame(1, RanksGone(epoch)))


def ending(actions: list[Any]) -> RunState:
    """Return the state that is saved last."""
    return next(action.state for action in reversed(actions) if hasattr(action, "state"))


def stopped(*events: Any, max_restarts: int = 0) -> Tape:
    """Train, play ``events`` at 5 s, and return the tape after the stop that follows."""
    tape = training(max_restarts=max_restarts)
    tape.at(5.0, *events)
    tape.at(5.3)
    return tape
