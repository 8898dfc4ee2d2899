"""The oracles of an end: what a run says of itself is what really was, and what had to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterrun.coordinator.restart_policy import FREE_PORT_RETRIES
from clusterrun.model import contract
from clusterrun.model.hostlist import expand
from clusterrun.model.record import RunState
from clusterrun.model.states import State

from .scenario import HARMLESS, OWN_TEXT, Scenario

if TYPE_CHECKING:
    from .coordinator_actor import CoordinatorActor
    from .watch import Watch

PROGRAM = ("crash", "collide")
# Faults that end agents. A run survives them by starting the agents again.
LOSSES = ("kill agent", "kill launcher", "reset link", "power off")
# Reason of a job whose predecessor did not report its end.
LAST_LOST = "the node of the last attempt was lost"
ASKING = ("term coordinator", "term agents", "cancel", "slow sweep")


def check_end(watch: Watch, coordinator: CoordinatorActor, epochs: list[int]) -> None:
    """Check the end of a coordinator that claimed ``epochs``."""
    if coordinator.launcher_lives or coordinator.older:
        watch.fail(f"{coordinator.name} finishes and leaves its launcher alive")
    if coordinator.told_superseded:
        return
    state = coordinator.states[-1]
    if state.state is State.PENDING:
        _handed_over(watch, coordinator, state)
        return
    joins = "did not join" in state.reason and "come back" not in state.reason and state.exit_code != 3
    if joins and not coordinator.launcher_lives and not coordinator.ended_launcher:
        watch.fail("the end of the launcher was not noticed")
    if not state.state.ended or state.exit_code != coordinator.exit_code or state.ended_at is None:
        watch.fail(f"{coordinator.name} finishes with {state.state} and exit code {coordinator.exit_code}")
    if (state.exit_code == 0) != (state.state is State.COMPLETED):
        watch.fail(f"{state.state} with exit code {state.exit_code}")
    if any(not attempt.outcome for attempt in state.attempts):
        watch.fail("an attempt has no outcome at the end")
    _told(watch, epochs, state)
    _CHECKS.get(state.state, _unexpected)(watch, coordinator, state)
    _asked(watch, state)
    _expected(watch, state)
    _survives(watch, state)
    _innocent(watch, state)
    _decided(watch, state)


def _handed_over(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    """Check that another job is queued, and that it excludes the unfit nodes."""
    if watch.world.slurm is not None:
        if coordinator.exit_code != 0:
            watch.fail(f"{coordinator.name} hands over with exit code {coordinator.exit_code}")
    elif not coordinator.handed_over or coordinator.exit_code != 3 or not state.excluded:
        watch.fail(f"{coordinator.name} hands over with {coordinator.exit_code}: {state.reason}")


def _told(watch: Watch, epochs: list[int], state: RunState) -> None:
    """Check that the state reports all attempts. Their cost is checked when they start."""
    reported = [attempt.epoch for attempt in state.attempts if attempt.epoch >= epochs[0]] if epochs else []
    # One that was claimed when the run ended in the same moment never began.
    if reported not in (epochs, epochs[:-1]):
        watch.fail(f"attempts {epochs} were made, {reported} are reported")


def _completed(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    run = watch.world.program.runs.get((coordinator.number, state.epoch))
    size = watch.world.scenario.nodes * watch.world.scenario.processes
    ends = [end[:2] for end in run.ends.values()] if run else []
    if ends != [(0, "natural")] * size:
        watch.fail(f"COMPLETED, but ranks ended {ends}")


def _failed(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    failure = state.failure
    if state.exit_code == 3 and state.reason.startswith("pre-flight"):
        _unfit(watch, coordinator, state)
    elif "no claim" in watch.struck and "no attempt can be begun" in state.reason:
        return
    elif not state.reason or (failure is None and coordinator.dead_since is None):
        watch.fail("FAILED without a failure")
    elif failure is None or (coordinator.dead_since is not None and not state.attempts[-1].failure):
        return  # what was killed is the coordinator, and there is no restart left for that
    elif failure.rank >= 0:
        epoch = next(a.epoch for a in reversed(state.attempts) if a.failure)
        run = watch.world.program.runs[(watch.world.claims[epoch], epoch)]
        code, how, _ = run.ends[failure.rank]
        if how not in ("natural", "collateral") or code != failure.code:
            watch.fail(f"rank {failure.rank} is blamed with {failure.code}, it ended {code} {how}")
        first = next((r for r, end in run.ends.items() if end[1] == "natural" and end[0]), failure.rank)
        if how == "collateral" and first != failure.rank and _only(watch, *PROGRAM):
            watch.fail(f"rank {failure.rank} is blamed for what rank {first} did")
        if state.exit_code != (128 - failure.code if failure.code < 0 else failure.code):
            watch.fail(f"exit code {state.exit_code} for a rank that ended with {failure.code}")


def _unfit(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    """Check that the state names too few fit nodes, and that each unfit one had a fault."""
    scenario = watch.world.scenario
    late = any(map(scenario.has, ("old epoch", "lost welcome"))) or _came_all_the_same(watch)
    faultless = not set(watch.struck) - set(HARMLESS) and not scenario.slow and not late
    named = set(state.excluded)
    runs = [run for run in watch.world.coordinators if run.number <= coordinator.number]
    unfit = {f"n{index}" for run in runs for index in scenario.unfit([node.index for node in run.hosts])}
    either = {f"n{index}" for run in runs for index in scenario.unsure([node.index for node in run.hosts])}
    if not named or (faultless and named - either != unfit - either):
        watch.fail(f"{sorted(named)} are called unfit, {sorted(unfit)} are")


def _node_fail(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    scenario = watch.world.scenario
    all_come = scenario.unreachable < 0 and not scenario.has("no agent") and not scenario.has("old epoch")
    if not set(watch.struck) - set(HARMLESS) and not scenario.slow and all_come:
        watch.fail(f"NODE_FAIL without a fault: {state.reason}")
    world = state.attempts[-1].nodes
    failure = state.attempts[-1].failure
    trained = (coordinator.number, state.epoch) in watch.world.program.runs
    if trained and failure and failure.node and failure.node not in world:
        watch.fail(f"NODE_FAIL for {state.failure.node}, and {world} trained")
    together, silent, _ = state.reason.partition(" fell silent at the same time")
    reported_nodes = {*expand(together.split()[-1])} if silent else set()
    named = any(
        f"n{node.index} " in state.reason or reported_nodes > {f"n{node.index}"} for node in watch.world.nodes
    )
    if not named and not (len(watch.world.coordinators) > 1 and LAST_LOST in state.reason):
        watch.fail(f"NODE_FAIL does not name its node: {state.reason}")


def _cancelled(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    if not watch.world.was_asked and watch.world.slurm is None:
        watch.fail("CANCELLED, but nobody asked")


def _timeout(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    if not watch.world.scenario.time_limit and watch.world.slurm is None:
        watch.fail("TIMEOUT without a time limit")


def _preempted(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    if watch.world.slurm is None:
        watch.fail("PREEMPTED without a scheduler")


def _unexpected(watch: Watch, coordinator: CoordinatorActor, state: RunState) -> None:
    watch.fail(f"the run ended as {state.state}")


def _asked(watch: Watch, state: RunState) -> None:
    """Check that a requested end comes soon if there was no other fault."""
    world, scenario = watch.world, watch.world.scenario
    if _only(watch, *ASKING) and world.asked_at is not None:
        before_joining = "before" in state.reason and "had joined" in state.reason
        before_asked = before_joining or state.exit_code == 3
        before_asked = before_asked or _came_all_the_same(watch)
        if state.state not in (State.CANCELLED, State.COMPLETED) and not before_asked:
            watch.fail(f"asked to end, the run ended {state.state}: {state.reason}")
        if world.clock.now > world.asked_at + 55 + scenario.suspended:
            watch.fail(f"asked to end at {world.asked_at:.1f}, the run went on")
    limited = scenario.time_limit and scenario.time_limit < scenario.duration and not scenario.suspensions
    allowed = scenario.time_limit + 20 + 2 * scenario.slow
    in_time = state.state is State.TIMEOUT and world.clock.now <= allowed
    first = len(world.coordinators) == 1
    if _only(watch, "time limit") and first and limited and not in_time and state.exit_code != 3:
        watch.fail(f"with a limit of {scenario.time_limit:.1f} s the run ended {state.state}")


def _survives(watch: Watch, state: RunState) -> None:
    """Check that a run completes if it has a restart for each loss and a spare for each lost node."""
    world, scenario = watch.world, watch.world.scenario
    if not _only(watch, *LOSSES) or len(world.coordinators) > 1 or scenario.slow:
        return
    if _came_late(scenario, state):
        return
    struck = [fault for fault in watch.struck if fault in LOSSES]
    hosts = list(range(scenario.allocated))
    unfit = len(scenario.unfit(hosts) | scenario.unsure(hosts))
    spares = scenario.spares - unfit - sum(node.dead for node in world.nodes)
    # A node that was lost is done without before the others are known to be fit.
    affordable = len(struck) <= scenario.max_restarts and spares >= 0 and not unfit
    if affordable and not world.nodes[0].dead and state.state is not State.COMPLETED:
        watch.fail(f"after {struck} the run ended {state.state}: {state.reason}")


def _innocent(watch: Watch, state: RunState) -> None:
    """Check that no node is blamed if only launchers were killed.

    A node may be blamed that was lost in its check, or whose agent's end arrives before the launcher's.
    """
    scenario = watch.world.scenario
    hampered = scenario.examined or scenario.slow or scenario.has("lost welcome")
    hampered = bool(hampered) or "its tasks" in watch.struck
    if state.excluded and not hampered and _only(watch, "kill launcher"):
        watch.fail(f"{state.excluded} are left out, and only launchers were killed")


def _expected(watch: Watch, state: RunState) -> None:
    """Check the expected end of a run in which only the program failed."""
    scenario = watch.world.scenario
    brief = len(watch.frozen_for) < 2 and sum(watch.frozen_for) < contract.LOST_SECONDS + 0.4
    if not (_only(watch, *PROGRAM) or (_only(watch, "freeze coordinator") and brief and not scenario.slow)):
        return
    if len(watch.world.coordinators) > 1 or _came_all_the_same(watch) or _came_late(scenario, state):
        return
    hosts = list(range(scenario.allocated))
    unfit = scenario.unfit(hosts)
    if len(unfit) <= scenario.spares < len(unfit | scenario.unsure(hosts)):
        return
    if len(unfit) > scenario.spares:
        if state.state is not State.FAILED or state.exit_code != 3:
            watch.fail(f"with {unfit} unfit the run ended {state.state}: {state.reason}")
        return
    runs = sorted(watch.world.program.runs.items(), key=lambda run: run[1].start)
    attempts, blamed = foretold(scenario, [watch.world.program.step(*key) for key, _ in runs])
    if any(abs(at - scenario.duration) < 5 for _, at, _ in scenario.crashes.values()):
        return
    if blamed is not None:
        failure = state.failure
        actual = (state.state, len(state.attempts), failure and (failure.rank, failure.code))
        if actual != (State.FAILED, attempts, blamed):
            watch.fail(f"expected {blamed} to fail in attempt {attempts}: {actual} {state.reason}")
        return
    if state.state is not State.COMPLETED or len(state.attempts) != attempts:
        watch.fail(f"a healthy run ended {state.state} after {len(state.attempts)} attempts: {state.reason}")
    # A second agent is dropped, or ended with the launcher while it still connects, as one that is
    # never told that it is welcome.
    more = any(map(scenario.has, ("second agent", "late agent", "lost welcome"))) or scenario.unreachable >= 0
    # Over a slow network the farewell may arrive after the launcher has ended the agents.
    more = more or (scenario.slow > 0 and "mute" in scenario.examiners)
    coordinator = watch.world.coordinators[0]
    for agent in coordinator.agents:
        # The launcher ended all agents and was started again if a node joined too late.
        replaced = scenario.slow > 0 and agent.launch < coordinator.launches
        if agent.exit_code not in ((0, 1, 143, None) if more or replaced else (0,)):
            watch.fail(f"{agent.name} exits with {agent.exit_code} at the end of a healthy run")


def _came_all_the_same(watch: Watch) -> bool:
    """Return whether an agent came from the node that the launcher cannot reach."""
    scenario = watch.world.scenario
    never = (scenario.unreachable, scenario.allocated - 1 if scenario.has("no agent") else -1)
    welcomed = [agent for run in watch.world.coordinators for agent in run.agents if agent.welcomed]
    return any(agent.index in never for agent in welcomed)


def _came_late(scenario: Scenario, state: RunState) -> bool:
    """Return whether the run ended because a node joined too late for the check."""
    late = scenario.has("old epoch") or scenario.has("lost welcome") or scenario.slow > 0
    return late and state.exit_code == contract.ExitCode.UNFIT and "did not join" in state.reason


def foretold(scenario: Scenario, steps: list[int]) -> tuple[int, tuple[int, int] | None]:
    """Return the number of attempts, and the rank that fails in the last one with its code (or None).

    ``steps``: the last step that each start of the ranks reported.
    """
    used = ports = row = 0
    highest, charged = -1, False
    for start, step in enumerate(steps):
        rank, at, code = scenario.crashes.get(start, (0, float("inf"), 0))
        if start < scenario.collisions:
            if ports < FREE_PORT_RETRIES:
                ports, row, charged = ports + 1, 0, False
                continue
            rank, at, code = 0, 0.2, 1
        if at >= scenario.duration:
            return start + 1, None
        row = row + 1 if charged and step <= highest else 0
        used = 0 if step > highest else used
        highest = max(highest, step)
        vain = scenario.no_progress and highest >= 0 and row >= scenario.no_progress
        if vain or used == scenario.max_restarts or _recurs(scenario, start, steps):
            return start + 1, (rank, code)
        used, charged = used + 1, True
    return len(steps) + 1, None


def _recurs(scenario: Scenario, start: int, steps: list[int]) -> bool:
    """Return whether the crash of this start would follow from another one, as its error shows."""
    error = scenario.errors.get(start, "")
    if not scenario.no_progress or not error or start < scenario.collisions:
        return False
    if error == OWN_TEXT and steps[start] < 0:
        return True
    has_same = start - 1 >= scenario.collisions and scenario.errors.get(start - 1) == error
    got_further = steps[start] > max(steps[:start], default=-1)
    return has_same and not got_further and not error.startswith("Connection")


def _decided(watch: Watch, state: RunState) -> None:
    """Check that a failure that recurs has no further attempt, and that nothing else ends a run early."""
    attempts = state.attempts
    for number, attempt in enumerate(attempts):
        error = attempt.failure.error if attempt.failure else ""
        before = attempts[number - 1].failure if number else None
        got_further = attempt.step > max((earlier.step for earlier in attempts[:number]), default=-1)
        is_same = before is not None and before.error == error and not got_further
        is_own_text = error == OWN_TEXT and attempt.step < 0
        recurs = error and (is_own_text or (is_same and not error.startswith("Connection")))
        is_last = number == len(attempts) - 1
        is_restarted = not is_last and attempts[number + 1].cause == "failure"
        if recurs and is_restarted and watch.world.orders.survival.no_progress:
            watch.fail(f"attempt {attempt.epoch} is restarted, and {error} recurs")
        if is_last and attempt.decision in ("own-text", "same-error") and not recurs:
            watch.fail(f"attempt {attempt.epoch} is not restarted, and {error} need not recur")


def _only(watch: Watch, *faults: str) -> bool:
    """Return whether only these faults occurred, beside faults that do not matter."""
    alone = watch.world.slurm is None and "no claim" not in watch.struck
    return alone and not set(watch.world.scenario.faults) - set(HARMLESS) - set(faults)


_CHECKS = {
    State.COMPLETED: _completed,
    State.FAILED: _failed,
    State.NODE_FAIL: _node_fail,
    State.CANCELLED: _cancelled,
    State.TIMEOUT: _timeout,
    State.PREEMPTED: _preempted,
}
