"""The processes that run a machine: they feed it, freeze, die, and carry out what it orders in the simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterrun.agent import actions as act
from clusterrun.agent import events as ev
from clusterrun.agent import messages as msg
from clusterrun.model import contract

from .kernel import Node, Process, Shim
from .network import DOWN, UP, Closed, Link

if TYPE_CHECKING:
    from .world import World


class Actor:
    """A process around a machine: one event at a time, never while it is frozen, nothing after its death."""

    def __init__(self, world: World, name: str, node: Node, machine: Any) -> None:
        self.world = world
        self.name = name
        self.node = node
        self.machine = machine
        self.alive = True
        self.frozen = False
        self._inbox: list[Any] = []
        self._wake_at: float | None = None

    def reading(self) -> ev.Now:
        """This process's clocks."""
        now = self.world.clock.now
        return ev.Now(now + self.node.offset, now + self.world.wall)

    def feed(self, event: Any) -> None:
        """Something happened to it; a callable is work of its own that was under way."""
        if not self.alive:
            return
        if self.frozen or self.node.frozen:
            self._inbox.append(event)
        elif callable(event):
            event()
        else:
            self._step(event)

    def _step(self, event: Any) -> None:
        try:
            actions = self.machine.on(self.reading(), event)
            wakes_at = self.machine.wakes_at()
        except Exception as error:  # noqa: BLE001  (law: a machine never raises)
            self.world.watch.fail(f"{self.name} raised {error!r} at {event!r}")
            self.die("an exception")
            return
        self.world.log_step(self, event, actions)
        for action in actions:
            if not self.alive:
                return
            self.carry_out(action)
        self._plan_wake(wakes_at)

    def _plan_wake(self, wakes_at: float | None) -> None:
        if wakes_at is None or not self.alive:
            return
        when = max(wakes_at - self.node.offset, self.world.clock.now)
        if self._wake_at is None or when < self._wake_at:
            self._wake_at = when
            self.world.clock.at(when + 1e-6, self._wake, when)

    def _wake(self, when: float) -> None:
        if self._wake_at == when:
            self._wake_at = None
            self.feed(ev.Tick())

    def wake_up(self) -> None:
        """It runs again: what came meanwhile is read, its timers fire first or last."""
        if self.frozen or self.node.frozen:
            return
        waiting, self._inbox = self._inbox, []
        if self.world.fault_chance.random() < 0.5:
            waiting = [e for e in waiting if isinstance(e, ev.Tick)] + [
                e for e in waiting if not isinstance(e, ev.Tick)
            ]
        for event in waiting:
            self.feed(event)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and CONT after ``seconds`` (or when everything is healed)."""
        if self.alive:
            self.frozen = True
            self.world.log(f"{self.name} is frozen")
            self.world.clock.at(min(self.world.clock.now + seconds, self.world.scenario.heal_at), self.thaw)

    def thaw(self) -> None:
        """SIGCONT."""
        if self.frozen:
            self.frozen = False
            self.wake_up()

    def carry_out(self, action: Any) -> None:
        """Do what the machine orders."""
        raise NotImplementedError

    def die(self, why: str) -> None:
        """The process ends; what hangs on it follows."""
        raise NotImplementedError

    def vanish(self) -> None:
        """Its node lost power."""
        raise NotImplementedError


class AgentActor(Actor):
    """An agent process with its shim."""

    def __init__(self, world: World, coordinator: CoordinatorActor, index: int, node: Node, pid: int) -> None:
        machine = world.make_agent(index)
        super().__init__(world, f"agent{coordinator.number}.{index}.{pid}", node, machine)
        self.coordinator = coordinator
        self.index = index
        self.pid = pid
        self.link: Link | None = None
        self.welcomed = False
        self.shim = Shim(self)
        self.told: list[Any] = []
        self.termed_at: float | None = None
        self.hurried = False
        self.lease_until = float("-inf")
        self.port_epoch: int | None = None
        self.exit_code: int | None = None
        self.seen_epoch = -1
        node.agents.append(self)

    def carry_out(self, action: Any) -> None:
        self._carry[type(action)](self, action)

    def _tell(self, action: act.Tell) -> None:
        self.world.watch.agent_told(self, action.message)
        if self.link is not None:
            self.link.send(UP, action.message)

    def _hold_port(self, action: act.HoldPort) -> None:
        self.port_epoch = action.epoch
        port, why = (0, "none is free") if self.world.no_port() else (20000 + action.epoch, "")
        delay = 0.01 * self.world.process_chance.random()
        self.world.clock.after(delay, self.feed, ev.PortHeld(action.epoch, port, why))

    def _release_port(self, action: act.ReleasePort) -> None:
        self.world.watch.port_released(self)
        self.port_epoch = None

    def _spawn(self, action: act.Spawn) -> None:
        self.world.watch.spawned(self, action)
        self.seen_epoch = action.epoch
        delay = 0.3 * self.world.process_chance.random()
        self.feed_later(delay, lambda: self._start(action))

    def _start(self, action: act.Spawn) -> None:
        fails = self.world.no_spawn()
        processes = self.world.scenario.processes
        for rank in range(self.index * processes, (self.index + 1) * processes):
            if fails and rank % processes:
                break
            process = Process(self, action.epoch, rank)
            self.world.rank_started(process)
        event = ev.SpawnFailed(action.epoch, "no such program") if fails else ev.RanksSpawned(action.epoch)
        self.world.clock.after(0.01, self.feed, event)

    def feed_later(self, seconds: float, work: Any) -> None:
        """Do ``work`` in this process in ``seconds``."""
        self.world.clock.after(seconds, self.feed, work)

    def _signal(self, action: act.SignalLocal) -> None:
        if action.number == contract.NOTICE_SIGNAL:
            self.world.watch.noticed(self)
            return
        if self.termed_at is None:
            self.termed_at = self.world.clock.now
        for process in list(self.node.processes):
            if process.agent is self and not process.child:
                process.term()

    def _sweep(self, action: act.Sweep) -> None:
        self.world.watch.sweeping(self, action)
        self.feed_later(0.5 * self.world.process_chance.random(), lambda: self._swept(action))

    def _swept(self, action: act.Sweep) -> None:
        self.node.kill(lambda process: process.epoch <= action.epoch)
        self.termed_at = None
        self.world.clock.after(0.01, self.feed, lambda: self._report_swept(action))

    def _report_swept(self, action: act.Sweep) -> None:
        left = [process for process in self.node.processes if process.epoch <= action.epoch]
        self.feed(ev.Swept(action.epoch, tuple(f"rank {process.rank} in D" for process in left)))

    def _renew(self, action: act.RenewLease) -> None:
        self.lease_until = action.until - self.node.offset
        if self.shim.alive:
            self.shim.renew(self.lease_until)

    def _exit(self, action: act.Exit) -> None:
        self.exit_code = action.code
        self.die("its own decision")

    def _note(self, action: act.Note) -> None:
        pass

    def die(self, why: str) -> None:
        if not self.alive:
            return
        self.world.log(f"{self.name} dies of {why}")
        self.alive = False
        self.node.kill(lambda process: process.agent is self and not process.child)
        if self.link is not None:
            self.link.close(DOWN, "the agent ended")
        if self.shim.alive:
            self.node.later(0.3 * self.world.process_chance.random(), self.shim._kill)
        self.coordinator.agent_ended()

    def vanish(self) -> None:
        if self.alive:
            self.alive = False
            if self.link is not None:
                self.link.vanish(DOWN)
            self.coordinator.agent_ended()
        self.shim.alive = False

    _carry = {
        act.Tell: _tell,
        act.HoldPort: _hold_port,
        act.ReleasePort: _release_port,
        act.Spawn: _spawn,
        act.SignalLocal: _signal,
        act.Sweep: _sweep,
        act.RenewLease: _renew,
        act.Note: _note,
        act.Exit: _exit,
    }


class CoordinatorActor(Actor):
    """A coordinator process with its launcher."""

    def __init__(self, world: World, number: int, hosts: list[Node]) -> None:
        super().__init__(world, f"coordinator{number}", hosts[0], world.make_coordinator())
        self.number = number
        self.hosts = hosts
        self.links: dict[int, Link] = {}
        self.agents: list[AgentActor] = []
        self.states: list[Any] = []
        self.exit_code: int | None = None
        self.launched = False
        self.launcher_lives = False
        self.coming = 0
        self.told_superseded = False
        self.dropped: dict[int, bool] = {}
        hosts[0].coordinators.append(self)

    def carry_out(self, action: Any) -> None:
        self._carry[type(action)](self, action)

    def _send(self, action: act.Send) -> None:
        self.world.watch.coordinator_sent(self, action)
        link = self.links.get(action.link)
        if link is not None:
            link.send(DOWN, action.message)

    def _drop(self, action: act.DropLink) -> None:
        link = self.links.pop(action.link, None)
        if link is not None:
            link.close(UP, "dropped by the coordinator")

    def _claim(self, action: act.ClaimEpoch) -> None:
        self.world.clock.after(self.world.disk(), self.feed, lambda: self.world.claim(self, action.after))

    def _launch(self, action: act.LaunchAgents) -> None:
        self.launched = self.launcher_lives = True
        self.world.launch(self)

    def _end_launcher(self, action: act.EndLauncher) -> None:
        self.world.end_launcher(self)

    def agent_ended(self) -> None:
        """srun ends when all its tasks have ended."""
        lives = any(agent.alive for agent in self.agents)
        if self.launcher_lives and not self.coming and not lives:
            self.launcher_lives = False
            self.world.clock.after(0.05, self.feed, ev.LauncherEnded(0, ("all tasks ended",)))

    def _save(self, action: act.SaveState) -> None:
        self.world.watch.saved(self, action.state)
        self.states.append(action.state)
        self.world.clock.after(self.world.disk(), self.world.write_state, self, action.state)

    def _note(self, action: act.Note) -> None:
        pass

    def _finish(self, action: act.Finish) -> None:
        self.exit_code = action.code
        self.world.watch.finished(self)
        self.die("its own decision")

    def arrived(self, link: Link, payload: Any) -> None:
        """Something came over a link."""
        if isinstance(payload, Closed):
            self.links.pop(link.number, None)
            self.feed(ev.AgentLeft(link.number, payload.why))
        elif isinstance(payload, msg.Hello):
            self.feed(ev.AgentJoined(link.number, payload))
        else:
            self.feed(ev.Heard(link.number, payload))

    def die(self, why: str) -> None:
        if self.alive:
            self.world.log(f"{self.name} dies of {why}")
            self.alive = False
            for link in self.links.values():
                link.close(UP, "the coordinator ended")
            self.links.clear()

    def vanish(self) -> None:
        if self.alive:
            self.alive = False
            for link in self.links.values():
                link.vanish(UP)

    _carry = {
        act.Send: _send,
        act.DropLink: _drop,
        act.ClaimEpoch: _claim,
        act.LaunchAgents: _launch,
        act.EndLauncher: _end_launcher,
        act.SaveState: _save,
        act.Note: _note,
        act.Finish: _finish,
    }
