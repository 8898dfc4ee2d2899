"""The life of one node's ranks, from their start until none is left, and rank 0's port. Pure."""

from __future__ import annotations

import enum
import signal

from clusterrun.agent.actions import AwaitLeftovers, EndLeftovers, ReleasePort, Sweep, Tell, TerminateRanks
from clusterrun.agent.events import LeftoversEnded
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.protocol import messages
from clusterrun.runtime.machine_events import Action, Note, Now

# A signal that reaches this node from Slurm and through the coordinator within this time is one signal.
SAME_SIGNAL_SECONDS = 1.5
# The same for TERM and INT: the coordinator asks the scheduler for their reason first.
SAME_TERM_SECONDS = 8.0


class RankStage(enum.Enum):
    """The stage of this node: IDLE -> (CLEANING ->) SPAWNING -> RUNNING -> FINISHING -> SWEEPING -> IDLE."""

    IDLE = "no ranks"
    CLEANING = "unknown leftovers: older epochs are swept before a start"
    SPAWNING = "ranks are being started"
    RUNNING = "ranks"
    FINISHING = "all ranks have ended; processes that they left may finish"
    SWEEPING = "remaining processes are being killed"


class MasterPort:
    """The port that this node holds for rank 0 until its ``epoch`` is over; None if it holds none."""

    def __init__(self, actions: list[Action | messages.ToAgent]) -> None:
        self.epoch: int | None = None
        self._actions = actions

    def reserve(self, message: messages.ReservePort, highest_epoch: int) -> None:
        if message.epoch <= highest_epoch:
            self._actions.append(
                Note(f"refused a port for epoch {message.epoch}: epoch {highest_epoch} was seen")
            )
            return
        if message.epoch == self.epoch:
            return
        self.release()
        self.epoch = message.epoch
        self._actions.append(message)

    def held(self, event: messages.PortReserved) -> None:
        if event.epoch == self.epoch:
            self._actions.append(Tell(event))

    def release(self) -> None:
        if self.epoch is not None:
            self.epoch = None
            self._actions.append(ReleasePort())


class Ranks:
    """The newest epoch's ranks. Actions are appended to ``actions``.

    ``seen`` is the highest epoch that any order named, ``epoch`` the highest epoch started on this node.
    At ``kill_at`` all processes that still run are killed (steady clock, seconds). At ``term_at`` leftover
    processes get a TERM, and ``kill_wait`` seconds later a KILL.
    ``got_signal``: this node got a signal to end, which may end its ranks too.
    """

    def __init__(self, processes: int, kill_wait: float, actions: list[Action | messages.ToAgent]) -> None:
        self.seen = self.epoch = -1
        self.stage = RankStage.IDLE
        self.got_signal = False
        self.kill_at: float | None = None
        self.term_at: float | None = None
        self.port = MasterPort(actions)
        self._processes, self._kill_wait, self._actions = processes, kill_wait, actions
        self._swept = -1
        self._last_gone = messages.RanksGone(-1)
        self.why_ended = ""  # why the agent ends its ranks without an order
        self._start: messages.StartRanks | None = None
        self._alive = 0
        self._all_succeeded = True
        self._ending = False
        # When each signal was last passed on, and whether the coordinator ordered it.
        self._passed: dict[int, tuple[float, bool]] = {}
        self._termed_at = float("-inf")

    @property
    def idle(self) -> bool:
        return self.stage is RankStage.IDLE

    @property
    def starting(self) -> bool:
        return self.stage is RankStage.SPAWNING and not self._ending

    def start(self, message: messages.StartRanks, objection: str) -> None:
        """Start an epoch if it is above all epochs seen. Older epochs are swept first.

        ``objection`` is the reason that forbids a start, in ``swept`` too; '' allows it.
        """
        if message.epoch <= self.seen:
            self._actions.append(Note(f"refused to start epoch {message.epoch}: epoch {self.seen} was seen"))
            return
        self.seen = message.epoch
        why = objection if self.idle else "this node is still ending what ran before"
        if why:
            self._actions.append(Tell(messages.StartFailed(message.epoch, why)))
            return
        self._start, self.epoch, self._ending = message, message.epoch, False
        self._passed.clear()
        self._termed_at = float("-inf")
        if message.epoch - 1 > self._swept:
            self.stage = RankStage.CLEANING
            self._actions.append(Sweep(message.epoch - 1))
        else:
            self._spawn(message)

    def _spawn(self, message: messages.StartRanks) -> None:
        self.stage = RankStage.SPAWNING
        self._alive = self._processes
        self._all_succeeded = True
        self._actions.append(message)

    def spawned(self, now: Now, event: messages.RanksStarted) -> None:
        """Handle the start of all processes. A request to end that arrived meanwhile is carried out now."""
        if self.stage is not RankStage.SPAWNING or event.epoch != self.epoch:
            return
        self.stage = RankStage.RUNNING
        self._actions.append(Tell(event))
        if self._alive == 0:
            self._finish(now)
        elif self._ending:
            self._actions.append(TerminateRanks(self.epoch))
            self.kill_when_due(now)

    def spawn_failed(self, event: messages.StartFailed) -> None:
        if self.stage is RankStage.SPAWNING and event.epoch == self.epoch:
            self._ending = True
            self._actions.append(Tell(event))
            self._sweep()

    def ended(self, now: Now, event: messages.RankExited) -> None:
        """Handle the end of a rank. After the last one, processes that the ranks left may finish."""
        if event.epoch != self.epoch or self.idle:
            return
        self._actions.append(Tell(replace(event, at=now.wall, stopped=self._ending)))
        self._alive -= 1
        self._all_succeeded = self._all_succeeded and event.code == 0
        if self._alive == 0 and self.stage is RankStage.RUNNING:
            self._finish(now)

    def _finish(self, now: Now) -> None:
        """Let leftover processes finish, within a limit.

        If every rank exited 0, all of them may finish, because they hold results. If ranks got a signal just
        before, or this node was ordered to end them, all of them may finish until the grace time is over: a
        shell that a signal ends, or whose ``wait`` it interrupts, leaves a program that may be saving. After
        another failure only filters of the ranks' output may finish, because a restart waits.
        """
        self.stage = RankStage.FINISHING
        is_signalled = any(now.steady < at + contract.DRAIN_SECONDS for at, _ in self._passed.values())
        filters_only = not (self._all_succeeded or self._ending or self.got_signal or is_signalled)
        if filters_only:
            self.kill_at = now.steady + contract.DRAIN_SECONDS
        elif self.kill_at is None:
            self.term_at = now.steady + contract.FINISH_SECONDS
        self._actions.append(AwaitLeftovers(self.epoch, filters_only))
        if self._ending and not self._all_succeeded:
            self._actions.append(EndLeftovers(self.epoch))
        self.kill_when_due(now)

    def on_leftovers_ended(self, event: LeftoversEnded) -> None:
        if event.epoch == self.epoch and self.stage is RankStage.FINISHING:
            self._sweep()

    def pass_on_held(self, message: messages.SignalRanks) -> None:
        """Pass a signal that came before the ranks ran to each rank that has a handler and has not got it."""
        if message.epoch == self.epoch and self.stage is RankStage.RUNNING:
            self._actions.append(message)

    def pass_on(self, now: Now, number: int, ordered: bool) -> None:
        """Pass a signal to the ranks, once if both Slurm and the coordinator send it.

        ``ordered``: the coordinator sent it, not Slurm.
        """
        if self.stage is not RankStage.RUNNING:
            return
        at, was_ordered = self._passed.get(number, (float("-inf"), False))
        is_term = number in contract.TERMINATE_SIGNALS
        is_recent = now.steady < at + (SAME_TERM_SECONDS if is_term else SAME_SIGNAL_SECONDS)
        if is_recent and ordered:
            return
        if is_recent and was_ordered:
            self._passed[number] = (at, False)  # Slurm's next one is another signal
            return
        self._passed[number] = (now.steady, ordered)
        if number == signal.SIGTERM:
            self._termed_at = now.steady
        self._actions.append(messages.SignalRanks(self.epoch, number, to_all=not ordered))

    def stop(self, now: Now, message: messages.StopRanks) -> None:
        """End its epoch. An epoch that never ran here is reported gone at once, and can never start."""
        if message.epoch == self.epoch:
            if self.idle:
                self._actions.append(Tell(replace(self._last_gone, epoch=message.epoch)))
            else:
                self.end(now, message.grace)
                if message.sooner:
                    self.shorten_grace(now, now.steady + message.grace)
        elif message.epoch >= self.seen:
            self.seen = message.epoch
            self._actions.append(Tell(messages.RanksGone(message.epoch)))

    def end(self, now: Now, grace: float) -> None:
        """Send TERM now and KILL after ``grace``. A grace that already runs is not changed.

        If Slurm's own TERM was passed on just before, it counts, and no rank gets a second TERM.
        """
        if self._ending or self.idle:
            return
        self._ending = True
        termed = now.steady < self._termed_at + SAME_TERM_SECONDS
        if self.kill_at is None:
            self.kill_at = (self._termed_at if termed else now.steady) + grace
        if self.stage is RankStage.RUNNING:
            if not termed:
                self._passed[signal.SIGTERM] = (now.steady, True)
            self._actions.append(TerminateRanks(self.epoch, only_unreached=termed))
            self.kill_when_due(now)
        elif self.stage is RankStage.FINISHING:
            self.term_at = None
            if self._all_succeeded:
                self._actions.append(EndLeftovers(self.epoch))

    def shorten_grace(self, now: Now, by: float) -> None:
        """Kill at ``by`` at the latest. No TERM is sent if that is now or in the past."""
        if self.idle:
            return
        self._ending = True
        self.kill_at = by if self.kill_at is None else min(self.kill_at, by)
        self.kill_when_due(now)

    def on_time(self, now: Now) -> None:
        if self.term_at is not None and now.steady >= self.term_at:
            self.term_at = None
            self.kill_at = now.steady + self._kill_wait
            self._actions.append(EndLeftovers(self.epoch))
        self.kill_when_due(now)

    def kill_when_due(self, now: Now) -> None:
        due = self.kill_at is not None and now.steady >= self.kill_at
        if due and self.stage in (RankStage.RUNNING, RankStage.FINISHING):
            self._sweep()

    def _sweep(self) -> None:
        self.stage = RankStage.SWEEPING
        self.term_at = None
        self._actions.append(Sweep(self.epoch))

    def swept(self, event: messages.RanksGone, objection: str) -> None:
        if not event.stuck:
            self._swept = max(self._swept, event.epoch)
        if self.stage is RankStage.SWEEPING and event.epoch == self.epoch:
            self._gone(event)
        elif self.stage is RankStage.CLEANING and event.epoch == self.epoch - 1 and self._start is not None:
            problem = f"processes of an older attempt cannot be killed: {', '.join(event.stuck)}"
            why = problem if event.stuck else objection
            if not self._ending and not why:
                self._spawn(self._start)
                return
            if not self._ending:
                self._actions.append(Tell(messages.StartFailed(self.epoch, why)))
            self._gone(event)

    def _gone(self, event: messages.RanksGone) -> None:
        self.stage = RankStage.IDLE
        self.kill_at = None
        self._last_gone = replace(event, epoch=self.epoch, why=self.why_ended)
        self._actions.append(Tell(self._last_gone))
        if self.port.epoch is not None and self.port.epoch <= self.epoch:
            self.port.release()
