"""Decide what the coordinator of one run does: events in, actions out; no clock, socket, file or process.

Laws
----
1. Every message of an older epoch is ignored; one of a newer epoch breaks the protocol and costs the link.
2. Every heartbeat is acknowledged, unless another coordinator took over; nothing else lengthens a lease.
3. A node that is lost (its link ended, or silence) is dead only when the lease that our last
   acknowledgement gave has run out and its shim has had time to kill.
4. Ranks of a later epoch start only when every node has reported that no process of the earlier one is
   left, or is dead by law 3. A node with a process that cannot be killed is excluded.
5. The first failure in time is reported. Failures after the order to end ranks are consequences.
6. The first request for an end is reported. A second request changes nothing.
7. A run ends once: its last state is saved when no rank can be alive, and ``Finish`` follows within a
   bounded time. A coordinator that was superseded writes no state.
8. Ranks start only on nodes that the pre-flight, if one was ordered, calls fit. Idle nodes may come and go.
9. A message costs one step whatever the number of nodes; silence is looked for twice a second.
10. Restarts are charged to a budget that is counted from the record of all attempts. The budget is full
    again if an attempt got further than all before it.
11. Time in which this process was suspended does not count: no node was silent in it, no limit came
    nearer. The nodes keep their leases, so a longer time in this process is always safe. The same holds for
    the time in which the scheduler halted the job without this process (``scancel -s STOP``).
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from clusterrun.coordinator import events
from clusterrun.coordinator.actions import DropLink, Finish, Send
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.lifecycle import Collaborators, Lifecycle, RunStage
from clusterrun.coordinator.membership import Member, Membership
from clusterrun.coordinator.run_part import Shared
from clusterrun.coordinator.run_state import Notifications, RunStateKeeper
from clusterrun.coordinator.termination import ANSWER_SECONDS
from clusterrun.model import contract
from clusterrun.model.frozen import Any
from clusterrun.model.orders import Orders
from clusterrun.model.states import State
from clusterrun.protocol import messages
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.runtime import machine_events
from clusterrun.runtime.machine_events import Action, Event, Note, Now, SignalCame, StoodStill, Tick, earliest

# How often silence is looked for.
SWEEP_SECONDS = 0.5

USUAL = Timeouts()
BARE = Collaborators()


class Coordinator:
    """A run's state machine: ``on`` takes an event and returns actions; the first event is a ``Tick``.

    ``host`` and ``pid`` are where it runs, for the record.
    """

    def __init__(
        self,
        orders: Orders,
        host: str,
        pid: int,
        timeouts: Timeouts = USUAL,
        collaborators: Collaborators = BARE,
    ) -> None:
        self._actions: list[Action] = []
        self._finished = self._began = False
        self._standstills = 0.0
        self._sweep_at: float | None = None
        # When the scheduler was asked whether it halted the job, because all nodes are silent.
        self._all_silent_at: float | None = None
        self._signalled: dict[int, str] = {}
        self._is_batch_job = bool(orders.launch) and not orders.in_allocation
        self._requeue = orders.survival.requeue
        self._membership = Membership(orders.allocated, timeouts, collaborators.names)
        python, job = str(orders.interpreter), (collaborators.job_id, collaborators.job_restarts)
        self._state_keeper = RunStateKeeper(orders.run_id, host, pid, timeouts, job, python)
        shared = Shared(orders, self._membership, self._state_keeper, self._actions)
        self._lifecycle = Lifecycle(shared, collaborators)
        self._notifications = Notifications() if orders.survival.announces else None

    def on(self, now: Now, event: Event) -> list[Action]:
        if self._finished:
            return []
        self._actions.clear()
        if isinstance(event, StoodStill):
            self._standstills += event.seconds
        if self._standstills:
            now = Now(now.steady - self._standstills, now.wall)
        _HANDLERS[type(event)](self, now, event)
        self._finished = any(isinstance(action, Finish) for action in self._actions)
        if self._state_keeper.due_at is not None and now.steady >= self._state_keeper.due_at:
            self._actions.append(self._state_keeper.save(now))
        if self._notifications is not None and not self._lifecycle.superseded:
            # The end of the run is announced before ``Finish``.
            at = len(self._actions) - self._finished
            self._actions[at:at] = self._notifications.news(now, self._state_keeper.state)
        return list(self._actions)

    def wakes_at(self) -> float | None:
        """Return when the next ``Tick`` is due (steady clock, seconds); None if none is."""
        if self._finished:
            return None
        wakes_at = earliest(self._sweep_at, self._lifecycle.wakes_at(), self._state_keeper.due_at)
        return None if wakes_at is None else wakes_at + self._standstills

    def on_tick(self, now: Now, event: Tick) -> None:
        if not self._began:
            self._began = True
            self._lifecycle.begin(now)
        self._look_for_silence(now)
        self._lifecycle.tick(now)
        self._part_with_signalled(now)

    def on_standstill(self, now: Now, event: StoodStill) -> None:
        self._state_keeper.was_late(now, event.seconds)
        self._lifecycle.termination.look_again(now)

    def _look_for_silence(self, now: Now) -> None:
        if self._sweep_at is not None and now.steady < self._sweep_at:
            return
        late = now.steady - self._sweep_at if self._sweep_at is not None else 0.0
        self._sweep_at = now.steady + SWEEP_SECONDS
        if late > machine_events.OVERSLEPT_SECONDS or self._lifecycle.stage is RunStage.SHUTTING_DOWN:
            return  # read first the messages that arrived meanwhile
        # A node under check has no ranks to fence. It may be silent for as long as its lease lasts.
        timeouts, checked = self._membership.timeouts, self._lifecycle.formation.checks is not None
        limit = timeouts.lease if checked else timeouts.lost
        silent_members = self._membership.silent(now, limit, timeouts.lease)
        if len(silent_members) < len(self._membership.by_link):
            self._all_silent_at = None
        elif silent_members and self._may_be_halted(now):
            return
        host, cut_off = self._state_keeper.state.host, ""
        if silent_members and self._membership.hears_none(now, host):
            cut_off = f"; nor of any other node: {host} may itself be cut off"
        for member in silent_members:
            seconds = timeouts.lease if now.steady - member.heard > timeouts.lease else limit
            why = f"{contract.NO_HEARTBEAT} {seconds:g} s{cut_off}"
            self._actions.append(DropLink(member.link))
            member.silent = True
            self._lose(now, member, why)

    def _may_be_halted(self, now: Now) -> bool:
        """Return whether all nodes may be silent because the scheduler halted the job. Ask it, once."""
        if self._all_silent_at is None:
            self._all_silent_at = now.steady
            return self._lifecycle.termination.ask_if_halted()
        return now.steady < self._all_silent_at + ANSWER_SECONDS

    # --- agents ---

    def on_joined(self, now: Now, event: events.AgentJoined) -> None:
        hello = event.hello
        if not self._lifecycle.formation.welcomes(hello.node):
            note = f"{hello.name} (node {hello.node}) joined too late, or is not needed"
            self._actions += [Note(note), Send(event.link, messages.Farewell())]
        elif hello.epoch > self._lifecycle.epoch:
            note = f"{hello.name} has seen epoch {hello.epoch}, above {self._lifecycle.epoch}: refused"
            self._actions += [Note(note), DropLink(event.link)]
        elif (dropped := self._membership.admit(event.link, hello, now)) is not None:
            note = f"node {hello.node} is taken, or unknown: a second agent for it was dropped"
            self._actions += [Note(note), DropLink(dropped)]

    def on_left(self, now: Now, event: events.AgentLeft) -> None:
        if member := self._membership.by_link.get(event.link):
            self._lose(now, member, event.why)

    def _lose(self, now: Now, member: Member, why: str) -> None:
        if not member.present:
            # The agent may never have learned that it was welcome. It or another agent may try again.
            del self._membership.by_link[member.link]
            self._membership.members[member.node] = None
        else:
            self._membership.lose(member, now)
            self._lifecycle.lost(now, member, why)

    def on_message(self, now: Now, event: events.MessageCame) -> None:
        member = self._membership.by_link.get(event.link)
        if member is None:
            return
        member.heard, member.heard_wall = now.steady, now.wall
        message: Any = event.message
        if isinstance(message, messages.Beat):
            self._beat(now, member, message)
        elif isinstance(message, messages.SignalSeen) and self._lifecycle.formation.launched_again:
            # The signal was for the agents of the previous launch. This agent was slow to leave.
            self._break(now, member, "it was being ended when it came")
        elif isinstance(message, messages.SignalSeen):
            if message.number in contract.TERMINATE_SIGNALS:
                self._signalled[member.link] = signal.Signals(message.number).name
                if self._lifecycle.live is not None:
                    self._lifecycle.live.outcomes.got_signal.add(member.place)
            elif message.number in contract.USERS_SIGNALS:
                self._lifecycle.hold(message.number)
            is_partial = not all(other.link in self._signalled for other in self._membership.linked())
            self._signal(now, message.number, f"{member.name} got", is_partial)
        elif isinstance(message, messages.NodeOverloaded):
            self._membership.overloaded(member.node, now, message.seconds)
            self._lifecycle.formation.overloaded(now, member.node, message.seconds)
        elif isinstance(message, messages.SignalTaken):
            self._lifecycle.termination.taken(message.number, message.ranks)
        elif message.epoch > self._lifecycle.epoch:
            self._break(now, member, f"it spoke of epoch {message.epoch}, above {self._lifecycle.epoch}")
        elif message.epoch == self._lifecycle.epoch:
            self._report(now, member, message)

    def on_overloaded(self, now: Now, event: events.Overloaded) -> None:
        self._membership.overloaded(None, now, event.seconds)
        self._lifecycle.formation.overloaded(now, None, event.seconds)

    def _beat(self, now: Now, member: Member, beat: messages.Beat) -> None:
        if not self._lifecycle.superseded:
            self._actions.append(Send(member.link, messages.Ack(beat.number, now.wall)))
            member.acked = now.steady
        if not member.present:
            self._membership.welcome(member)
            self._lifecycle.follow(now, self._lifecycle.formation.joined(now))

    def _report(self, now: Now, member: Member, message: Any) -> None:
        lifecycle = self._lifecycle
        if isinstance(message, messages.PortReserved):
            lifecycle.port_reserved(now, member, message)
        elif isinstance(message, (messages.SidecarSaid, messages.SidecarEnded)):
            if message.sidecar == contract.EXAMINER:
                lifecycle.follow(now, lifecycle.formation.heard(now, member, message))
            elif message.sidecar == contract.OBSERVER and lifecycle.watching is not None:
                lifecycle.heed(now, lifecycle.watching.heard(now, member, message))
        elif lifecycle.live is not None:
            try:
                if over := lifecycle.live.heard(now, member, message):
                    lifecycle.follow(now, over)
            except ValueError as error:
                self._break(now, member, str(error))

    def _break(self, now: Now, member: Member, why: str) -> None:
        self._actions.append(DropLink(member.link))
        member.is_dropped = True
        self._lose(now, member, why)

    # --- requests ---

    def on_client_request(self, now: Now, event: events.ClientAsked) -> None:
        if self._lifecycle.watching is not None:
            self._lifecycle.heed(now, self._lifecycle.watching.asked(now, event))

    def on_own_signal(self, now: Now, event: SignalCame) -> None:
        is_terminals = event.number == signal.SIGHUP and not self._is_batch_job
        if event.number in contract.USERS_SIGNALS and not is_terminals:
            if self._lifecycle.live is not None:
                self._lifecycle.live.signal(event.number)
            self._lifecycle.hold(event.number)
        # Only ``scancel -b -s INT`` and ``-f`` send INT to a batch job. A plain batch job survives both.
        is_for_ranks = event.number == signal.SIGINT and self._is_batch_job
        self._signal(now, event.number, "the coordinator got", some=False if is_for_ranks else None)

    def _signal(self, now: Now, number: int, who: str, some: bool | None = None) -> None:
        lifecycle = self._lifecycle
        if number in contract.TERMINATE_SIGNALS:
            reason = f"{who} {signal.Signals(number).name}"
            wish = RunOutcome(State.CANCELLED, reason, 128 + number)
            lifecycle.heed(now, lifecycle.termination.terminated(now, wish, number, some))
        else:
            lifecycle.termination.noticed(now, lifecycle.live, number)

    def on_job_answer(self, now: Now, event: events.JobTold) -> None:
        lifecycle = self._lifecycle
        lifecycle.heed(now, lifecycle.termination.on_job_answer(now, event, lifecycle.live))
        if event.halted and self._all_silent_at is not None:
            heard = max((member.heard for member in self._membership.by_link.values()), default=now.steady)
            self._standstills += now.steady - heard
            self._all_silent_at = None
            lifecycle.termination.look_again(now)
        self._part_with_signalled(now)

    def _part_with_signalled(self, now: Now) -> None:
        """Release the agents that got a signal although the job goes on: their nodes count as lost."""
        termination = self._lifecycle.termination
        if termination.stray:
            termination.stray = False
            for link, name in self._signalled.items():
                if member := self._membership.by_link.get(link):
                    self._break(now, member, f"its agent got {name}, and the scheduler does not end the job")
        if self._signalled and not termination.undecided:
            self._signalled.clear()

    def on_cancel(self, now: Now, event: events.CancelAsked) -> None:
        wish = RunOutcome(State.CANCELLED, "cancelled by request", contract.ExitCode.INTERRUPTED)
        if event.kill_wait is not None:
            self._lifecycle.kill_wait = event.kill_wait
            if self._lifecycle.live is not None:
                self._lifecycle.live.stop_sooner(event.kill_wait)
        self._lifecycle.termination.requeue.cancel(now, wish)
        self._lifecycle.ask(now, wish)

    def on_supervisor_gone(self, now: Now, event: events.SupervisorGone) -> None:
        reason = "the first process of the batch step was killed (scancel -b?), and with it the job"
        # A run that may continue does so as after a lost node. Slurm calls any other one FAILED.
        if not self._requeue:
            reason += "; --requeue continues such a run"
        state = State.NODE_FAIL if self._requeue else State.FAILED
        self._lifecycle.termination.abandoned = True
        self._lifecycle.ask(now, RunOutcome(state, reason, contract.ExitCode.FAILED))


# The handler of each event.
_HANDLERS: dict[type, Callable[[Coordinator, Now, Any], None]] = {
    Tick: Coordinator.on_tick,
    events.AgentJoined: Coordinator.on_joined,
    events.Overloaded: Coordinator.on_overloaded,
    events.AgentLeft: Coordinator.on_left,
    events.MessageCame: Coordinator.on_message,
    SignalCame: Coordinator.on_own_signal,
    events.CancelAsked: Coordinator.on_cancel,
    events.LauncherEnded: lambda self, now, event: self._lifecycle.launcher_ended(now, event),
    events.MemoryKilled: lambda self, now, event: self._lifecycle.memory_killed(now, event),
    events.LauncherReached: lambda self, now, event: self._lifecycle.formation.launcher_reached(now, event),
    events.Superseded: lambda self, now, event: self._lifecycle.supersede(now, event.epoch),
    events.EpochClaimed: lambda self, now, event: self._lifecycle.claimed(now, event),
    events.ClaimFailed: lambda self, now, event: self._lifecycle.not_claimed(now, event),
    events.Resubmitted: lambda self, now, event: self._lifecycle.follow(
        now, self._lifecycle.formation.resubmitted(now, event)
    ),
    events.Progressed: lambda self, now, event: self._lifecycle.progressed(now, event),
    events.SupervisorGone: Coordinator.on_supervisor_gone,
    events.JobTold: Coordinator.on_job_answer,
    events.NextQueued: lambda self, now, event: self._lifecycle.termination.queued(now, event),
    events.HandedOver: lambda self, now, event: self._lifecycle.termination.requeue.handed_over(now, event),
    events.ClientAsked: Coordinator.on_client_request,
    StoodStill: Coordinator.on_standstill,
}
