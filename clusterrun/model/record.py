"""What is remembered of a run; touches no disk.

What was asked (``RunRecord``), how far it is (``RunState``), and what a user sees (``RunStatus``).
"""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State


@frozen
class RunRecord:
    """``record.json``: written before anything is queued, completed once the scheduler has answered.

    ``token`` stands in the job's comment, so that a submission whose answer was lost is found
    again; ``job_id`` is empty until the scheduler's answer is known. ``host`` is the machine that
    submitted: a local run's process can be seen from there only. ``submitted_at`` is seconds since
    the epoch. ``slurm`` is the cluster that holds the job, as ``NAME@CONTROLLER`` ('': not known):
    homes are shared between clusters, and another one's Slurm knows nothing of this job. ``sweep`` is the
    id of the sweep that the run is a point of, ``point`` the point in words, ``lr=0.1 seed=3``.

    ``others`` are the jobs of its further shapes, where it has several.

    ``in_allocation``: the run was started in an allocation of its user's, which is there before and after it:
    ``job_id`` is that one's, and nobody who ends the run may end the job. ``process`` is then its
    coordinator on ``host``, as ``PID.START`` ('': not started yet).
    """

    run_id: str
    name: str
    cluster: str
    token: str
    spec: JobSpec
    submitted_at: float
    job_id: str = ""
    host: str = ""
    slurm: str = ""
    in_allocation: bool = False
    process: str = ""
    must_understand: tuple[str, ...] = ()
    sweep: str = ""
    point: str = ""
    others: tuple[str, ...] = ()
    format: int = contract.FORMAT

    @property
    def coordinator(self) -> str:
        """The coordinator's process on ``host``; '' where it is a job's."""
        return self.process if self.in_allocation else self.job_id


@frozen
class Failure:
    """The first failure of an attempt in time: who, where, how, with its last words.

    ``code`` is an exit code, negative for a signal. ``rank`` is -1 where a node failed rather
    than a rank. ``at`` is seconds since the epoch on the coordinator's clock.

    ``noticed``: its words are those of a rank that only noticed that another one had gone; ``ended``
    are then the ranks that had ended with exit code 0 (folded, ``0-2,5``), ``peer`` the node whose
    address those words name.
    """

    rank: int
    node: str
    code: int
    at: float
    why: str
    last_lines: tuple[str, ...] = ()
    traceback: str = ""
    noticed: bool = False
    ended: str = ""
    peer: str = ""


@frozen
class Attempt:
    """One start of the ranks; ``reason`` says why it was made, ``outcome`` how it ended ('' while alive).

    ``cause`` is the same as one word of those in ``docs/schemas/status.json`` ('' where an older version
    wrote it); ``job_id`` is the job it was made in. ``step`` and ``checkpoint`` are the highest that it
    reported, -1 where it reported none. ``ranks_at`` is when all its ranks ran.
    """

    epoch: int
    reason: str
    nodes: tuple[str, ...]
    started_at: float
    ended_at: float | None = None
    outcome: str = ""
    failure: Failure | None = None
    cause: str = ""
    job_id: str = ""
    step: int = -1
    checkpoint: int = -1
    ranks_at: float | None = None


@frozen
class LeftBehind:
    """``left.json``: the word of an agent whose coordinator is gone, on ``node``, at ``at`` (wall clock).

    It waits to give the job back, or has ``done`` so; ``why`` says what it knows of the coordinator.
    """

    job_id: str
    node: str
    at: float
    why: str = ""
    done: bool = False
    format: int = contract.FORMAT


@frozen
class RunState:
    """``state.json``: the coordinator's word on the run; times are seconds since the epoch.

    ``updated_at`` moves at least every ``contract.STATE_SECONDS`` while the coordinator lives.
    ``exit_code`` is what the job exits with, null until it has ended. ``warnings`` are for whoever
    looks at the run while it lives; ``excluded`` are the nodes found unfit (in jobs before this one
    too), ``spares`` those that idle. ``python`` is the ranks' interpreter, and why it is that one.
    """

    run_id: str
    epoch: int
    state: State
    phase: Phase
    reason: str
    host: str
    pid: int
    updated_at: float
    attempts: tuple[Attempt, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    warnings: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    python: str = ""
    format: int = contract.FORMAT

    @property
    def failure(self) -> Failure | None:
        """The first failure of the newest attempt that has one."""
        return next((a.failure for a in reversed(self.attempts) if a.failure), None)


@frozen
class RunStatus:
    """One run as ``status`` shows it; times in seconds since the epoch, or null.

    The fields are those of ``status --json``, but for ``failed_at``: when the first failure was seen
    that ended it. ``step`` and ``checkpoint`` are the highest that any attempt reported (-1: none
    did), ``heard_at`` is when the coordinator last wrote. ``hopeless``, which ``--json`` leaves to the
    reason as well: it waits in the queue and can never start as it is. ``gpu_type`` is what was asked for
    ('': any). ``sweep`` is the id of the sweep that it is a point of, and ``point`` the point in words.
    """

    run_id: str
    job_id: str = ""
    name: str = ""
    cluster: str = ""
    state: State = State.UNKNOWN
    phase: Phase = Phase.QUEUED
    reason: str = ""
    nodes: int = 0
    gpus_per_node: int = 0
    world_size: int = 0
    nodelist: str = ""
    attempt: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    run_dir: str = ""
    failed_at: float | None = None
    step: int = -1
    checkpoint: int = -1
    heard_at: float | None = None
    hopeless: bool = False
    gpu_type: str = ""
    sweep: str = ""
    point: str = ""
