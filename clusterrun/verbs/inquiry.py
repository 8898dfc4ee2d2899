"""Asks everyone who knows about runs, once for all of them, and lets the judge answer; changes no run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping

from clusterrun.local.processes import alive
from clusterrun.model.errors import ClusterrunError, NoSuchRun, SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunRecord, RunState, RunStatus
from clusterrun.model.spec import Cluster
from clusterrun.model.states import Phase, State
from clusterrun.runs.disk import DiskRefused
from clusterrun.runs.store import Ended, Store
from clusterrun.slurm.client import ANSWER_SECONDS, SlurmClient
from clusterrun.slurm.queries import JobRow
from clusterrun.system import Clock
from clusterrun.verbs.judge import Said, judge, kept

SPEAK_AFTER = 2.0
ROWS_LIVE = 600.0
"""Seconds after its end during which Slurm may still know better why a run failed (MinJobAge is 300)."""


@frozen
class Case:
    """What the disk says about one run."""

    record: RunRecord
    state: RunState | None
    ended: Ended | None

    def open(self, now: float) -> bool:
        """Whether a scheduler could still add something."""
        newer = self.state is not None and self.ended is not None and self.state.updated_at > self.ended.at
        if self.ended and self.ended.status.job_id == self.record.job_id and not newer:
            return False
        if self.state is None or not self.state.state.ended:
            return True
        return self.state.state is not State.COMPLETED and now - self.state.updated_at < ROWS_LIVE


class Inquiry:
    """Statuses of runs; ``notices`` holds what the user should know about how they were found."""

    def __init__(
        self, store: Store, client: Callable[[], SlurmClient], clock: Clock, tell: Callable[[str], None]
    ) -> None:
        """``tell`` hears of a wait that gets long."""
        self._store = store
        self._tell = tell
        self._client = client
        self._clock = clock
        self.notices: list[str] = []

    def statuses(self, ids: Iterable[str], ask: bool = True) -> list[RunStatus]:
        """The status of each run, in order; a damaged one is UNKNOWN and says why.

        With ``ask`` false no program is run: only the run directories speak.
        """
        found = [self._case(one) for one in ids]
        rows, answered = self._rows([c for c in found if isinstance(c, Case)]) if ask else ({}, False)
        return [self._status(c, rows, answered) if isinstance(c, Case) else c for c in found]

    def _case(self, run_id: str) -> Case | RunStatus:
        record = None
        try:
            record = self._store.read(run_id)
            return Case(record, self._store.state(run_id), self._store.ended(run_id))
        except NoSuchRun:
            raise
        except ClusterrunError as error:
            damaged = _damaged(run_id, self._store.paths(run_id).run_dir, error.seen)
            return _named(damaged, record) if record else damaged

    def _rows(self, cases: list[Case]) -> tuple[Mapping[str, JobRow], bool]:
        """The scheduler's rows by run id, and whether it answered."""
        asked = [c for c in cases if c.record.cluster == Cluster.SLURM.value and c.open(self._clock.now())]
        if not asked:
            return {}, True
        late = threading.Timer(
            SPEAK_AFTER,
            self._tell,
            (f"waiting for Slurm to answer, at most {ANSWER_SECONDS:.0f} s a question",),
        )
        late.daemon = True
        late.start()
        try:
            return self._asked(asked), True
        except SchedulerError as error:
            self.notices.append(f"{error.seen}: what follows is what the run directories say")
            return {}, False
        finally:
            late.cancel()

    def _asked(self, cases: list[Case]) -> dict[str, JobRow]:
        jobs = self._client().jobs()
        by_id = {row.job_id: row for row in jobs}
        rows = {
            c.record.run_id: row for c in cases if (row := by_id.get(c.record.job_id) or _adopted(c, jobs))
        }
        missing = {
            c.record.job_id: c.record.run_id
            for c in cases
            if c.record.run_id not in rows and c.record.job_id and not (c.state and c.state.state.ended)
        }
        finished = self._client().finished(tuple(missing)) if missing else ()
        return rows | {missing[row.job_id]: row for row in finished if row.job_id in missing}

    def _status(self, case: Case, rows: Mapping[str, JobRow], answered: bool) -> RunStatus:
        record, now = case.record, self._clock.now()
        row = rows.get(record.run_id)
        if row and not record.job_id:  # its submission was answered after all
            record = replace(record, job_id=row.job_id)
            self._store.save(record)
        local = record.cluster == Cluster.LOCAL.value
        said = Said(
            record=record,
            run_dir=self._store.paths(record.run_id).run_dir,
            now=now,
            state=case.state,
            row=row,
            answered=answered,
            alive=_alive(record) if local else None,
            cancel_asked=self._store.cancel_asked(record.run_id),
        )
        status = judge(said)
        if case.ended and not case.open(now):
            return kept(case.ended.status, case.state, case.ended.at, status)
        final = row is None or row.state.ended  # else the scheduler may soon say better why
        if status.state.ended and final and (answered or local):
            self._settle(status, now)
        return status

    def _settle(self, status: RunStatus, now: float) -> None:
        try:
            self._store.settle(status, now)
        except DiskRefused as error:  # a full disk takes nothing from what was found out
            self.notices.append(f"the end of {status.run_id} could not be noted: {error.seen}")


def _adopted(case: Case, jobs: tuple[JobRow, ...]) -> JobRow | None:
    if case.record.job_id:
        return None
    return next((row for row in jobs if case.record.token in row.comment), None)


def _alive(record: RunRecord) -> bool | None:
    if record.host != os.uname().nodename:
        return None
    return bool(record.job_id) and alive(record.job_id)


def _named(status: RunStatus, record: RunRecord) -> RunStatus:
    """What is known all the same of a run whose state cannot be read."""
    return replace(
        status,
        job_id=record.job_id,
        name=record.name,
        cluster=record.cluster,
        nodes=record.spec.nodes,
        gpus_per_node=record.spec.gpus,
        world_size=record.spec.world_size,
        submitted_at=record.submitted_at,
    )


def _damaged(run_id: str, run_dir: str, why: str) -> RunStatus:
    return RunStatus(
        run_id=run_id,
        job_id="",
        name="",
        cluster="",
        state=State.UNKNOWN,
        phase=Phase.QUEUED,
        reason=why,
        nodes=0,
        gpus_per_node=0,
        world_size=0,
        nodelist="",
        attempt=0,
        submitted_at=0.0,
        started_at=None,
        ended_at=None,
        exit_code=None,
        run_dir=run_dir,
    )
