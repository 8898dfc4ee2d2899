"""Run tests on groups of nodes, and combine the answers of the members. It judges no node."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence

from clusterrun.diagnosis.known_errors import meaning
from clusterrun.diagnosis.verdict import Verdict
from clusterrun.model.frozen import replace
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session import expected_bandwidth, socket_interfaces
from clusterrun.preflight.session.expected_bandwidth import SET_MEGABYTES
from clusterrun.preflight.session.requests import Request
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import (
    BURN,
    CPU_WAIT,
    DEVICE,
    HALF,
    NO_WORKER,
    PAIR,
    PEERS,
    PRODUCT,
    SET,
    TABLE,
    GroupMember,
    GroupResult,
    GroupTask,
    member_texts,
)
from clusterrun.preflight.thresholds import ANSWER_SECONDS, LONGEST_SECONDS, PATIENCE
from clusterrun.preflight.torch_worker.error_text import most_telling

# Tests of single nodes.
_ALONE = (PRODUCT, DEVICE, PEERS, BURN)
# Additional seconds for a test that measures more than bandwidth in one size. A table has 5 collectives of up
# to 11 sizes, about a second each.
_LONG_SECONDS = 60.0
# 4 MiB. A larger message delays other traffic. A smaller one measures latency, not bandwidth.
USUAL_MEGABYTES = 4.2
# A message that waited for processors for this share of its time has the rate of busy machines. Measured at a
# load of 12: 0.05 to 0.35 on links of 20 Mbit/s, 0.8 to 1.0 on sound links.
STARVED = 0.6
# The largest messages of a table, with NCCL and with gloo.
_TABLE_MEGABYTES = {"nccl": expected_bandwidth.LARGE_MEGABYTES, "gloo": USUAL_MEGABYTES}
# Replaces the limit of the first test if NCCL loads kernels slowly: on a DGX B200 it takes 55 s (nccl#1646).
_PATIENT_LIMIT = PATIENCE * LONGEST_SECONDS
# The least limit after tests passed. A test that hangs takes all of it, and the budget is short.
_LEAST_LIMIT = 8.0
# NCCL needs half a minute to form a group of a thousand GPUs; gloo as long for a thousand nodes.
_SECONDS_PER_RANK = 0.03
_OWN_INTERFACE = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}


class OpenTest:
    """A test that runs, and the answers of its members so far."""

    def __init__(self, kind: str, nodes: tuple[int, ...], began: float, is_patient: bool) -> None:
        self.kind, self.nodes = kind, nodes
        self.began = began  # steady clock
        self.is_patient = is_patient  # it got more than the usual time
        self.answers: dict[int, GroupResult] = {}  # by node

    def inconclusive(self, now: float, why: str) -> GroupTest:
        seconds = max((answer.seconds for answer in self.answers.values()), default=now - self.began)
        return GroupTest(self.nodes, None, kind=self.kind, seconds=seconds, why=why)

    def outcome(self) -> GroupTest:
        """Return the outcome by the answers of all members."""
        answers, is_pair = self.answers.values(), self.kind == PAIR
        failed = [answer for answer in answers if not answer.passed]
        # Members that failed by themselves come before members that waited for them or lost them.
        failed.sort(key=lambda answer: (answer.late, answer.stage != NO_WORKER, answer.seconds))
        rates_of = {node: dict(answer.rates) for node, answer in self.answers.items()}
        rates = [rate for answer in answers for name, rate in answer.rates if name == "all_reduce"]
        wrong = [answer.wrong for answer in answers if answer.wrong]
        # The rate at which a node's messages arrive is the better of what it and its partner measured.
        ways = []
        for node, partner in zip(self.nodes, self.nodes[::-1]) if is_pair else ():
            measured = (rates_of[node].get("send"), rates_of[partner].get("receive"))
            valid = [rate for rate in measured if rate is not None]
            ways += [(node, max(valid))] if valid else []
        return GroupTest(
            self.nodes,
            passed=not failed,
            rate=(max if is_pair else min)(rates) if rates else None,
            wrong=most_telling(wrong) if wrong else "",
            starved=max(rates.get(CPU_WAIT, 0.0) for rates in rates_of.values()) >= STARVED,
            kind=self.kind,
            seconds=max(answer.seconds for answer in answers),
            ways=tuple(ways),
            why=most_telling([answer.why for answer in failed]) if failed else "",
            transports=tuple(
                (node, answer.transport) for node, answer in self.answers.items() if answer.transport
            ),
        )


class GroupTests:
    """The group tests of a check. It runs one round of tests at a time."""

    def __init__(self, state: SessionState) -> None:
        self.state = state
        self._last = 0
        self._open: dict[int, OpenTest] = {}  # by number of the test
        self._took: dict[str, list[float]] = {}  # seconds of tests that passed, by kind
        self._interfaces: dict[int, str] = {}
        self._longest = LONGEST_SECONDS

    def has_time_for(self, rounds: int) -> bool:
        """Return whether ``rounds`` rounds and some failures fit into half of the remaining time."""
        took = self._took.get(PAIR) or self._took.get(SET)
        usual_seconds = statistics.median(took) if took else ANSWER_SECONDS
        return usual_seconds * rounds + 2 * _LEAST_LIMIT < self.state.clock.seconds_left / 2

    def run(
        self, label: str, kind: str, groups: Sequence[tuple[int, ...]]
    ) -> Generator[tuple[type, ...], None, list[GroupTest]]:
        """Test disjoint groups in parallel, wait for all of them, and return the outcomes in their order."""
        state = self.state
        state.label, ranks = label, state.ranks
        is_patient = self._longest > LONGEST_SECONDS
        for nodes in groups:
            if kind == PAIR:
                nodes = tuple(sorted(nodes, key=lambda node: not state.nodes[node].ports))
            self._last += 1
            self._open[self._last] = OpenTest(kind, nodes, state.clock.now, is_patient)
            lead = state.nodes[nodes[0]]
            megabytes = USUAL_MEGABYTES
            if kind == TABLE:
                megabytes = _TABLE_MEGABYTES[state.backend]
            elif state.backend == "nccl" and kind not in _ALONE:
                # This size fills the ways between GPUs. Over gloo a small message costs other traffic less.
                is_pair = kind == PAIR
                megabytes = SET_MEGABYTES if is_pair else expected_bandwidth.megabytes(state, nodes)
            task = GroupTask(
                test=self._last,
                kind=SET if kind == HALF else kind,
                members=tuple(GroupMember(n, state.nodes[n].name, state.nodes[n].address) for n in nodes),
                place=0,
                ranks=ranks,
                port=lead.ports.pop(0) if lead.ports and kind not in _ALONE else 0,
                interface="",
                limit=self.limit(kind, len(nodes)),
                megabytes=megabytes,
                seconds=state.orders.preflight.burn if kind == BURN else 0.0,
                backend=state.backend,
            )
            texts = member_texts(task, [self._interface(node) for node in nodes])
            state.ask_each(dict(zip(nodes, texts)), task, task.limit + ANSWER_SECONDS)
        if groups:
            yield (GroupTask,)
        tests = [replace(self._outcome(test), round=state.rounds) for test in self._open.values()]
        state.observe(*tests)
        for test in tests:
            if test.passed:
                self._took.setdefault(test.kind, []).append(test.seconds)
        self._open.clear()
        return tests

    def limit(self, kind: str, nodes: int) -> float:
        """Return the limit in seconds: a multiple of what passed tests took.

        With NCCL only tests of this kind count, since a matrix product forms no group.
        """
        state = self.state
        nccl = state.backend == "nccl"
        took = self._took.get(kind, [])
        if not nccl:
            took = [seconds for times in self._took.values() for seconds in times]
        if nccl and self._longest > LONGEST_SECONDS:
            took = []  # Other tests do not predict a test that loads kernels.
        if took:
            limit = min(self._longest, max(_LEAST_LIMIT, PATIENCE * statistics.median(took) + 2))
        else:
            limit = self._longest + state.load_seconds if nccl else ANSWER_SECONDS
        forming = _SECONDS_PER_RANK * (state.ranks if nccl else 1) * nodes
        extra = _LONG_SECONDS if kind in (TABLE, DEVICE, PEERS, BURN) else 0.0
        extra += state.orders.preflight.burn if kind == BURN else 0.0
        return limit + forming + extra

    def _interface(self, node: int) -> str:
        """Return the interface for gloo, or the interfaces for NCCL with commas; '' if the user chose."""
        if node not in self._interfaces:
            environment = dict(self.state.orders.environment)
            is_chosen = _OWN_INTERFACE.get(self.state.backend, "") in environment
            used = self.state.nodes[node].interface
            names: tuple[str, ...] = (used.name,) if used is not None and not is_chosen else ()
            if names and self.state.backend == "nccl":
                names = socket_interfaces.chosen(self.state) or names
            self._interfaces[node] = ",".join(names)
        return self._interfaces[node]

    def on_result(self, request: Request, result: GroupResult) -> None:
        """Take the answer of a member."""
        task = request.task
        if isinstance(task, GroupTask) and task.test in self._open:
            self._open[task.test].answers[request.node] = result
            self.state.quantities.add(task, request.node, result)
            self.state.nodes[request.node].ports.extend(result.ports)

    def cut(self) -> list[GroupTest]:
        """End the running tests because the budget is spent. They are inconclusive for all their members.

        A member that already failed may be at fault, and so may the members that it leaves waiting.
        """
        tests = []
        for test in self._open.values():
            failed = [(node, answer) for node, answer in test.answers.items() if not answer.passed]
            why = "no member had failed"
            if failed:
                node, answer = min(failed, key=lambda item: (item[1].late, item[1].seconds))
                why = f"{self.state.nodes[node].name} failed: {answer.wrong or answer.why}"
            seconds = self.state.clock.now - test.began
            tests.append(GroupTest(test.nodes, None, kind=test.kind, seconds=seconds, why=why))
        self._open.clear()
        self.state.observe(*tests)
        return tests

    def _outcome(self, test: OpenTest) -> GroupTest:
        """Return the outcome. It is inconclusive if a member was lost, loads slowly or is overloaded."""
        state, answers = self.state, test.answers
        if len(answers) < len(test.nodes):
            return test.inconclusive(state.clock.now, "a member was lost")
        slow = [state.nodes[node].name for node, answer in answers.items() if answer.loading]
        if slow and not test.is_patient:
            # Slow loading blames no node: raise the limits once, and repeat the tests.
            if self._longest == LONGEST_SECONDS:
                self._longest = _PATIENT_LIMIT
                state.clock.end_at += 2 * _PATIENT_LIMIT  # for a test of pairs and one of the whole set
                state.notice(
                    f"NCCL takes longer than {LONGEST_SECONDS:g} s to load its kernels ({slow[0]}): tests "
                    f"were repeated with {_PATIENT_LIMIT:g} s. Does every start compile them? "
                    "NCCL_DEBUG=INFO says so in Init timings (kernels); a torch built for these GPUs does not"
                )
            return test.inconclusive(state.clock.now, "NCCL was loading its kernels")
        starved = [state.nodes[node].name for node, answer in answers.items() if answer.starved]
        failed = [answer for answer in answers.values() if not answer.passed]
        if starved and not any(map(_is_proof, failed)):
            return test.inconclusive(state.clock.now, f"overloaded: {', '.join(starved)}")
        return test.outcome()


def _is_proof(failed: GroupResult) -> bool:
    """Return whether a failure proves a fault in spite of an overload.

    A wrong sum, broken hardware of the node and a lack of memory do. A link may only be slow.
    """
    known_error = meaning(failed.why)
    if failed.wrong or known_error is None:
        return bool(failed.wrong)
    is_broken = known_error.hardware and known_error.verdict is not Verdict.LINK
    return is_broken or known_error.verdict is Verdict.OUT_OF_MEMORY
