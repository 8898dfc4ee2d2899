"""The pre-flight check of a run as one machine: answers in, questions and at last an outcome out.

It is a course of rounds, written down in their order: each asks nodes something and waits until all have
answered, were lost, or had no time left. It ends within its budget, whatever happens.
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
    network_phase,
    port_sweep,
    recheck,
)
from clusterrun.preflight.session.consistency import common_interface, faster_interface
from clusterrun.preflight.session.group_tests import PRODUCT, GroupTests
from clusterrun.preflight.session.node_selection import Choice
from clusterrun.preflight.session.requests import AskWorker, Request
from clusterrun.preflight.session.state import NodeFinding, NodeState, SessionState

__all__ = ["AskWorker", "Session", "SessionNode", "SessionOutcome"]

_WORDS = {
    tasks.LocalTask: "local checks",
    tasks.ListenTask: "the opening of ports",
    tasks.DialTask: "dialling",
    tasks.StartTorch: "the import of torch",
    tasks.GroupTask: "a collective test",
    tasks.ThroughTask: "a look through it at another node",
    tasks.ExchangeTask: "an exchange of messages",
}
OVERSLEPT_SECONDS = 1.0
_LEAST_LATE, _LONGEST_LATE, _LATE_SHARE = 10.0, 30.0, 0.25
"""How long the first late answer of a node is waited for: a share of the time that is left, within limits."""
_OURS = "this is a fault of clusterrun: please report it with this line"
_MORE = "give it more: --preflight-budget"
_SILENT = "look at the node and at the log of its examiner in the run directory"

_NONE_PASSED = (
    "look at what all of them share: the interface that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, "
    "and the firewall between the nodes of a job"
)


@frozen
class SessionNode:
    """A node: its number in the allocation, name, address; ``absent`` says why no agent of it is here."""

    node: int
    name: str
    address: str = ""
    absent: str | None = None


@frozen
class SessionPlace:
    """Where a run's workers find each other: its directory, and a word that only they know."""

    run_dir: str = ""
    nonce: str = ""


@frozen
class ShortCheck:
    """The check between two attempts: of ``suspects`` (by number), the others are taken as fit.

    ``after`` is the report of the check before, whose world keeps its order; ``network`` says that what
    went wrong may be the network's.
    """

    suspects: Sequence[int]
    after: Report | None = None
    network: bool = False


@frozen
class SessionOutcome:
    """How it ended. ``world``: the allocation's numbers in rank order, complete where ``fit``.

    ``environment`` is for ranks where their user set nothing; ``excluded`` are names of nodes that
    another try should leave out.
    """

    fit: bool
    report: Report
    world: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]
    excluded: tuple[str, ...]


class Session:
    """Times are on the steady clock but ``wall``, seconds; with ``short``: the check between two attempts."""

    def __init__(
        self,
        orders: Orders,
        nodes: Sequence[SessionNode],
        now: float,
        wall: float,
        place: SessionPlace = SessionPlace(),  # noqa: B008
        short: ShortCheck | None = None,
    ) -> None:
        known = {one.node: NodeState(one.node, one.name, one.address) for one in nodes}
        for one in nodes:
            if one.absent is not None:
                known[one.node].absent = one.absent
                known[one.node].mark_gone("agent", one.absent, absent_nodes.look_at(one.absent, lives=False))
        after = short.after if short else None
        self.outcome: SessionOutcome | None = None
        nonce = place.nonce or hashlib.sha256(f"{orders.run_id} {now!r} {wall!r}".encode()).hexdigest()[:32]
        self._case = SessionState(orders, recheck.in_order(known, after), now, wall, place.run_dir, nonce)
        self._trials = GroupTests(self._case)
        self._pairs = collective_phase.PairTests(self._trials)
        self._awaited: tuple[type, ...] = ()
        self._naps_until: float | None = None
        if short is not None and after is not None:
            recheck.recall(self._case, after, short.suspects)
        again = short and recheck.rounds(self._pairs, short.suspects, short.network)
        self._course = again or self._rounds()

    @property
    def progress(self) -> str:
        case = self._case
        open_ones = len(case.questions)
        waits = f", waiting for {open_ones} answer{'s' if open_ones != 1 else ''}" if open_ones else ""
        return f"{case.label}{waits}, {case.left:.0f} s left"

    def wakes_at(self) -> float | None:
        if self.outcome is not None:
            return None
        if self._naps_until is not None:
            return self._naps_until
        due = self._case.questions.due_at()
        return self._case.end_at if due is None else min(due, self._case.end_at)

    # --- what happens ---

    def begin(self) -> list[AskWorker]:
        return self._proceed()

    def answered(self, now: float, node: int, number: int, body: str) -> list[AskWorker]:
        """An examiner answered; what belongs to no open question is passed over."""
        self._case.now = max(now, self._case.now)
        question = self._case.questions.close(node, number)
        if question is None or self.outcome is not None:
            return []
        try:
            _take(self._case, self._trials, question, tasks.answer(question.task, body))
        except BadDocument as error:
            self._gone(node, "examiner", f"answered {_WORDS[type(question.task)]} with nonsense: {error}")
        return self._proceed()

    def lost(self, now: float, node: int, why: str) -> list[AskWorker]:
        self._case.now = max(now, self._case.now)
        subject = self._case.subjects.get(node)
        if subject is None or subject.gone or self.outcome is not None:
            return []
        subject.lost_at = self._case.now
        self._gone(node, "agent", f"was lost during the check: {why}")
        return self._proceed()

    def _gone(self, node: int, check: str, why: str) -> None:
        self._case.subjects[node].mark_gone(check, why, _SILENT)
        self._case.questions.close_all_of(node)

    def tick(self, now: float) -> list[AskWorker]:
        if self.outcome is not None or self._overslept(now):
            return []
        case = self._case
        case.now = max(now, case.now)
        # What would have had more time than the budget is not at fault; its end is another matter.
        for question in case.questions.close_overdue(min(case.now, math.nextafter(case.end_at, 0.0))):
            if not self._waits_once(question):
                words = _WORDS[type(question.task)]
                why = f"did not answer: {words} took longer than {question.seconds:.0f} s"
                self._gone(question.node, "examiner", why)
        return self._proceed()

    def _waits_once(self, question: Request) -> bool:
        """One late answer is no verdict: it is waited for, and what is asked after it must come in time."""
        case, node = self._case, self._case.subjects[question.node]
        if node.late_until is None:
            wait = min(_LONGEST_LATE, max(_LEAST_LATE, _LATE_SHARE * case.left))
            node.late_until = case.now + min(wait, case.left)
        if case.now < node.late_until:
            case.questions.prolong(question, node.late_until)
        return case.now < node.late_until

    def _overslept(self, now: float) -> bool:
        """A late look means that this process slept itself: what it missed is read first, then judged."""
        due = self.wakes_at()
        if self._naps_until is None and due is not None and now - due > OVERSLEPT_SECONDS:
            self._naps_until = now + OVERSLEPT_SECONDS
        if self._naps_until is not None and now < self._naps_until:
            return True
        self._naps_until = None
        return False

    # --- the course ---

    def _rounds(self) -> Generator[tuple[type, ...], None, None]:
        case = self._case
        yield from local_phase.rounds(case)
        # What is wrong with all together is the same in every test of theirs.
        if not case.backend or Grade.FAIL in [one.verdict for one in case.together]:
            yield from port_sweep.rounds_between(case)
            yield from loss_phase.read(case)
            return
        yield from collective_phase.products(case, self._trials)
        local_phase.write(case)
        if case.orders.preflight.level is Level.FULL or case.orders.preflight.all_pairs:
            yield from self._pairs.rounds()
        yield from port_sweep.rounds(case)
        yield from loss_phase.read(case)
        yield from collective_phase.WholeSet(self._pairs).rounds()
        before = case.choice().world
        yield from port_sweep.rounds(case)
        yield from loss_phase.read(case)
        if case.choice().world != before:
            yield from collective_phase.WholeSet(self._pairs).rounds()
        yield from absent_nodes.rounds_at_lost(case)

    def _proceed(self) -> list[AskWorker]:
        """Go on as far as nothing has to be waited for."""
        case = self._case
        while self.outcome is None:
            if case.now >= case.end_at:
                self._course.close()
                self._cut()
            elif case.questions.waits_for(self._awaited):
                break
            else:
                try:
                    self._awaited = next(self._course)
                except StopIteration:
                    self._conclude()
                except Exception as error:  # noqa: BLE001 (a fault of ours must not keep a run from training)
                    said = f"the check itself failed: {type(error).__name__}: {error}"
                    case.write_of_all("itself", "check", Grade.UNDETERMINED, said, _OURS)
                    self._conclude()
        asks, case.asks = case.asks, []
        return asks

    def _cut(self) -> None:
        """The budget is spent: what is open stays unknown, and is said to be."""
        case = self._case
        open_ones: dict[int, str] = {}
        for kind, words in _WORDS.items():
            for question in case.questions.of_kind(kind):
                open_ones.setdefault(question.node, words)
        ended = f"the budget of {case.orders.preflight.budget:g} s ended during"
        said = ((node, f"{ended} {words}") for node, words in open_ones.items())
        found = ((node, Finding("budget", Grade.UNDETERMINED, words, _MORE)) for node, words in said)
        case.write("budget", [NodeFinding(*one) for one in found])
        network_phase.write(case)
        local_phase.write(case)
        self._pairs.write()
        self._conclude()

    def _conclude(self) -> None:
        case = self._case
        unfinished = case.backend and case.set_wanted and not case.set_passed
        if unfinished and case.choice().whole and not case.together:
            said = "the whole set was not tested to its end: no time was left"
            case.write_of_all("unfinished", "set", Grade.UNDETERMINED, said)
        absent_nodes.review(case)
        write_unverified(case)
        for words in self._pairs.passing():
            case.notice(words)
        case.asks.clear()
        self.outcome = concluded(case)


# --- where an answer belongs ---


def _take(state: SessionState, trials: GroupTests, question: Request, value: tasks.Answer) -> None:
    node, task = state.subjects[question.node], question.task
    if isinstance(value, (tasks.ListenAnswer, tasks.DialAnswer)):
        node.told_time(value.wall, state.wall_at(question.asked), state.wall_at(state.now))
    if isinstance(value, tasks.LocalAnswer):
        node.local = value
    elif isinstance(value, tasks.ListenAnswer):
        node.listening = value
    elif isinstance(value, tasks.DialAnswer) and isinstance(task, tasks.DialTask):
        node.resolved.update(value.resolved)
        node.resolve_seconds = max(node.resolve_seconds, value.resolve_seconds)
        if task.closed:
            state.swept.update({(node.node, one.node): frozenset(one.silent) for one in value.dialled})
        else:
            state.dials.take(task, value)
    elif isinstance(value, tasks.ExchangeAnswer):
        state.losses.take(node.node, value)
    elif isinstance(value, tasks.TorchStarted):
        node.warm_up(value)
    elif isinstance(value, tasks.GroupResult):
        if value.stage == "warm":
            node.ends.append(value.why)
            node.warm, node.ports = None, []  # another one can be started
        elif isinstance(task, tasks.GroupTask) and task.kind == PRODUCT:
            node.record_matmul(value)
        trials.take(question, value)
    elif isinstance(value, tasks.ThroughAnswer) and isinstance(task, tasks.ThroughTask) and value.body:
        inner = replace(question, node=state.numbers[task.name], task=tasks.task(task.body))
        with suppress(BadDocument):  # the nonsense is not that of the node that passed it on
            _take(state, trials, inner, tasks.answer(inner.task, value.body))
    local_phase.hurry(state, type(task))


# --- the end: who trains, what is said, whether it is enough ---


def write_unverified(state: SessionState) -> None:
    """Several nodes of which no two passed a test together: never a pass.

    It fails where tests were made and all of them failed, and is undetermined where none was made.
    """
    known = [one.verdict for one in state.together]
    tests = [one for one in state.tests if one.test != PRODUCT and len(one.nodes) > 1]
    passed = any(one.outcome == "passed" for one in tests)
    unasked = state.orders.nodes < 2 or not state.set_wanted
    if passed or unasked or Grade.FAIL in known or not state.choice().whole:
        return
    failed = [one for one in tests if one.outcome == "failed"]
    if failed:
        why = next((one.said for one in failed if one.said), "no answer within the limit")
        said = f"none of {len(failed)} tests of nodes together passed: {why}"
        state.write_of_all("verified", "set", Grade.FAIL, said, _NONE_PASSED)
    elif Grade.UNDETERMINED not in known:
        state.write_of_all("verified", "set", Grade.UNDETERMINED, "no two nodes were tested together")


def concluded(state: SessionState) -> SessionOutcome:
    choice = state.choice()
    fit = choice.whole and Grade.FAIL not in [one.verdict for one in state.together]
    for was, now in choice.swaps:
        state.notice(f"{state.subjects[now].name} takes the place of {state.subjects[was].name}")
    # A faster interface may lead elsewhere than to the other nodes, and was not tested: the user chooses.
    name, fast, slow = faster_interface([state.subjects[node] for node in choice.nodes])
    if len(choice.nodes) > 1 and name and "GLOO_SOCKET_IFNAME" not in dict(state.orders.environment):
        state.notice(
            f"every node has {name} with {fast / 1000:g} Gb/s, the interface in use has {slow / 1000:g}: "
            f"if it joins the nodes, --env GLOO_SOCKET_IFNAME={name} --env NCCL_SOCKET_IFNAME=={name}"
        )
    parted = () if choice.whole else choice.parted
    alone = state.names(node for node in parted if node not in state.elsewhere())
    if alone:
        state.notice(f"the other nodes work together without {alone}: --exclude {alone}")
    # Of nodes that joined and nodes apart from all of them, the fewer are left out of another try.
    here, silent = state.parts.get("joining") or state.parts.get("sizes") or ((), ())
    fewer = here if len(silent) > len(here) and not choice.whole else silent
    report = _report(state, choice, fit)
    excluded = dict.fromkeys((*report.excluded, *(state.subjects[node].name for node in (*parted, *fewer))))
    return SessionOutcome(fit, report, choice.nodes, report.environment, tuple(excluded))


def _report(state: SessionState, choice: Choice, fit: bool) -> Report:
    orders, subjects = state.orders, state.subjects
    members = [subjects[node] for node in choice.nodes]
    world = tuple(one.name for one in members)
    grades = [one.verdict for one in members]
    grades += [link.verdict for link in state.links if {link.a, link.b} <= set(world)]
    grades += [Grade.WARN] * bool(choice.swaps) + [one.verdict for one in state.together]
    interface = common_interface(members)
    chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": exactly(interface)} if interface else {}
    nodes = []
    for one in subjects.values():
        role = "rank" if one.node in choice.nodes else "excluded" if one.unfit else "spare"
        nodes.append(NodeReport(one.name, one.verdict, role, one.findings))
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
        spares=tuple(one.node for one in nodes if one.role == "spare"),
        excluded=tuple(one.name for one in subjects.values() if one.unfit and not one.excused),
        nodes=tuple(nodes),
        links=state.links,
        set_said="; ".join(map(_of_all, state.together)),
        tests=tuple(state.tests),
        notices=tuple(state.notices),
        environment=tuple(item for item in chosen.items() if item[0] not in dict(orders.environment)),
    )


def _of_all(one: Finding) -> str:
    """A finding of all together, with what to do about it where it keeps the run from training."""
    remedy = one.remedy if one.verdict is Grade.FAIL and one.remedy not in one.said else ""
    return f"{one.said} -> {remedy}" if remedy else one.said
