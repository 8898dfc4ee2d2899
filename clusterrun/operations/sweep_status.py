"""A sweep's runs as one: how many are in which state, and its one row among other runs."""

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
    """How many runs are in which state: ``3 RUNNING, 997 PENDING``."""
    counts = Counter(status.state.value for status in statuses)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def folded(statuses: Sequence[RunStatus], store: Store) -> list[RunStatus]:
    """``statuses`` with the runs of each sweep in one row, where its first stands; others are not live."""
    known = Sweeps(store)
    sweeps: dict[str, list[RunStatus]] = {}
    for status in statuses:
        sweeps.setdefault(status.sweep or status.run_id, []).append(status)
    return [_row(found, known) if found[0].sweep else found[0] for found in sweeps.values()]


def _row(runs: Sequence[RunStatus], known: Sweeps) -> RunStatus:
    """The sweep as it is shown: it lives as long as one of its runs does, and failed where one has."""
    one = runs[0]
    states = {status.state for status in runs}
    worst = next((state for state in _LIVELIEST if state in states), None)
    worst = worst or next((state for state in State if state in states - {State.COMPLETED}), State.COMPLETED)
    phase = Phase.ENDED if worst.ended else Phase.QUEUED if worst is State.PENDING else Phase.TRAINING
    began = [status.started_at for status in runs if status.started_at]
    sweep = known.find(one.sweep)
    more = len(sweep.run_ids) - len(runs) if sweep else 0
    told = f"{tally(runs)}, {more} others ended" if more > 0 else tally(runs)
    left = f"; {len(sweep.waiting)} points not queued" if sweep and sweep.waiting else ""
    ends = [status.ended_at or 0.0 for status in runs]
    return replace(
        one,
        run_id=one.sweep,
        job_id=one.job_id.partition("_")[0] if "_" in one.job_id else "",
        name=name_of(one.sweep),
        state=worst,
        phase=phase,
        reason=f"sweep: {told}{left}",
        point="",
        started_at=min(began, default=None),
        ended_at=max(ends) if worst.ended else None,
        failed_at=None,
        step=-1,
    )
