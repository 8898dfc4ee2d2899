"""Keep the record of a live run, and decide when to write it and what to announce; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import Announce, SaveState
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State
from clusterrun.notify.event_message import ENDED, FAILED, RESTARTED, STARTED
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.runtime.machine_events import Now

# Least time between two writes. The last write does not wait.
GAP_SECONDS = 0.2
MOST_WARNINGS = 20
# Messages that arrived while the coordinator was suspended are read within this time after it.
_READING_SECONDS = 1.0


class RunStateKeeper:
    """Attempts and ``state`` of one run.

    ``timeouts`` hold the longest time between two writes and the lease of the nodes. ``job`` is this
    coordinator's job, and how often Slurm had started it again.
    """

    def __init__(
        self,
        run_id: str,
        host: str,
        pid: int,
        timeouts: Timeouts,
        job: tuple[str, int] = ("", 0),
        python: str = "",
    ) -> None:
        begun = RunState(run_id, 0, State.RUNNING, Phase.STARTING, "", host, pid, 0.0)
        self.state = replace(begun, python=python, lease=timeouts.lease)
        self._period, self._job = timeouts.state, job
        # Unfit nodes of this job. Nodes that an earlier job marked as unfit may be healthy again.
        self.excluded_here: tuple[str, ...] = ()
        # When the state must be written next (steady clock); None after the end of the run.
        self.due_at: float | None = None
        self._saved_at = -GAP_SECONDS
        self._stopped = False
        self.stood_still: tuple[float, float] | None = None  # begin and end of this process's suspension

    def remember(
        self, earlier: tuple[Attempt, ...], excluded: tuple[str, ...] = (), lease: float = 0.0
    ) -> None:
        """Take over the attempts of earlier coordinators.

        The longest ``lease`` counts, because this coordinator may die before the ranks of earlier ones.
        """
        if lease > self.state.lease:
            self._set(lease=lease)
        if excluded:
            self._set(excluded=excluded)
        if earlier:
            self.state = replace(self.state, attempts=earlier, started_at=earlier[0].started_at)

    def open(self, now: Now, epoch: int, reason: str, cause: str = "", nodes: tuple[str, ...] = ()) -> None:
        """Record the begin of an attempt; ``cause`` as in ``status --json``."""
        job_id, job_restarts = self._job
        attempt = Attempt(
            epoch, reason, nodes, now.wall, cause=cause, job_id=job_id, job_restarts=job_restarts
        )
        started_at = now.wall if self.state.started_at is None else self.state.started_at
        self._set(epoch=epoch, attempts=(*self.state.attempts, attempt), started_at=started_at)

    def formed(self, nodes: tuple[str, ...], spares: tuple[str, ...]) -> None:
        self._amend(nodes=nodes)
        self._set(spares=spares)

    def trains(self, now: Now) -> None:
        self._amend(ranks_at=now.wall)
        self.says(Phase.TRAINING, "")

    def progressed(self, step: int, checkpoint: int) -> None:
        """Record the progress that the newest attempt reported (-1: none). Progress never decreases."""
        newest = self.state.attempts[-1]
        further = max(step, newest.step), max(checkpoint, newest.checkpoint)
        if further != (newest.step, newest.checkpoint):
            self._amend(step=further[0], checkpoint=further[1])

    def exclude(self, nodes: tuple[str, ...]) -> None:
        self.excluded_here += tuple(node for node in nodes if node not in self.excluded_here)
        fresh = tuple(node for node in nodes if node not in self.state.excluded)
        if fresh:
            self._set(excluded=self.state.excluded + fresh)

    def warn(self, text: str) -> None:
        """Add a warning for readers of the run's state, unless it is there already. Keep the newest."""
        if text not in self.state.warnings:
            self._set(warnings=(*self.state.warnings, text)[-MOST_WARNINGS:])

    def take_back(self, beginning: str) -> bool:
        """Drop the warnings with this beginning. Return whether there were any."""
        remaining = tuple(warning for warning in self.state.warnings if not warning.startswith(beginning))
        if remaining == self.state.warnings:
            return False
        self._set(warnings=remaining)
        return True

    def was_late(self, now: Now, seconds: float) -> None:
        """Record that this process was suspended for ``seconds``, which ``now`` does not count."""
        if seconds > contract.LOST_SECONDS:
            self._set()  # readers of the state should see soon that the run continues
            self.stood_still = (now.steady - seconds, now.steady + _READING_SECONDS)

    def explained(self, failure: Failure, heard_at: float) -> Failure:
        """Return ``failure``, explained by a suspension of this coordinator if one preceded it.

        Nodes that hear no coordinator for a lease end their ranks. The failure of a whole node is then not
        the node's fault. ``heard_at`` is when the failure was reported (steady clock).
        """
        since, until = self.stood_still or (heard_at, heard_at)
        if not since < heard_at <= until:
            return failure
        seconds = until - _READING_SECONDS - since
        standstill = f"the coordinator on {self.state.host} stood still then, for {seconds:.0f} s"
        node = failure.node if failure.rank >= 0 else ""
        return replace(failure, node=node, why=f"{failure.why}; {standstill}")

    def close(self, now: Now, outcome: str, failure: Failure | None, decision: str = "") -> None:
        """Record the end of the newest attempt; ``decision`` as in ``status --json``."""
        if self.state.attempts and not self.state.attempts[-1].outcome:
            self._amend(ended_at=now.wall, outcome=str(outcome), failure=failure, decision=decision)

    def says(self, phase: Phase, reason: str) -> None:
        if (phase, reason) != (self.state.phase, self.state.reason):
            self._set(phase=phase, reason=reason)

    def explains(self, reason: str, failure: Failure | None = None) -> None:
        """Record why the newest attempt is ended, at once: this coordinator may die before its end."""
        if failure:
            self._amend(failure=failure)
        self.says(self.state.phase, reason)

    def has_just_said(self, reason: str) -> bool:
        """Return whether ``reason`` is the current reason, as it is if ranks were ended for it."""
        return reason == self.state.reason

    def end(self, now: Now, verdict: RunOutcome) -> SaveState:
        """Return the last write: the run is over, or another job continues it (PENDING)."""
        self._set(state=verdict.state, phase=Phase.QUEUED, reason=verdict.reason)
        if verdict.state is not State.PENDING:
            self._set(phase=Phase.ENDED, ended_at=now.wall, exit_code=verdict.exit_code)
        return self.save(now)

    @property
    def handed_over(self) -> int:
        return sum(attempt.outcome == State.PENDING.value for attempt in self.state.attempts)

    def stop(self) -> None:
        self._stopped, self.due_at = True, None

    def save(self, now: Now) -> SaveState:
        self.state = replace(self.state, updated_at=now.wall)
        self._saved_at = now.steady
        self.due_at = now.steady + self._period if self.state.state is State.RUNNING else None
        return SaveState(self.state)

    def _set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)
        # The state of an earlier coordinator is not read before the first attempt, and must not be lost.
        if self.state.attempts and self.state.state is State.RUNNING and not self._stopped:
            self.due_at = self._saved_at + GAP_SECONDS

    def _amend(self, **changes: object) -> None:
        *before, newest = self.state.attempts
        self._set(attempts=(*before, replace(newest, **changes)))


class Notifications:
    """Finds the events to announce. ``news`` is called after every change and returns each event once."""

    def __init__(self) -> None:
        self._started = self._failed = -1
        self._ended = False

    def news(self, now: Now, state: RunState) -> list[Announce]:
        announced = []
        if state.phase is Phase.TRAINING and self._started < state.epoch:
            is_first_here = self._started < 0 and self._failed < 0
            self._started = state.epoch
            *earlier, current = state.attempts
            if any(attempt.nodes for attempt in earlier):
                announced.append(Announce(RESTARTED, state, now.wall, current.reason, is_first_here))
            else:
                announced.append(Announce(STARTED, state, now.wall))
        newest = state.attempts[-1] if state.attempts else None
        if newest and newest.failure and newest.outcome and self._failed < newest.epoch:
            self._failed = newest.epoch
            announced.append(Announce(FAILED, state, now.wall))
        if state.state.ended and not self._ended:
            self._ended = True
            announced.append(Announce(ENDED, state, now.wall))
        return announced
