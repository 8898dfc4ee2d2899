"""Waits for the end of a run: polls its files often and the scheduler rarely, and reports why it waits."""

from __future__ import annotations

import re

from clusterrun.model.duration import spoken
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context, Tell

LOOK_EVERY = 0.4
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 30.0
CERTAIN_SECONDS = 4.0
"""What the scheduler says of a job that can never start must hold for so long: limits may just be changed."""
SPEAK_AFTER = 2.0
SPEAK_AGAIN = 300.0
COUNTS = re.compile(r"\d+ (?:s left|answers?|(?:d|h|min|s)\b)|\d\d:\d\d(?::\d\d)?")
"""Counts, durations and times: a change in them alone is not reported."""
SECOND_THOUGHTS = 3
"""A run cancelled by nobody here may have met a time limit that Slurm has yet to name."""


def gist(sentence: str) -> str:
    """A reason without counts, durations and times of day: that they move on is no news."""
    return COUNTS.sub("", sentence)


class RunWait:
    """The state of one run over time, asked as rarely as will do."""

    def __init__(self, context: Context, run_id: str, tell: Tell, logs_are_shown: bool = False) -> None:
        """With ``logs_are_shown`` it reports nothing while ranks train."""
        context.store.read(run_id)  # raises what is wrong with it
        self._context, self._run_id, self._tell = context, run_id, tell
        self._heard = logs_are_shown
        self._status: RunStatus | None = None
        self._looked_at = self._asked_at = self._said_at = -1e9
        self._pause = FIRST_PAUSE
        self._doubts = SECOND_THOUGHTS
        self._hopeless_since: float | None = None
        self._began = context.clock.monotonic()
        self._said = ""

    def over(self) -> bool:
        """Whether the run has ended, as far as is known, or can never start."""
        return self.look().state.ended or self.in_vain

    @property
    def in_vain(self) -> bool:
        """The scheduler has said, and said again, that the run can never start as it is."""
        since = self._hopeless_since
        return since is not None and self._asked_at - since >= CERTAIN_SECONDS

    def look(self) -> RunStatus:
        """The status now, or that of a moment ago."""
        now = self._context.clock.monotonic()
        if self._status is None or (not self._status.state.ended and now - self._looked_at >= LOOK_EVERY):
            self._looked_at = now
            self._status = self._found(now)
            self._speak(self._status, now)
        return self._status

    def _found(self, now: float) -> RunStatus:
        here = self._context.inquiry().statuses([self._run_id], ask=False)[0]
        if here.cluster == Cluster.LOCAL.value or here.state is State.RUNNING:
            return here
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

    def _speak(self, status: RunStatus, now: float) -> None:
        """Say what is being waited for: after two seconds, when it changes, and now and then."""
        doing = f"{status.phase.value}{': ' if status.reason else ''}{status.reason}"
        kind = gist(doing)
        again = kind != self._said or now - self._said_at > SPEAK_AGAIN
        obvious = status.state.ended or (self._heard and status.phase is Phase.TRAINING)
        if obvious or now - self._began < SPEAK_AFTER or not again:
            return
        self._tell(self._sentence(status, doing, now))
        self._said, self._said_at = kind, now

    def _sentence(self, status: RunStatus, doing: str, now: float) -> str:
        if status.phase is Phase.PREFLIGHT:
            return f"pre-flight: {status.reason}"
        job = f", job {status.job_id}" if status.job_id else ""
        since = f" (for {spoken(now - self._began)} so far)" if self._said else ""
        return f"waiting for {status.name} ({status.run_id}{job}) to end{since}; it is {doing}"

    def wait(self, timeout: float | None) -> RunStatus:
        """Return at the end of the run, when it can never start, or after ``timeout`` seconds."""
        clock = self._context.clock
        limit = None if timeout is None else clock.monotonic() + timeout
        while not self.over():
            left = LOOK_EVERY if limit is None else min(LOOK_EVERY, limit - clock.monotonic())
            if left <= 0:
                break
            clock.sleep(left)
        return self.look()
