"""What a new coordinator knows of those before it: their attempts, and why it makes another; pure."""

from __future__ import annotations

from clusterrun.coordinator.events import EpochClaimed
from clusterrun.model.record import RunState
from clusterrun.model.states import State


def is_over(state: RunState | None, job_id: str) -> bool:
    """The run came to its end in another job, so that nothing is left to do in this one.

    A job that is put back into the queue after the run's end was meant to begin once more.
    """
    if state is None or not state.state.ended or not state.attempts:
        return False
    return bool(job_id) and state.attempts[-1].job_id != job_id


def first_claim(
    epoch: int, state: RunState | None, dead_since: float | None, dead: int | None = None
) -> EpochClaimed:
    """What a coordinator that begins knows of those before it, from the ``state`` that they left.

    ``dead_since`` is when one of them was killed, ``dead`` its process id: where another wrote ``state``,
    that one may live.
    """
    if state is None:
        # An attempt of which nobody wrote a word may live; the very first one cannot.
        return EpochClaimed(epoch, quiet=epoch == 0, cause="first" if epoch == 0 else "node")
    last = state.attempts[-1] if state.attempts else None
    # A job that was handed over had no ranks any more when it said so.
    quiet = state.state.ended or state.state is State.PENDING
    cause = "requeue" if quiet else "node" if dead_since is None else "coordinator"
    if state.state is State.PENDING:
        cause = _CAUSES.get(last.outcome if last else "", "requeue")
    there = (*last.nodes, *state.spares) if last and dead_since is not None and not quiet else ()
    waited = last is None or (not last.nodes and len(state.attempts) > 1)
    if waited or dead not in (None, state.pid):
        dead_since = None  # it may itself have waited for the end of an older one, or another lives
    host = "" if quiet else state.host
    return EpochClaimed(epoch, state.attempts, quiet, state.excluded, cause, dead_since, host, there)


_CAUSES = {"TIMEOUT": "time-limit", "PREEMPTED": "preemption", "PENDING": "unfit", "NODE_FAIL": "node"}
"""Why a job goes on with a run, by how the attempt before it ended."""


def in_words(event: EpochClaimed) -> str:
    if not event.epoch:
        return "first start"
    after = _AT.get(event.cause, "").format(event.host) if event.host else ""
    return f"started again {after or _AFTER.get(event.cause, '')}".rstrip()


_AFTER = {
    "time-limit": "after a time limit",
    "preemption": "after a preemption",
    "requeue": "after a requeue",
    "node": "after the loss of a node",
    "coordinator": "after the loss of its coordinator",
    "unfit": "without unfit nodes",
}
_AT = {
    "node": "after the loss of {}, or of the coordinator there",
    "coordinator": "after the loss of its coordinator on {}",
}
"""The same, where it is known on which node the coordinator was that was heard no more."""
