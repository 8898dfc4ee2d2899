"""Summarize the runs of a sweep: the number in each state, and one row for a list of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clusterrun.model.frozen import replace
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.runs.store import Store, name_of
from clusterrun.runs.sweep_records import Sweeps

_LIVELIEST = (State.RUNNING, State.PENDING, State.UNKNOWN)


def tally(statuses: Sequence[RunStatus]) -> str:
    """Return the number of runs in each state: ``3 RUNNING, 997 PENDING``."""
    counts = Counter(status.state.value for status in statuses)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def folded(statuses: Sequence[RunStatus], store: Store) -> list[RunStatus]:
    """Return ``statuses`` with one row for each sweep, at the place of its first run."""
    sweep_records = Sweeps(store)
    sweeps: dict[str, list[RunStatus]] = {}
    for status in statuses:
        sweeps.setdefault(status.sweep or status.run_id, []).append(status)
    return [_row(runs, sweep_records) if runs[0].sweep else runs[0] for runs in sweeps.values()]


def _row(runs: Sequence[RunStatus], sweep_records: Sweeps) -> RunStatus:
    """Return the row of a sweep. It lives while a run lives, and has failed if a run has failed."""
    first = runs[0]
    states = {status.state for status in runs}
    worst = next((state for state in _LIVELIEST if state in states), None)
    worst = worst or next((state for state in State if state in states - {State.COMPLETED}), State.COMPLETED)
    phase = Phase.ENDED if worst.ended else Phase.QUEUED if worst is State.PENDING else Phase.TRAINING
    began = [status.started_at for status in runs if status.started_at]
    sweep = sweep_records.find(first.sweep)
    more = len(sweep.run_ids) - len(runs) if sweep else 0
    counts = f"{tally(runs)}, {more} others ended" if more > 0 else tally(runs)
    unqueued = f"; {len(sweep.waiting)} points not queued" if sweep and sweep.waiting else ""
    ends = [status.ended_at or 0.0 for status in runs]
    return replace(
        first,
        run_id=first.sweep,
        job_id=first.job_id.partition("_")[0] if "_" in first.job_id else "",
        name=name_of(first.sweep),
        state=worst,
        phase=phase,
        reason=f"sweep: {counts}{unqueued}",
        point="",
        started_at=min(began, default=None),
        ended_at=max(ends) if worst.ended else None,
        failed_at=None,
        step=-1,
    )
