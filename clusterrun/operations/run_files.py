"""Read the files of one run: its record, its state, and its end."""

from __future__ import annotations

from clusterrun.model.document import BadDocument
from clusterrun.model.errors import ClusterrunError, NoSuchRun
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunRecord, RunState, RunStatus
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import State
from clusterrun.runs.store import EndedRun, Store, SuccessorJobs, inferred
from clusterrun.slurm.queries import JobRow

# Seconds after the end of a run during which Slurm may know a better reason (its MinJobAge is 300).
ROWS_LIVE = 600.0

# Seconds for which an inferred end is checked again, since the queue may still know the job.
INFERRED_SECONDS = 86400.0


@frozen
class RunFiles:
    """The files of one run."""

    record: RunRecord
    state: RunState | None
    ended: EndedRun | None
    damage: str = ""  # why its state cannot be read
    waiting: str = ""  # the job that waits for the end of the run's own
    doubt: str = ""  # why its jobs are not known

    def open(self, now: float) -> bool:
        """Return whether the scheduler may know more of this run.

        A recorded end stands until the coordinator writes again, another job of the run starts, or somebody
        requeues its job.
        """
        may_be_requeued = self.record.spec.goes_on == "requeue"
        if self.ended and self.ended.started_job == self.record.job_id and not self._newer:
            age = now - self.ended.at
            if may_be_requeued and self.ended.status.state is not State.COMPLETED and age < ROWS_LIVE:
                return True
            return self.ended.inferred and age < INFERRED_SECONDS
        if self.state is None or not self.state.state.ended:
            return True
        is_recent = may_be_requeued or now - self.state.updated_at < ROWS_LIVE
        return self.state.state is not State.COMPLETED and is_recent

    def has_settled(self, row: JobRow | None, answered_at: float) -> bool:
        """Return whether the recorded end is certain, and Slurm has not queued its job again since.

        ``row`` and ``answered_at`` are Slurm's answer.
        """
        if self.ended is None or self.ended.inferred or self._newer:
            return False
        own = self.ended.started_job
        is_queued = row is not None and row.state is State.PENDING and row.job_id == own
        return own == self.record.job_id and not (is_queued and answered_at > self.ended.at)

    @property
    def _newer(self) -> bool:
        """Return whether the coordinator has written since the end was recorded."""
        return self.state is not None and self.ended is not None and self.state.updated_at > self.ended.at

    def still_inferred(self, status: RunStatus) -> bool:
        """Return whether ``status`` adds nothing to the end that was inferred before."""
        was_inferred = self.ended is not None and self.ended.inferred and not self._newer
        return was_inferred and inferred(status)


def read(store: Store, run_id: str) -> RunFiles | RunStatus:
    """Return the files of a run, or a status with the reason if its record cannot be read.

    Raise ``NoSuchRun``.
    """
    try:
        record = store.read(run_id)
    except NoSuchRun:
        raise
    except ClusterrunError as error:
        return RunStatus(run_id, reason=error.seen, run_dir=store.paths(run_id).run_dir)
    try:
        state, damage = store.state(run_id), ""
    except ClusterrunError as error:
        state, damage = None, error.seen
    try:
        ended = store.ended(run_id)
    except BadDocument:  # the end is determined again
        ended = None
    further = store.further_jobs(run_id) if record.cluster == Cluster.SLURM.value else SuccessorJobs()
    return RunFiles(record, state, ended, damage, further.waiting, further.damage)


def formed(spec: JobSpec, state: RunState | None) -> JobSpec:
    """Return ``spec`` with the newest number of nodes of a run whose size may vary."""
    worlds = [attempt.nodes for attempt in state.attempts if attempt.nodes] if state else []
    return replace(spec, nodes=len(worlds[-1]), min_nodes=0) if spec.min_nodes and worlds else spec


def spec_of(record: RunRecord, store: Store) -> JobSpec:
    """Return the spec as ``formed``. An unreadable state leaves it unchanged."""
    if not record.spec.min_nodes:
        return record.spec
    try:
        return formed(record.spec, store.state(record.run_id))
    except ClusterrunError:
        return record.spec


def recorded(record: RunRecord, run_dir: str, state: RunState | None, reason: str = "") -> RunStatus:
    """Return the status of a run as far as its record holds it."""
    spec = formed(record.spec, state)
    return RunStatus(
        run_id=record.run_id,
        reason=reason,
        run_dir=run_dir,
        job_id=record.job_id,
        name=record.name,
        cluster=record.cluster,
        nodes=spec.nodes,
        gpus_per_node=spec.gpus,
        gpu_type=spec.gpu_type,
        world_size=spec.world_size,
        submitted_at=record.submitted_at,
        sweep=record.sweep,
        point=record.point,
    )
