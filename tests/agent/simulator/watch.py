"""The oracles: what must hold in every world, seen with the eyes of the world and never of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterrun.agent import actions as act
from clusterrun.agent import messages as msg
from clusterrun.agent.judge import FREE_PORT_RETRIES
from clusterrun.model import contract
from clusterrun.model.record import RunState
from clusterrun.model.states import State

from .scenario import HARMLESS

if TYPE_CHECKING:
    from .actors import AgentActor, CoordinatorActor
    from .kernel import Process
    from .world import World

SLACK = 0.05
SPAWN_SECONDS = 0.4
"""A TERM that was due while ranks were being started comes when they are."""
PROGRAM = ("crash", "collide")


class Watch:
    """Collects violations; ``struck`` are the faults that happened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[str] = []
        self.struck: list[str] = []
        self.cut_nodes: dict[int, bool] = {}
        self._highest_started = -1
        self._acked: dict[tuple[str, int], bool] = {}
        self._granted: dict[str, bool] = {}
        self._started: dict[tuple[str, int], bool] = {}
        self._notices: dict[tuple[str, int], list[float]] = {}
        self._epochs: dict[int, list[int]] = {}

    def fail(self, text: str) -> None:
        """A law is broken."""
        self.violations.append(f"{self.world.clock.now:.3f}: {text}")

    # --- two epochs are never alive at once ---

    def _excused(self, process: Process) -> bool:
        """Just woken with its whole node, its lease out: its shim has the contract's time to kill it."""
        now = self.world.clock.now
        return now <= process.node.thawed_at + contract.KILL_SECONDS and process.agent.shim.until <= now

    def _running(self) -> list[Process]:
        return [p for node in self.world.nodes for p in node.processes if p.runs() and not self._excused(p)]

    def rank_started(self, process: Process) -> None:
        if process.epoch < self._highest_started:
            self.fail(
                f"rank {process.rank} of epoch {process.epoch} starts after {self._highest_started} has"
            )
        self._highest_started = max(self._highest_started, process.epoch)
        for other in self._running():
            if other.epoch != process.epoch:
                self.fail(
                    f"rank {process.rank} of epoch {process.epoch} starts on node {process.node.index} while rank"
                    f" {other.rank} of epoch {other.epoch} lives on node {other.node.index}"
                )
        for other in process.node.processes:
            if other is not process and other.epoch == process.epoch and other.rank == process.rank:
                self.fail(f"rank {process.rank} runs twice")

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

    def spawned(self, agent: AgentActor, action: act.Spawn) -> None:
        if not self._granted.get(agent.name) or agent.lease_until <= self.world.clock.now - SLACK:
            self.fail(f"{agent.name} starts ranks without a lease")
        if action.epoch <= agent.seen_epoch:
            self.fail(f"{agent.name} starts epoch {action.epoch} after {agent.seen_epoch}")
        if action.epoch == agent.seen_epoch or (action.meeting.port != 20000 + action.epoch):
            self.fail(f"{agent.name} starts epoch {action.epoch} with port {action.meeting.port}")

    def sweeping(self, agent: AgentActor, action: act.Sweep) -> None:
        """Ranks are killed only after their whole grace time, unless the link, the lease or the shim is lost."""
        now = self.world.clock.now
        mine = [
            p for p in agent.node.processes if p.agent is agent and p.epoch == action.epoch and not p.child
        ]
        if not mine or agent.hurried or not agent.shim.alive or now >= agent.lease_until - SLACK:
            return
        link = agent.link
        if link is None or not link.receives(1) or not agent.coordinator.alive:
            return
        run = self.world.runs[(mine[0].run, mine[0].epoch)]
        if len(run.ranks) < self.world.scenario.processes or "no spawn" in self.world.scenario.faults:
            return
        if agent.termed_at is None:
            self.fail(f"{agent.name} kills ranks that were never asked to end")
        elif now - agent.termed_at < self.world.orders.grace - SPAWN_SECONDS and not any(
            p.killed for p in mine
        ):
            self.fail(f"{agent.name} kills after {now - agent.termed_at:.2f} s of grace")

    def agent_told(self, agent: AgentActor, message: Any) -> None:
        if isinstance(message, msg.RanksGone):
            left = [p for p in agent.node.processes if p.agent is agent and p.epoch == message.epoch]
            if len(left) > len(message.stuck):
                self.fail(f"{agent.name} says that epoch {message.epoch} is gone, {len(left)} live")

    def port_released(self, agent: AgentActor) -> None:
        for process in agent.node.processes:
            if process.agent is agent and process.epoch == agent.port_epoch and not process.unkillable:
                self.fail(f"{agent.name} gives the port of epoch {process.epoch} back while its ranks live")

    def noticed(self, agent: AgentActor) -> None:
        times = self._notices.setdefault((agent.name, agent.seen_epoch), [])
        if times and self.world.clock.now - times[-1] < 5:
            self.fail(f"{agent.name} passes one notice on twice")
        times.append(self.world.clock.now)

    # --- the coordinator ---

    def claimed(self, coordinator: CoordinatorActor, epoch: int) -> None:
        self._epochs.setdefault(coordinator.number, []).append(epoch)

    def coordinator_sent(self, coordinator: CoordinatorActor, action: act.Send) -> None:
        message = action.message
        if isinstance(message, msg.Ack):
            if coordinator.told_superseded:
                self.fail(f"{coordinator.name} acknowledges although another one took over")
            key = (f"{coordinator.number}.{action.link}", message.beat)
            if key in self._acked:
                self.fail(f"{coordinator.name} acknowledges beat {message.beat} twice")
            self._acked[key] = True
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
        if state.updated_at - before.updated_at < 0.2 - SLACK and not state.state.ended:
            self.fail(f"{coordinator.name} saves too often")
        if coordinator.told_superseded:
            self.fail(f"{coordinator.name} saves a state although another one took over")

    def rank_ended(self, process: Process, code: int, how: str) -> None:
        run = self.world.runs[(process.run, process.epoch)]
        run.ends[process.rank] = (code, how, self.world.clock.now)
        if how in ("termed", "killed"):
            run.broken = True

    def finished(self, coordinator: CoordinatorActor) -> None:
        """The end that is told is the end that was."""
        for process in self._running():
            if process.run == coordinator.number and not process.unkillable and not process.child:
                self.fail(
                    f"{coordinator.name} finishes while rank {process.rank} lives on {process.node.index}"
                )
        if coordinator.told_superseded:
            return
        state = coordinator.states[-1]
        if not state.state.ended or state.exit_code != coordinator.exit_code or state.ended_at is None:
            self.fail(f"{coordinator.name} finishes with {state.state} and exit code {coordinator.exit_code}")
        if (state.exit_code == 0) != (state.state is State.COMPLETED):
            self.fail(f"{state.state} with exit code {state.exit_code}")
        if any(not attempt.outcome for attempt in state.attempts):
            self.fail("an attempt has no outcome at the end")
        self._check_budget(coordinator, state)
        _CHECKS.get(state.state, Watch._unexpected)(self, coordinator, state)
        self._check_expected(state)

    def _check_budget(self, coordinator: CoordinatorActor, state: RunState) -> None:
        scenario = self.world.scenario
        epochs = self._epochs.get(coordinator.number, [])
        if len(epochs) > 1 + scenario.max_restarts + min(scenario.collisions, FREE_PORT_RETRIES):
            self.fail(f"{len(epochs)} attempts with {scenario.max_restarts} restarts")
        told = [attempt.epoch for attempt in state.attempts if attempt.epoch >= epochs[0]] if epochs else []
        # One that was claimed when the run ended in the same moment never began.
        if told not in (epochs, epochs[:-1]):
            self.fail(f"attempts {epochs} were made, {told} are told of")

    def _completed(self, coordinator: CoordinatorActor, state: RunState) -> None:
        run = self.world.runs.get((coordinator.number, state.epoch))
        size = self.world.scenario.nodes * self.world.scenario.processes
        ends = [end[:2] for end in run.ends.values()] if run else []
        if ends != [(0, "natural")] * size:
            self.fail(f"COMPLETED, but ranks ended {ends}")

    def _failed(self, coordinator: CoordinatorActor, state: RunState) -> None:
        failure = state.failure
        if failure is None or not state.reason:
            self.fail("FAILED without a failure")
        elif failure.rank >= 0:
            run = self.world.runs[(coordinator.number, state.epoch)]
            code, how, _ = run.ends[failure.rank]
            if how not in ("natural", "collateral") or code != failure.code:
                ended = how == "killed" and self.struck  # an agent's death kills its ranks, too
                if not ended:
                    self.fail(f"rank {failure.rank} is blamed with {failure.code}, it ended {code} {how}")
            if state.exit_code != (128 - failure.code if failure.code < 0 else failure.code):
                self.fail(f"exit code {state.exit_code} for a rank that ended with {failure.code}")

    def _node_fail(self, coordinator: CoordinatorActor, state: RunState) -> None:
        if not set(self.struck) - set(HARMLESS) and not self.world.scenario.slow:
            self.fail(f"NODE_FAIL without a fault: {state.reason}")
        if not any(f"n{node.index} " in state.reason for node in self.world.nodes):
            self.fail(f"NODE_FAIL does not name its node: {state.reason}")

    def _cancelled(self, coordinator: CoordinatorActor, state: RunState) -> None:
        if not self.world.end_was_asked:
            self.fail("CANCELLED, but nobody asked")

    def _timeout(self, coordinator: CoordinatorActor, state: RunState) -> None:
        if not self.world.scenario.time_limit:
            self.fail("TIMEOUT without a time limit")

    def _unexpected(self, coordinator: CoordinatorActor, state: RunState) -> None:
        self.fail(f"the run ended as {state.state}")

    def _check_expected(self, state: RunState) -> None:
        """Where nothing but the program itself went wrong, its end is known beforehand."""
        scenario = self.world.scenario
        if set(scenario.faults) - set(HARMLESS) - set(PROGRAM):
            return
        start = used = ports = 0
        while True:
            if start < scenario.collisions and ports < FREE_PORT_RETRIES:
                ports += 1
            elif start < scenario.collisions or start in scenario.crashes:
                rank, at, code = scenario.crashes.get(start, (0, 0.2, 1))
                rank, at, code = (0, 0.2, 1) if start < scenario.collisions else (rank, at, code)
                if abs(at - scenario.duration) < 5:
                    return
                if at < scenario.duration:
                    if used == scenario.max_restarts:
                        self._expect_failure(state, start, rank, code)
                        return
                    used += 1
                else:
                    break
            else:
                break
            start += 1
        if state.state is not State.COMPLETED or len(state.attempts) != start + 1:
            self.fail(
                f"a healthy run ended {state.state} after {len(state.attempts)} attempts: {state.reason}"
            )

    def _expect_failure(self, state: RunState, start: int, rank: int, code: int) -> None:
        failure = state.failure
        seen = (state.state, len(state.attempts), failure and (failure.rank, failure.code))
        if seen != (State.FAILED, start + 1, (rank, code)):
            self.fail(f"expected rank {rank} to fail with {code} in attempt {start}: {seen} {state.reason}")

    # --- the end ---

    def end_of_the_world(self) -> None:
        """Healed, and time enough has passed: everything has ended and nothing is left."""
        for coordinator in self.world.coordinators:
            if coordinator.alive:
                self.fail(
                    f"{coordinator.name} never ends ({coordinator.states and coordinator.states[-1].reason})"
                )
            ended = [state for state in coordinator.states if state.state.ended]
            if coordinator.exit_code is not None and len(ended) != 1 and not coordinator.told_superseded:
                self.fail(f"{coordinator.name} has {len(ended)} terminal states")
            for agent in coordinator.agents:
                if agent.alive:
                    self.fail(f"{agent.name} never ends")
                elif agent.shim.alive:
                    self.fail(f"the shim of {agent.name} never ends")
        for node in self.world.nodes:
            for process in node.processes:
                self.fail(f"rank {process.rank} of epoch {process.epoch} is left on node {node.index}")


_CHECKS = {
    State.COMPLETED: Watch._completed,
    State.FAILED: Watch._failed,
    State.NODE_FAIL: Watch._node_fail,
    State.CANCELLED: Watch._cancelled,
    State.TIMEOUT: Watch._timeout,
}
