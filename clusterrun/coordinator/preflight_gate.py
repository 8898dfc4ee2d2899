"""Which of the nodes train, found out by a pre-flight; and where too few are fit, what follows instead."""

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
    ``another(now, mishap)`` where too few are fit because a node was lost meanwhile: True where that
    leads to another attempt. ``examined``: one pre-flight has had an outcome.
    """

    def __init__(
        self,
        orders: Orders,
        roster: Membership,
        ledger: RunStateKeeper,
        say: Callable[[CoordinatorAction], None],
        examine: Examine,
        chosen: Callable[[Now, Sequence[int], tuple[tuple[str, str], ...]], None],
        refused: Callable[[Now, RunOutcome], None],
        another: Callable[[Now, FailureEvent], bool],
    ) -> None:
        self._orders, self._roster, self._ledger, self._say = orders, roster, ledger, say
        self._examine, self._chosen, self._refused = examine, chosen, refused
        self._another = another
        self._report: Report | None = None
        self._lost: FailureEvent | None = None
        self._brief = False
        self._missing: list[str] = []
        self._examining: PreflightSession | None = None
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
        seats = [seat for seat in self._roster.taken() if seat.present and not seat.lost]
        here = [seat for seat in seats if seat.node not in missing]
        examinees = [Examinee(seat.node, seat.name, seat.hello.address) for seat in here]
        again = None
        if suspects is not None and self._report is not None:
            again = Again(suspects.nodes, suspects.network, self._report)
        self._brief = again is not None
        self._missing = list(missing.values()) if self._brief else []
        examination = self._examine(self._orders, examinees, absent, now.steady, now.wall, again)
        parts = (examination, self._roster, self._ledger, self._say, self._done)
        self._examining = PreflightSession(epoch, *parts)
        self._examining.begin(now)

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        times = (self._overdue_at, self._examining.wakes_at() if self._examining else None)
        return min((at for at in times if at is not None), default=None)

    def tick(self, now: Now) -> None:
        """Carry out what is due."""
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            self._overdue(now)
        elif self._examining is not None:
            self._examining.tick(now)

    def said(self, now: Now, seat: Member, message: SidecarSaid) -> None:
        """An examiner answered."""
        if self._examining is not None:
            self._examining.said(now, seat, message)

    def lost(self, now: Now, seat: Member, why: str) -> None:
        """A node, or its examiner, is gone."""
        if self._examining is not None:
            self._examining.lost(now, seat, why)

    def left(self, now: Now, seat: Member, mishap: FailureEvent) -> None:
        """A node was lost."""
        self._lost = self._lost or mishap
        self._missing.append(seat.name)
        self.lost(now, seat, mishap.failure.why)

    # --- consequences ---

    def _overdue(self, now: Now) -> None:
        if self._unfit is not None:
            self._not_queued(now, f"nothing was heard of the new job within {RESUBMIT_SECONDS:g} s")
            return
        self._examining = None
        words = f"pre-flight: it came to no end within {longest(self._orders):g} s"
        self._refused(now, RunOutcome(State.FAILED, words, contract.ExitCode.FAILED))

    def _done(self, now: Now, outcome: Outcome) -> None:
        self._examining = self._overdue_at = None
        report = outcome.report
        # Whoever stays keeps his place: the places are those of the last ones who trained.
        places = report.world if outcome.fit else self._report.world if self._report else ()
        self._report = replace(report, world=places)
        self._say(SaveReport(self._epoch, report, report.verdict is not Grade.PASS))
        # Whoever was lost may come back: what is known of him is that, and not that he is unfit.
        unfit = tuple(name for name in outcome.excluded if name not in self._missing)
        self._ledger.exclude(unfit)
        if self._lost and not outcome.fit and self._another(now, self._lost):
            return
        if not self._brief or not outcome.fit:
            self._ledger.exclude(outcome.excluded)
        if self._lost and self._brief and not outcome.fit and not unfit:
            self._refused(now, failures.of_mishap(self._lost))
        elif self._orders.preflight.alone:
            self._refused(now, preflight_verdict.alone(report))
        elif outcome.fit:
            self._choose(now, outcome)
        else:
            fit = sum(node.role != "excluded" for node in report.nodes)
            self._succeed(now, preflight_verdict.unfit(report, fit, self._orders.nodes))

    def _choose(self, now: Now, outcome: Outcome) -> None:
        for words in preflight_verdict.swaps(outcome.report):
            self._say(Note(words))
            self._ledger.warn(words)
        for seat in self._roster.linked():
            if seat.node not in outcome.world:
                self._say(Send(seat.link, EndSidecar(self._epoch, contract.EXAMINER)))
        self._ledger.says(Phase.STARTING, "enough nodes are fit")
        self._chosen(now, outcome.world, outcome.environment)

    def _succeed(self, now: Now, unfit: RunOutcome) -> None:
        """Queue the run anew without the nodes that are unfit, where that was wished and may help."""
        nodes = folded(self._ledger.excluded)
        argv = filled(self._orders.preflight.resubmit, self._ledger.excluded)
        if not argv or not nodes or self._ledger.handed_over >= contract.MOST_RESUBMITS:
            self._refused(now, unfit)
            return
        self._unfit = unfit
        self._overdue_at = now.steady + RESUBMIT_SECONDS
        self._say(Note(f"{unfit.reason}; it is queued anew without {nodes}"))
        self._say(Resubmit(argv, self._ledger.excluded))
        self._ledger.says(Phase.PREFLIGHT, f"{unfit.reason}; it is queued anew without {nodes}")

    def resubmitted(self, now: Now, event: Resubmitted) -> None:
        """The scheduler's answer."""
        if self._unfit is None:
            return
        if not event.job_id:
            self._not_queued(now, event.why)
            return
        words = f"resubmitted as job {event.job_id} without {fold(self._ledger.excluded)}"
        self._refused(now, replace(self._unfit, state=State.PENDING, reason=words))

    def _not_queued(self, now: Now, why: str) -> None:
        if self._unfit is not None:
            words = f"{self._unfit.reason}; it could not be queued anew: {why}"
            self._refused(now, replace(self._unfit, reason=words))
