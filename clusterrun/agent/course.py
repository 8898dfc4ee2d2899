"""The course of a run from the first claim to the last farewell, attempt by attempt; knows no beat or socket.

What leads on from each stage:

    CLAIMING   -EpochClaimed->          JOINING (first attempt) or RESERVING
    JOINING    -all nodes present->     RESERVING; -limit, launcher ended, node left, request-> PARTING
    RESERVING  -PortReserved->          LIVE; -no port, limit, node left, request-> PARTING
    LIVE       -attempt over->          CLAIMING (another attempt) or PARTING
    PARTING    -agents and launcher gone, limit-> Finish
"""

from __future__ import annotations

import enum

from clusterrun.agent import verdict
from clusterrun.agent.actions import ClaimEpoch, LaunchAgents, Note, Send
from clusterrun.agent.attempt import START_SECONDS_PER_NODE, LiveAttempt
from clusterrun.agent.judge import SUPERSEDED, Judge
from clusterrun.agent.messages import ReservePort
from clusterrun.agent.parting import Parting
from clusterrun.agent.verdict import Kind, Verdict
from clusterrun.model.states import Phase, State
from clusterrun.model.world import Meeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from clusterrun.agent.actions import CoordinatorAction
    from clusterrun.agent.events import EpochClaimed, LauncherEnded, Now
    from clusterrun.agent.ledger import Ledger
    from clusterrun.agent.messages import PortReserved
    from clusterrun.agent.roster import Roster, Seat
    from clusterrun.agent.timings import Timings
    from clusterrun.agent.verdict import Mishap
    from clusterrun.model.orders import Orders

TAKEOVER_SECONDS = 10.0
"""How long a running coordinator may take to see that it was superseded, and then some."""
RESERVE_SECONDS = 30.0


class Stage(enum.Enum):
    """How far the run is."""

    CLAIMING = "an attempt number is being taken"
    JOINING = "agents are on their way"
    RESERVING = "node 0 looks for a port"
    LIVE = "ranks may live"
    PARTING = "no rank lives; agents are leaving"


class Course:
    """One run's way through its stages; ``say`` takes actions."""

    def __init__(
        self,
        orders: Orders,
        timings: Timings,
        roster: Roster,
        ledger: Ledger,
        say: Callable[[CoordinatorAction], None],
    ) -> None:
        self.stage = Stage.CLAIMING
        self.epoch = -1
        self.live: LiveAttempt | None = None
        self._orders, self._timings = orders, timings
        self._roster, self._ledger, self._say = roster, ledger, say
        self._judge = Judge(orders.max_restarts)
        self._parting = Parting(roster, say)
        self._join_seconds = timings.join + START_SECONDS_PER_NODE * orders.nodes
        self._overdue_at: float | None = None
        self._limit_at: float | None = None
        self._quiet_until = 0.0
        self._why = ""
        self._launcher_words = ""

    @property
    def superseded(self) -> bool:
        """Another coordinator took over: no beat is acknowledged and no state written any more."""
        return self._judge.superseded

    # --- time ---

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        if self.stage is Stage.PARTING:
            return self._parting.due_at
        live = self.live.wakes_at() if self.live else None
        return min((at for at in (self._overdue_at, self._limit_at, live) if at is not None), default=None)

    def tick(self, now: Now) -> None:
        """Carry out what is due."""
        if self.stage is Stage.PARTING:
            self._parting.tick(now)
            return
        if self._limit_at is not None and now.steady >= self._limit_at:
            self._limit_at = None
            words = f"the time limit of {self._orders.time_limit:g} s was reached"
            self.ask(now, Verdict(State.TIMEOUT, words, 1))
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            self._overdue_at = None
            self._overdue(now)
        elif self.live is not None:
            self.live.tick(now)

    def _overdue(self, now: Now) -> None:
        if self.stage is Stage.RESERVING:
            self._fail(now, f"node 0 named no port within {RESERVE_SECONDS:g} s")
        elif self._roster.complete:
            self._complete(now)
        else:
            words = f"{verdict.nodes_in_words(self._roster.missing())} of {self._orders.nodes} did not join"
            self._fail(now, f"{words} within {self._join_seconds:g} s; what the launcher said is in job.out")

    # --- towards training ---

    def begin(self, now: Now) -> None:
        """The first event of all."""
        if self._orders.time_limit > 0:
            self._limit_at = now.steady + self._orders.time_limit
        self._say(ClaimEpoch())

    def claimed(self, now: Now, event: EpochClaimed) -> None:
        """An attempt is ours: launch agents for the first one, start ranks for a later one."""
        if self.stage is not Stage.CLAIMING:
            return
        first, self.epoch = self.epoch < 0, event.epoch
        if not first:
            self._ledger.open(now, event.epoch, self._why, self._roster.names())
            self._reserve(now)
            return
        self._ledger.remember(event.earlier)
        self._ledger.open(now, event.epoch, "started again" if event.epoch else "first start")
        if not event.quiet:
            # An older coordinator may have been stopped for up to a lease and still find agents to answer.
            lease, kill = self._timings.lease, self._timings.kill
            self._quiet_until = now.steady + lease + TAKEOVER_SECONDS + lease + kill
        self.stage = Stage.JOINING
        self._overdue_at = now.steady + self._join_seconds
        self._parting.launcher_lives = True
        self._say(LaunchAgents())

    def present(self, now: Now) -> None:
        """One node more is present."""
        if self.stage is Stage.JOINING:
            words = f"{self._roster.present} of {self._orders.nodes} nodes have joined"
            self._ledger.says(Phase.STARTING, words)
            if self._roster.complete:
                self._complete(now)

    def _complete(self, now: Now) -> None:
        """All are present; what an older coordinator left must be dead by its lease before ranks start."""
        if now.steady < self._quiet_until:
            self._overdue_at = self._quiet_until
            self._ledger.says(Phase.STARTING, "waiting until nothing of an older attempt can live any more")
            return
        self._ledger.formed(self._roster.names())
        self._reserve(now)

    def _reserve(self, now: Now) -> None:
        self.stage = Stage.RESERVING
        self._overdue_at = now.steady + RESERVE_SECONDS
        seat = self._roster.seats[0]
        if seat is not None:
            self._say(Send(seat.link, ReservePort(self.epoch)))

    def port_reserved(self, now: Now, seat: Seat, message: PortReserved) -> None:
        """Node 0 holds a port: start everywhere."""
        if self.stage is not Stage.RESERVING or seat.node != 0:
            return
        if not message.port:
            self._fail(now, f"{seat.name} could not reserve a port: {message.why}", seat.name)
            return
        self.stage = Stage.LIVE
        self._overdue_at = None
        parts = (self._orders, self._timings, self._roster, self._ledger, self._judge)
        self.live = LiveAttempt(self.epoch, *parts, self._say, self._over)
        self.live.start(now, Meeting(seat.hello.address, message.port))

    # --- towards the end ---

    def lost(self, now: Now, seat: Seat, why: str) -> None:
        """An agent will not be heard again; ``seat`` has left the roster already."""
        words = f"{seat.name} (node {seat.node}) was lost: {why}{self._launcher_words}"
        mishap = verdict.of_node(Kind.NODE, seat.name, seat.heard_wall, words)
        if self.stage is Stage.PARTING:
            self._parting.check()
        elif self.live is not None:
            self.live.lost(now, seat, mishap)
        else:
            self._conclude(now, verdict.of_mishap(mishap), mishap)

    def launcher_ended(self, now: Now, event: LauncherEnded) -> None:
        """Fatal only where agents are still on their way; else they tell by themselves whether they live."""
        said = ": " + " / ".join(event.said) if event.said else ""
        if not event.whole:
            if self.stage is Stage.JOINING and not self._roster.complete:
                self._fail(now, f"an agent ended with code {event.code} before it had joined{said}")
            return
        self._parting.launcher_lives = False
        words = f"the launcher ended with code {event.code}{said}"
        self._launcher_words = f"; {words}"
        if self.stage is Stage.PARTING:
            self._parting.check()
        elif self.stage is Stage.JOINING and not self._roster.complete:
            missing = verdict.nodes_in_words(self._roster.missing())
            self._fail(now, f"{words} (before {missing} had joined)")
        else:
            self._say(Note(words))

    def ask(self, now: Now, wish: Verdict) -> None:
        """Somebody wants the run to end; the first to ask is the one who is reported."""
        began = self.live.mishap_at if self.live else None
        since = None if began is None else now.steady - began
        if self.stage is Stage.PARTING or not self._judge.ask(wish, since):
            return
        if self.live is not None:
            self.live.stop(now)
        else:
            self._conclude(now, wish)

    def supersede(self, now: Now, epoch: int) -> None:
        """Another coordinator took over."""
        if self.superseded:
            return
        self._judge.superseded = True
        self._say(Note(f"attempt {epoch} of another coordinator stands in the run directory: ending"))
        if self.live is not None:
            self.live.stop(now)
        elif self.stage is not Stage.PARTING:
            self._conclude(now, SUPERSEDED)

    def _over(self, now: Now) -> None:
        """No rank of this epoch lives anywhere."""
        if self.live is None:
            return
        ruling = self._judge.rule(self.live.tally, self._roster.lost)
        self.live = None
        if not ruling.again or ruling.mishap is None:
            self._conclude(now, ruling.verdict, ruling.mishap)
            return
        self._ledger.close(now, ruling.verdict.state, ruling.mishap.failure)
        self._why = f"{ruling.again}: {ruling.mishap.failure.why}"
        self._say(Note(self._why))
        self._ledger.says(Phase.RESTARTING, self._why)
        self.stage = Stage.CLAIMING
        self._say(ClaimEpoch(self.epoch))

    def _fail(self, now: Now, words: str, node: str = "") -> None:
        mishap = verdict.of_node(Kind.START, node, now.wall, words)
        self._conclude(now, verdict.of_mishap(mishap), mishap)

    def _conclude(self, now: Now, end: Verdict, mishap: Mishap | None = None) -> None:
        """No rank lives anywhere and the run is over."""
        self.stage = Stage.PARTING
        self._overdue_at = self._limit_at = None
        self._say(Note(f"{end.state.value}: {end.reason}"))
        if not self.superseded:
            self._ledger.close(now, end.state, mishap.failure if mishap else None)
            self._say(self._ledger.end(now, end))
        self._parting.begin(now, end.exit_code)
