"""Which faults strike when and whom, and how all of it is healed in the end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterrun.agent import events as agent_events
from clusterrun.coordinator import events as coordinator_events
from clusterrun.model import contract
from clusterrun.runtime import machine_events

from .network import DOWN, UP
from .scenario import RARE_FAULTS
from .watch import SHIM_SECONDS

if TYPE_CHECKING:
    from .agent_actor import AgentActor
    from .coordinator_actor import CoordinatorActor
    from .kernel import Node
    from .world import World


def plan(world: World) -> None:
    """Put the faults of this world on its calendar."""
    chance = world.fault_chance
    late = 0.0
    for at, seconds, apart in world.scenario.suspensions:
        world.clock.at(at + late, suspend, world, seconds, apart)
        late += seconds + 2 * apart
    for fault in world.scenario.faults:
        strike = STRIKES.get(fault)
        if strike is None:
            continue
        for _ in range(1 + int(world.scenario.strength * 2.5)):
            early = chance.random() < 0.3
            when = chance.uniform(0, 4.0 if early else world.scenario.heal_at)
            when = 0.0 if early and fault == "controller away" else when
            when = chance.uniform(2, 20) if fault in RARE_FAULTS else when
            world.clock.at(when, _strike, world, fault, strike)


def suspend(world: World, seconds: float, apart: float) -> None:
    """Stop and resume all processes of the job, node after node, as ``scontrol suspend`` does."""
    if world.healed:
        return
    world.log("suspended")
    for node in world.coordinators[-1].hosts:
        world.clock.after(apart * world.fault_chance.random(), node.freeze)
        world.clock.after(apart + seconds + apart * world.fault_chance.random(), node.thaw)


def _strike(world: World, fault: str, strike: Callable[[World], None]) -> None:
    if not world.healed:
        world.log(f"fault: {fault}")
        world.watch.struck.append(fault)
        strike(world)


def heal(world: World) -> None:
    """Repair all links and resume everything that was stopped. Killed processes stay dead."""
    world.healed = True
    world.log("healed")
    for coordinator in world.coordinators:
        for agent in coordinator.agents:
            if agent.link is not None:
                agent.link.heal()
    for node in world.nodes:
        node.thaw()
        for process in list(node.processes):
            process.unkillable = False
            if process.killed:
                process.end(-9, "thawed")


def cuts(world: World, agent: AgentActor) -> list[int]:
    """Draw the directions in which a new link of ``agent`` is cut from its first moment."""
    other = agent.coordinator.node
    cut_nodes = world.watch.cut_nodes
    if agent.node.index == other.index or world.healed:
        return []
    return [UP, DOWN] if agent.node.index in cut_nodes or other.index in cut_nodes else []


def _coordinator(world: World) -> CoordinatorActor:
    return world.fault_chance.choice(world.coordinators)


def _agent(world: World) -> AgentActor | None:
    agents = [agent for c in world.coordinators for agent in c.agents if agent.alive]
    return world.fault_chance.choice(agents) if agents else None


def _seconds(world: World) -> float:
    """Draw a short duration, one around the lease, or endless (until healed)."""
    return world.fault_chance.choice((1.0, 6.0, 13.0, 18.0, 22.0, 30.0, 1e9)) * world.fault_chance.uniform(
        0.8, 1.2
    )


def _kill_agent(world: World) -> None:
    # Without its shim nobody would sweep what its ranks leave behind: two faults on one node.
    agent = _agent(world)
    if agent is not None and agent.shim.alive:
        agent.die("SIGKILL")


def _kill_coordinator(world: World) -> None:
    _coordinator(world).die("SIGKILL")


def _supervisor(world: World) -> None:
    """Kill a coordinator. Its supervisor ends the launcher and starts another one."""
    coordinator = world.coordinators[-1]
    if not coordinator.alive or coordinator.told_superseded or len(world.coordinators) > 3:
        return
    if world.slurm is not None:
        coordinator.job.kept = True
    coordinator.die("SIGKILL")
    world.end_launcher(coordinator)
    node = coordinator.node
    dead_since = world.clock.now + node.offset
    killed = (coordinator.hosts, dead_since, coordinator.number)
    node.later(world.fault_chance.uniform(0.5, 24), world.submit, *killed)


def _kill_shim(world: World) -> None:
    # A shim dead and its agent stopped at once is beyond what is promised: two faults on one node.
    agent = _agent(world)
    stopping = ("freeze agent", "freeze node", "late answer", "mute takeover")
    if agent is not None and agent.shim.alive and not any(world.scenario.has(fault) for fault in stopping):
        agent.shim.alive = False
        world.clock.after(0.1 * world.fault_chance.random(), agent.feed, agent_events.ShimLost())
        world.clock.after(SHIM_SECONDS, world.watch.shim_is_dead, agent)


def _kill_launcher(world: World) -> None:
    coordinator = _coordinator(world)
    if not coordinator.launcher_lives:
        return
    tasks, launch = coordinator.tasks(), coordinator.launches
    coordinator.end_launchers()
    lines = ("srun: error: killed",)
    world.clock.after(0.05, coordinator.feed, coordinator_events.LauncherEnded(137, lines, launch=launch))
    if world.fault_chance.random() < 0.5:
        world.watch.struck.append("its tasks")
        for agent in tasks:
            world.clock.after(world.fault_chance.random(), agent.feed, agent.slurm_kills)


def _freeze_agent(world: World) -> None:
    agent = _agent(world)
    if agent is not None:
        agent.freeze(_seconds(world))


def _freeze_coordinator(world: World) -> None:
    seconds = _seconds(world)
    world.watch.frozen_for.append(seconds)
    _coordinator(world).freeze(seconds)


def _node(world: World) -> Node:
    return world.fault_chance.choice(world.nodes[: world.scenario.allocated])


def _freeze_node(world: World) -> None:
    node = _node(world)
    node.freeze()
    world.clock.after(_seconds(world), node.thaw)


def _power_off(world: World) -> None:
    _node(world).power_off()


def _sever(world: World, agent: AgentActor, ways: tuple[int, ...], seconds: float) -> None:
    link = agent.link
    if link is None or agent.node is agent.coordinator.node:
        return
    for way in ways:
        link.sever(way, world.fault_chance.choice((10.0, 20.0, 60.0)))
    world.clock.after(seconds, link.heal)


def _cut_link(world: World) -> None:
    agent = _agent(world)
    ways = world.fault_chance.choice(((UP,), (DOWN,), (UP, DOWN)))
    if agent is not None:
        _sever(world, agent, ways, _seconds(world))


def _lasting_cut(world: World) -> None:
    agent = _agent(world)
    if agent is not None and agent.link is not None and agent.node is not agent.coordinator.node:
        for way in (UP, DOWN):
            agent.link.sever(way, 120.0)


def _stopped_takeover(world: World) -> None:
    """Stop the first coordinator for almost a lease, while a second one takes over."""
    world.coordinators[0].freeze(world.fault_chance.uniform(10, 19))
    world.clock.after(world.fault_chance.uniform(0, 4), _requeue, world)


def _cut_node(world: World) -> None:
    node = _node(world)
    seconds = _seconds(world)
    world.watch.cut_nodes[node.index] = True
    world.clock.after(seconds, world.watch.cut_nodes.pop, node.index, None)
    for coordinator in world.coordinators:
        for agent in coordinator.agents:
            if node is agent.node or node is coordinator.node:
                _sever(world, agent, (UP, DOWN), seconds)


def _swizzle(world: World) -> None:
    """Stop links one by one, and restore them in another order."""
    for coordinator in world.coordinators:
        for agent in coordinator.agents:
            if world.fault_chance.random() < 0.7:
                start = world.fault_chance.uniform(0, 8)
                seconds = world.fault_chance.uniform(1, 20)
                world.clock.after(start, _sever, world, agent, (UP, DOWN), seconds)


def _reset_link(world: World) -> None:
    agent = _agent(world)
    if agent is not None and agent.link is not None:
        agent.link.reset()


def _second_agent(world: World) -> None:
    coordinator = _coordinator(world)
    if coordinator.launcher_lives:
        index = world.fault_chance.randrange(world.scenario.allocated)
        world.new_agent(coordinator, index, coordinator.hosts[index])


def _term_coordinator(world: World) -> None:
    world.was_asked = True
    number = world.fault_chance.choice((signal.SIGTERM, signal.SIGINT))
    coordinator = _coordinator(world)
    if coordinator.alive:  # one that has handed over hears nothing
        world.ask_for_end()
    for _ in range(world.fault_chance.choice((1, 1, 2))):
        world.clock.after(
            world.fault_chance.uniform(0, 9), coordinator.feed, machine_events.SignalCame(number)
        )


def _term_agents(world: World) -> None:
    share = world.fault_chance.random()
    for coordinator in world.coordinators:
        for agent in coordinator.agents:
            if world.fault_chance.random() < share:
                for _ in range(world.fault_chance.choice((1, 2))):
                    delay = world.fault_chance.uniform(0, 6)
                    world.clock.after(delay, _term_agent, world, agent)


def _term_agent(world: World, agent: AgentActor) -> None:
    world.was_asked = True
    if agent.alive and agent.welcomed and agent.coordinator.alive:
        world.ask_for_end()
    agent.feed(machine_events.SignalCame(signal.SIGTERM))


def _cancel(world: World) -> None:
    world.ask_for_end()
    if world.slurm is not None:
        world.slurm.cancel_by_file()
    for coordinator in world.coordinators:
        for tick in range(3):
            world.clock.after(
                tick + world.fault_chance.random(), coordinator.feed, coordinator_events.CancelAsked()
            )


def _notice(world: World) -> None:
    notice = machine_events.SignalCame(contract.NOTICE_SIGNAL)
    for coordinator in world.coordinators:
        world.clock.after(world.fault_chance.random(), coordinator.feed, notice)
        for agent in coordinator.agents:
            world.clock.after(world.fault_chance.random(), agent.feed, notice)


def _requeue(world: World) -> None:
    """Start the job anew while the first coordinator may still live. Some old agents are killed."""
    if len(world.coordinators) > 1:
        return
    for agent in world.coordinators[0].agents:
        if world.fault_chance.random() < 0.5:
            world.clock.after(world.fault_chance.uniform(0, 30), agent.feed, agent.slurm_kills)
    alive = [node for node in world.nodes if not node.dead]
    if len(alive) >= world.scenario.allocated:
        world.submit(world.fault_chance.sample(alive, world.scenario.allocated))


def _controller_away(world: World) -> None:
    """Let all programs of the scheduler fail for a while."""
    until = min(world.clock.now + world.fault_chance.choice((5.0, 30.0, 90.0)), world.scenario.heal_at)
    world.watch.controller_away_until = max(world.watch.controller_away_until, until)


def _repeat(world: World) -> None:
    for _ in range(20):
        world.clock.after(world.fault_chance.uniform(0, 40), _repeat_once, world)


def _echoes(world: World) -> None:
    """Stop the coordinator and start another one. The messages of the first arrive again and again."""
    world.coordinators[0].freeze(1e9)
    _requeue(world)
    _echo(world)


def _echo(world: World) -> None:
    for agent in world.coordinators[0].agents:
        if agent.link is not None and agent.welcomed:
            agent.link.repeat(DOWN)
    if not world.healed:
        world.clock.after(world.fault_chance.uniform(1, 4), _echo, world)


def _mute_takeover(world: World) -> None:
    """Stop a coordinator for almost a lease. Then it answers, but nothing that it sends arrives."""
    stopped = world.coordinators[0]
    seconds = world.fault_chance.uniform(16, 19)
    stopped.freeze(seconds)
    world.clock.after(world.fault_chance.uniform(0, 2), _requeue, world)
    world.clock.after(seconds + world.fault_chance.uniform(0, 0.5), _mute, world)


def _late_answer(world: World) -> None:
    """Delay the messages to an agent by seconds, and drop all later ones."""
    agent = _agent(world)
    if agent is not None:
        _sever(world, agent, (DOWN,), 5.5)
        world.clock.after(5.6, _sever, world, agent, (UP, DOWN), 60.0)
        _maybe_stop(world, agent, 5.6)


def _mute(world: World) -> None:
    for agent in world.coordinators[0].agents:
        _sever(world, agent, (DOWN,), 60.0)
        _maybe_stop(world, agent, 0.0)


def _maybe_stop(world: World, agent: AgentActor, after: float) -> None:
    """Perhaps stop the agent too. Then only its shim enforces the lease."""
    if world.fault_chance.random() < 0.6:
        world.clock.after(after, agent.freeze, 1e9)


def _repeat_once(world: World) -> None:
    agent = _agent(world)
    if agent is not None and agent.link is not None and agent.welcomed:
        agent.link.repeat(world.fault_chance.choice((UP, DOWN)))


STRIKES: dict[str, Callable[[World], None]] = {
    "kill agent": _kill_agent,
    "kill coordinator": _kill_coordinator,
    "supervisor": _supervisor,
    "kill shim": _kill_shim,
    "kill launcher": _kill_launcher,
    "freeze agent": _freeze_agent,
    "freeze coordinator": _freeze_coordinator,
    "freeze node": _freeze_node,
    "power off": _power_off,
    "cut link": _cut_link,
    "cut node": _cut_node,
    "swizzle": _swizzle,
    "reset link": _reset_link,
    "second agent": _second_agent,
    "late agent": _second_agent,
    "term coordinator": _term_coordinator,
    "term agents": _term_agents,
    "cancel": _cancel,
    "notice": _notice,
    "requeue": _requeue,
    "lasting cut": _lasting_cut,
    "stopped takeover": _stopped_takeover,
    "repeat": _repeat,
    "echoes": _echoes,
    "mute takeover": _mute_takeover,
    "late answer": _late_answer,
    "controller away": _controller_away,
}
