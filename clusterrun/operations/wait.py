"""Wait for the end of a run: poll its files often and the scheduler rarely, and report the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from clusterrun.model.duration import spoken
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunState, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context, Tell

LOOK_EVERY = 0.4
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 30.0
# Seconds for which Slurm must report that a job can never start, since its limits may be about to change.
CERTAIN_SECONDS = 4.0
SPEAK_AFTER = 2.0
SPEAK_AGAIN = 300.0
# Counts, durations and times: a change in them alone is not reported.
COUNTS = re.compile(r"\d+ (?:s left|answers?|(?:d|h|min|s)\b)|\d\d:\d\d(?::\d\d)?")
# Number of further polls after an unrequested cancellation, since Slurm may still report a time limit.
SECOND_THOUGHTS = 3


def gist(sentence: str) -> str:
    """Return a reason without counts, durations and times of day, whose changes are not reported."""
    return COUNTS.sub("", sentence)


class RunWait:
    """The state of a run over time, polled as rarely as possible."""

    def __init__(self, context: Context, run_id: str, tell: Tell, logs_are_shown: bool = False) -> None:
        """Nothing is reported while ranks train if ``logs_are_shown``."""
        context.store.read(run_id)  # raises if the run does not exist or is damaged
        self._context, self._run_id, self._tell = context, run_id, tell
        self._logs_are_shown = logs_are_shown
        self._status: RunStatus | None = None
        self._looked_at = self._asked_at = self._reported_at = -1e9
        self._pause = FIRST_PAUSE
        self._doubts = SECOND_THOUGHTS
        self._hopeless_since: float | None = None
        self._began = context.clock.monotonic()
        self._reported = ""

    def over(self) -> bool:
        """Return whether the run has ended or can never start."""
        return self.look().state.ended or self.in_vain

    @property
    def in_vain(self) -> bool:
        """Return whether the scheduler reports repeatedly that the run can never start."""
        since = self._hopeless_since
        return since is not None and self._asked_at - since >= CERTAIN_SECONDS

    def look(self) -> RunStatus:
        """Return the status, at most ``LOOK_EVERY`` seconds old."""
        now = self._context.clock.monotonic()
        if self._status is None or (not self._status.state.ended and now - self._looked_at >= LOOK_EVERY):
            self._looked_at = now
            self._status = self._current(now)
            # Report the reason of the wait after two seconds, at each change, and every ``SPEAK_AGAIN``
            # seconds.
            status = self._status
            doing = ": ".join(filter(None, (status.phase.value, status.reason)))
            kind = gist(doing)
            is_due = kind != self._reported or now - self._reported_at > SPEAK_AGAIN
            obvious = status.state.ended or (self._logs_are_shown and status.phase is Phase.TRAINING)
            if is_due and not obvious and now - self._began >= SPEAK_AFTER:
                job = f", job {status.job_id}" if status.job_id else ""
                since = f" (for {spoken(now - self._began)} so far)" if self._reported else ""
                sentence = f"waiting for {status.name} ({status.run_id}{job}) to end{since}; it is {doing}"
                if status.phase is Phase.PREFLIGHT:
                    sentence = f"pre-flight: {status.reason}"
                self._tell(sentence)
                self._reported, self._reported_at = kind, now
        return self._status

    def _current(self, now: float) -> RunStatus:
        """Return the status from the files if the run runs, else from the scheduler at growing intervals."""
        by_files = self._context.inquiry().statuses([self._run_id], ask=False)[0]
        if by_files.cluster == Cluster.LOCAL.value or by_files.state is State.RUNNING:
            return by_files
        if now - self._asked_at < self._pause and self._status is not None:
            return self._status
        first, self._asked_at = self._asked_at < 0, now
        self._pause = FIRST_PAUSE if first else min(self._pause * 1.5, LONGEST_PAUSE)
        status = self._context.inquiry().statuses([self._run_id])[0]
        if not status.hopeless:
            self._hopeless_since = None
        elif self._hopeless_since is None:
            self._hopeless_since = now
        doubtful = status.state is State.CANCELLED and not self._context.store.cancel_asked(self._run_id)
        if doubtful and self._doubts and not self._context.store.ended(self._run_id):
            self._doubts -= 1
            self._pause = FIRST_PAUSE
            return replace(status, state=State.RUNNING)
        return status

    def wait(self, timeout: float | None) -> RunStatus:
        """Return at the end of the run, when it can never start, or after ``timeout`` seconds."""
        clock = self._context.clock
        limit = None if timeout is None else clock.monotonic() + timeout
        while not self.over():
            pause = LOOK_EVERY if limit is None else min(LOOK_EVERY, limit - clock.monotonic())
            if pause <= 0:
                break
            clock.sleep(pause)
        return self.look()


def notify_of_end(context: Context, status: RunStatus, urls: Sequence[str]) -> list[str]:
    """Tell ``urls`` that a run has ended or can never start. Return a sentence for each failed delivery."""
    if not urls:
        return []
    from clusterrun.notify.deliver import deliver_all  # few waits send messages
    from clusterrun.notify.event_message import CANNOT_START, ENDED, event_document

    state = None
    with suppress(ClusterrunError):  # the status knows enough
        state = context.store.state(status.run_id)
    state = state or RunState(status.run_id, status.attempt, status.state, status.phase, "", "", 0, 0.0)
    names = ("state", "reason", "exit_code", "started_at")
    state = replace(state, **{name: getattr(status, name) for name in names})
    event = ENDED if status.state.ended else CANNOT_START
    at = status.ended_at or context.clock.now()
    document = event_document(event, state, status.name, status.job_id, status.run_dir, at)
    return deliver_all(urls, document, context.environ)
