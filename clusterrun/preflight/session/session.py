"""The pre-flight check of a run as a state machine: answers in, requests and finally an outcome out.

The check is a sequence of rounds. A round sends requests to nodes and waits until every node answered, was
lost or timed out. The check always ends within its budget.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress

from clusterrun.model.document import BadDocument
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Level, Orders
from clusterrun.model.phrases import count_of
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.preflight import tasks
from clusterrun.preflight.observations import (
    CONTROL,
    CheckFault,
    InterfaceDials,
    NodeDials,
    NodeTraffic,
    Unanswered,
)
from clusterrun.preflight.session import (
    absent_nodes,
    local_phase,
    loss_phase,
    port_sweep,
    recheck,
    socket_interfaces,
)
from clusterrun.preflight.session.absent_findings import remedy_of_absence
from clusterrun.preflight.session.collective_phase import pair_rounds, products, whole_set
from clusterrun.preflight.session.group_tests import GroupTests
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.report import SessionOutcome, conclude, explain
from clusterrun.preflight.session.requests import AskExaminer, Request, Waits
from clusterrun.preflight.session.state import OVERLOADED, SessionState
from clusterrun.preflight.thresholds import ANSWER_SECONDS, BUDGET_SHARE, LONGEST_SECONDS, SLOW_ANSWER_SECONDS
from clusterrun.runtime.machine_events import OVERSLEPT_SECONDS, Now

__all__ = ["AskExaminer", "Session", "SessionNode", "SessionOutcome"]

_SILENT = "look at the node and at the log of its examiner in the run directory"
_LOST = (
    "does it still answer ping and ssh, and does no firewall forget idle connections (sysctl "
    "net.netfilter.nf_conntrack_tcp_timeout_established)? see its examiner's log in the run directory"
)


@frozen
class SessionNode:
    """A node of the allocation."""

    node: int  # its number in the allocation
    name: str
    address: str = ""
    absent: str | None = None  # why its agent did not join; None if it joined
    is_excused: bool = False  # an overload explains that its agent is absent


@frozen
class ShortCheck:
    """The check between two attempts. It tests the suspects and takes the other nodes as fit."""

    suspects: Sequence[int]  # numbers in the allocation
    after: Report | None = None  # the report of the last check; its rank order stays
    network: bool = False  # whether the network may be at fault


class Session:
    """A check. ``short`` makes it the check between two attempts. Times except ``wall`` are steady clock."""

    def __init__(
        self,
        orders: Orders,
        nodes: Sequence[SessionNode],
        now: Now,
        run_dir: str = "",
        nonce: str = "",  # a secret of this run's examiners; '' chooses one
        short: ShortCheck | None = None,
    ) -> None:
        states = {node.node: NodeState(node.node, node.name, node.address) for node in nodes}
        after = short.after if short else None
        self.outcome: SessionOutcome | None = None
        nonce = nonce or hashlib.sha256(f"{orders.run_id} {now!r}".encode()).hexdigest()[:32]
        self._state = state = SessionState(orders, recheck.in_order(states, after), now, run_dir, nonce)
        for node in nodes:
            if node.absent is not None:
                states[node.node].absent = node.absent
                states[node.node].is_excused = node.is_excused
                remedy = remedy_of_absence(node.absent, is_alive=False)
                state.mark_gone(states[node.node], "agent", node.absent, remedy)
        self._group_tests = GroupTests(state)
        self._awaited: tuple[type, ...] = ()
        self._naps_until: float | None = None
        if short is not None and after is not None:
            recheck.recall(state, after, short.suspects)
        short_course = short and recheck.rounds(state, self._group_tests, short.suspects, short.network)
        self._course = short_course or self._rounds()

    @property
    def progress(self) -> str:
        state = self._state
        waits = f", waiting for {count_of(len(state.requests), 'answer')}" if len(state.requests) else ""
        return f"{state.label}{waits}, {state.clock.seconds_left:.0f} s left"

    def wakes_at(self) -> float | None:
        if self.outcome is not None:
            return None
        if self._naps_until is not None:
            return self._naps_until
        due = self._state.requests.due_at()
        return self._state.clock.end_at if due is None else min(due, self._state.clock.end_at)

    # --- events ---

    def begin(self) -> list[AskExaminer]:
        return self._proceed()

    def answered(
        self, now: float, node: int, number: int, body: str, wall: float | None = None
    ) -> list[AskExaminer]:
        """Take the answer of an examiner. An answer to no open request is ignored.

        ``wall`` is the wall clock. It runs on while this process is suspended, unlike ``now``.
        """
        clock = self._state.clock
        clock.now = max(now, clock.now)
        clock.wall_now = clock.wall_at(clock.now) if wall is None else wall
        request = self._state.requests.close(node, number)
        if request is None or self.outcome is not None:
            return []
        try:
            _take(self._state, self._group_tests, request, tasks.answer(request.task, body))
        except BadDocument as error:
            self._gone(node, "examiner", f"answered {request.task.TITLE} with nonsense: {error}")
        except Exception as error:  # noqa: BLE001 (a fault of ours must not keep a run from training)
            self._state.observe(CheckFault(error))
        return self._proceed()

    def overloaded(self, now: float, node: int | None, seconds: float) -> None:
        """Handle an overload of ``node`` (None: of this machine) in the last ``seconds``."""
        subject = self._state if node is None else self._state.nodes.get(node)
        if subject is not None:
            subject.overloads.add(now, seconds)

    def lost(self, now: float, node: int, why: str, is_excused: bool = False) -> list[AskExaminer]:
        """Handle the loss of an agent or examiner. ``is_excused``: an overload explains it."""
        self._state.clock.now = max(now, self._state.clock.now)
        node_state = self._state.nodes.get(node)
        if node_state is None or node_state.gone or self.outcome is not None:
            return []
        node_state.is_excused = is_excused
        self._gone(node, "agent", f"was lost during the check: {why}", is_lost=True)
        return self._proceed()

    def _gone(self, node: int, check: str, why: str, is_lost: bool = False) -> None:
        remedy = _LOST if is_lost else _SILENT
        self._state.mark_gone(self._state.nodes[node], check, why, remedy, is_lost)
        self._state.requests.drop_all_of(node)

    def tick(self, now: float) -> list[AskExaminer]:
        due = self.wakes_at()
        if due is None:
            return []
        # If this process overslept, it reads the waiting answers first.
        if self._naps_until is None and now - due > OVERSLEPT_SECONDS:
            self._naps_until = now + OVERSLEPT_SECONDS
        if self._naps_until is not None and now < self._naps_until:
            return []
        self._naps_until = None
        state = self._state
        state.clock.now = max(now, state.clock.now)
        # A request that would end after the budget blames no node; `_cut` handles it.
        for request in state.requests.close_overdue(
            min(state.clock.now, math.nextafter(state.clock.end_at, 0.0))
        ):
            if state.excuse([request.node], request.asked_at):
                state.requests.prolong(request, state.clock.end_at)
                continue
            # Prolong the first late request of a node. Its later requests must be answered in time.
            node = state.nodes[request.node]
            if node.late_until is None:
                wait = min(LONGEST_SECONDS, max(ANSWER_SECONDS, BUDGET_SHARE * state.clock.seconds_left))
                node.late_until = state.clock.now + min(wait, state.clock.seconds_left)
            if state.clock.now < node.late_until:
                state.requests.prolong(request, node.late_until)
            else:
                why = f"did not answer: {request.task.TITLE} took longer than {request.seconds:.0f} s"
                self._gone(request.node, "examiner", why)
        return self._proceed()

    # --- the sequence of rounds ---

    def _rounds(self) -> Waits:
        state, tests = self._state, self._group_tests
        yield from local_phase.rounds(state)
        # A fault of all nodes together would make every group test fail.
        if not state.backend or explain(state).together_has(Grade.FAIL):
            yield from port_sweep.rounds_between(state)
            yield from loss_phase.read_counts(state)
            return
        yield from socket_interfaces.rounds(state)
        yield from products(state, tests)
        if state.orders.preflight.level is Level.FULL or state.orders.preflight.all_pairs:
            yield from pair_rounds(state, tests, state.orders.preflight.all_pairs)
        yield from _test_whole_set(state, tests)
        yield from _measure(state, tests)
        yield from absent_nodes.rounds_at_lost(state)

    def _proceed(self) -> list[AskExaminer]:
        """Run the rounds until one waits for an answer, and return the new requests."""
        state = self._state
        state.explanation = None
        local_phase.hurry(state)
        while self.outcome is None:
            try:
                if state.clock.now >= state.clock.end_at:
                    self._course.close()
                    self._cut()
                elif state.requests.waits_for(self._awaited):
                    break
                elif (awaited := next(self._course, None)) is None:
                    self._conclude()
                else:
                    self._awaited = awaited
            except Exception as error:  # noqa: BLE001 (a fault of ours must not keep a run from training)
                # A fault of ours: report all results, or only lost nodes if that fails too.
                self._state.observe(CheckFault(error))
                try:
                    self._conclude()
                except Exception:  # noqa: BLE001
                    self._state.drop_results()
                    self._conclude()
        asks, state.asks = state.asks, []
        return asks

    def _cut(self) -> None:
        """End the check because the budget is spent, and report what is open as undetermined.

        A group test is open for all its members: the node that failed first answers before those that wait
        for it.
        """
        state = self._state
        open_titles: dict[int, str] = {}
        overloaded = set()
        for task_type in tasks.ANSWER_OF:
            for request in state.requests.of_type(task_type):
                open_titles.setdefault(request.node, task_type.TITLE)
                if state.excuse([request.node], request.asked_at):
                    overloaded.add(request.node)
        for test in self._group_tests.cut():
            title = f"{state.label} ({fold([state.nodes[node].name for node in test.nodes])}): {test.why}"
            open_titles.update(dict.fromkeys(test.nodes, title))
        for node, title in open_titles.items():
            state.observe(Unanswered(node, title + OVERLOADED * (node in overloaded)))
        state.end_phase(CONTROL)
        self._conclude()

    def _conclude(self) -> None:
        self._state.asks.clear()
        self.outcome = conclude(self._state)


def _test_whole_set(state: SessionState, tests: GroupTests) -> Waits:
    """Test the whole set. A failed set asks for a sweep of ports; if that changes the choice, test again."""
    tested = None
    for _ in range(2):
        yield from port_sweep.rounds(state)
        yield from loss_phase.read_counts(state)
        if explain(state).choice().world != tested:
            yield from whole_set(state, tests)
            tested = explain(state).choice().world


def _measure(state: SessionState, tests: GroupTests) -> Waits:
    """Measure the nodes that train: each GPU, each pair of GPUs of a node, all nodes together, long load."""
    preflight = state.orders.preflight
    chosen = explain(state).choice().nodes
    nodes = [node for node in chosen if state.nodes[node].has_torch]
    alone = [(node,) for node in nodes]
    if preflight.table and alone:
        yield from tests.run("bandwidth of each device", tasks.DEVICE, alone)
        if state.backend == "nccl" and state.ranks > 1:
            yield from tests.run("copies between the GPUs of a node", tasks.PEERS, alone)
        if len(nodes) * state.ranks < 2:
            state.notice("no table of collectives was measured: one rank has no other to exchange data with")
        elif tuple(nodes) == chosen:
            yield from tests.run("a table of collectives", tasks.TABLE, [tuple(nodes)])
    if preflight.burn and alone:
        yield from tests.run(f"load for {preflight.burn:g} s", tasks.BURN, alone)


# --- answers ---


def _take(state: SessionState, group_tests: GroupTests, request: Request, value: tasks.Answer) -> None:
    node, task = state.nodes[request.node], request.task
    group_kind = task.kind if isinstance(task, tasks.GroupTask) else ""
    if isinstance(value, (tasks.ListenAnswer, tasks.DialAnswer)) and value.wall:
        node.bound_clock(value.wall, state.clock.wall_at(request.asked_at), state.clock.wall_now)
    if isinstance(value, tasks.LocalAnswer):
        node.record_readings(value)
    elif isinstance(value, tasks.ListenAnswer):
        node.listening = value
    elif isinstance(value, tasks.DialAnswer) and isinstance(task, tasks.DialTask) and task.interface:
        state.observe(InterfaceDials(task, value))
    elif isinstance(value, tasks.DialAnswer) and isinstance(task, tasks.DialTask):
        # Leave out dials that got no answer because of an overload at either end.
        dialled = []
        for way in value.dialled:
            is_late = way.silent or not way.large or way.slowest >= SLOW_ANSWER_SECONDS
            if not is_late or way.refused or not state.excuse([request.node, way.node], request.asked_at):
                dialled.append(way)
        value = replace(value, dialled=tuple(dialled))
        if task.closed or task.hold:
            state.silent_ports.update({(node.node, way.node): way.silent for way in value.dialled})
            state.refused_ports.update({(node.node, way.node): way.refused for way in value.dialled})
        else:
            state.observe(NodeDials(task, value))
    elif isinstance(value, tasks.ExchangeAnswer):
        state.observe(NodeTraffic(node.node, value))
    elif isinstance(value, tasks.TorchStarted):
        node.record_torch_worker(value)
        if not value.up and node.first_torch_worker is not value:
            why = f"its torch worker cannot be started again: {value.why}"
            state.mark_gone(node, "torch", why, "see the examiner's log")
    elif isinstance(value, tasks.GroupResult):
        if value.stage == tasks.NO_WORKER:
            if group_kind == tasks.PRODUCT:
                node.ends.append(value.why)
            node.torch_worker, node.ports = None, []  # A new worker can be started.
        elif group_kind == tasks.PRODUCT:
            node.record_matmul(value)
        elif group_kind == tasks.BURN:
            node.burn = value
        group_tests.on_result(request, value)
    elif isinstance(value, tasks.ThroughAnswer) and isinstance(task, tasks.ThroughTask) and value.body:
        inner = replace(request, node=state.numbers[task.name], task=tasks.task(task.body))
        with suppress(BadDocument):  # a bad answer is not the fault of the relay
            _take(state, group_tests, inner, tasks.answer(inner.task, value.body))
