"""Decide what the agent of one node does: it turns events into actions. Pure.

Laws
----
1. Only the highest epoch seen is obeyed. A ``StopRanks`` counts as seeing its epoch, so an epoch that never
   ran on this node can never start afterwards.
2. Ranks start only under a lease that an acknowledged beat granted, and only when everything older
   on this node is known to be gone.
3. Only acknowledged beats extend the lease, counted from the moment the beat was sent. A lease that has run
   out is never extended: the node ends its ranks shortly before, and the shim enforces that.
   A node that was suspended meanwhile may ask once more, while the shim keeps its ranks stopped.
4. A grace time that runs is neither shortened nor lengthened by another request to end. A lost connection
   may shorten it, because then the lease sets the bound. A user may shorten it on request.
5. Leftover processes are swept before the node sends ``RanksGone`` or exits, however the ranks end. If all
   ranks exited 0, leftover processes may finish first, within ``FINISH_SECONDS`` and the kill wait.
6. The port is held until its epoch is over.
7. The examiner has ended before ranks start, and none starts while ranks live. Only an observer runs
   next to ranks.
8. A signal from Slurm reaches the ranks that catch it at once, before its reason is known. The time from
   TERM to KILL counts from there, as in Slurm.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from clusterrun.agent.actions import Exit, RenewLease, Tell
from clusterrun.agent.events import Disconnected, LeftoversEnded, ShimLost, Told, Welcomed
from clusterrun.agent.lease import Lease
from clusterrun.agent.ranks import Ranks, RankStage
from clusterrun.agent.sidecars import Sidecars
from clusterrun.model import contract
from clusterrun.model.frozen import Any
from clusterrun.protocol import messages
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.runtime.machine_events import Action, Event, Note, Now, SignalCame, StoodStill, Tick, earliest

# The agent waits this long for the coordinator's order after it got a signal and the grace time passed.
PATIENCE_SECONDS = 5.0
# The coordinator may take this long to find out the reason of a signal. Then the ranks end anyway.
DECIDE_SECONDS = 4.0
# A node ends its ranks at this share of a lease before its end. At the end the shim would kill the agent
# too, which must still release an orphaned job (``orphaned``).
LEASE_MARGIN = 0.15
# A node that was suspended waits this long for an answer, a little less than the shim (as above).
ASK_SECONDS = contract.AWAKE_SECONDS - 1.0
# From the start of ranks to the start of their observer. It must not compete with them for CPU while they
# start, and ranks that end at once need none.
OBSERVE_AFTER_SECONDS = 10.0

USUAL = Timeouts()


class AgentEnd:
    """How far the end of an agent is.

    decide_at: the coordinator may explain a signal until then (steady clock)
    leave_at: the agent leaves then at the latest, because of a signal (steady clock)
    code: the exit code, once the agent leaves as soon as no rank is left
    is_hurried: the ranks get no grace time any more
    """

    def __init__(self) -> None:
        self.decide_at: float | None = None
        self.leave_at: float | None = None
        self.code: int | None = None
        self.is_hurried = self.has_exited = False

    @property
    def has_begun(self) -> bool:
        return any(value is not None for value in (self.decide_at, self.leave_at, self.code))

    def leave(self, code: int) -> None:
        """Leave with this code. The first code stays."""
        if self.code is None:
            self.code = code


class Agent:
    """One node's state machine: ``on`` takes an event and returns actions.

    ``processes`` is the number of processes that a start creates on this node. ``grace`` is the seconds from
    TERM to KILL after the coordinator was lost, ``kill_wait`` after a signal that the coordinator does not
    explain.
    ``observed``: an observer runs next to the ranks.
    ``orphaned``: the agent ends because its coordinator is gone.
    """

    def __init__(
        self,
        node: int,
        processes: int,
        grace: float = contract.GRACE_SECONDS,
        timeouts: Timeouts = USUAL,
        observed: bool = False,
        kill_wait: float = contract.KILL_WAIT_SECONDS,
    ) -> None:
        self.node, self._grace, self._timeouts = node, grace, timeouts
        self._kill_wait = kill_wait
        self._actions: list[Action | messages.ToAgent] = []
        self._lease = Lease(timeouts.lease)
        self._early = LEASE_MARGIN * timeouts.lease
        self._ranks = Ranks(processes, kill_wait, self._actions)
        self._sidecars = Sidecars(self._ranks, self._actions)
        self._observed = observed
        self._observe_at: float | None = None
        self._linked = False
        self._beat_at = 0.0
        self._ending = AgentEnd()
        self._answer_by: float | None = None
        self._held: messages.StartRanks | None = None
        self._cleaned: messages.RanksGone | None = None
        self.orphaned = False

    def on(self, now: Now, event: Event | messages.ToCoordinator) -> list[Action | messages.ToAgent]:
        if self._ending.has_exited:
            return []
        self._actions.clear()
        _EVENTS[type(event)](self, now, event)
        if self._cleaned is not None and (self._answer_by is None or self._ending.code is not None):
            cleaned, self._cleaned = self._cleaned, None
            self._ranks.swept(cleaned, self._objection(now))
        if self._ending.code is not None and self._ranks.idle:
            self._ranks.port.release()
            self._ending.has_exited = True
            self._actions.append(Exit(self._ending.code))
        # The link may have ended during this event.
        return [action for action in self._actions if self._linked or not isinstance(action, Tell)]

    def wakes_at(self) -> float | None:
        """Return the time of the next ``Tick`` (steady clock, seconds)."""
        if self._ending.has_exited or self._ending.is_hurried:
            return None
        times = [self._ends_at(), self._ending.leave_at, self._ending.decide_at]
        if self._linked:
            times.append(self._beat_at)
        if self._ranks.stage in (RankStage.RUNNING, RankStage.FINISHING):
            times += [self._ranks.kill_at, self._ranks.term_at]
        if self._ranks.stage is RankStage.RUNNING:
            times.append(self._observe_at)
        return earliest(*times)

    @property
    def wants_ranks(self) -> bool:
        return self._ranks.starting and not self._ending.has_begun

    def _ends_at(self) -> float | None:
        if self._answer_by is not None or self._lease.ends_at is None:
            return self._answer_by
        return self._lease.ends_at - self._early

    def _objection(self, now: Now) -> str:
        if self._ending.has_begun:
            return "this node was ordered to end"
        granted = self._lease.grants_start(now.steady)
        return "" if granted else "no heartbeat of this node was acknowledged in time"

    # --- the coordinator, the lease, the time ---

    def on_welcomed(self, now: Now, event: Welcomed) -> None:
        self._linked = True
        # The shim gets a deadline at once; ranks still wait for an acknowledged beat (law 2).
        self._actions.append(RenewLease(self._lease.welcome(now.steady)))
        self._beat(now)

    def _beat(self, now: Now) -> None:
        self._actions.append(Tell(self._lease.beat(now.steady)))
        self._beat_at = now.steady + self._timeouts.heartbeat

    def on_ack(self, now: Now, ack: messages.Ack) -> None:
        if self._lease.acknowledged(now.steady, ack) and self._lease.ends_at is not None:
            self._actions.append(RenewLease(self._lease.ends_at))
            if self._answer_by is not None and self._lease.ends_at - self._early > self._answer_by:
                self._answer_by = None
                message, self._held = self._held, None
                if message is not None:
                    self._start_ranks(now, message)

    def on_message(self, now: Now, event: Told) -> None:
        if self._linked:
            _MESSAGES[type(event.message)](self, now, event.message)

    def on_standstill(self, now: Now, event: StoodStill) -> None:
        """Ask the coordinator for a new lease, because the silence was nobody's fault."""
        if not self._linked or self._ending.code is not None:
            return
        if self._lease.over(now.steady + ASK_SECONDS):
            self._lease.woke(now.steady)
            self._answer_by = now.steady + ASK_SECONDS
        self._beat(now)

    def on_tick(self, now: Now, event: Tick) -> None:
        ends_at = self._ends_at()
        if ends_at is not None and now.steady >= ends_at:
            self._actions.append(Note("the lease runs out: no heartbeat was acknowledged in time"))
            self.orphaned = self.orphaned or self._ending.code is None
            self._leave_at_once(now, 1)
        elif self._ending.leave_at is not None and now.steady >= self._ending.leave_at:
            self._leave_at_once(now, 128 + signal.SIGTERM)
        else:
            if self._linked and now.steady >= self._beat_at:
                self._beat(now)
            if self._ending.decide_at is not None and now.steady >= self._ending.decide_at:
                self._end_by_signal(now)
            self._ranks.on_time(now)
            if self._observe_at is not None and now.steady >= self._observe_at:
                self._observe_at = None
                if self._ranks.stage is RankStage.RUNNING:
                    self._sidecars.observe(self._ranks.epoch)

    # --- ranks and sidecars ---

    def _start_ranks(self, now: Now, message: messages.StartRanks) -> None:
        if self._answer_by is not None:
            self._held = message  # until the coordinator's answer decides whether this node may live
            return
        if message.epoch > self._ranks.seen:
            self._sidecars.dismiss(contract.EXAMINER)
        self._ranks.start(message, self._objection(now))

    def on_ranks_gone(self, now: Now, event: messages.RanksGone) -> None:
        cleaning = self._ranks.stage is RankStage.CLEANING
        if cleaning and self._answer_by is not None:
            self._cleaned = event  # held like an order to start
            return
        self._ranks.swept(event, self._objection(now) if cleaning else "")

    def on_ranks_started(self, now: Now, event: messages.RanksStarted) -> None:
        self._ranks.spawned(now, event)
        if self._observed and self._ranks.stage is RankStage.RUNNING and event.epoch == self._ranks.epoch:
            self._observe_at = now.steady + OBSERVE_AFTER_SECONDS

    # --- ending ---

    def _stop_ranks(self, now: Now, message: messages.StopRanks) -> None:
        if self._ranks.port.epoch == message.epoch != self._ranks.epoch:
            self._ranks.port.release()
        self._ending.decide_at = None
        self._ranks.stop(now, message)

    def on_signal(self, now: Now, event: SignalCame) -> None:
        self._actions.append(Tell(messages.SignalSeen(event.number)))
        if event.number != contract.NOTICE_SIGNAL:
            self._ranks.pass_on(now, event.number, ordered=False)
        if event.number not in contract.TERMINATE_SIGNALS or self._ending.leave_at is not None:
            return
        self._ranks.got_signal = True
        if not self._linked:
            self._ending.leave(128 + event.number)
            self._end_by_signal(now)
        elif self._ending.decide_at is None:
            self._ending.decide_at = now.steady + DECIDE_SECONDS

    def _end_by_signal(self, now: Now) -> None:
        self._ending.decide_at = None
        self._ending.leave_at = now.steady + self._kill_wait + PATIENCE_SECONDS
        self._ranks.end(now, self._kill_wait)

    def _signal_ranks(self, now: Now, message: messages.SignalRanks) -> None:
        if message.is_held:
            self._ranks.pass_on_held(message)
            return
        self._ending.decide_at = None
        if message.epoch == self._ranks.epoch:
            self._ranks.got_signal = False
            self._ranks.pass_on(now, message.number, ordered=True)

    def on_disconnected(self, now: Now, event: Disconnected) -> None:
        self._linked = False
        self._actions.append(Note("lost the coordinator: " + event.why))
        self.orphaned = self.orphaned or self._ending.code is None
        self._lease.woke(None)
        self._answer_by = None
        self._ending.leave(1)
        ends_at = now.steady if self._lease.ends_at is None else self._lease.ends_at - self._early
        self._ranks.end(now, self._grace)
        self._ranks.shorten_grace(now, min(now.steady + self._grace, ends_at))

    def on_shim_lost(self, now: Now, event: ShimLost) -> None:
        self._actions.append(Note("the shim is gone, and with it what enforces the lease"))
        self._ranks.why_ended = (
            "the first process of its agent was killed, as Slurm does if it takes the node out of the job"
        )
        self._leave_at_once(now, 1)

    def _leave_at_once(self, now: Now, code: int) -> None:
        """Kill the ranks without grace, and exit as soon as none is left."""
        self._ending.leave(code)
        self._lease.woke(None)
        self._ending.is_hurried = True
        self._ranks.shorten_grace(now, now.steady)


_EVENTS: dict[type, Callable[[Agent, Now, Any], None]] = {
    Tick: Agent.on_tick,
    Welcomed: Agent.on_welcomed,
    Told: Agent.on_message,
    Disconnected: Agent.on_disconnected,
    ShimLost: Agent.on_shim_lost,
    SignalCame: Agent.on_signal,
    messages.PortReserved: lambda self, now, event: self._ranks.port.held(event),
    messages.RanksStarted: Agent.on_ranks_started,
    messages.StartFailed: lambda self, now, event: self._ranks.spawn_failed(event),
    messages.RankExited: lambda self, now, event: self._ranks.ended(now, event),
    messages.SignalTaken: lambda self, now, event: self._actions.append(Tell(event)),
    LeftoversEnded: lambda self, now, event: self._ranks.on_leftovers_ended(event),
    messages.RanksGone: Agent.on_ranks_gone,
    messages.SidecarSaid: lambda self, now, event: self._sidecars.spoke(event),
    messages.SidecarEnded: lambda self, now, event: self._sidecars.gone(event),
    StoodStill: Agent.on_standstill,
}
_MESSAGES: dict[type, Callable[[Agent, Now, Any], None]] = {
    messages.Ack: Agent.on_ack,
    messages.ReservePort: lambda self, now, message: self._ranks.port.reserve(message, self._ranks.seen),
    messages.StartRanks: Agent._start_ranks,
    messages.StopRanks: Agent._stop_ranks,
    messages.SignalRanks: Agent._signal_ranks,
    messages.AskSidecar: lambda self, now, message: self._sidecars.ask(message, self._ending.has_begun),
    messages.EndSidecar: lambda self, now, message: self._sidecars.end(message),
    messages.Farewell: lambda self, now, message: self._leave_at_once(now, 0),
}
