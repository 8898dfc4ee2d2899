"""One node's kernel as agents meet it: processes, signals, deaths, the shim; knows no machine's inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterrun.model import contract
from clusterrun.protocol.messages import RankExited, SidecarEnded, SidecarSaid
from clusterrun.runtime.machine_events import OVERSLEPT_SECONDS

if TYPE_CHECKING:
    from .agent_actor import AgentActor
    from .coordinator_actor import CoordinatorActor
    from .world import World


# How long a process that a rank left needs to finish.
LEFTOVER_SECONDS = 1.5


class Node:
    """A machine with a clock of its own; a frozen one runs nothing at all."""

    def __init__(self, world: World, index: int, offset: float) -> None:
        self.world = world
        self.index = index
        self.offset = offset
        self.frozen = False
        self.dead = False
        self.thawed_at = self.frozen_at = float("-inf")
        self.processes: list[Process] = []
        self.sidecars: list[Companion] = []
        self.agents: list[AgentActor] = []
        self.coordinators: list[CoordinatorActor] = []
        self._deferred: list[tuple[Any, ...]] = []

    def later(self, seconds: float, what: Any, *args: Any) -> None:
        """Do ``what`` on this node: not while it is frozen, never where it is dead."""
        self.world.clock.after(seconds, self._do, what, *args)

    def _do(self, what: Any, *args: Any) -> None:
        if self.frozen:
            self._deferred.append((what, *args))
        elif not self.dead:
            what(*args)

    def freeze(self) -> None:
        """Stop everything on this node, including the shims."""
        if not self.frozen:
            self.frozen, self.frozen_at = True, self.world.clock.now

    def thaw(self) -> None:
        """Resume everything. Shims check their leases."""
        if not self.frozen or self.dead:
            return
        self.frozen = False
        self.thawed_at = self.world.clock.now
        for agent in self.agents:
            agent.shim.woke(self.thawed_at - self.frozen_at)
        deferred, self._deferred = self._deferred, []
        for what, *args in deferred:
            self.later(0.0, what, *args)
        for actor in [*self.agents, *self.coordinators]:
            actor.wake_up()
        self.world.watch.node_thawed()

    def power_off(self) -> None:
        """End everything on this node without any message."""
        self.dead = True
        for actor in [*self.agents, *self.coordinators]:
            actor.vanish()
        for process in list(self.processes):
            process.vanish()
        self.sidecars.clear()

    def kill(self, matches: Any) -> None:
        """Send SIGKILL to all processes for which ``matches`` is true. A stuck process only notes it."""
        killed: dict[Process, bool] = {}
        while True:
            # The next round finds the children that a killed process left.
            processes = [process for process in self.processes if matches(process) and process not in killed]
            if not processes:
                return
            for process in processes:
                killed[process] = True
                process.kill()


class Process:
    """A rank, or what a rank left behind (``child``)."""

    def __init__(self, agent: AgentActor, epoch: int, rank: int, child: bool = False) -> None:
        self.agent = agent
        self.node = agent.node
        self.run = agent.coordinator.number
        self.epoch = epoch
        self.rank = rank
        self.child = child
        self.alive = True
        self.unkillable = self.stopped = False
        self.killed = False
        self.stuck = False
        self.termed_at: float | None = None
        self.last_termed_at = 0.0
        self.born_at = self.node.world.clock.now
        self.catches_term = self.node.world.scenario.catches_term
        self.collides = False
        # The error that it prints when it crashes.
        self.error = ""
        self.node.processes.append(self)

    @property
    def finishes(self) -> bool:
        """Return whether a rank left this process and it soon ends by itself; others are daemons."""
        return self.child and self.rank % 2 == 0

    def runs(self) -> bool:
        """Return whether it executes instructions."""
        halted = self.stopped or self.node.frozen or (self.killed and self.unkillable)
        return self.alive and not halted

    def term(self) -> None:
        """Deliver SIGTERM. The scenario gives the reaction."""
        world = self.node.world
        self.last_termed_at = world.clock.now
        if not self.alive or self.termed_at is not None:
            return
        self.termed_at = world.clock.now
        if world.process_chance.random() >= world.scenario.ignores_term:
            delay = world.scenario.term_seconds * world.process_chance.random()
            self.node.later(delay, self.end, world.scenario.term_code, "termed")

    def kill(self) -> None:
        """Deliver SIGKILL."""
        self.killed = True
        self.stuck = self.unkillable
        if not self.unkillable:
            self.end(-9, "killed")

    def end(self, code: int, how: str) -> None:
        """End the process and notify its parent, if that lives."""
        if not self.alive:
            return
        self.alive = False
        self.node.processes.remove(self)
        if self.child:
            return
        world = self.node.world
        world.watch.rank_ended(self, code, how)
        if (
            world.process_chance.random() < world.scenario.leaves_children
            and how != "vanished"
            and not self.stuck
        ):
            child = Process(self.agent, self.epoch, self.rank, child=True)
            child.stopped = self.stopped  # it was there before, and was stopped with the rank
            if child.finishes:
                self.node.later(LEFTOVER_SECONDS, child.end, 0, "finished")
        error = self.error if how == "natural" else ""
        place = f"/train.py:{len(error)} main" if error else ""
        event = RankExited(self.epoch, self.rank, code, collision=self.collides, error=error, place=place)
        world.clock.after(0.004 * world.process_chance.random(), self.agent.feed, event)
        if code != 0 and how == "natural":
            world.program.break_peers(self)

    def vanish(self) -> None:
        """End the process as its node is off."""
        self.alive = False
        self.node.processes.remove(self)
        if not self.child:
            self.node.world.watch.rank_ended(self, -9, "vanished")
            self.node.world.program.break_peers(self)


class Companion:
    """A sidecar process: an examiner that behaves as its node's draw says, or a silent observer."""

    def __init__(self, agent: AgentActor, epoch: int, name: str) -> None:
        self.agent, self.epoch, self.name = agent, epoch, name
        self.node = agent.node
        self.behaviour = self.node.world.scenario.examiner(self.node.index)
        self.node.sidecars.append(self)

    @property
    def alive(self) -> bool:
        """Return whether it lives."""
        return self in self.node.sidecars

    def kill(self) -> None:
        """Deliver SIGKILL."""
        if self.alive:
            self.node.sidecars.remove(self)

    def asked(self, number: int) -> None:
        """Handle a request."""
        chance = self.node.world.process_chance
        seconds = {"late": chance.uniform(31, 60), "slow": chance.uniform(3, 15)}
        delay = seconds.get(self.behaviour, 3 * chance.random())
        if self.behaviour == "dies":
            self.node.later(delay, self._die)
        elif self.behaviour != "mute":
            answer = "ill" if self.behaviour == "ill" else "well"
            for _ in range(2 if self.behaviour == "chatty" else 1):
                self.node.later(delay, self._say, number, answer)

    def _say(self, number: int, answer: str) -> None:
        if self.alive:
            event = SidecarSaid(self.epoch, self.name, number, answer)
            self.node.world.clock.after(0.001, self.agent.feed, event)

    def _die(self) -> None:
        if self.alive:
            self.kill()
            event = SidecarEnded(self.epoch, self.name, "was killed")
            self.node.world.clock.after(0.001, self.agent.feed, event)


class Shim:
    """Holds the lease of one agent and kills what that started when it is out, or when the agent is gone."""

    def __init__(self, agent: AgentActor) -> None:
        self.agent = agent
        self.alive = True
        self.until = float("inf")
        self.stops = False

    def woke(self, seconds: float) -> None:
        """Handle a suspension of the whole node.

        If the lease ran out meanwhile, the ranks are stopped for a while.
        """
        world = self.agent.node.world
        if (
            seconds > OVERSLEPT_SECONDS
            and self.alive
            and self.until < world.clock.now + contract.AWAKE_SECONDS
        ):
            self.stops = True
            self.agent.node.later(0.2 * world.process_chance.random(), self._stop)
            self._watch_until(world.clock.now + contract.AWAKE_SECONDS)

    def _stop(self) -> None:
        for process in self.agent.node.processes:
            process.stopped = process.stopped or (process.agent is self.agent and self.stops)

    def renew(self, until: float) -> None:
        """Renew the lease until this virtual time."""
        if self.stops and until > self.agent.node.world.clock.now:
            self.stops = False
            for process in self.agent.node.processes:
                process.stopped = process.stopped and process.agent is not self.agent
        elif self.stops:
            return
        self._watch_until(until)

    def _watch_until(self, until: float) -> None:
        self.until = until
        clock = self.agent.node.world.clock
        self.agent.node.later(max(0.0, until - clock.now), self._look)

    def _look(self) -> None:
        now = self.agent.node.world.clock.now
        if self.alive and now >= self.until - 1e-9:
            self.emergency()

    def emergency(self) -> None:
        """Kill everything, within the bound that the contract gives."""
        chance = self.agent.node.world.process_chance
        self.agent.node.later(chance.random() * (contract.KILL_SECONDS - 0.2), self._kill)

    def _kill(self) -> None:
        if self.alive:
            self.alive = False
            self.agent.die("its shim")
            # Another agent of the same run on this node has its own shim.
            self.agent.node.kill(lambda process: process.agent is self.agent)
