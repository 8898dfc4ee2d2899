"""Define the orders of the client to the nodes: the one document that a queued run carries."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.container import Container
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import Word


class Level(Word):
    """The extent of the check before ranks start."""

    FULL = "full"
    QUICK = "quick"
    OFF = "off"


@frozen
class Preflight:
    """The check before ranks start, and the handling of unfit nodes."""

    level: Level = Level.OFF
    budget: float = 60.0  # seconds
    alone: bool = False  # no ranks follow (``check``)
    all_pairs: bool = False
    table: bool = False  # measure collectives by size, and the bandwidth of each GPU
    burn: float = 0.0  # seconds of load on the GPUs while their clocks are read
    limits: tuple[tuple[str, float], ...] = ()  # numbers by name
    cluster: str = ""
    findings: str = ""  # folder that keeps findings of this cluster; '' if none are kept
    python: str = ""  # the ranks' interpreter; '' if the ranks run another program
    # Arguments that queue this run again; ``{excluded}`` is replaced by the host list of unfit nodes. If it
    # is empty, a run without enough fit nodes ends.
    resubmit: tuple[str, ...] = ()
    check_commands: tuple[str, ...] = ()  # the user's own checks, for a shell


@frozen
class Interpreter:
    """The ranks' Python and the reason for it."""

    path: str = ""  # empty if the ranks run another program
    why: str = ""
    # The user named no Python, so the first Python on PATH after the job's setup replaces it.
    by_setup: bool = False

    def __str__(self) -> str:
        return f"{self.path} ({self.why})" if self.why else self.path


@frozen
class WatchOrders:
    """How ranks are watched while they run."""

    on: bool = False  # an observer runs beside the ranks on every node
    sample_seconds: float = 10.0  # interval of its samples
    hang_seconds: float = 600.0  # seconds without progress after which the run hangs
    on_hang: str = "report"  # ``report``, ``restart`` or ``kill``


@frozen
class Survival:
    """How a run continues after its job was ended from outside."""

    requeue: str = ""  # one of ``contract.REQUEUE_WORDS``; '' if the run ends with its job
    # Arguments that queue the run again. ``{excluded}`` is replaced by the host list of excluded nodes,
    # ``{dependency}`` by ``--dependency=afterany:ID``. An argument whose placeholder has no value is
    # dropped.
    resubmit: tuple[str, ...] = ()
    notice: float = 120.0  # seconds between the notice and the end of a job
    max_preemptions: int = 0  # limit on preemptions that the run survives
    max_time_limits: int = 0  # limit on time limits that the run survives
    no_progress: int = 3  # failed attempts in a row without progress that end the run; 0: no limit
    on_event: str = ""  # shell command that receives the events of the run
    notify: tuple[str, ...] = ()  # addresses that get messages about the run; they hold secrets
    requeue_exit: str = ""  # exit codes for which Slurm queues other jobs again; '' if this run may go on
    signal: int = 0  # number of the user's signal before the end of a job (``--sbatch signal=…``); 0: none

    @property
    def announces(self) -> bool:
        """Return whether the run announces its events to anybody."""
        return bool(self.on_event or self.notify)


@frozen
class Orders:
    """``orders.json``: everything that coordinator and agents need besides the files next to it.

    Strings are exact: bytes that are not UTF-8 are kept as surrogate escapes.
    """

    run_id: str
    run_name: str
    nodes: int  # nodes that train; the most if ``min_nodes`` is set
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    command: tuple[str, ...]  # final argument list of a rank (``PYTHON -u script args``)
    cwd: str
    # Variables that the user set, besides those that the job inherits
    environment: tuple[tuple[str, str], ...] = ()
    # Arguments that start one agent per node with the secret on its stdin (``srun``). If it is empty, the
    # coordinator starts the agents itself, all on this machine.
    launch: tuple[str, ...] = ()
    per_node: bool = False
    max_restarts: int = 0
    time_limit: float = 0.0  # seconds; 0 if the scheduler enforces the limit
    spares: int = 0  # further nodes that replace unfit ones
    min_nodes: int = 0  # least number of training nodes; 0: exactly ``nodes``
    elastic: bool = False  # attempts may differ in the number of nodes
    preflight: Preflight = Preflight()
    watch: WatchOrders = WatchOrders()
    survival: Survival = Survival()
    grace: float = contract.GRACE_SECONDS  # seconds from TERM to KILL of the other ranks after a failure
    # Seconds from TERM to KILL of all ranks when the run is ended (cancel, time limit, preemption), a
    # little less than Slurm gives
    kill_wait: float = contract.KILL_WAIT_SECONDS
    # The user requested no GPUs, so check and ranks must not see those of the machine
    hide_gpus: bool = False
    input: str = ""  # file that each rank reads as standard input; '': none
    # Ranks write to pipes, because they may open ``/dev/stdout`` or ``/dev/stderr`` by name
    pipes_output: bool = False
    numa_binding: str = ""  # binds each rank to processors near its GPU; '': no binding
    node_gpus: bool = False  # the ranks use the node's GPUs, without a GPU request to Slurm
    interpreter: Interpreter = Interpreter()
    container: Container = Container()
    # The job is the user's own, and outlives the run; clusterrun never releases it
    in_allocation: bool = False
    format: int = contract.FORMAT

    @property
    def allocated(self) -> int:
        """Return the number of nodes in all: training nodes and spares."""
        return self.nodes + self.spares

    def using(self, python: Interpreter, cwd: str = "") -> Orders:
        """Return these orders with ``python`` as the ranks' interpreter, and ``cwd`` as their directory."""
        if cwd:
            return replace(self, cwd=cwd).using(python)
        planned = self.interpreter.path
        if not planned or not python.path:
            return self
        first, *others = self.command
        checked = python.path if self.preflight.python else ""
        return replace(
            self,
            command=(python.path if first == planned else first, *others),
            preflight=replace(self.preflight, python=checked),
            interpreter=python,
        )

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks_per_node < 1 or not self.command:
            raise ValueError("orders need at least one node, one rank and a command")
        if self.spares < 0:
            raise ValueError("there cannot be fewer than no spares")
        if self.format > contract.FORMAT:
            raise ValueError(f"format {self.format} is newer than this program reads ({contract.FORMAT})")
