"""Which nodes train, as the pre-flight found them; and what follows where too few are fit; pure."""

from __future__ import annotations

from clusterrun.coordinator import failures, preflight_verdict
from clusterrun.coordinator.actions import Resubmit, SaveReport, Send
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.preflight_session import Again, Examinee, PreflightSession, longest
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import Grade
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import EndSidecar
from clusterrun.runtime.machine_events import Note
from clusterrun.slurm_text.exclude_list import filled, folded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.events import Resubmitted
    from clusterrun.coordinator.failures import FailureEvent
    from clusterrun.coordinator.lost_nodes import Suspects
    from clusterrun.coordinator.membership import Member, Membership
    from clusterrun.coordinator.preflight_session import Examine, Outcome
    from clusterrun.coordinator.run_state import RunStateKeeper
    from clusterrun.model.orders import Orders
    from clusterrun.model.preflight_report import Report
    from clusterrun.protocol.messages import SidecarSaid
    from clusterrun.runtime.machine_events import Now

RESUBMIT_SECONDS = 120.0


class PreflightGate:
    """The pre-flight of an attempt and its consequence, which is one of three, called once.

    ``chosen(now, world, environment)``: these numbers of the allocation train, in this order.
    ``refused(now, verdict)``: no ranks start; PENDING where another job goes on with the run.
    ``another(now, failure)`` where too few are fit because a node was lost meanwhile: True where that
    leads to another attempt. ``examined``: one pre-flight has had an outcome.
    """

    def __init__(
        self,
        orders: Orders,
        membership: Membership,
        state_keeper: RunStateKeeper,
        actions: list[CoordinatorAction],
        examine: Examine,
        chosen: Callable[[Now, Sequence[int], tuple[tuple[str, str], ...]], None],
        refused: Callable[[Now, RunOutcome], None],
        another: Callable[[Now, FailureEvent], bool],
    ) -> None:
        self._orders, self._membership, self._state_keeper, self._actions = (
            orders,
            membership,
            state_keeper,
            actions,
        )
        self._examine, self._chosen, self._refused = examine, chosen, refused
        self._another = another
        self._report: Report | None = None
        self._lost: FailureEvent | None = None
        self._brief = False
        self._missing: list[str] = []
        self._preflight_session: PreflightSession | None = None
        self._unfit: RunOutcome | None = None
        self._overdue_at: float | None = None
        self._epoch = -1

    @property
    def examined(self) -> bool:
        """There is an outcome to build upon."""
        return self._report is not None

    def begin(
        self,
        now: Now,
        epoch: int,
        absent: Sequence[tuple[int, str, str]],
        suspects: Suspects | None = None,
    ) -> None:
        """Examine whoever is here; where ``suspects`` are named, only what is to be feared of them."""
        self._epoch, self._lost = epoch, None
        self._overdue_at = now.steady + longest(self._orders)
        missing = {node: name for node, name, _ in absent}
        members = [member for member in self._membership.taken() if member.present and not member.lost]
        here = [member for member in members if member.node not in missing]
        examinees = [Examinee(member.node, member.name, member.hello.address) for member in here]
        again = None
        if suspects is not None and self._report is not None:
            again = Again(suspects.nodes, suspects.network, self._report)
        self._brief = again is not None
        self._missing = list(missing.values()) if self._brief else []
        examination = self._examine(self._orders, examinees, absent, now.steady, now.wall, again)
        parts = (examination, self._membership, self._state_keeper, self._actions, self._done)
        self._preflight_session = PreflightSession(epoch, *parts)
        self._preflight_session.begin(now)

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        times = (self._overdue_at, self._preflight_session.wakes_at() if self._preflight_session else None)
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: Now) -> None:
        """Carry out what is due."""
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            self._overdue(now)
        elif self._preflight_session is not None:
            self._preflight_session.tick(now)

    def said(self, now: Now, member: Member, message: SidecarSaid) -> None:
        """An examiner answered."""
        if self._preflight_session is not None:
            self._preflight_session.said(now, member, message)

    def lost(self, now: Now, member: Member, why: str) -> None:
        """A node, or its examiner, is gone."""
        if self._preflight_session is not None:
            self._preflight_session.lost(now, member, why)

    def left(self, now: Now, member: Member, failure_event: FailureEvent) -> None:
        """A node was lost."""
        self._lost = self._lost or failure_event
        self._missing.append(member.name)
        self.lost(now, member, failure_event.failure.why)

    # --- consequences ---

    def _overdue(self, now: Now) -> None:
        if self._unfit is not None:
            self._not_queued(now, f"nothing was heard of the new job within {RESUBMIT_SECONDS:g} s")
            return
        self._preflight_session = None
        words = f"pre-flight: it came to no end within {longest(self._orders):g} s"
        self._refused(now, RunOutcome(State.FAILED, words, contract.ExitCode.FAILED))

    def _done(self, now: Now, outcome: Outcome) -> None:
        self._preflight_session = self._overdue_at = None
        report = outcome.report
        # Whoever stays keeps his place: the places are those of the last ones who trained.
        places = report.world if outcome.fit else self._report.world if self._report else ()
        self._report = replace(report, world=places)
        self._actions.append(SaveReport(self._epoch, report, report.verdict is not Grade.PASS))
        # Whoever was lost may come back: what is known of him is that, and not that he is unfit.
        unfit = tuple(name for name in outcome.excluded if name not in self._missing)
        self._state_keeper.exclude(unfit)
        if self._lost and not outcome.fit and self._another(now, self._lost):
            return
        if not self._brief or not outcome.fit:
            self._state_keeper.exclude(outcome.excluded)
        if self._lost and self._brief and not outcome.fit and not unfit:
            self._refused(now, failures.of_failure_event(self._lost))
        elif self._orders.preflight.alone:
            self._refused(now, preflight_verdict.alone(report))
        elif outcome.fit:
            self._choose(now, outcome)
        else:
            fit = sum(node.role != "excluded" for node in report.nodes)
            self._succeed(now, preflight_verdict.unfit(report, fit, self._orders.nodes))

    def _choose(self, now: Now, outcome: Outcome) -> None:
        for words in preflight_verdict.swaps(outcome.report):
            self._actions.append(Note(words))
            self._state_keeper.warn(words)
        for member in self._membership.linked():
            if member.node not in outcome.world:
                self._actions.append(Send(member.link, EndSidecar(self._epoch, contract.EXAMINER)))
        self._state_keeper.says(Phase.STARTING, "enough nodes are fit")
        self._chosen(now, outcome.world, outcome.environment)

    def _succeed(self, now: Now, unfit: RunOutcome) -> None:
        """Queue the run anew without the nodes that are unfit, where that was wished and may help."""
        nodes = folded(self._state_keeper.excluded)
        argv = filled(self._orders.preflight.resubmit, self._state_keeper.excluded)
        if not argv or not nodes or self._state_keeper.handed_over >= contract.MOST_RESUBMITS:
            self._refused(now, unfit)
            return
        self._unfit = unfit
        self._overdue_at = now.steady + RESUBMIT_SECONDS
        self._actions.append(Note(f"{unfit.reason}; it is queued anew without {nodes}"))
        self._actions.append(Resubmit(argv, self._state_keeper.excluded))
        self._state_keeper.says(Phase.PREFLIGHT, f"{unfit.reason}; it is queued anew without {nodes}")

    def resubmitted(self, now: Now, event: Resubmitted) -> None:
        """The scheduler's answer."""
        if self._unfit is None:
            return
        if not event.job_id:
            self._not_queued(now, event.why)
            return
        words = f"resubmitted as job {event.job_id} without {fold(self._state_keeper.excluded)}"
        self._refused(now, replace(self._unfit, state=State.PENDING, reason=words))

    def _not_queued(self, now: Now, why: str) -> None:
        if self._unfit is not None:
            words = f"{self._unfit.reason}; it could not be queued anew: {why}"
            self._refused(now, replace(self._unfit, reason=words))
