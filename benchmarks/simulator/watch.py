"""The oracles: what must hold in every world, seen with the eyes of the world and never of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterrun.agent import actions as agent_actions
from clusterrun.agent.agent import LEASE_MARGIN
from clusterrun.coordinator import actions as coordinator_actions
from clusterrun.model import contract
from clusterrun.model.record import RunState
from clusterrun.model.states import State
from clusterrun.protocol import messages as msg

from .budget import Budget
from .ends import ASKING, check_end
from .scenario import FIT, HARMLESS

if TYPE_CHECKING:
    from .agent_actor import AgentActor
    from .coordinator_actor import CoordinatorActor
    from .kernel import Companion, Process
    from .world import World

SLACK = 0.05
DECIDED_SECONDS = 10.0
"""For the scheduler's word on a signal, and for a claim that is under way."""
SPAWN_SECONDS = 0.4
"""A TERM that was due while ranks were being started comes when they are."""
SHIM_SECONDS = 2.0
"""For an agent to notice that its shim is dead, and to end its ranks."""


class Watch:
    """Collects violations; ``struck`` are the faults that happened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        self.struck: list[str] = []
        self.cut_nodes: dict[int, bool] = {}
        self.frozen_for: list[float] = []
        self.controller_away_until = 0.0
        self._highest_started = -1
        self._acked: dict[tuple[str, int], bool] = {}
        self._granted: dict[str, bool] = {}
        self._started: dict[tuple[str, int], bool] = {}
        self._notices: dict[tuple[str, int], list[float]] = {}
        self._epochs: dict[int, list[int]] = {}
        self._worlds: dict[tuple[int, int], tuple[str, ...]] = {}
        self._budgets: dict[int, Budget] = {}

    @property
    def stood_still(self) -> bool:
        """Return whether the coordinator may have been suspended.

        A late event can be in time by its own clock.
        """
        scenario = self.world.scenario
        return bool(scenario.suspensions or scenario.has("freeze coordinator") or scenario.has("freeze node"))

    def fail(self, text: str) -> None:
        """Note a broken law."""
        self.violations.append(f"{self.world.clock.now:.3f}: {text}")

    # --- two epochs are never alive at once ---

    def _excused(self, process: Process) -> bool:
        """Return whether its node was just resumed with an expired lease.

        The shim then has the contract's time to kill.
        """
        now = self.world.clock.now
        shim = process.agent.shim
        return now <= process.node.thawed_at + contract.KILL_SECONDS and (shim.stops or shim.until <= now)

    def _running(self) -> list[Process]:
        return [p for node in self.world.nodes for p in node.processes if p.runs() and not self._excused(p)]

    def rank_started(self, process: Process) -> None:
        if self.world.slurm is not None:
            self.world.slurm.watch.rank_started(process)
        if self._excused(process):
            return
        if process.epoch < self._highest_started:
            self.fail(
                f"rank {process.rank} of epoch {process.epoch} starts after {self._highest_started} has"
            )
        self._highest_started = max(self._highest_started, process.epoch)
        for other in self._running():
            if other.epoch != process.epoch:
                self.fail(
                    f"rank {process.rank} of epoch {process.epoch} starts on node {process.node.index}"
                    f" while rank {other.rank} of epoch {other.epoch} lives on node {other.node.index}"
                )
        if process.rank == 0 and process.agent.port_epoch != process.epoch:
            self.fail(f"rank 0 of epoch {process.epoch} starts, but its port is not held")
        for other in process.node.processes:
            if other is not process and other.epoch == process.epoch and other.rank == process.rank:
                self.fail(f"rank {process.rank} runs twice")
            if other.epoch < process.epoch:
                self.fail(f"a rank of epoch {process.epoch} starts where one of {other.epoch} is stuck")

    def node_thawed(self) -> None:
        self.world.clock.after(contract.KILL_SECONDS + 0.01, self._one_epoch)

    def _one_epoch(self) -> None:
        epochs = sorted({process.epoch for process in self._running()})
        if len(epochs) > 1:
            self.fail(f"epochs {epochs} live at once")

    # --- agents ---

    def agent_hears(self, agent: AgentActor, message: Any) -> None:
        if isinstance(message, msg.Ack):
            self._granted[agent.name] = True
        elif (
            isinstance(message, msg.StopRanks) and agent.granted is None and agent.seen_epoch == message.epoch
        ):
            agent.granted = message.grace

    def spawned(self, agent: AgentActor, action: msg.StartRanks) -> None:
        if not self._granted.get(agent.name) or agent.lease_until <= self.world.clock.now - SLACK:
            self.fail(f"{agent.name} starts ranks without a lease")
        if action.epoch <= agent.seen_epoch:
            self.fail(f"{agent.name} starts epoch {action.epoch} after {agent.seen_epoch}")
        if action.meeting.port != 20000 + action.epoch:
            self.fail(f"{agent.name} starts epoch {action.epoch} with port {action.meeting.port}")
        hosts = [f"n{node.index}" for node in agent.coordinator.hosts]
        world, mine = action.world.nodes, f"n{agent.node.index}"
        if world[action.node : action.node + 1] != (mine,) or len(world) != self.world.scenario.nodes:
            self.fail(f"{agent.name} on {mine} starts as node {action.node} of {world}")
        if world != self._worlds.setdefault((agent.coordinator.number, action.epoch), world):
            self.fail(f"{agent.name} starts in another world than others of epoch {action.epoch}: {world}")
        if set(world) - set(hosts) or len(set(world)) != len(world):
            self.fail(f"the world {world} is none of {hosts}")
        self._places(agent.coordinator, action.epoch, world, hosts)
        self._fit(agent, world)

    def _places(
        self, coordinator: CoordinatorActor, epoch: int, world: tuple[str, ...], hosts: list[str]
    ) -> None:
        """Check the places: first the order of the nodes; later each node that stays keeps its place.

        A world without ranks counts too: a node that was not in it has not stayed.
        """
        epochs = [e for number, e in self._worlds if number == coordinator.number and e < epoch]
        if not epochs:
            first = epoch == self._epochs[coordinator.number][0]
            if first and [name for name in hosts if name in world] != list(world):
                self.fail(f"the world {world} is not in the order of {hosts}")
            return
        formed = [a.nodes for a in coordinator.states[-1].attempts if max(epochs) <= a.epoch < epoch]
        before = [nodes for nodes in formed if nodes][-1]
        if any(name in before and before[place] != name for place, name in enumerate(world)):
            self.fail(f"somebody changes his place from {before} to {world}")

    def _fit(self, agent: AgentActor, world: tuple[str, ...]) -> None:
        """Check that no unfit node trains. Without a check of nodes the first nodes must train."""
        scenario, coordinator = self.world.scenario, agent.coordinator
        if not scenario.examined:
            first = tuple(f"n{node.index}" for node in coordinator.hosts[: scenario.nodes])
            hampered = any(map(scenario.has, ("no agent", "old epoch", "slow sweep", "stuck")))
            all_came = not hampered and not scenario.slow
            if world != first and not set(self.struck) - set(HARMLESS) and all_came:
                self.fail(f"unchecked, {world} train")
        elif scenario.examiner(agent.node.index) not in (*FIT, *(("late",) if self.stood_still else ())):
            self.fail(f"{agent.name} trains although its examiner is {scenario.examiner(agent.node.index)}")
        elif not coordinator.reports or coordinator.reports[-1].world != world:
            self.fail(f"{agent.name} trains in {world}, which no check chose")
        if any(c.name == contract.EXAMINER and c.agent is agent for c in agent.node.sidecars):
            self.fail(f"{agent.name} starts ranks while its examiner lives")

    # --- sidecars ---

    def sidecar_asked(self, sidecar: Companion) -> None:
        """Check that no rank lives on a node whose examiner gets a request."""
        agent = sidecar.agent
        if sidecar.name == contract.EXAMINER and any(p.agent is agent for p in agent.node.processes):
            self.fail(f"{agent.name} asks an examiner while ranks live")

    def reported(self, coordinator: CoordinatorActor, action: coordinator_actions.SaveReport) -> None:
        """Check that each check reports once, before the ranks of its epoch."""
        if coordinator.told_superseded:
            self.fail(f"{coordinator.name} saves a report although another one took over")
        if coordinator.reported.setdefault(action.epoch, False):
            self.fail(f"{coordinator.name} saves a second report")
        coordinator.reported[action.epoch] = True

    def sweeping(self, agent: AgentActor, action: agent_actions.Sweep) -> None:
        """Check that ranks are killed only after their grace time, unless link, lease or shim is lost."""
        now = self.world.clock.now
        mine = [
            p for p in agent.node.processes if p.agent is agent and p.epoch == action.epoch and not p.child
        ]
        leftovers = [
            p for p in agent.node.processes if p.agent is agent and p.epoch == action.epoch and p.finishes
        ]
        if not (mine or leftovers) or agent.hurried or not agent.shim.alive:
            return
        if now >= agent.lease_until - LEASE_MARGIN * contract.LEASE_SECONDS - SLACK:
            return
        link = agent.link
        if link is None or not link.receives(1) or not agent.coordinator.alive:
            return
        run = self.world.program.runs[((mine or leftovers)[0].run, action.epoch)]
        if not mine:
            size = self.world.scenario.processes
            first = leftovers[0].rank // size * size
            codes = [run.ends[rank][0] for rank in range(first, first + size) if rank in run.ends]
            if codes == [0] * size and agent.termed_at is None:
                self.fail(f"{agent.name} kills processes that may finish")
            return
        if len(run.ranks) < self.world.scenario.processes or "no spawn" in self.world.scenario.faults:
            return
        if agent.termed_at is None:
            self.fail(f"{agent.name} kills ranks that were never asked to end")
            return
        grace = self.world.orders.grace if agent.granted is None else agent.granted
        if now - agent.termed_at < grace - SPAWN_SECONDS and not any(p.killed for p in mine):
            self.fail(f"{agent.name} kills after {now - agent.termed_at:.2f} s of grace")

    def got_term(self, agent: AgentActor) -> None:
        """Check that Slurm's own TERM reaches the ranks that catch it at once, whatever it means."""
        for process in agent.ranks() if agent.alive and not agent.sweeps else ():
            running = process.alive and self.world.clock.now > process.born_at + SPAWN_SECONDS
            if running and process.catches_term and process.termed_at is None:
                self.fail(f"{agent.name} keeps a TERM from rank {process.rank}")

    def agent_told(self, agent: AgentActor, message: Any) -> None:
        if isinstance(message, msg.RanksGone):
            alive = [p for p in agent.node.processes if p.agent is agent and p.epoch == message.epoch]
            if len(alive) > len(message.stuck):
                self.fail(f"{agent.name} says that epoch {message.epoch} is gone, {len(alive)} live")

    def shim_is_dead(self, agent: AgentActor) -> None:
        """Check that an agent without its shim ends its ranks at once, or once its node runs again."""
        asleep = agent.node.thawed_at + SHIM_SECONDS - self.world.clock.now
        if asleep > 0:
            self.world.clock.after(asleep, self.shim_is_dead, agent)
            return
        if any(p.agent is agent and p.runs() and not p.unkillable for p in agent.node.processes):
            self.fail(f"{agent.name} lets ranks live without a shim")

    def link_lost(self, agent: AgentActor) -> None:
        """Check that ranks whose coordinator cannot be reached get their grace time, not a lease."""
        seconds = self.world.orders.grace + 2.0
        self.world.clock.after(seconds, self._left_behind, agent, self.world.clock.now)

    def _left_behind(self, agent: AgentActor, since: float) -> None:
        mine = [p for p in agent.node.processes if p.agent is agent and p.runs() and not p.unkillable]
        stopped = agent.frozen or agent.node.frozen or agent.woken_at >= since
        if mine and agent.alive and not stopped:
            self.fail(f"{agent.name} lets ranks live on without a coordinator")

    def rank_killed(self, process: Process) -> None:
        """Check that a grace time is not lengthened."""
        agent, scenario = process.agent, self.world.scenario
        freezing = {"freeze agent", "freeze node", "stuck", "repeat", "slow sweep"} & set(scenario.faults)
        if agent.alive and process.termed_at is not None and not (freezing or scenario.suspensions):
            took = self.world.clock.now - process.last_termed_at
            if took > self.world.orders.kill_wait + 1.5:
                self.fail(f"rank {process.rank} was killed {took:.1f} s after its TERM")

    def port_released(self, agent: AgentActor) -> None:
        for process in agent.node.processes:
            if process.agent is agent and process.epoch == agent.port_epoch and not process.unkillable:
                self.fail(f"{agent.name} gives the port of epoch {process.epoch} back while its ranks live")

    def noticed(self, agent: AgentActor) -> None:
        times = self._notices.setdefault((agent.name, agent.seen_epoch), [])
        often = (
            self.world.scenario.has("repeat") or self.world.slurm is not None
        )  # a job's end may come nearer
        if times and self.world.clock.now - times[-1] < 5 and not often:
            self.fail(f"{agent.name} passes one notice on twice")
        times.append(self.world.clock.now)

    # --- the coordinator ---

    def claimed(self, coordinator: CoordinatorActor, epoch: int) -> None:
        before = self._epochs.setdefault(coordinator.number, [])
        if before and epoch != before[-1] + 1:
            self.fail(f"{coordinator.name} claims {epoch} after {before[-1]}: it leaps over another one")
        budget = self._budgets.setdefault(coordinator.number, Budget(self.world.scenario.max_restarts))
        if before and not budget.pays(self._collided(coordinator, before[-1])):
            self.fail(f"{coordinator.name} makes attempt {epoch} beyond its budget")
        asked_at = coordinator.asked_at
        # One that was stopped has had no time to hear what the scheduler says of it.
        since = None if asked_at is None else max(asked_at, coordinator.woken_at)
        if before and since is not None and self.world.clock.now > since + DECIDED_SECONDS:
            self.fail(f"{coordinator.name} makes attempt {epoch} although it was asked to end at {asked_at}")
        before.append(epoch)

    def _collided(self, coordinator: CoordinatorActor, epoch: int) -> bool:
        """Return whether rank 0 of that epoch found its port in use."""
        run = self.world.program.runs.get((coordinator.number, epoch))
        ended = run.ends.get(0) if run is not None else None
        return ended is not None and ended[:2] == (1, "natural") and run.ranks[0].collides

    def progress_told(self, coordinator: CoordinatorActor, step: int) -> None:
        """Note the progress of an epoch that the coordinator learns."""
        budget = self._budgets.setdefault(coordinator.number, Budget(self.world.scenario.max_restarts))
        budget.reached(step)

    def coordinator_sent(self, coordinator: CoordinatorActor, action: coordinator_actions.Send) -> None:
        message = action.message
        if isinstance(message, msg.Ack):
            if coordinator.told_superseded:
                self.fail(f"{coordinator.name} acknowledges although another one took over")
            key = (f"{coordinator.number}.{action.link}", message.beat)
            if key in self._acked and not self.world.scenario.has("repeat"):
                self.fail(f"{coordinator.name} acknowledges beat {message.beat} twice")
            self._acked[key] = True
        brief = isinstance(message, msg.StopRanks) and message.grace < self.world.orders.kill_wait
        only_asked = not set(self.world.scenario.faults) - {*ASKING, *HARMLESS} and not self.world.slurm
        if brief and only_asked and self.world.asked_at is not None and not self.world.scenario.trouble:
            self.fail(f"{coordinator.name} gives ranks {message.grace} s although nothing failed")
        if isinstance(message, msg.Farewell):
            agent = self.world.agent_of(action.link)
            if agent is None:
                return
            agent.hurried = True
            if any(
                p.agent is agent and p.runs() and not p.unkillable and not p.child
                for p in agent.node.processes
            ):
                self.fail(f"{coordinator.name} says farewell to {agent.name} while its ranks live")

    def saved(self, coordinator: CoordinatorActor, state: RunState) -> None:
        before: RunState | None = coordinator.states[-1] if coordinator.states else None
        if before is None:
            return
        if before.state.ended:
            self.fail(f"{coordinator.name} saves a state after the last one")
        if state.epoch < before.epoch or len(state.attempts) < len(before.attempts):
            self.fail(f"{coordinator.name}: state goes backwards")
        late = state.updated_at - before.updated_at > contract.STATE_SECONDS + SLACK
        stopping = {"freeze coordinator", "freeze node", "stopped takeover", "echoes", "mute takeover"}
        slept = stopping & set(self.world.scenario.faults) or self.world.scenario.suspensions
        if late and before.state is State.RUNNING and not slept:
            self.fail(f"{coordinator.name} saves too seldom")
        last = state.state.ended or state.state is State.PENDING
        if state.updated_at - before.updated_at < 0.2 - SLACK and not last:
            self.fail(f"{coordinator.name} saves too often")
        if coordinator.told_superseded:
            self.fail(f"{coordinator.name} saves a state although another one took over")

    def rank_ended(self, process: Process, code: int, how: str) -> None:
        run = self.world.program.runs[(process.run, process.epoch)]
        run.ends[process.rank] = (code, how, self.world.clock.now)
        if how in ("termed", "killed"):
            run.broken = True
        if how == "killed":
            self.rank_killed(process)

    def finished(self, coordinator: CoordinatorActor) -> None:
        """Check that the reported end is the actual end."""
        for process in self._running():
            if process.run == coordinator.number and not process.unkillable and not process.child:
                self.fail(
                    f"{coordinator.name} finishes while rank {process.rank} lives on {process.node.index}"
                )
        check_end(self, coordinator, self._epochs.get(coordinator.number, []))

    # --- the end ---

    def end_of_the_world(self) -> None:
        """Check after the healing that everything has ended and nothing is left."""
        for coordinator in self.world.coordinators:
            if coordinator.alive:
                self.fail(
                    f"{coordinator.name} never ends ({coordinator.states and coordinator.states[-1].reason})"
                )
            ended = [state for state in coordinator.states if state.state.ended]
            once = 1 - int(bool(coordinator.states) and coordinator.states[-1].state is State.PENDING)
            if coordinator.exit_code is not None and len(ended) != once and not coordinator.told_superseded:
                self.fail(f"{coordinator.name} has {len(ended)} terminal states")
            for agent in coordinator.agents:
                if agent.alive:
                    self.fail(f"{agent.name} never ends")
                elif agent.shim.alive:
                    self.fail(f"the shim of {agent.name} never ends")
        for node in self.world.nodes:
            for process in node.processes:
                self.fail(f"rank {process.rank} of epoch {process.epoch} is left on node {node.index}")
            for sidecar in node.sidecars:
                self.fail(f"the {sidecar.name} of {sidecar.agent.name} is left on node {node.index}")
