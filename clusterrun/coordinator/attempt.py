"""One attempt: from the order to start ranks until no rank lives on any node; pure.

STARTING -all RanksStarted-> TRAINING -failure, request, every rank exited 0-> STOPPING
-every node gone, or lost and its lease over-> OVER. A failure or a request leads from STARTING as well.
"""

from __future__ import annotations

import enum
import signal

from clusterrun.coordinator import failures
from clusterrun.coordinator.actions import DropLink, ReadProgress, Send, WriteNotice
from clusterrun.coordinator.failures import FailureEvent, FailureKind
from clusterrun.coordinator.membership import Member
from clusterrun.coordinator.run_part import AttemptOver, RunPart, Shared
from clusterrun.model import contract
from clusterrun.model.frozen import Any, replace
from clusterrun.model.overloads import REPORT_SECONDS
from clusterrun.model.world import Meeting, World
from clusterrun.protocol import messages
from clusterrun.runtime.machine_events import Note, Now, earliest

# Wait this long after the first failure: an earlier failure of another node may still arrive.
SETTLE_SECONDS = 0.3
# A failure within this time after a broken connection is its cause, not its consequence. A process closes its
# connections when it ends, and the process at the other end may be reaped first.
CONNECTION_SECONDS = 1.0
# The same if all failed ranks only noticed that another rank had ended. On a busy node a failing process
# closes its connections long before its agent sees its end.
CAUSE_SECONDS = 3.0
# Added per node to the time limit for joining and starting.
START_SECONDS_PER_NODE = 0.1
# A node may take this long beyond the grace time to kill and to check. Then it counts as lost.
STOP_SLACK_SECONDS = 10.0
# How often the progress of the ranks is read.
PROGRESS_SECONDS = 10.0
# A signal that came before ranks ran is sent this often, for this long: a rank may import for a minute before
# it installs its handler.
HELD_SIGNAL_SECONDS, HANDLER_SECONDS = 2.0, 120.0
# Agents that end within this time after their launcher end because of it.
LAUNCHER_SECONDS = 5.0
_LOSSES = (FailureKind.NODE, FailureKind.LAUNCHER, FailureKind.MEMORY)


class AttemptStage(enum.Enum):
    """How far the attempt is."""

    STARTING = "ranks are being started"
    TRAINING = "ranks run"
    STOPPING = "ranks are ending"
    OVER = "no rank lives"


class RankOutcomes:
    """Counts the ranks' reports of one epoch, each in constant time."""

    def __init__(self, nodes: int, processes: int, per_node: bool) -> None:
        self._per_node = per_node
        self.failure_events: list[FailureEvent] = []
        # Ranks that ended after a signal to their node. They are judged when the signal's meaning is known.
        self._signalled: dict[int, list[tuple[messages.RankExited, str, str]]] = {}
        self.got_signal: set[int] = set()
        self.saving: list[int] = []
        self.stuck: list[str] = []
        self.stuck_on: dict[str, str] = {}
        self._nodes, self._processes = nodes, processes
        self._started: dict[int, bool] = {}
        self._exited: dict[int, int] = {}
        # The errors that ranks printed at their end, by node.
        self._errors: dict[int, set[str]] = {}
        self._ended: list[int] = []
        self._unwell = [processes] * nodes
        self._gone: dict[int, bool] = {}
        self._lost: dict[int, float] = {}
        self.dead_by = 0.0
        self.silent: list[Member] = []

    def started(self, node: int) -> bool:
        """Record that all ranks of ``node`` run. Return whether the ranks of every node run now."""
        self._started[node] = True
        return len(self._started) == self._nodes

    @property
    def missing(self) -> list[int]:
        return [node for node in range(self._nodes) if node not in self._started]

    def exited(self, node: int, report: messages.RankExited, name: str, peer: str) -> None:
        """Record the end of a rank. Raise ``ValueError`` for a rank of another node.

        ``peer`` is the node whose address the rank's last output names.
        """
        if report.rank // self._processes != node:
            raise ValueError(f"rank {report.rank} is none of node {node}")
        if report.rank in self._exited:
            return
        self._exited[report.rank] = report.code
        if report.code and report.error:
            self._errors.setdefault(node, set()).add(report.error)
        if report.saving:
            self.saving.append(report.rank)
        if report.stopped or node in self.got_signal:
            self._signalled.setdefault(node, []).append((report, name, peer))
        else:
            self._count(node, report, name, peer)

    def _count(self, node: int, report: messages.RankExited, name: str, peer: str) -> None:
        if report.code:
            self.failure_events.append(failures.of_rank(report, name, self._per_node, peer))
        else:
            self._ended.append(report.rank)
            self._unwell[node] -= 1

    def count_signalled(self) -> None:
        """Count the ranks that ended after a signal like all others, because the signal ends nothing."""
        for node in self.got_signal:
            for report, name, peer in self._signalled.pop(node, ()):
                self._count(node, report, name, peer)
        self.got_signal.clear()

    def awaits_verdict(self, node: int) -> bool:
        """Return whether ranks of ``node`` ended after a signal whose meaning is not known yet."""
        return node in self._signalled and node in self.got_signal

    @property
    def first(self) -> FailureEvent:
        """Return the failure to report: the first in time, then in order of arrival. At least one must exist.

        A port in use precedes all others: it is never the consequence of another failure. Memory that ran out
        precedes all but the error of a rank. A broken connection yields to another failure within
        ``CONNECTION_SECONDS``. A rank that only noticed the end of a peer comes last. The report then names
        the ranks that ended with exit code 0 before it.
        """
        events = self.failure_events
        decisive = [event for event in events if event.kind is FailureKind.COLLISION]
        if not decisive and not any(map(_is_error, events)):
            decisive = [event for event in events if event.kind is FailureKind.MEMORY]
        first = min(decisive or events, key=lambda event: (event.failure.noticed, event.failure.at))
        if first.lost_connection and not first.failure.noticed:
            until = first.failure.at + CONNECTION_SECONDS
            causes = [event for event in events if _is_own(event) and event.failure.at <= until]
            first = min(causes, key=lambda event: event.failure.at, default=first)
        if not first.failure.noticed or not self._ended:
            return first
        return failures.after_early_ends(first, self._ended, "node" if self._per_node else "rank")

    def failed_everywhere(self, failure_event: FailureEvent) -> bool:
        """Return whether a rank of every node printed the error of ``failure_event`` at its end."""
        error = failure_event.failure.error
        nodes = [node for node, errors in self._errors.items() if error in errors]
        return len(nodes) == self._nodes

    @property
    def settle_seconds(self) -> float:
        """Return the seconds to wait after a failure; longer if all failures may be consequences."""
        running = len(self._exited) < self._nodes * self._processes
        if not running or any(map(_is_own, self.failure_events)):
            return SETTLE_SECONDS
        if any(event.lost_connection and not event.failure.noticed for event in self.failure_events):
            return CONNECTION_SECONDS
        return SETTLE_SECONDS if self._ended else CAUSE_SECONDS

    @property
    def completed(self) -> bool:
        """Return whether every rank exited 0, and no rank did so after a request to end."""
        return len(self._ended) == self._nodes * self._processes

    def gone(self, node: int, stuck: tuple[str, ...], name: str) -> bool:
        """Record that only ``stuck`` processes remain on ``node``. Return whether all its ranks exited 0."""
        if node not in self._gone:
            self.stuck += [f"{name}: {process}" for process in stuck]
            if stuck:
                self.stuck_on[name] = f"a process cannot be killed there: {stuck[0]}"
        self._gone[node] = True
        return self._unwell[node] == 0

    def is_gone(self, node: int) -> bool:
        return node in self._gone

    def lost(self, node: int, dead_by: float) -> bool:
        """Count ``node`` as dead from ``dead_by`` on. Return False if its ranks had ended before."""
        if node in self._gone:
            return False
        self._lost[node] = dead_by
        self.dead_by = max(self.dead_by, dead_by)
        return True

    @property
    def all_accounted_for(self) -> bool:
        """Return whether no node owes a report. Lost nodes are dead from ``dead_by`` on."""
        return len(self._gone) + len(self._lost) == self._nodes


def _is_error(event: FailureEvent) -> bool:
    """Return whether a rank failed by itself. A process that is killed for its memory gets SIGKILL."""
    return event.kind not in _LOSSES and _is_own(event) and event.failure.code != -signal.SIGKILL


def _is_own(event: FailureEvent) -> bool:
    """Return whether the failure is not the consequence of another rank's end."""
    return not (event.failure.noticed or event.lost_connection)


def have_started(live: LiveAttempt | None) -> bool:
    """Return whether the ranks of every node were started, so that signals can reach them."""
    return live is not None and live.stage is not AttemptStage.STARTING


class LiveAttempt(RunPart):
    """The ranks of one epoch as the coordinator sees them.

    Calls return ``AttemptOver`` if no rank can live. ``held_signals`` came before ranks ran.
    """

    def __init__(self, shared: Shared, epoch: int, held_signals: list[int]) -> None:
        super().__init__(shared)
        orders = self._orders
        self.epoch = epoch
        self.stage = AttemptStage.STARTING
        self.failure_event_at: float | None = None
        processes = 1 if orders.per_node else orders.ranks_per_node
        self.outcomes = RankOutcomes(orders.nodes, processes, orders.per_node)
        self._start_seconds = self._membership.timeouts.join + START_SECONDS_PER_NODE * orders.nodes
        # The limit on the start or the end of the ranks: its begin, its length, and when it expires.
        self._limited_at = self._limit = 0.0
        self._overdue_at: float | None = None
        self._settled_at: float | None = None
        self._fence_at: float | None = None
        self._read_at: float | None = None
        self._held_signals = held_signals
        # When they are sent next, and until when.
        self._held_at: float | None = None
        self._held_until = 0.0
        self._is_noticed = False
        self._noticed_at: float | None = None
        self._grace = orders.grace
        self._launcher: FailureEvent | None = None
        self._launcher_until = 0.0
        # A node ended its ranks unasked, and nothing else has failed yet. The launcher's end explains it.
        self._unasked: FailureEvent | None = None
        # All ranks exited 0, and nodes may wait for leftover processes.
        self._is_finishing = False

    def wakes_at(self) -> float | None:
        times = (self._overdue_at, self._settled_at, self._fence_at, self._read_at, self._noticed_at)
        return earliest(self._held_at, *times)

    def tick(self, now: Now) -> AttemptOver | None:
        over = None
        if self._noticed_at is not None:
            self._noticed_at = None
            if self.stage in (AttemptStage.STARTING, AttemptStage.TRAINING):
                self.outcomes.count_signalled()
                over = self._on_ends(now)
        if self._settled_at is not None and now.steady >= self._settled_at:
            over = self.stop(now)
        if self._read_at is not None and now.steady >= self._read_at:
            self._read_at = now.steady + PROGRESS_SECONDS
            self._actions.append(ReadProgress(self.epoch))
        if self._held_at is not None and now.steady >= self._held_at:
            for number in self._held_signals:
                self.signal(number, is_held=True)
            self._held_at = now.steady + HELD_SIGNAL_SECONDS
            if now.steady >= self._held_until:
                self._forget_held()
        if self._fence_at is not None and now.steady >= self._fence_at:
            over = self._check_over(now) or over
        if self._overdue_at is not None and now.steady >= self._overdue_at:
            if self._membership.extend(self._awaited(), self._limited_at, self._limit, now):
                self._overdue_at = now.steady + REPORT_SECONDS
            else:
                self._overdue_at = None
                over = self._overdue(now) or over
        return over

    def _awaited(self) -> list[int]:
        """Return the nodes that owe a report: the start of their ranks, or their end while stopping."""
        members = self._membership.training()
        if self.stage is AttemptStage.STOPPING:
            return [member.node for member in members if not self.outcomes.is_gone(member.place)]
        return [member.node for member in members if member.place in self.outcomes.missing]

    def _await(self, now: Now, limit: float) -> None:
        self._limited_at, self._limit, self._overdue_at = now.steady, limit, now.steady + limit

    def _overdue(self, now: Now) -> AttemptOver | None:
        if self.stage is AttemptStage.STOPPING:
            for member in self._membership.training():
                if not self.outcomes.is_gone(member.place):
                    note = f"{member.name} did not say that its ranks are gone: waiting for its lease"
                    self._actions += [Note(note), DropLink(member.link)]
                    self._membership.lose(member, now)
                    member.silent = True
                    self.outcomes.lost(member.place, self._membership.dead_by(member))
            return self._check_over(now)
        names = self._membership.names()
        late = failures.nodes_in_words([names[place] for place in self.outcomes.missing])
        message = f"{late} did not start their ranks within {self._start_seconds:g} s"
        self.fail(now, FailureKind.START, "", message)
        return None

    # --- starting ---

    def start(
        self, now: Now, meeting: Meeting, environment: tuple[tuple[str, str], ...], restarts: int
    ) -> None:
        """Order every node to start its ranks. At most ``restarts`` attempts may follow.

        ``environment`` applies to variables that the user did not set.
        """
        self._await(now, self._start_seconds)
        world = World(self._membership.names(), self._orders.ranks_per_node)
        where = f"{meeting.address}:{meeting.port}"
        self._actions.append(Note(f"attempt {self.epoch}: ranks are being started, rank 0 is at {where}"))
        last = self.epoch + restarts
        for member in self._membership.training():
            message = messages.StartRanks(self.epoch, world, member.place, meeting, environment, last)
            self._actions.append(Send(member.link, message))
        self._state_keeper.explains("ranks are being started")

    # --- messages of nodes ---

    def heard(self, now: Now, member: Member, message: Any) -> AttemptOver | None:
        """Handle a message of this epoch. Raise ``ValueError`` for a rank that is not on ``member``."""
        if isinstance(message, messages.RankExited):
            return self._exited(now, member, message)
        if isinstance(message, messages.RanksGone):
            return self._gone(now, member, message)
        if isinstance(message, messages.RanksStarted):
            self._started(now, member)
        elif isinstance(message, messages.StartFailed):
            explanation = f"{member.name} {contract.NO_START}: {message.why}"
            self.fail(now, FailureKind.START, member.name, explanation)
        return None

    def _started(self, now: Now, member: Member) -> None:
        if self.outcomes.started(member.place) and self.stage is AttemptStage.STARTING:
            self.stage = AttemptStage.TRAINING
            self._overdue_at = None
            self._read_at = now.steady + PROGRESS_SECONDS
            self._state_keeper.trains(now)
            if self._held_signals:
                self._held_at, self._held_until = now.steady, now.steady + HANDLER_SECONDS

    def notice(self, now: Now, why: str, until: float) -> bool:
        """Notify the ranks of the coming end and its time (0: unknown). Return False if no rank runs."""
        if self.stage is not AttemptStage.TRAINING:
            return False
        self._is_noticed, self._noticed_at = True, now.steady
        if until:
            self._actions.append(WriteNotice(self.epoch, why, until))
        self.signal(contract.NOTICE_SIGNAL)
        self._actions.append(Note(f"attempt {self.epoch}: ranks are told of the end: {why}"))
        return True

    def _forget_held(self) -> None:
        self._held_at = None
        self._held_signals.clear()

    def signal(self, number: int, is_held: bool = False) -> None:
        """Pass a signal on to all ranks that catch it. A node that got it from Slurm ignores this one."""
        if self.stage in (AttemptStage.STARTING, AttemptStage.TRAINING):
            for member in self._membership.training():
                message = messages.SignalRanks(self.epoch, number, is_held=is_held)
                self._actions.append(Send(member.link, message))

    def continue_after(self, now: Now, number: int) -> None:
        """Pass on a signal that ends nothing. Ranks that ended after it ended by themselves."""
        self._is_noticed, self._noticed_at = True, now.steady
        self.signal(number)

    # --- ends of ranks and losses of nodes ---

    def _exited(self, now: Now, member: Member, message: messages.RankExited) -> AttemptOver | None:
        self.outcomes.exited(member.place, message, member.name, self._peer(message))
        return self._on_ends(now)

    def _on_ends(self, now: Now) -> AttemptOver | None:
        if self.outcomes.failure_events:
            self._settle(now)
        elif self.outcomes.completed and self.stage is not AttemptStage.STOPPING:
            # No rank must be stopped. Each node lets leftover processes finish, then kills the rest.
            self._is_finishing = True
            limit = contract.FINISH_SECONDS + self._orders.kill_wait + STOP_SLACK_SECONDS
            self._state_keeper.explains("every rank exited 0; processes that they left may finish")
            return self._enter_stopping(now, limit)
        return None

    def fail(self, now: Now, kind: FailureKind, node: str, why: str) -> None:
        """Record a failure. ``node`` is the node at fault, empty if it is not a single node."""
        if self.stage is not AttemptStage.STOPPING:
            self._failure_event(now, failures.of_node(kind, node, now.wall, why))

    def hangs(self, now: Now, why: str, since: float, error: str) -> None:
        """Record a hang. ``error`` is its cause if that lies in the script, else empty."""
        if self.stage is not AttemptStage.STOPPING:
            hang = failures.of_node(FailureKind.HANG, "", since, why)
            self._failure_event(now, replace(hang, failure=replace(hang.failure, error=error)))

    def _gone(self, now: Now, member: Member, message: messages.RanksGone) -> AttemptOver | None:
        is_gone_as_asked = self.outcomes.gone(member.place, message.stuck, member.name)
        is_stopped = self.stage is AttemptStage.STOPPING and not self._is_finishing
        if message.cut and is_gone_as_asked and not is_stopped:
            processes = ", ".join(message.cut)
            self._state_keeper.warn(
                f"{processes} on {member.name} still ran {contract.FINISH_SECONDS:g} s after the ranks exited"
                " with 0, and were ended: let the ranks wait for them (in a shell: wait)"
            )
        unexplained = not is_gone_as_asked and not self.outcomes.awaits_verdict(member.place)
        if unexplained and self.stage is not AttemptStage.STOPPING and not self.outcomes.failure_events:
            cause = f": {message.why}" if message.why else "; its agent says why in job.out"
            why = f"{member.name} (node {member.node}) ended its ranks unasked{cause}"
            self._unasked = failures.of_node(FailureKind.NODE, member.name, now.wall, why)
            self._failure_event(now, self._by_launcher(now) or self._unasked)
        return self._check_over(now)

    def lost(self, now: Now, member: Member, failure_event: FailureEvent) -> AttemptOver | None:
        end = None
        is_running = self.stage is not AttemptStage.STOPPING
        ended_by_signal = is_running and self.outcomes.awaits_verdict(member.place)
        if self.outcomes.lost(member.place, self._membership.dead_by(member)) or ended_by_signal:
            self.outcomes.silent += [member] * member.silent
            self._failure_event(now, self._by_launcher(now) or failure_event)
            if member.silent:  # detecting silence took so long that all other failures have arrived
                end = self.stop(now)
        return end or self._check_over(now)

    def explain_losses(self, memory: FailureEvent) -> None:
        """Report ``memory`` instead of the nodes that were lost so far."""
        if any(event.kind in _LOSSES for event in self.outcomes.failure_events):
            self.outcomes.failure_events.append(memory)

    def launcher_ended(self, now: Now, message: str) -> None:
        """Record the launcher's end. Agents do not need it, but its cause may end them too."""
        message = f"{message}, and the agents with it"
        self._launcher = failures.of_node(FailureKind.LAUNCHER, "", now.wall, message)
        self._launcher_until = now.steady + LAUNCHER_SECONDS
        if self.stage is not AttemptStage.STOPPING and self.outcomes.failure_events == [self._unasked]:
            self.outcomes.failure_events = [self._launcher]

    def _by_launcher(self, now: Now) -> FailureEvent | None:
        return self._launcher if now.steady <= self._launcher_until else None

    def _failure_event(self, now: Now, failure_event: FailureEvent) -> None:
        self.outcomes.failure_events.append(failure_event)
        self._settle(now)

    def _peer(self, message: messages.RankExited) -> str:
        """Return the node whose unique address comes last in the last output of a rank; '' if none does."""
        names: dict[str, str] = {}
        for member in self._membership.training() if message.noticed else ():
            names[member.hello.address] = "" if member.hello.address in names else member.name
        addresses = [part.partition("]")[0] for part in "\n".join(message.last_lines).split("[")]
        return next((names[address] for address in reversed(addresses) if address in names), "")

    def _settle(self, now: Now) -> None:
        if self.failure_event_at is None:
            self.failure_event_at = now.steady
        if self.stage is AttemptStage.STOPPING:
            return
        due = now.steady + self.outcomes.settle_seconds
        self._settled_at = due if self._settled_at is None else min(due, self._settled_at)

    # --- stopping ---

    def stop(self, now: Now, cause: str = "", grace: float | None = None) -> AttemptOver | None:
        """End all ranks, for ``cause`` or else for the first failure. A second call has no effect.

        ``grace`` is the time from TERM to KILL in seconds; None: the time that the orders give after a
        failure. Ranks that got a notice may be saving. They get the whole time if one of them ends.
        """
        is_stopped = self.stage is AttemptStage.STOPPING and not self._is_finishing
        if is_stopped or self.stage is AttemptStage.OVER:
            return None
        self._is_finishing = False
        after_failure = self._orders.kill_wait if self._is_noticed else self._orders.grace
        self._grace = after_failure if grace is None else grace
        self._stop_ranks()
        failure = self.outcomes.first.failure if self.outcomes.failure_events else None
        cause = cause or (failure.why if failure else "")
        self._actions.append(Note(f"attempt {self.epoch}: ending all ranks: {cause}"))
        self._state_keeper.explains(cause, failure)
        return self._enter_stopping(now, self._grace + STOP_SLACK_SECONDS)

    def stop_sooner(self, grace: float) -> None:
        """Kill ranks that are already ending at most ``grace`` seconds from now."""
        if self.stage is AttemptStage.STOPPING and grace < self._grace:
            self._grace = grace
            self._stop_ranks(sooner=True)

    def _stop_ranks(self, sooner: bool = False) -> None:
        for member in self._membership.training():
            if not self.outcomes.is_gone(member.place):
                message = messages.StopRanks(self.epoch, self._grace, sooner)
                self._actions.append(Send(member.link, message))

    def _enter_stopping(self, now: Now, limit: float) -> AttemptOver | None:
        if self._held_at is not None:
            self._forget_held()
        self.stage = AttemptStage.STOPPING
        self._settled_at = self._read_at = None
        self._await(now, limit)
        return self._check_over(now)

    def _check_over(self, now: Now) -> AttemptOver | None:
        if self.stage is not AttemptStage.STOPPING or not self.outcomes.all_accounted_for:
            return None
        if now.steady < self.outcomes.dead_by:
            self._fence_at = self.outcomes.dead_by
            return None
        self.stage = AttemptStage.OVER
        self._overdue_at = self._fence_at = None
        outcomes = self.outcomes
        first = None
        if outcomes.failure_events:
            # Name no node if several nodes fell silent at the same time as the first.
            first, silent_ranks = outcomes.first, outcomes.silent
            heard_at = [member.heard for member in silent_ranks if member.name == first.failure.node]
            together = [
                member
                for member in silent_ranks
                if heard_at and abs(member.heard - heard_at[0]) <= contract.LOST_SECONDS
            ]
            if len(together) > 1 and first.kind is FailureKind.NODE:
                names = sorted(member.name for member in together)
                others = sorted(member.name for member in self._membership.linked())
                first = failures.of_silent(names, others, self._state_keeper.state.host, first.failure.at)
            first = replace(first, everywhere=outcomes.failed_everywhere(first))
        return AttemptOver(
            self.epoch,
            outcomes.completed,
            not outcomes.missing,
            first,
            self.failure_event_at,
            tuple(outcomes.stuck),
            tuple(outcomes.stuck_on.items()),
            tuple(sorted(outcomes.saving)),
            self._grace,
        )
