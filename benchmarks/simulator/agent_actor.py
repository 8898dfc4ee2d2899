"""An agent process with its shim: carries out what an agent's machine orders."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from clusterrun.agent import actions
from clusterrun.agent.events import LeftoversEnded
from clusterrun.model import contract
from clusterrun.protocol import messages
from clusterrun.runtime import machine_events

from .actors import Actor
from .kernel import Companion, Node, Process, Shim
from .network import DOWN, UP, Link

if TYPE_CHECKING:
    from .coordinator_actor import CoordinatorActor
    from .world import World


class AgentActor(Actor):
    """An agent process with its shim."""

    def __init__(self, world: World, coordinator: CoordinatorActor, index: int, node: Node, pid: int) -> None:
        machine = world.make_agent(index)
        super().__init__(world, f"agent{coordinator.number}.{index}.{pid}", node, machine)
        self.coordinator = coordinator
        self.launch = coordinator.launches
        self.index = index
        self.pid = pid
        self.link: Link | None = None
        self.welcomed = False
        self.shim = Shim(self)
        self.told: list[Any] = []
        self.termed_at: float | None = None
        self.granted: float | None = None
        self.hurried = self.sweeps = False
        self.lease_until = float("-inf")
        self.port_epoch: int | None = None
        self.exit_code: int | None = None
        self.seen_epoch = -1
        self.held_signals: set[tuple[int, int]] = set()
        node.agents.append(self)

    def _step(self, event: Any) -> None:
        super()._step(event)
        if isinstance(event, machine_events.SignalCame) and event.number == signal.SIGTERM:
            self.world.watch.got_term(self)

    def carry_out(self, action: Any) -> None:
        self._carry[type(action)](self, action)

    def _tell(self, action: actions.Tell) -> None:
        self.world.watch.agent_told(self, action.message)
        if self.link is not None:
            self.link.send(UP, action.message)

    def _hold_port(self, action: messages.ReservePort) -> None:
        self.port_epoch = action.epoch
        port, why = (0, "none is free") if self.world.no_port() else (20000 + action.epoch, "")
        delay = 0.01 * self.world.process_chance.random()
        self.world.clock.after(delay, self.feed, messages.PortReserved(action.epoch, port, why))

    def _release_port(self, action: actions.ReleasePort) -> None:
        self.world.watch.port_released(self)
        self.port_epoch = None

    def _spawn(self, action: messages.StartRanks) -> None:
        self.world.watch.spawned(self, action)
        self.seen_epoch = action.epoch
        delay = 0.3 * self.world.process_chance.random()
        self.feed_later(delay, lambda: self._start(action))

    def _start(self, action: messages.StartRanks) -> None:
        fails = self.world.no_spawn()
        processes = self.world.scenario.processes
        for rank in range(action.node * processes, (action.node + 1) * processes):
            if fails and rank % processes:
                break
            process = Process(self, action.epoch, rank)
            self.world.program.rank_started(process)
        event = (
            messages.StartFailed(action.epoch, "no such program")
            if fails
            else messages.RanksStarted(action.epoch)
        )
        self.world.clock.after(0.01, self.feed, event)

    def _signal(self, action: messages.SignalRanks) -> None:
        if action.is_held:
            # Each rank gets a held signal once, however often it is sent.
            if (action.epoch, action.number) in self.held_signals:
                return
            self.held_signals.add((action.epoch, action.number))
        if action.number == contract.NOTICE_SIGNAL:
            self.world.watch.noticed(self)
            if self.world.slurm is not None:
                self._make_room()
            return
        # Slurm's own TERM reaches the ranks that catch it at once.
        catching = [process for process in self.ranks() if process.catches_term]
        taken = messages.SignalTaken(self.seen_epoch, action.number, len(catching))
        self.world.clock.after(0.01, self.feed, taken)
        self._term(catching)

    def _terminate(self, action: actions.TerminateRanks) -> None:
        self._term([p for p in self.ranks() if not action.only_unreached or p.termed_at is None])

    def ranks(self) -> list[Process]:
        """Return the ranks that it started."""
        return [p for p in self.node.processes if p.agent is self and not p.child]

    def _term(self, processes: list[Process]) -> None:
        if self.termed_at is None:
            self.termed_at = self.world.clock.now
        for process in processes:
            process.term()

    def _make_room(self) -> None:
        """End the ranks that catch the notice, with work left."""
        slurm = self.world.slurm
        mine = self.ranks()
        catches = slurm is not None and slurm.plan.catches
        passed = messages.SignalTaken(self.seen_epoch, contract.NOTICE_SIGNAL, len(mine) if catches else 0)
        self.world.clock.after(0.01, self.feed, passed)
        for process in mine if catches else ():
            run = self.world.program.runs[(process.run, process.epoch)]
            run.stopping = True
            process.node.later(self.world.process_chance.uniform(0.1, 8), process.end, 0, "room")

    def _await_leftovers(self, action: actions.AwaitLeftovers) -> None:
        mine = [p for p in self.node.processes if p.agent is self and p.epoch == action.epoch]
        if any(process.finishes for process in mine) and not action.filters_only and self.alive:
            self.feed_later(0.1, lambda: self._await_leftovers(action))
            return
        self.world.clock.after(0.01, self.feed, LeftoversEnded(action.epoch))

    def _end_leftovers(self, action: actions.EndLeftovers) -> None:
        self.termed_at = self.world.clock.now

    def _sweep(self, action: actions.Sweep) -> None:
        self.world.watch.sweeping(self, action)
        self.sweeps = True
        self.feed_later(0.5 * self.world.process_chance.random(), lambda: self._swept(action))

    def _swept(self, action: actions.Sweep) -> None:
        self._end_sidecars()
        self.node.kill(lambda process: process.epoch <= action.epoch)
        self.termed_at = self.granted = None
        self.world.clock.after(self.world.check_seconds(), self.feed, lambda: self._report_swept(action))

    def _report_swept(self, action: actions.Sweep) -> None:
        self.sweeps = False
        processes = [process for process in self.node.processes if process.epoch <= action.epoch]
        self.feed(
            messages.RanksGone(action.epoch, tuple(f"rank {process.rank} in D" for process in processes))
        )

    def _pass_on(self, action: messages.AskSidecar) -> None:
        sidecars = [c for c in self.node.sidecars if c.agent is self and c.name == action.sidecar]
        if not sidecars and self.world.scenario.examiner(self.node.index) == "never starts":
            event = messages.SidecarEnded(action.epoch, action.sidecar, "no such program")
            self.world.clock.after(0.01, self.feed, event)
            return
        sidecar = sidecars[0] if sidecars else Companion(self, action.epoch, action.sidecar)
        self.world.watch.sidecar_asked(sidecar)
        sidecar.asked(action.number)

    def _start_sidecar(self, action: actions.StartSidecar) -> None:
        Companion(self, action.epoch, action.sidecar)

    def _dismiss(self, action: messages.EndSidecar) -> None:
        self._end_sidecars(action.sidecar)

    def _end_sidecars(self, name: str = "") -> None:
        for sidecar in list(self.node.sidecars):
            if sidecar.agent is self and name in ("", sidecar.name):
                sidecar.kill()

    def _renew(self, action: actions.RenewLease) -> None:
        self.lease_until = action.until - self.node.offset
        if self.shim.alive:
            self.shim.renew(self.lease_until)

    def _exit(self, action: actions.Exit) -> None:
        self.exit_code = action.code
        self.die("its own decision")

    def _note(self, action: machine_events.Note) -> None:
        pass

    def die(self, why: str) -> None:
        if not self.alive:
            return
        self.world.log(f"{self.name} dies of {why}")
        self.alive = False
        self._end_sidecars()
        self.node.kill(lambda process: process.agent is self and not process.child)
        if self.link is not None:
            self.link.close(DOWN, "the agent ended")
        if self.shim.alive:
            self.node.later(0.3 * self.world.process_chance.random(), self.shim._kill)
        self.coordinator.agent_ended()

    def slurm_kills(self) -> None:
        """Kill the whole step on this node and everything that depends on it."""
        self.die("slurmd")
        self.node.kill(lambda process: process.agent is self)

    def vanish(self) -> None:
        if self.alive:
            self.alive = False
            if self.link is not None:
                self.link.vanish(DOWN)
            self.coordinator.agent_ended()
        self.shim.alive = False

    _carry = {
        actions.Tell: _tell,
        messages.ReservePort: _hold_port,
        actions.ReleasePort: _release_port,
        messages.StartRanks: _spawn,
        messages.SignalRanks: _signal,
        actions.AwaitLeftovers: _await_leftovers,
        actions.EndLeftovers: _end_leftovers,
        actions.TerminateRanks: _terminate,
        actions.Sweep: _sweep,
        messages.AskSidecar: _pass_on,
        actions.StartSidecar: _start_sidecar,
        messages.EndSidecar: _dismiss,
        actions.RenewLease: _renew,
        machine_events.Note: _note,
        actions.Exit: _exit,
    }
