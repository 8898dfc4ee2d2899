"""The coordinator's decisions, one per run: knows events and actions; no clock, socket, file or process.

Laws
----
1. Every message of an older epoch is ignored; one of a newer epoch breaks the protocol and costs the link.
2. Every heartbeat is acknowledged, unless another coordinator took over; nothing else lengthens a lease.
3. A node that is lost (its link ended, or silence) is dead only when the lease that our last
   acknowledgement gave has run out and its shim has had time to kill.
4. Ranks of a later epoch start only when every node has said that nothing of the earlier one is left,
   or is dead by law 3. A node with a process that cannot be killed takes no part any more.
5. The first mishap in time is the one reported; what comes after ranks were told to end is a consequence.
6. Whoever asks first for an end is reported; asking again changes nothing.
7. A run ends once: the last state is saved when no rank can live any more, and ``Finish`` follows within
   a bounded time. A coordinator that was superseded writes no state.
8. Ranks start on nodes that the pre-flight, where one was ordered, calls fit; what idles beside them
   may come and go.
9. A message costs one step whatever the number of nodes; silence is looked for twice a second.
10. Restarts are charged to a budget that is counted from the record of all attempts; it is full again
    when one got further than all before it.
11. Time in which this process stood still does not count here: no node was silent in it, no limit came
    nearer. Leases are kept by the nodes, so a longer time here is always the safe side.
"""

from __future__ import annotations

import signal

from clusterrun.coordinator.actions import DropLink, Finish, Send
from clusterrun.coordinator.collaborators import Collaborators
from clusterrun.coordinator.events import (
    AgentJoined,
    AgentLeft,
    CancelAsked,
    ClaimFailed,
    ClientAsked,
    EpochClaimed,
    HandedOver,
    JobTold,
    LauncherEnded,
    LauncherReached,
    MessageCame,
    NextQueued,
    Progressed,
    Resubmitted,
    Superseded,
    SupervisorGone,
)
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.lifecycle import Lifecycle, RunStage
from clusterrun.coordinator.membership import Membership
from clusterrun.coordinator.notifications import Notifications
from clusterrun.coordinator.run_state import RunStateKeeper
from clusterrun.model import contract
from clusterrun.model.states import State
from clusterrun.protocol.messages import (
    Ack,
    Beat,
    Farewell,
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    SidecarEnded,
    SidecarSaid,
    SignalSeen,
    SignalTaken,
    StartFailed,
)
from clusterrun.protocol.timeouts import Timeouts
from clusterrun.runtime.machine_events import Note, Now, SignalCame, StoodStill, Tick
from clusterrun.runtime.standstill import OVERSLEPT_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from clusterrun.coordinator.actions import CoordinatorAction
    from clusterrun.coordinator.events import CoordinatorEvent
    from clusterrun.coordinator.membership import Member
    from clusterrun.model.orders import Orders

SWEEP_SECONDS = 0.5
"""How often silence is looked for."""

USUAL = Timeouts()
BARE = Collaborators()


class Coordinator:
    """A run's machine: ``on`` takes what happened and says what to do; the first event is a ``Tick``.

    ``host`` and ``pid`` are where it runs, for the record.
    """

    def __init__(
        self, orders: Orders, host: str, pid: int, timings: Timeouts = USUAL, rooms: Collaborators = BARE
    ) -> None:
        self._timings = timings
        self._out: list[CoordinatorAction] = []
        self._finished = False
        self._began = False
        self._standstills = 0.0
        self._sweep_at: float | None = None
        self._signalled: dict[int, str] = {}
        self._roster = Membership(orders.allocated, rooms.names)
        self._ledger = RunStateKeeper(
            orders.run_id, host, pid, timings.state, rooms.job_id, str(orders.interpreter)
        )
        self._course = Lifecycle(orders, timings, self._roster, self._ledger, self._say, rooms)
        self._herald = Notifications() if orders.survival.on_event else None
        course = self._course
        self._events: dict[type, Callable[[Now, Any], None]] = {
            Tick: self._tick,
            AgentJoined: self._joined,
            AgentLeft: self._left,
            MessageCame: self._heard,
            SignalCame: self._signal_came,
            CancelAsked: self._cancel_asked,
            LauncherEnded: course.launcher_ended,
            LauncherReached: course.muster.launcher_reached,
            Superseded: lambda now, event: course.supersede(now, event.epoch),
            EpochClaimed: course.claimed,
            ClaimFailed: course.not_claimed,
            Resubmitted: self._resubmitted,
            Progressed: course.progressed,
            SupervisorGone: self._keeper_gone,
            JobTold: self._job_told,
            NextQueued: course.handover.queued,
            HandedOver: course.handover.relay.handed_over,
            ClientAsked: self._desk_asked,
            StoodStill: self._stood_still,
        }

    def on(self, now: Now, event: CoordinatorEvent) -> list[CoordinatorAction]:
        """What is to be done, in this order, now that ``event`` has happened."""
        if self._finished:
            return []
        self._out.clear()
        if isinstance(event, StoodStill):
            self._standstills += event.seconds
        if self._standstills:
            now = Now(now.steady - self._standstills, now.wall)
        self._events[type(event)](now, event)
        state = None if self._course.superseded else self._ledger.due(now)
        if state is not None:
            self._say(state)
        if self._herald is not None and not self._course.superseded:
            # The end of the run is told before the last word of all.
            at = len(self._out) - self._finished
            self._out[at:at] = self._herald.news(now, self._ledger.state)
        return list(self._out)

    def wakes_at(self) -> float | None:
        """When the next ``Tick`` is wanted (steady clock, seconds)."""
        if self._finished:
            return None
        saving = None if self._course.superseded else self._ledger.due_at()
        times = (self._sweep_at, self._course.wakes_at(), saving)
        wakes_at = min((at for at in times if at is not None), default=None)
        return None if wakes_at is None else wakes_at + self._standstills

    def _say(self, action: CoordinatorAction) -> None:
        self._out.append(action)
        if isinstance(action, Finish):
            self._finished = True

    # --- time ---

    def _tick(self, now: Now, event: Tick) -> None:
        if not self._began:
            self._began = True
            self._course.begin(now)
        self._look_for_silence(now)
        self._course.tick(now)
        self._part_with_signalled(now)

    def _stood_still(self, now: Now, event: StoodStill) -> None:
        self._ledger.was_late(now, event.seconds)
        self._course.handover.look_again(now)

    def _look_for_silence(self, now: Now) -> None:
        if self._sweep_at is not None and now.steady < self._sweep_at:
            return
        late = now.steady - self._sweep_at if self._sweep_at is not None else 0.0
        self._sweep_at = now.steady + SWEEP_SECONDS
        if late > OVERSLEPT_SECONDS or self._course.stage is RunStage.PARTING:
            return  # what came meanwhile is read first
        silent, here = self._roster.silent(now, self._timings.lost), self._ledger.state.host
        why = f"no heartbeat for {self._timings.lost:g} s"
        if silent and self._roster.hears_none(now, here, self._timings.heartbeat):
            why += f"; nor of any other node: {here} may itself be cut off"
        for seat in silent:
            self._say(DropLink(seat.link))
            seat.silent = True
            self._lose(now, seat, why)

    # --- agents ---

    def _joined(self, now: Now, event: AgentJoined) -> None:
        hello = event.hello
        if not self._course.muster.welcomes(hello.node):
            self._say(Note(f"{hello.name} (node {hello.node}) came too late, or is not wanted"))
            self._say(Send(event.link, Farewell()))
            return
        if hello.epoch > self._course.epoch:
            self._say(Note(f"{hello.name} has seen epoch {hello.epoch}, above {self._course.epoch}: refused"))
            self._say(DropLink(event.link))
            return
        dropped = self._roster.take(event.link, hello, now)
        if dropped is not None:
            self._say(Note(f"node {hello.node} is taken, or unknown: a second agent for it was dropped"))
            self._say(DropLink(dropped))

    def _left(self, now: Now, event: AgentLeft) -> None:
        seat = self._roster.by_link(event.link)
        if seat is not None:
            self._lose(now, seat, event.why)

    def _lose(self, now: Now, seat: Member, why: str) -> None:
        if not seat.present:
            # It may never have learned that it was welcome: it, or another one, may try again.
            self._roster.vacate(seat)
            return
        self._roster.lose(seat)
        self._course.lost(now, seat, why)

    def _heard(self, now: Now, event: MessageCame) -> None:
        seat = self._roster.by_link(event.link)
        if seat is None:
            return
        seat.heard_now(now)
        message = event.message
        if isinstance(message, Beat):
            self._beat(now, seat, message)
        elif isinstance(message, SignalSeen) and self._course.muster.launched_again:
            # Meant for the agents of the launch before, of which this one was slow to leave.
            self._break(now, seat, "it was being ended when it came")
        elif isinstance(message, SignalSeen):
            self._agent_signalled(now, seat, message.number)
        elif isinstance(message, SignalTaken):
            self._course.handover.taken(message.ranks)
        elif message.epoch > self._course.epoch:
            self._break(now, seat, f"it spoke of epoch {message.epoch}, above {self._course.epoch}")
        elif message.epoch == self._course.epoch:
            self._report(now, seat, message)

    def _beat(self, now: Now, seat: Member, beat: Beat) -> None:
        if not self._course.superseded:
            self._say(Send(seat.link, Ack(beat.number, now.wall)))
            seat.acked = now.steady
        if not seat.present:
            self._roster.welcome(seat)
            self._course.muster.present(now)

    def _report(self, now: Now, seat: Member, message: Any) -> None:
        live = self._course.live
        if isinstance(message, PortReserved):
            self._course.port_reserved(now, seat, message)
        elif isinstance(message, (SidecarSaid, SidecarEnded)):
            self._of_companion(now, seat, message)
        elif live is None:
            return
        elif isinstance(message, RanksStarted):
            live.started(now, seat, message)
        elif isinstance(message, RankExited):
            try:
                live.exited(now, seat, message)
            except ValueError as error:
                self._break(now, seat, str(error))
        elif isinstance(message, StartFailed):
            live.start_failed(now, seat, message)
        elif isinstance(message, RanksGone):
            live.gone(now, seat, message)

    def _of_companion(self, now: Now, seat: Member, message: SidecarSaid | SidecarEnded) -> None:
        course = self._course
        hearing = {contract.EXAMINER: course.muster.examining, contract.OBSERVER: course.watching}
        part = hearing.get(message.companion)
        if part is None:
            return
        if isinstance(message, SidecarSaid):
            part.said(now, seat, message)
        else:
            part.lost(now, seat, message.why)

    def _break(self, now: Now, seat: Member, why: str) -> None:
        self._say(DropLink(seat.link))
        self._lose(now, seat, why)

    # --- requests ---

    def _desk_asked(self, now: Now, event: ClientAsked) -> None:
        if self._course.watching is not None:
            self._course.watching.asked(now, event)

    def _resubmitted(self, now: Now, event: Resubmitted) -> None:
        if self._course.muster.examining is not None:
            self._course.muster.examining.resubmitted(now, event)

    def _signal_came(self, now: Now, event: SignalCame) -> None:
        self._signal(now, event.number, "the coordinator got")

    def _agent_signalled(self, now: Now, seat: Member, number: int) -> None:
        """Whoever ends the run signals all agents: one alone speaks for its node only."""
        if number in contract.TERMINATE_SIGNALS:
            self._signalled[seat.link] = signal.Signals(number).name
        some = not all(other.link in self._signalled for other in self._roster.linked())
        self._signal(now, number, f"{seat.name} got", some)

    def _signal(self, now: Now, number: int, who: str, some: bool = False) -> None:
        if number in contract.TERMINATE_SIGNALS:
            words = f"{who} {signal.Signals(number).name}"
            wish = RunOutcome(State.CANCELLED, words, 128 + number)
            self._course.handover.terminated(now, wish, some)
        elif number == contract.NOTICE_SIGNAL:
            self._course.handover.noticed(now)

    def _job_told(self, now: Now, event: JobTold) -> None:
        self._course.handover.told(now, event)
        self._part_with_signalled(now)

    def _part_with_signalled(self, now: Now) -> None:
        """Agents that were told to end, in a job that goes on: they end, and their nodes count as lost."""
        if not self._course.handover.stray:
            return
        self._course.handover.stray = False
        for link, name in self._signalled.items():
            seat = self._roster.by_link(link)
            if seat is not None:
                self._break(now, seat, f"its agent got {name}, and the scheduler does not end the job")
        self._signalled.clear()

    def _cancel_asked(self, now: Now, event: CancelAsked) -> None:
        wish = RunOutcome(State.CANCELLED, "cancelled by request", contract.ExitCode.INTERRUPTED)
        self._course.handover.cancelled(now, wish)
        self._course.ask(now, wish)

    def _keeper_gone(self, now: Now, event: SupervisorGone) -> None:
        words = "the first process of the batch step was killed, and with it the job"
        self._course.handover.abandoned()
        self._course.ask(now, RunOutcome(State.NODE_FAIL, words, contract.ExitCode.FAILED))
