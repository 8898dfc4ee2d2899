"""Send the message about the end of a run from this machine."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunState, RunStatus
from clusterrun.notify.deliver import deliver_all
from clusterrun.notify.event_message import CANNOT_START, ENDED, event_document
from clusterrun.operations.context import Context


def notify_of_end(context: Context, status: RunStatus, urls: Sequence[str]) -> list[str]:
    """Tell ``urls`` that a run has ended or can never start. Return a sentence for each failed delivery."""
    if not urls:
        return []
    state = None
    try:
        state = context.store.state(status.run_id)
    except ClusterrunError:
        pass  # the status knows enough
    state = state or RunState(status.run_id, status.attempt, status.state, status.phase, "", "", 0, 0.0)
    state = replace(
        state,
        state=status.state,
        reason=status.reason,
        exit_code=status.exit_code,
        started_at=status.started_at,
    )
    event = ENDED if status.state.ended else CANNOT_START
    now = context.clock.now()
    at = status.ended_at or now
    document = event_document(event, state, status.name, status.job_id, status.run_dir, at)
    return deliver_all(urls, document, context.environ)
