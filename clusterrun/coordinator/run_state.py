"""The record of a run while it lives, when to write it, and which changes its user is told of; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import Announce, SaveState
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import Phase, State
from clusterrun.runtime.machine_events import Now

GAP_SECONDS = 0.2
"""Least time between two writings, but for the last one."""
MOST_WARNINGS = 20
STARTED, RESTARTED, FAILED, ENDED = "started", "restarted", "failed", "ended"
_READING_SECONDS = 1.0
"""What came while the coordinator stood still is read after that."""


class RunStateKeeper:
    """Attempts and ``state`` of one run; ``period`` is the longest time between two writings, in seconds.

    ``job_id`` is the job in which attempts are made from now on; ``excluded_here`` are those found
    unfit in it: what an earlier job found unfit may be well again. ``due_at`` is when the state is to be
    written next (steady clock), None once the run is over. ``stood_still``: from when to when this
    coordinator did nothing.
    """

    def __init__(
        self, run_id: str, host: str, pid: int, period: float, job_id: str = "", python: str = ""
    ) -> None:
        self.state = RunState(run_id, 0, State.RUNNING, Phase.STARTING, "", host, pid, 0.0, python=python)
        self._period, self._job_id = period, job_id
        self.excluded_here: tuple[str, ...] = ()
        self.due_at: float | None = None
        self._saved_at = -GAP_SECONDS
        self._stopped = False
        self.stood_still: tuple[float, float] | None = None

    def remember(self, earlier: tuple[Attempt, ...], excluded: tuple[str, ...] = ()) -> None:
        """Attempts of a coordinator before this one; how one that never said so ended stays unknown."""
        if excluded:
            self._set(excluded=excluded)
        if earlier:
            known = tuple(replace(a, outcome=a.outcome or State.UNKNOWN.value) for a in earlier)
            self.state = replace(self.state, attempts=known, started_at=earlier[0].started_at)

    def open(self, now: Now, epoch: int, reason: str, cause: str = "", nodes: tuple[str, ...] = ()) -> None:
        """An attempt begins; ``cause`` is that of the schema of ``status --json``."""
        attempt = Attempt(epoch, reason, nodes, now.wall, cause=cause, job_id=self._job_id)
        started_at = now.wall if self.state.started_at is None else self.state.started_at
        self._set(epoch=epoch, attempts=(*self.state.attempts, attempt), started_at=started_at)

    def formed(self, nodes: tuple[str, ...], spares: tuple[str, ...]) -> None:
        self._amend(nodes=nodes)
        self._set(spares=spares)

    def trains(self, now: Now) -> None:
        self._amend(ranks_at=now.wall)
        self.says(Phase.TRAINING, "")

    def progressed(self, step: int, checkpoint: int) -> None:
        """How far the newest attempt is by its own word, -1 where it says nothing; it never goes back."""
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
        """Something that whoever looks at the run should know; said once, the newest are kept."""
        if text not in self.state.warnings:
            self._set(warnings=(*self.state.warnings, text)[-MOST_WARNINGS:])

    def take_back(self, beginning: str) -> bool:
        """Drop the warnings that begin like this; whether there were any."""
        kept = tuple(one for one in self.state.warnings if not one.startswith(beginning))
        if kept == self.state.warnings:
            return False
        self._set(warnings=kept)
        return True

    def was_late(self, now: Now, seconds: float) -> None:
        """Record that this process was suspended for ``seconds``, which ``now`` does not count."""
        if seconds > contract.LOST_SECONDS:
            self._set()  # whoever looks is to see soon that it goes on
            self.stood_still = (now.steady - seconds, now.steady + _READING_SECONDS)

    def explained(self, failure: Failure, heard_at: float) -> Failure:
        """With what ``was_late`` tells of it: nodes that hear no coordinator for a lease end their ranks.

        What a node did as a whole is no fault of its own then.
        ``heard_at`` is when the news came (steady clock).
        """
        since, until = self.stood_still or (heard_at, heard_at)
        if not since < heard_at <= until:
            return failure
        seconds = until - _READING_SECONDS - since
        still = f"the coordinator on {self.state.host} stood still then, for {seconds:.0f} s"
        node = failure.node if failure.rank >= 0 else ""
        return replace(failure, node=node, why=f"{failure.why}; {still}")

    def close(self, now: Now, outcome: State, failure: Failure | None) -> None:
        if self.state.attempts and not self.state.attempts[-1].outcome:
            self._amend(ended_at=now.wall, outcome=outcome.value, failure=failure)

    def says(self, phase: Phase, reason: str) -> None:
        if (phase, reason) != (self.state.phase, self.state.reason):
            self._set(phase=phase, reason=reason)

    def explains(self, reason: str, failure: Failure | None = None) -> None:
        """``failure`` is what the newest attempt is ended for: this coordinator may die before its end."""
        if failure:
            self._amend(failure=failure)
        self.says(self.state.phase, reason)

    def has_just_said(self, reason: str) -> bool:
        """Whether this is the newest reason there is, as it is when ranks were ended for it."""
        return reason == self.state.reason

    def end(self, now: Now, verdict: RunOutcome) -> SaveState:
        """The run is over, or another job goes on with it (PENDING): the last writing."""
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
        # What an earlier coordinator has left is not read before the first attempt, and must not be lost.
        if self.state.attempts and self.state.state is State.RUNNING and not self._stopped:
            self.due_at = self._saved_at + GAP_SECONDS

    def _amend(self, **changes: object) -> None:
        *before, newest = self.state.attempts
        self._set(attempts=(*before, replace(newest, **changes)))


class Notifications:
    """``news`` is asked after every event; each piece is told once."""

    def __init__(self) -> None:
        self._started = self._failed = -1
        self._ended = False

    def news(self, now: Now, state: RunState) -> list[Announce]:
        events = []
        if state.phase is Phase.TRAINING and self._started < state.epoch:
            self._started = state.epoch
            earlier = state.attempts[:-1]
            events.append(RESTARTED if any(attempt.nodes for attempt in earlier) else STARTED)
        newest = state.attempts[-1] if state.attempts else None
        if newest and newest.failure and newest.outcome and self._failed < newest.epoch:
            self._failed = newest.epoch
            events.append(FAILED)
        if state.state.ended and not self._ended:
            self._ended = True
            events.append(ENDED)
        return [Announce(event, state, now.wall) for event in events]
