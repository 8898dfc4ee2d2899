"""Ending runs: the word to the coordinator first, then to the scheduler, then seeing that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.desk import Desk, Tell
from clusterrun.local import processes
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.spec import Cluster

LIMIT = 60.0
"""Seconds to see the end of what was cancelled: more than a grace, Slurm's KillWait and its epilogs."""
SPEAK_AFTER = 2.0


def cancel(desk: Desk, ids: Sequence[str], tell: Tell) -> list[RunStatus]:
    """End the runs ``ids`` and return their statuses once they have ended, or after ``LIMIT`` seconds.

    A run that has ended already is left as it is. Raises ``SchedulerError``.
    """
    alive = [status.run_id for status in desk.inquiry().statuses(ids) if not status.state.ended]
    for run_id in alive:
        desk.store.ask_cancel(run_id)
    records = [desk.store.read(run_id) for run_id in alive]
    desk.client().cancel(_jobs(desk, records)) if records else None
    for record in records:
        if record.cluster == Cluster.LOCAL.value and record.job_id:
            processes.end(record.job_id, desk.clock)
    _see_the_end(desk, alive, tell)
    return desk.inquiry().statuses(ids)


def _jobs(desk: Desk, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """The Slurm jobs of ``records``; one whose id was never heard is looked for by its token."""
    slurm = [record for record in records if record.cluster == Cluster.SLURM.value]
    return tuple(job for record in slurm if (job := record.job_id or desk.client().find(record.token)))


def _see_the_end(desk: Desk, ids: Sequence[str], tell: Tell) -> None:
    began, pause, said = desk.clock.monotonic(), 0.2, False
    while left := [status for status in desk.inquiry().statuses(ids) if not status.state.ended]:
        waited = desk.clock.monotonic() - began
        if waited > LIMIT:
            return
        if waited > SPEAK_AFTER and not said:
            names = ", ".join(status.run_id for status in left)
            tell(f"waiting for {names} to end, at most {LIMIT:.0f} s")
            said = True
        desk.clock.sleep(pause)
        pause = min(pause * 1.5, 5.0)
