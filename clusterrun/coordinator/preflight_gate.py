"""Run the pre-flight of an attempt and decide what follows from it; pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from clusterrun.coordinator.actions import Resubmit, SaveReport
from clusterrun.coordinator.events import Resubmitted
from clusterrun.coordinator.failures import FailureEvent, RunOutcome
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.restart_policy import end_with
from clusterrun.coordinator.run_part import NodesChosen, Outcome, RunOver, RunPart, Shared, TooFewNodes
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Orders
from clusterrun.model.preflight_report import Grade, NodeReport, Report
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import AskSidecar, EndSidecar, SidecarEnded, SidecarSaid
from clusterrun.runtime.machine_events import Now, earliest
from clusterrun.slurm_text.exclude_list import filled, folded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.preflight.session.session import AskExaminer, Session, SessionOutcome

RESUBMIT_SECONDS = 120.0
_MOST_NAMED = 4
_LEAST_SLACK = 120.0
_SECONDS_PER_NODE_FOR_ALL_PAIRS = 60.0


def longest(orders: Orders) -> float:
    """Return the seconds after which a check without an outcome fails. It keeps its budget by itself."""
    budget = orders.preflight.budget
    pairs = _SECONDS_PER_NODE_FOR_ALL_PAIRS * orders.allocated if orders.preflight.all_pairs else 0.0
    return max(2 * budget, budget + _LEAST_SLACK) + pairs


class PreflightGate(RunPart):
    """The pre-flights of a run. A call returns the outcome if there is one.

    The outcome is ``TooFewNodes`` if too few nodes are fit because a node was lost meanwhile. The caller
    then calls ``decide`` if no other attempt follows.
    """

    def __init__(self, shared: Shared, make_session: Callable[..., Session]) -> None:
        super().__init__(shared)
        self._make_session = make_session
        self._report: Report | None = None
        self._lost: FailureEvent | None = None
        self._brief = False
        self._missing: list[str] = []
        self._session: Session | None = None
        self._outcome: SessionOutcome | None = None
        self._unfit: RunOutcome | None = None
        self._overdue_at: float | None = None

    @property
    def has_report(self) -> bool:
        return self._report is not None

    def begin(
        self,
        now: Now,
        absent: Sequence[tuple[int, str, str]],
        excused: Collection[int],
        suspects: Sequence[int],
        network: bool,
    ) -> Outcome | None:
        """Examine all present nodes, later only ``suspects``, and their links if ``network`` is set.

        ``excused``: the absent nodes that an overload excuses.
        """
        from clusterrun.preflight.session.session import SessionNode, ShortCheck  # only if one was ordered

        self._lost = self._outcome = None
        self._overdue_at = now.steady + longest(self._orders)
        missing = {node: name for node, name, _ in absent}
        present = [
            member for member in self._membership.taken() if member.here and member.node not in missing
        ]
        nodes = [SessionNode(member.node, member.name, member.hello.address) for member in present]
        for node, name, why in absent:
            nodes.append(SessionNode(node, name, absent=why, is_excused=node in excused))
        short = ShortCheck(suspects, self._report, network) if self._report else None
        self._brief = short is not None
        self._missing = list(missing.values()) if self._brief else []
        self._session = session = self._make_session(self._orders, nodes, now, short)
        return self._go_on(now, session, session.begin())

    def wakes_at(self) -> float | None:
        return earliest(self._overdue_at, self._session.wakes_at() if self._session else None)

    def tick(self, now: Now) -> Outcome | None:
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            return self._overdue()
        session = self._session
        return self._go_on(now, session, session.tick(now.steady)) if session else None

    def heard(self, now: Now, member: Member, message: SidecarSaid | SidecarEnded) -> Outcome | None:
        session = self._session
        if session is None:
            return None
        if isinstance(message, SidecarEnded):
            return self._go_on(now, session, session.lost(now.steady, member.node, message.why))
        asks = session.answered(now.steady, member.node, message.number, message.body, now.wall)
        return self._go_on(now, session, asks)

    def overloaded(self, now: Now, node: int | None, seconds: float) -> None:
        if self._session:
            self._session.overloaded(now.steady, node, seconds)

    def lost(self, now: Now, member: Member, failure_event: FailureEvent) -> Outcome | None:
        self._lost = self._lost or failure_event
        self._missing.append(member.name)
        session, why = self._session, failure_event.failure.why
        if session is None:
            return None
        asks = session.lost(now.steady, member.node, why, member.is_excused)
        return self._go_on(now, session, asks)

    def _go_on(self, now: Now, session: Session, asks: Iterable[AskExaminer]) -> Outcome | None:
        for ask in asks:
            member = self._membership.members[ask.node]
            if member is not None and member.here:
                message = AskSidecar(self._state_keeper.state.epoch, contract.EXAMINER, ask.number, ask.body)
                self._send(member, message)
        if session.outcome is not None:
            outcome = session.outcome
            self._session = self._overdue_at = None
            report = outcome.report
            # A node that stays keeps its place: the places are those of the nodes that trained last.
            places = report.world if outcome.fit else self._report.world if self._report else ()
            self._report = replace(report, world=places)
            keep = report.verdict is not Grade.PASS
            self._actions.append(SaveReport(self._state_keeper.state.epoch, report, keep))
            # A lost node may come back. It was lost, but nothing shows that it is unfit.
            self._state_keeper.exclude(self._unfit_of(outcome))
            self._outcome = outcome
            if self._lost and not outcome.fit and not self._orders.preflight.alone:
                return TooFewNodes(self._lost)
            return self.decide(now)
        self._state_keeper.says(Phase.PREFLIGHT, session.progress)
        return None

    def _overdue(self) -> Outcome | None:
        if self._unfit is not None:
            return _not_queued(self._unfit, f"nothing was heard of the new job within {RESUBMIT_SECONDS:g} s")
        self._session = None
        reason = f"pre-flight: it did not end within {longest(self._orders):g} s"
        return RunOver(RunOutcome(State.FAILED, reason, contract.ExitCode.FAILED))

    def _unfit_of(self, outcome: SessionOutcome) -> tuple[str, ...]:
        return tuple(name for name in outcome.excluded if name not in self._missing)

    def decide(self, now: Now) -> Outcome | None:
        """Return the outcome of the pre-flight that ended, if no other attempt follows."""
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return None
        if not self._brief or not outcome.fit:
            self._state_keeper.exclude(outcome.excluded)
        if self._lost and self._brief and not outcome.fit and not self._unfit_of(outcome):
            return RunOver(end_with(self._lost))
        if self._orders.preflight.alone:
            return RunOver(_alone(outcome.report))
        if outcome.fit:
            for node in outcome.report.nodes:
                if node.role == "excluded":
                    message = f"pre-flight left {node.node} out{_why(node)}"
                    self._note(message)
                    self._state_keeper.warn(message)
            for member in self._membership.linked():
                if member.node not in outcome.world:
                    self._send(member, EndSidecar(self._state_keeper.state.epoch, contract.EXAMINER))
            self._state_keeper.says(Phase.STARTING, "enough nodes are fit")
            return NodesChosen(outcome.world, outcome.environment)
        fit = sum(node.role != "excluded" for node in outcome.report.nodes)
        reason = f"pre-flight: {_causes(outcome.report)}; {fit} fit of {self._orders.nodes} asked"
        # Queue the run again without the unfit nodes, if that was requested and may help.
        unfit = RunOutcome(State.FAILED, reason, contract.ExitCode.UNFIT)
        nodes = folded(self._state_keeper.state.excluded)
        argv = filled(self._orders.preflight.resubmit, self._state_keeper.state.excluded)
        if not argv or not nodes or self._state_keeper.handed_over >= contract.MOST_RESUBMITS:
            return RunOver(unfit)
        self._unfit = unfit
        self._overdue_at = now.steady + RESUBMIT_SECONDS
        message = f"{unfit.reason}; it is queued anew without {nodes}"
        self._note(message)
        self._actions.append(Resubmit(argv, self._state_keeper.state.excluded))
        self._state_keeper.says(Phase.PREFLIGHT, message)
        return None

    def resubmitted(self, event: Resubmitted) -> Outcome | None:
        if self._unfit is None:
            return None
        if not event.job_id:
            return _not_queued(self._unfit, event.why)
        reason = f"resubmitted as job {event.job_id} without {fold(self._state_keeper.state.excluded)}"
        return RunOver(replace(self._unfit, state=State.PENDING, reason=reason))


def _not_queued(unfit: RunOutcome, why: str) -> RunOver:
    return RunOver(replace(unfit, reason=f"{unfit.reason}; it could not be queued anew: {why}"))


def _alone(report: Report) -> RunOutcome:
    if report.verdict is Grade.FAIL:
        return RunOutcome(State.FAILED, f"pre-flight: {_causes(report)}", contract.ExitCode.UNFIT)
    return RunOutcome(State.COMPLETED, f"pre-flight: {report.verdict}", contract.ExitCode.DONE)


def _causes(report: Report) -> str:
    causes = [f"{node.node} is unfit{_why(node)}" for node in report.nodes if node.verdict is Grade.FAIL]
    causes += [f"{link.ends}: {link.message}" for link in report.links if link.verdict is Grade.FAIL]
    causes += [report.set_message] if report.set_message and not causes else []
    if not causes:
        unknown = [node for node in report.nodes if node.role == "excluded" and node.findings]
        causes = [f"{node.node} could not be judged: {node.findings[0].message}" for node in unknown]
    others = [f"{len(causes) - _MOST_NAMED} more"] if len(causes) > _MOST_NAMED else []
    return "; ".join([*causes[:_MOST_NAMED], *others]) or "the nodes are not fit to train together"


def _why(node: NodeReport) -> str:
    message = next((finding.message for finding in node.findings if finding.verdict is Grade.FAIL), "")
    return f": {message}" if message else ""
