"""Define the documents about a run.

``RunRecord`` is the request, ``RunState`` the progress, and ``RunStatus`` the summary for users.
"""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State


@frozen
class RunRecord:
    """``record.json``: written before anything is queued, completed once the scheduler has answered."""

    run_id: str
    name: str
    cluster: str
    token: str  # in the job's comment, to recover a submission whose answer was lost
    spec: JobSpec
    submitted_at: float  # seconds since the epoch
    job_id: str = ""  # empty until the scheduler's answer is known
    host: str = ""  # the machine that submitted. A local run's process is visible only from it
    # Cluster of the job as ``NAME@CONTROLLER``; '' if unknown. Clusters may share home directories, but not
    # jobs.
    slurm: str = ""
    # ``job_id`` is an allocation of the user that outlives the run. Commands that end the run must not end
    # that job.
    in_allocation: bool = False
    process: str = ""  # the coordinator of such a run on ``host``, as ``PID.START``; '' before its start
    must_understand: tuple[str, ...] = ()
    sweep: str = ""  # id of the run's sweep
    point: str = ""  # the run's point as text, ``lr=0.1 seed=3``
    others: tuple[str, ...] = ()  # further jobs of the run; earlier versions could queue several
    format: int = contract.FORMAT

    @property
    def coordinator(self) -> str:
        """Return the coordinator's process on ``host``; '' if it belongs to a job."""
        return self.process if self.in_allocation else self.job_id


@frozen
class Failure:
    """The first failure of an attempt in time."""

    rank: int  # -1 if a node failed
    node: str
    code: int  # exit code, negative for a signal
    at: float  # seconds since the epoch on the coordinator's clock
    why: str
    last_lines: tuple[str, ...] = ()
    traceback: str = ""
    noticed: bool = False  # the rank only reported that another one had disappeared
    ended: str = ""  # then: ranks that had ended with exit code 0 (folded, ``0-2,5``)
    # Then: the node whose address the output names. With ``rank`` -1: the other end of a broken connection.
    peer: str = ""
    error: str = ""  # the error that ended the rank, as printed; '' if it printed none
    place: str = ""  # the innermost line of the user's code in its traceback, ``/home/me/train.py:12 main``

    @property
    def last_line(self) -> str:
        """Return the last line that the rank printed; '' if it printed none."""
        return next((line.strip() for line in reversed(self.last_lines) if line.strip()), "")


@frozen
class Attempt:
    """One start of the ranks."""

    epoch: int
    reason: str  # why it was started
    nodes: tuple[str, ...]
    started_at: float
    ended_at: float | None = None
    outcome: str = ""  # how it ended; '' while it runs
    failure: Failure | None = None
    cause: str = ""  # the outcome as a word of ``docs/schemas/status.json``; '' from older versions
    job_id: str = ""  # the job in which it ran
    step: int = -1  # highest reported step; -1 if none
    checkpoint: int = -1  # highest reported checkpoint; -1 if none
    ranks_at: float | None = None  # when all its ranks ran
    decision: str = ""  # what its failure led to, as a word of ``docs/schemas/status.json``
    job_restarts: int = 0  # how often Slurm had started ``job_id`` again


@frozen
class OrphanReport:
    """``left.json``: the report of an agent without a coordinator."""

    job_id: str
    node: str
    at: float  # wall clock
    why: str = ""  # the agent's knowledge about the coordinator
    released: bool = False  # whether it has released the job; otherwise it waits to do so
    format: int = contract.FORMAT
    FORMER_NAMES = {"released": "done"}


@frozen
class RunState:
    """``state.json``: the coordinator's report on the run. Times are seconds since the epoch."""

    run_id: str
    epoch: int
    state: State
    phase: Phase
    reason: str
    host: str
    pid: int
    updated_at: float  # changes at least every ``contract.STATE_SECONDS`` while the coordinator lives
    attempts: tuple[Attempt, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None  # exit code of the job; null until it has ended
    warnings: tuple[str, ...] = ()  # for users who look at the live run
    excluded: tuple[str, ...] = ()  # nodes found unfit, also in earlier jobs
    spares: tuple[str, ...] = ()  # idle spare nodes
    python: str = ""  # the ranks' interpreter, with the reason for it
    lease: float = contract.LEASE_SECONDS  # seconds for which ranks may outlive this coordinator
    format: int = contract.FORMAT

    @property
    def failure(self) -> Failure | None:
        """Return the first failure of the newest attempt that has one."""
        return next((a.failure for a in reversed(self.attempts) if a.failure), None)


@frozen
class RunStatus:
    """One run as ``status`` shows it. Times are seconds since the epoch, or null.

    The fields are those of ``status --json``, except ``failed_at`` and ``hopeless``.
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
    failed_at: float | None = None  # time of the first failure, if it ended the run
    step: int = -1  # highest step that any attempt reported; -1 if none
    checkpoint: int = -1  # highest checkpoint that any attempt reported; -1 if none
    heard_at: float | None = None  # last write of the coordinator
    hopeless: bool = False  # the job waits and can never start as it is
    gpu_type: str = ""  # requested type; '': any
    sweep: str = ""  # id of the run's sweep
    point: str = ""  # the run's point as text
    error: str = ""  # error of the rank whose failure ended the run; '' if it printed none
