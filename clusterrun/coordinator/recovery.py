"""Derive from the record of earlier coordinators why a new one makes an attempt; pure."""

from __future__ import annotations

from clusterrun.coordinator.events import EpochClaimed
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunState
from clusterrun.model.states import State
from clusterrun.protocol.bootstrap import LONGEST_LEASE


def is_over(state: RunState | None, job_id: str) -> bool:
    """Return whether the run ended in another job, so that this job has no work.

    A job that is requeued after the end of its run is meant to begin again.
    """
    if state is None or not state.state.ended or not state.attempts:
        return False
    return bool(job_id) and state.attempts[-1].job_id != job_id


def first_claim(
    epoch: int, state: RunState | None, dead_since: float | None, dead: int | None = None
) -> EpochClaimed:
    """Return the claim of a new coordinator, given the ``state`` that earlier coordinators wrote.

    ``dead_since`` is when an earlier coordinator was killed, ``dead`` is its process id. If another
    coordinator wrote ``state``, that coordinator may live. An attempt without an end ended when ``state``
    was written last.
    """
    if state is None:
        # An attempt without a record may live. There is none before the very first one.
        if epoch == 0:
            return EpochClaimed(epoch)
        return EpochClaimed(epoch, quiet=False, cause="node", lease=LONGEST_LEASE)
    last = state.attempts[-1] if state.attempts else None
    # A job that was handed over had no ranks when that was recorded.
    quiet = state.state.ended or state.state is State.PENDING
    cause = "requeue" if quiet else "node" if dead_since is None else "coordinator"
    if state.state is State.PENDING:
        cause = _CAUSES.get(last.outcome if last else "", "requeue")
    nodes = (*last.nodes, *state.spares) if last and dead_since is not None and not quiet else ()
    waited = last is None or (not last.nodes and len(state.attempts) > 1)
    if waited or dead not in (None, state.pid):
        dead_since = None  # it may itself have waited for the end of an older one, or another lives
    host = "" if quiet else state.host
    attempts = state.attempts
    if last and not last.outcome:
        outcome = State.FAILED if cause == "coordinator" else State.NODE_FAIL
        attempts = (*attempts[:-1], replace(last, ended_at=state.updated_at, outcome=outcome.value))
    earlier = (attempts, quiet, state.excluded, cause, dead_since, host, nodes, state.lease)
    return EpochClaimed(epoch, *earlier)


# Why a job continues a run, by the outcome of the previous attempt.
_CAUSES = {"TIMEOUT": "time-limit", "PREEMPTED": "preemption", "PENDING": "unfit", "NODE_FAIL": "node"}


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
# The same, if the host of the lost coordinator is known.
_AT = {
    "node": "after the loss of {}, or of the coordinator there",
    "coordinator": "after the loss of its coordinator on {}",
}
