"""Ending runs: the word to the coordinator first, then to the scheduler, then seeing that nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.local import processes
from clusterrun.model.errors import SchedulerError
from clusterrun.model.record import RunRecord, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import State
from clusterrun.runs.disk import DiskRefused
from clusterrun.verbs.desk import Desk, Tell

LIMIT = 60.0
"""Seconds to see the end of what was cancelled: more than a grace, Slurm's KillWait and its epilogs."""
SPEAK_AFTER = 2.0


def cancel(desk: Desk, ids: Sequence[str], tell: Tell) -> list[tuple[RunStatus, RunStatus]]:
    """End the runs ``ids``; the status of each before, and after its end or ``LIMIT`` seconds.

    A run that has ended already is left as it is. Raises ``SchedulerError`` where a run may live on
    because Slurm could not be told.
    """
    before = desk.inquiry(tell).statuses(ids)
    alive = [status.run_id for status in before if not status.state.ended]
    for run_id in alive:
        _leave_word(desk, run_id, tell)
    records = [desk.store.read(run_id) for run_id in alive]
    silence = _tell_slurm(desk, [one for one in records if one.cluster == Cluster.SLURM.value])
    for record in records:
        if record.cluster == Cluster.LOCAL.value and record.job_id:
            processes.end(record.job_id, desk.clock, slow=partial(_say_waiting, record.run_id, tell))
    _see_the_end(desk, alive, tell, ask=silence is None)
    after = desk.inquiry().statuses(ids, ask=silence is None, oldest=LIMIT)
    if silence and not all(status.state.ended for status in after):
        raise silence
    return list(zip(before, after, strict=True))


def _leave_word(desk: Desk, run_id: str, tell: Tell) -> None:
    """A disk that is full must not keep a run alive: the scheduler, or a signal, ends it too."""
    try:
        desk.store.ask_cancel(run_id)
    except DiskRefused as error:
        tell(f"no word could be left for the coordinator: {error.seen}")


def _tell_slurm(desk: Desk, records: Sequence[RunRecord]) -> SchedulerError | None:
    """End the jobs; why that could not be said to Slurm. A run that lives then ends by its own coordinator.

    A job whose id was never heard is looked for by its token.
    """
    try:
        jobs = tuple(job for record in records if (job := record.job_id or desk.client().find(record.token)))
        desk.client().cancel(jobs)
    except SchedulerError as error:
        return error
    return None


def _say_waiting(names: str, tell: Tell) -> None:
    tell(f"waiting for {names} to end, at most {LIMIT:.0f} s")


def _see_the_end(desk: Desk, ids: Sequence[str], tell: Tell, ask: bool) -> None:
    began, pause, said = desk.clock.monotonic(), 0.2, False
    told = desk.clock.now()  # what Slurm said before that is no news
    while left := [s for s in desk.inquiry().statuses(ids, ask, since=told) if not s.state.ended]:
        waited = desk.clock.monotonic() - began
        hopeless = not ask and all(status.state is State.UNKNOWN for status in left)
        if waited > LIMIT or hopeless:
            return
        if waited > SPEAK_AFTER and not said:
            _say_waiting(", ".join(status.run_id for status in left), tell)
            said = True
        desk.clock.sleep(pause)
        pause = min(pause * 1.5, 5.0)
