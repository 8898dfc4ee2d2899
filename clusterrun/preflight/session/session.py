"""The pre-flight check of a run as a state machine: answers in, requests and finally an outcome out.

The check is a sequence of rounds. A round sends requests to nodes and waits until every node answered, was
lost or timed out. The check always ends within its budget.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Sequence
from contextlib import suppress

from clusterrun.model.document import BadDocument
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.orders import Level, Orders
from clusterrun.model.preflight_report import Finding, Grade, NodeReport, Report, worst
from clusterrun.model.world import exactly
from clusterrun.preflight import tasks
from clusterrun.preflight.session import (
    absent_nodes,
    collective_phase,
    local_phase,
    loss_phase,
    measure_phase,
    network_phase,
    pair_findings,
    port_sweep,
    recheck,
)
from clusterrun.preflight.session.consistency import common_interface, faster_interface
from clusterrun.preflight.session.group_tests import BURN, PRODUCT, GroupTests
from clusterrun.preflight.session.node_selection import Choice
from clusterrun.preflight.session.requests import AskWorker, Request
from clusterrun.preflight.session.state import NodeFinding, NodeState, SessionState

__all__ = ["AskWorker", "Session", "SessionNode", "SessionOutcome"]

_TASK_TITLES = {
    tasks.LocalTask: "local checks",
    tasks.ListenTask: "the opening of ports",
    tasks.DialTask: "dialling",
    tasks.StartTorch: "the import of torch",
    tasks.GroupTask: "a collective test",
    tasks.ThroughTask: "a look through it at another node",
    tasks.ExchangeTask: "an exchange of messages",
}
OVERSLEPT_SECONDS = 1.0
# The first late answer of a node gets this share of the remaining time, within these limits in seconds.
_LEAST_LATE, _LONGEST_LATE, _LATE_SHARE = 10.0, 30.0, 0.25
_OURS = "this is a fault of clusterrun: please report it with this line"
_MORE = "give it more: --preflight-budget"
_SILENT = "look at the node and at the log of its examiner in the run directory"

_NONE_PASSED = (
    "look at what all of them share: the interface that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, "
    "and the firewall between the nodes of a job"
)


@frozen
class SessionNode:
    """A node of the allocation."""

    node: int  # its number in the allocation
    name: str
    address: str = ""
    absent: str | None = None  # why its agent did not join; None if it joined


@frozen
class SessionPlace:
    """The place where the workers of a run find each other."""

    run_dir: str = ""
    nonce: str = ""  # a secret of this run's workers; '' chooses one


@frozen
class ShortCheck:
    """The check between two attempts. It tests the suspects and takes the other nodes as fit."""

    suspects: Sequence[int]  # numbers in the allocation
    after: Report | None = None  # the report of the last check; its rank order stays
    network: bool = False  # whether the network may be at fault


@frozen
class SessionOutcome:
    """The outcome of a check."""

    fit: bool
    report: Report
    world: tuple[int, ...]  # numbers in the allocation in rank order; complete if ``fit``
    environment: tuple[tuple[str, str], ...]  # for the ranks, without the variables that the user set
    excluded: tuple[str, ...]  # names of the nodes that another attempt should exclude


class Session:
    """A check. ``short`` makes it the check between two attempts. Times except ``wall`` are steady clock."""

    def __init__(
        self,
        orders: Orders,
        nodes: Sequence[SessionNode],
        now: float,
        wall: float,
        place: SessionPlace = SessionPlace(),  # noqa: B008
        short: ShortCheck | None = None,
    ) -> None:
        states = {node.node: NodeState(node.node, node.name, node.address) for node in nodes}
        for node in nodes:
            if node.absent is not None:
                states[node.node].absent = node.absent
                remedy = absent_nodes.look_at(node.absent, lives=False)
                states[node.node].mark_gone("agent", node.absent, remedy)
        after = short.after if short else None
        self.outcome: SessionOutcome | None = None
        nonce = place.nonce or hashlib.sha256(f"{orders.run_id} {now!r} {wall!r}".encode()).hexdigest()[:32]
        self._state = SessionState(orders, recheck.in_order(states, after), now, wall, place.run_dir, nonce)
        self._group_tests = GroupTests(self._state)
        self._pairs = collective_phase.PairTests(self._group_tests)
        self._awaited: tuple[type, ...] = ()
        self._naps_until: float | None = None
        if short is not None and after is not None:
            recheck.recall(self._state, after, short.suspects)
        again = short and recheck.rounds(self._pairs, short.suspects, short.network)
        self._course = again or self._rounds()

    @property
    def progress(self) -> str:
        state = self._state
        open_count = len(state.requests)
        plural = "s" if open_count != 1 else ""
        waits = f", waiting for {open_count} answer{plural}" if open_count else ""
        return f"{state.label}{waits}, {state.seconds_left:.0f} s left"

    def wakes_at(self) -> float | None:
        if self.outcome is not None:
            return None
        if self._naps_until is not None:
            return self._naps_until
        due = self._state.requests.due_at()
        return self._state.end_at if due is None else min(due, self._state.end_at)

    # --- events ---

    def begin(self) -> list[AskWorker]:
        return self._proceed()

    def answered(self, now: float, node: int, number: int, body: str) -> list[AskWorker]:
        """Take the answer of an examiner. An answer to no open request is ignored."""
        self._state.now = max(now, self._state.now)
        request = self._state.requests.close(node, number)
        if request is None or self.outcome is not None:
            return []
        try:
            _take(self._state, self._group_tests, request, tasks.answer(request.task, body))
        except BadDocument as error:
            self._gone(
                node, "examiner", f"answered {_TASK_TITLES[type(request.task)]} with nonsense: {error}"
            )
        return self._proceed()

    def lost(self, now: float, node: int, why: str) -> list[AskWorker]:
        self._state.now = max(now, self._state.now)
        node_state = self._state.nodes.get(node)
        if node_state is None or node_state.gone or self.outcome is not None:
            return []
        node_state.lost_at = self._state.now
        self._gone(node, "agent", f"was lost during the check: {why}")
        return self._proceed()

    def _gone(self, node: int, check: str, why: str) -> None:
        self._state.nodes[node].mark_gone(check, why, _SILENT)
        self._state.requests.close_all_of(node)

    def tick(self, now: float) -> list[AskWorker]:
        if self.outcome is not None or self._overslept(now):
            return []
        state = self._state
        state.now = max(now, state.now)
        # A request that would end after the budget blames no node; `_cut` handles it.
        for request in state.requests.close_overdue(min(state.now, math.nextafter(state.end_at, 0.0))):
            if not self._waits_once(request):
                title = _TASK_TITLES[type(request.task)]
                why = f"did not answer: {title} took longer than {request.seconds:.0f} s"
                self._gone(request.node, "examiner", why)
        return self._proceed()

    def _waits_once(self, request: Request) -> bool:
        """Prolong the first late request of a node. Its later requests must be answered in time."""
        state, node = self._state, self._state.nodes[request.node]
        if node.late_until is None:
            wait = min(_LONGEST_LATE, max(_LEAST_LATE, _LATE_SHARE * state.seconds_left))
            node.late_until = state.now + min(wait, state.seconds_left)
        if state.now < node.late_until:
            state.requests.prolong(request, node.late_until)
        return state.now < node.late_until

    def _overslept(self, now: float) -> bool:
        """Return True shortly after this process overslept, so that it reads waiting answers first."""
        due = self.wakes_at()
        if self._naps_until is None and due is not None and now - due > OVERSLEPT_SECONDS:
            self._naps_until = now + OVERSLEPT_SECONDS
        if self._naps_until is not None and now < self._naps_until:
            return True
        self._naps_until = None
        return False

    # --- the sequence of rounds ---

    def _rounds(self) -> Generator[tuple[type, ...], None, None]:
        state = self._state
        yield from local_phase.rounds(state)
        # A fault of all nodes together would make every group test fail.
        if not state.backend or Grade.FAIL in [finding.verdict for finding in state.together]:
            yield from port_sweep.rounds_between(state)
            yield from loss_phase.read(state)
            return
        yield from collective_phase.products(state, self._group_tests)
        local_phase.write(state)
        if state.orders.preflight.level is Level.FULL or state.orders.preflight.all_pairs:
            yield from self._pairs.rounds()
        yield from port_sweep.rounds(state)
        yield from loss_phase.read(state)
        yield from collective_phase.WholeSet(self._pairs).rounds()
        before = state.choice().world
        yield from port_sweep.rounds(state)
        yield from loss_phase.read(state)
        if state.choice().world != before:
            yield from collective_phase.WholeSet(self._pairs).rounds()
        yield from measure_phase.rounds(state, self._group_tests)
        yield from absent_nodes.rounds_at_lost(state)

    def _proceed(self) -> list[AskWorker]:
        """Run the rounds until one waits for an answer, and return the new requests."""
        state = self._state
        while self.outcome is None:
            if state.now >= state.end_at:
                self._course.close()
                self._cut()
            elif state.requests.waits_for(self._awaited):
                break
            else:
                try:
                    self._awaited = next(self._course)
                except StopIteration:
                    self._conclude()
                except Exception as error:  # noqa: BLE001 (a fault of ours must not keep a run from training)
                    message = f"the check itself failed: {type(error).__name__}: {error}"
                    state.write_of_all("itself", "check", Grade.UNDETERMINED, message, _OURS)
                    self._conclude()
        asks, state.asks = state.asks, []
        return asks

    def _cut(self) -> None:
        """End the check because the budget is spent, and report the open requests as undetermined."""
        state = self._state
        open_titles: dict[int, str] = {}
        for kind, title in _TASK_TITLES.items():
            for request in state.requests.of_kind(kind):
                open_titles.setdefault(request.node, title)
        ended = f"the budget of {state.orders.preflight.budget:g} s ended during"
        node_findings = [
            NodeFinding(node, Finding("budget", Grade.UNDETERMINED, f"{ended} {title}", _MORE))
            for node, title in open_titles.items()
        ]
        state.write("budget", node_findings)
        network_phase.write(state)
        local_phase.write(state)
        self._pairs.write()
        self._conclude()

    def _conclude(self) -> None:
        state = self._state
        unfinished = state.backend and state.should_test_set and not state.set_passed
        if unfinished and state.choice().whole and not state.together:
            message = "the whole set was not tested to its end: no time was left"
            state.write_of_all("unfinished", "set", Grade.UNDETERMINED, message)
        absent_nodes.review(state)
        write_unverified(state)
        for notice in self._pairs.passing():
            state.notice(notice)
        state.asks.clear()
        self.outcome = concluded(state)


# --- answers ---


def _take(state: SessionState, group_tests: GroupTests, request: Request, value: tasks.Answer) -> None:
    node, task = state.nodes[request.node], request.task
    if isinstance(value, (tasks.ListenAnswer, tasks.DialAnswer)):
        node.bound_clock(value.wall, state.wall_at(request.asked_at), state.wall_at(state.now))
    if isinstance(value, tasks.LocalAnswer):
        node.local = value
    elif isinstance(value, tasks.ListenAnswer):
        node.listening = value
    elif isinstance(value, tasks.DialAnswer) and isinstance(task, tasks.DialTask):
        node.resolved.update(value.resolved)
        node.resolve_seconds = max(node.resolve_seconds, value.resolve_seconds)
        if task.closed:
            state.swept.update({(node.node, way.node): frozenset(way.silent) for way in value.dialled})
        else:
            state.dials.take(task, value)
    elif isinstance(value, tasks.ExchangeAnswer):
        state.losses.take(node.node, value)
    elif isinstance(value, tasks.TorchStarted):
        node.record_torch_worker(value)
    elif isinstance(value, tasks.GroupResult):
        if value.stage == "warm":
            node.ends.append(value.why)
            node.torch_worker, node.ports = None, []  # A new worker can be started.
        elif isinstance(task, tasks.GroupTask) and task.kind == PRODUCT:
            node.record_matmul(value)
        elif isinstance(task, tasks.GroupTask) and task.kind == BURN:
            node.burn = value
        group_tests.take(request, value)
    elif isinstance(value, tasks.ThroughAnswer) and isinstance(task, tasks.ThroughTask) and value.body:
        inner = replace(request, node=state.numbers[task.name], task=tasks.task(task.body))
        with suppress(BadDocument):  # a bad answer is not the fault of the relay
            _take(state, group_tests, inner, tasks.answer(inner.task, value.body))
    local_phase.hurry(state, type(task))


# --- the outcome ---


def write_unverified(state: SessionState) -> None:
    """Report that no two nodes passed a test together: FAIL if tests failed, UNDETERMINED if none ran."""
    verdicts = [finding.verdict for finding in state.together]
    tests = [test for test in state.tests if test.test != PRODUCT and len(test.nodes) > 1]
    passed = any(test.outcome == "passed" for test in tests)
    unneeded = state.orders.nodes < 2 or not state.should_test_set
    if passed or unneeded or Grade.FAIL in verdicts or not state.choice().whole:
        return
    failed = [test for test in tests if test.outcome == "failed"]
    if failed:
        why = next((test.said for test in failed if test.said), "no answer within the limit")
        message = f"none of {len(failed)} tests of nodes together passed: {why}"
        remedy = pair_findings.remedy_of(state, why, _NONE_PASSED)
        state.write_of_all("verified", "set", Grade.FAIL, message, remedy)
    elif Grade.UNDETERMINED not in verdicts:
        state.write_of_all("verified", "set", Grade.UNDETERMINED, "no two nodes were tested together")


def concluded(state: SessionState) -> SessionOutcome:
    choice = state.choice()
    fit = choice.whole and Grade.FAIL not in [finding.verdict for finding in state.together]
    for was, now in choice.swaps:
        state.notice(f"{state.nodes[now].name} takes the place of {state.nodes[was].name}")
    # The user chooses, since a faster interface may not join the nodes and was not tested.
    name, fast, slow = faster_interface([state.nodes[node] for node in choice.nodes])
    if len(choice.nodes) > 1 and name and "GLOO_SOCKET_IFNAME" not in dict(state.orders.environment):
        state.notice(
            f"every node has {name} with {fast / 1000:g} Gb/s, the interface in use has {slow / 1000:g}: "
            f"if it joins the nodes, --env GLOO_SOCKET_IFNAME={name} --env NCCL_SOCKET_IFNAME=={name}"
        )
    parted = () if choice.whole else choice.parted
    alone = state.names(node for node in parted if node not in state.elsewhere())
    if alone:
        state.notice(f"the other nodes work together without {alone}: --exclude {alone}")
    # Another attempt excludes the smaller group: the nodes that joined, or the nodes that they do not reach.
    joined, silent = state.parts.get("joining") or state.parts.get("sizes") or ((), ())
    fewer = joined if len(silent) > len(joined) and not choice.whole else silent
    report = _report(state, choice, fit)
    excluded = dict.fromkeys((*report.excluded, *(state.nodes[node].name for node in (*parted, *fewer))))
    return SessionOutcome(fit, report, choice.nodes, report.environment, tuple(excluded))


def _report(state: SessionState, choice: Choice, fit: bool) -> Report:
    orders = state.orders
    members = [state.nodes[number] for number in choice.nodes]
    world = tuple(node.name for node in members)
    grades = [node.verdict for node in members]
    grades += [link.verdict for link in state.links if {link.a, link.b} <= set(world)]
    grades += [Grade.WARN] * bool(choice.swaps) + [finding.verdict for finding in state.together]
    interface = common_interface(members)
    chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": exactly(interface)} if interface else {}
    reports = []
    for node in state.nodes.values():
        role = "rank" if node.node in choice.nodes else "excluded" if node.unfit else "spare"
        reports.append(NodeReport(node.name, node.verdict, role, node.findings))
    return Report(
        run_id=orders.run_id,
        cluster=orders.preflight.cluster,
        level=str(orders.preflight.level),
        verdict=worst(tuple(grades)) if fit else Grade.FAIL,
        at=state.wall_at(state.now),
        seconds=round(state.now - state.began, 3),
        budget=orders.preflight.budget,
        rounds=state.rounds,
        backend=state.backend,
        world=world,
        spares=tuple(report.node for report in reports if report.role == "spare"),
        excluded=tuple(node.name for node in state.nodes.values() if node.unfit and not node.excused),
        nodes=tuple(reports),
        links=state.links,
        set_said="; ".join(map(_message_with_remedy, state.together)),
        tests=tuple(state.tests),
        quantities=state.quantities.report([node.name for node in state.nodes.values()]),
        table=state.quantities.table(),
        notices=tuple(state.notices),
        environment=tuple(item for item in chosen.items() if item[0] not in dict(orders.environment)),
    )


def _message_with_remedy(finding: Finding) -> str:
    """Return the message of a finding, and its remedy if the finding keeps the run from training."""
    remedy = finding.remedy if finding.verdict is Grade.FAIL and finding.remedy not in finding.said else ""
    return f"{finding.said} -> {remedy}" if remedy else finding.said
