"""The course of a run from the first claim to the last farewell, attempt by attempt; knows no beat or socket.

What leads on from each stage:

    CLAIMING   -EpochClaimed->          JOINING (first attempt) or RESERVING
    JOINING    -all nodes present->     EXAMINING, or RESERVING where no pre-flight was ordered
               -limit, launcher ended, node left, request-> PARTING; with a pre-flight the missing
                                        are done without: EXAMINING
    EXAMINING  -enough are fit->        RESERVING; -too few, another job queued, request-> PARTING
    RESERVING  -PortReserved->          LIVE; -no port, limit, node left, request-> PARTING
    LIVE       -attempt over->          CLAIMING (another attempt) or PARTING
    PARTING    -agents and launcher gone, limit-> Finish
"""

from __future__ import annotations

import enum

from clusterrun.agent import verdict
from clusterrun.agent.actions import ClaimEpoch, LaunchAgents, Note, Send
from clusterrun.agent.attempt import LiveAttempt
from clusterrun.agent.gathering import Gathering, Means
from clusterrun.agent.judge import SUPERSEDED, Judge
from clusterrun.agent.messages import ReservePort
from clusterrun.agent.parting import Parting
from clusterrun.agent.selection import Selection
from clusterrun.agent.verdict import Kind, Verdict
from clusterrun.agent.watching import Watching
from clusterrun.model.states import Phase, State
from clusterrun.model.world import Meeting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterrun.agent.actions import CoordinatorAction
    from clusterrun.agent.events import EpochClaimed, LauncherEnded, Now
    from clusterrun.agent.ledger import Ledger
    from clusterrun.agent.messages import PortReserved
    from clusterrun.agent.rooms import Rooms
    from clusterrun.agent.roster import Roster, Seat
    from clusterrun.agent.timings import Timings
    from clusterrun.agent.verdict import Mishap
    from clusterrun.model.orders import Orders

RESERVE_SECONDS = 30.0


class Stage(enum.Enum):
    """How far the run is."""

    CLAIMING = "an attempt number is being taken"
    JOINING = "agents are on their way"
    EXAMINING = "the nodes are checked, or, too few being fit, another job is queued"
    RESERVING = "rank 0's node looks for a port"
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
        rooms: Rooms,
    ) -> None:
        self.stage = Stage.CLAIMING
        self.epoch = -1
        self.live: LiveAttempt | None = None
        self.watching: Watching | None = None
        parts = (orders, roster, ledger, say)
        self.selection = (
            Selection(*parts, rooms.examine, self._form, self._conclude) if rooms.examine else None
        )
        self._watch, self._orders, self._timings = rooms.watch, orders, timings
        self._roster, self._ledger, self._say = roster, ledger, say
        self._judge = Judge(orders.max_restarts)
        self._parting = Parting(roster, say)
        means = Means(do_without=self.selection is not None, relaunch=bool(orders.launch))
        waited = (roster, ledger, timings, means, say)
        self._gathering = Gathering(*waited, self._launch, self._gathered, self._fail)
        self._overdue_at: float | None = None
        self._limit_at: float | None = None
        self._environment: tuple[tuple[str, str], ...] = ()
        self._why = ""
        self._launcher_words = ""

    @property
    def superseded(self) -> bool:
        """Another coordinator took over."""
        return self._judge.superseded

    # --- time ---

    def wakes_at(self) -> float | None:
        """When ``tick`` is wanted (steady clock)."""
        if self.stage is Stage.PARTING:
            return self._parting.due_at
        times = [self._overdue_at, self._limit_at]
        if self.stage is Stage.JOINING:
            times.append(self._gathering.wakes_at)
        elif self.stage is Stage.EXAMINING and self.selection:
            times.append(self.selection.wakes_at())
        times += [part.wakes_at() for part in (self.live, self.watching) if part]
        return min((at for at in times if at is not None), default=None)

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
            self._fail(now, f"{self._roster.world[0].name} named no port within {RESERVE_SECONDS:g} s")
        elif self.stage is Stage.JOINING:
            self._gathering.tick(now)
        elif self.stage is Stage.EXAMINING and self.selection:
            self.selection.tick(now)
        if self.live is not None:
            self.live.tick(now)
        if self.watching is not None:
            self.watching.tick(now)

    # --- towards training ---

    def begin(self, now: Now) -> None:
        """The first event of all."""
        self._limit_at = now.steady + self._orders.time_limit if self._orders.time_limit > 0 else None
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
        self._ledger.remember(event.earlier, event.excluded)
        self._ledger.open(now, event.epoch, "started again" if event.epoch else "first start")
        self.stage = Stage.JOINING
        self._gathering.begin(now, event.quiet)

    def _launch(self, without: tuple[str, ...]) -> None:
        self._parting.launcher_lives = True
        self._say(LaunchAgents(without))

    def welcomes(self) -> bool:
        """Agents are waited for."""
        return self.stage is Stage.JOINING and self._gathering.welcomes

    def present(self, now: Now) -> None:
        """One node more is present."""
        if self.stage is Stage.JOINING:
            self._gathering.present(now)

    def _gathered(self, now: Now) -> None:
        """Everybody is here who is waited for, and nothing of an older attempt can live any more."""
        if self.selection is None:
            self._form(now, range(self._orders.nodes))
            return
        self.stage = Stage.EXAMINING
        self.selection.begin(now, self.epoch, self._gathering.absent(now))

    def _form(self, now: Now, world: Sequence[int], environment: tuple[tuple[str, str], ...] = ()) -> None:
        """These nodes train; ``environment`` is for ranks where their user set nothing."""
        self._roster.form(world)
        self._environment = environment
        spares = [seat.name for seat in self._roster.idle() if seat.name not in self._ledger.excluded]
        self._ledger.formed(self._roster.names(), tuple(spares))
        if any(seat.lost for seat in self._roster.world) or len(self._roster.world) != self._orders.nodes:
            self._fail(now, "a node was lost while the world was formed")
            return
        self._reserve(now)

    def _reserve(self, now: Now) -> None:
        self.stage = Stage.RESERVING
        self._overdue_at = now.steady + RESERVE_SECONDS
        self._say(Send(self._roster.world[0].link, ReservePort(self.epoch)))

    def port_reserved(self, now: Now, seat: Seat, message: PortReserved) -> None:
        """Rank 0's node holds a port: start everywhere."""
        if self.stage is not Stage.RESERVING or seat.place != 0:
            return
        if not message.port:
            self._fail(now, f"{seat.name} could not reserve a port: {message.why}", seat.name)
            return
        self.stage = Stage.LIVE
        self._overdue_at = None
        parts = (self._orders, self._timings, self._roster, self._ledger, self._judge)
        self.live = LiveAttempt(self.epoch, *parts, self._say, self._over, self._environment)
        self.live.start(now, Meeting(seat.hello.address, message.port))
        if self._watch is not None:
            vigil = self._watch(self._orders, self.epoch, self._roster.numbers(), now.steady, now.wall)
            self.watching = Watching(vigil, self.live, self._roster, self._ledger, self._say, self.ask)

    # --- towards the end ---

    def lost(self, now: Now, seat: Seat, why: str) -> None:
        """An agent will not be heard again; ``seat`` has left the roster already."""
        words = f"{seat.name} (node {seat.node}) was lost: {why}{self._launcher_words}"
        mishap = verdict.of_node(Kind.NODE, seat.name, seat.heard_wall, words)
        if self.stage is Stage.PARTING:
            self._parting.check()
        elif self.selection and self.stage is Stage.EXAMINING:
            self.selection.lost(now, seat, words)
        elif self.selection and self.stage is Stage.JOINING:
            self._gathering.left(seat, why)
        elif self._roster.world and seat.place < 0:
            self._ledger.warn(f"the idle node {seat.name} was lost: {why}")
        elif self.live is not None:
            if self.watching is not None:
                self.watching.lost(now, seat, why)
            self.live.lost(now, seat, mishap)
        else:
            self._conclude(now, verdict.of_mishap(mishap), mishap)

    def launcher_ended(self, now: Now, event: LauncherEnded) -> None:
        """Fatal only where agents are still on their way; else they tell by themselves whether they live."""
        said = f": {' / '.join(event.said)}" if event.said else ""
        words = f"the launcher ended with code {event.code}{said}"
        if event.whole:
            self._parting.launcher_lives = False
        if self.stage is Stage.JOINING:
            self._gathering.launcher_ended(now, event, words)
        elif event.whole and self.stage is Stage.PARTING:
            self._parting.check()
        elif event.whole:
            self._launcher_words = f"; {words}"
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
        tally = self.live.tally
        ruling = self._judge.rule(tally, nodes_lost=any(seat.lost for seat in self._roster.world))
        if self.watching is not None:
            self.watching.over(now, tally.completed)
        self.live = self.watching = None
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
