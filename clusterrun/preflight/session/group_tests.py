"""Tests of groups of nodes: put to every member, and made one outcome of their answers; judges no node."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence

from clusterrun.model.preflight_report import Measurement
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session import expected_bandwidth
from clusterrun.preflight.session.requests import Request
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import CPU_WAIT, GroupMember, GroupResult, GroupTask, TaskTemplate
from clusterrun.preflight.torch_worker.error_text import most_telling

PAIR, SET, HALF, PRODUCT = "pair", "set", "half", "product"
USUAL_MEGABYTES = 4.0
STARVED = 0.6
"""Of a message's time: with so much of it spent waiting for processors its rate is that of busy machines."""
_PAIR_MEGABYTES = 64.0
"""What fills the ways between GPUs; over gloo a small message tells as much, and costs the others less."""
SLACK_SECONDS = 8.0
"""An examiner answers for a late test by itself; this long after the test's limit it is silent."""
_LONGEST_LIMIT = 30.0
"""Of the first with NCCL, which loads its kernels."""
_PATIENT_LIMIT = 120.0
"""Instead, once NCCL took longer than that to load its kernels: on a DGX B200 55 s (nccl#1646)."""
_PATIENT_SECONDS = 240.0
"""What the budget gets then: for tests of pairs and of the whole set, of a minute each."""
_LIMIT = 12.0
_LEAST_LIMIT = 8.0
_SECONDS_PER_NODE = 0.02
_SECONDS_PER_GPU = 0.03
"""To form a group of a thousand GPUs takes NCCL half a minute."""
_OWN_INTERFACE = {"nccl": "NCCL_SOCKET_IFNAME", "gloo": "GLOO_SOCKET_IFNAME"}


class GroupTests:
    """The tests of one examination; one round of them is under way at a time."""

    def __init__(self, state: SessionState) -> None:
        self.case = state
        self._last = 0
        self._open: dict[int, tuple[str, tuple[int, ...], float, dict[int, GroupResult]]] = {}
        """By number: kind, nodes, when it began, and the answers of its members."""
        self._took: dict[str, list[float]] = {}
        """Seconds of tests that passed, by kind."""
        self._longest = _LONGEST_LIMIT
        self._hasty = True
        """Whether the tests under way got no more than the usual time."""

    def has_time_for(self, rounds: int) -> bool:
        """Whether so many rounds that pass, and some that do not, leave half of the time that is left."""
        took = self._took.get(PAIR) or self._took.get(SET)
        usual = statistics.median(took) if took else _LIMIT
        return usual * rounds + 2 * _LEAST_LIMIT < self.case.left / 2

    def made(
        self, label: str, kind: str, groups: Sequence[tuple[int, ...]]
    ) -> Generator[tuple[type, ...], None, list[GroupTest]]:
        """Test these disjoint groups at once, and wait for all of them: the outcomes in their order."""
        self.case.label = label
        self._hasty = self._longest == _LONGEST_LIMIT
        for nodes in groups:
            self._begin(kind, nodes)
        if groups:
            yield (GroupTask,)
        done = [self._outcome(*one) for one in self._open.values()]
        for trial in done:
            outcome = {True: "passed", False: "failed", None: "void"}[trial.passed]
            names = tuple(self.case.subjects[node].name for node in trial.nodes)
            of = (trial.kind, self.case.rounds, names, outcome, round(trial.seconds, 3))
            self.case.tests.append(Measurement(*of, trial.rate, trial.wrong or trial.why))
            if trial.passed:
                self._took.setdefault(trial.kind, []).append(trial.seconds)
        self._open.clear()
        return done

    def _begin(self, kind: str, nodes: tuple[int, ...]) -> None:
        case = self.case
        self._last += 1
        known = case.subjects
        if kind == PAIR:
            nodes = tuple(sorted(nodes, key=lambda node: not known[node].ports))
        self._open[self._last] = (kind, nodes, case.now, {})
        lead = known[nodes[0]]
        port = lead.ports.pop(0) if lead.ports and kind != PRODUCT else 0
        members = tuple(GroupMember(node, known[node].name, known[node].address) for node in nodes)
        task = GroupTask(
            test=self._last,
            kind=SET if kind == HALF else kind,
            members=members,
            place=0,
            ranks=case.ranks,
            port=port,
            interface="",
            limit=self.limit(kind, len(nodes)),
            megabytes=self._megabytes(kind, nodes),
            backend=case.backend,
        )
        template = TaskTemplate(task)
        for place, node in enumerate(nodes):
            body = template.message_text(place=place, interface=self._interface(node))
            case.ask(node, task, task.limit + SLACK_SECONDS, body)

    def _megabytes(self, kind: str, nodes: tuple[int, ...]) -> float:
        if self.case.backend != "nccl" or kind == PRODUCT:
            return USUAL_MEGABYTES
        return _PAIR_MEGABYTES if kind == PAIR else expected_bandwidth.megabytes(self.case, nodes)

    def limit(self, kind: str, nodes: int) -> float:
        """By what tests took that passed; with NCCL those of the kind: a product forms no group."""
        case = self.case
        nccl = case.backend == "nccl"
        took = self._took.get(kind, []) if nccl else [one for some in self._took.values() for one in some]
        if nccl and self._longest > _LONGEST_LIMIT:
            took = []  # what others took says nothing of a node that loads
        usual = max(_LEAST_LIMIT, 4 * statistics.median(took) + 2) if took else self._longest
        first = self._longest if nccl else _LIMIT
        forming = (_SECONDS_PER_NODE + nccl * _SECONDS_PER_GPU * case.ranks) * nodes
        return min(usual, self._longest if took else first) + forming

    def _interface(self, node: int) -> str:
        """What gloo and NCCL are told; nothing where the user said it."""
        given = dict(self.case.orders.environment)
        if _OWN_INTERFACE.get(self.case.backend, "") in given:
            return ""
        used = self.case.subjects[node].interface
        return used.name if used is not None else ""

    def take(self, question: Request, result: GroupResult) -> None:
        """A member's answer."""
        task = question.task
        if isinstance(task, GroupTask) and task.test in self._open:
            self._open[task.test][-1][question.node] = result
            self.case.subjects[question.node].ports.extend(result.ports)

    def _outcome(
        self, kind: str, nodes: tuple[int, ...], began: float, answers: dict[int, GroupResult]
    ) -> GroupTest:
        seconds = max((one.seconds for one in answers.values()), default=self.case.now - began)
        if len(answers) < len(nodes):
            return GroupTest(nodes, None, kind=kind, seconds=seconds, why="a member was lost")
        slow = [self.case.subjects[node].name for node, one in answers.items() if one.loading]
        if slow and self._hasty:
            self._be_patient(slow)
            return GroupTest(nodes, None, kind=kind, seconds=seconds, why="NCCL was loading its kernels")
        failed = [one for one in answers.values() if not one.passed]
        # The words of a member that failed by itself before those of one that waited for it, or lost it.
        failed.sort(key=lambda one: (one.late, one.stage != "warm", one.seconds))
        known = [rate for one in answers.values() for name, rate in one.rates if name == "all_reduce"]
        waited = max((dict(one.rates).get(CPU_WAIT, 0.0) for one in answers.values()), default=0.0)
        return GroupTest(
            nodes,
            not failed,
            (max if kind == PAIR else min)(known) if known else None,
            most_telling(one.wrong for one in answers.values()),
            waited >= STARVED,
            kind,
            seconds,
            _ways(answers) if kind == PAIR else (),
            most_telling(one.why for one in failed),
            tuple(dict.fromkeys(one.transport for one in answers.values() if one.transport)),
        )

    def _be_patient(self, slow: list[str]) -> None:
        """How long NCCL takes to load says nothing of a node, a link or the set: these tests are repeated."""
        case = self.case
        if self._longest == _LONGEST_LIMIT:
            self._longest = _PATIENT_LIMIT
            case.end_at += _PATIENT_SECONDS
            case.notice(
                f"NCCL takes longer than {_LONGEST_LIMIT:g} s to load its kernels ({slow[0]}): tests were "
                f"repeated with {_PATIENT_LIMIT:g} s. Does every start compile them? NCCL_DEBUG=INFO says so "
                "in Init timings (kernels); a torch built for these GPUs does not"
            )


def _ways(answers: dict[int, GroupResult]) -> tuple[tuple[int, float], ...]:
    """By node, how fast what it sends arrives: the better of what it saw and what its partner saw."""
    rates = {node: dict(one.rates) for node, one in answers.items()}
    found = []
    for node, own in rates.items():
        partner = next((other for other in rates if other != node), node)
        seen = [own.get("send"), rates[partner].get("receive")]
        known = [rate for rate in seen if rate is not None]
        found += [(node, max(known))] if known else []
    return tuple(found)
