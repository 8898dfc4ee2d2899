"""What the client tells the nodes: the one document a queued run carries with it; knows no scheduler."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.container import Container
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import Word


class Level(Word):
    """How much is checked before ranks start, equal to its word."""

    FULL = "full"
    QUICK = "quick"
    OFF = "off"


@frozen
class Preflight:
    """What is checked before ranks start, and what happens with unfit nodes.

    ``budget`` is in seconds. ``alone``: no ranks follow (``check``). ``limits`` are numbers by name.
    ``findings`` is the folder that keeps findings of this cluster (empty: none are kept), ``python``
    the ranks' interpreter (empty: the ranks are no Python program). ``resubmit`` is the argument
    list that queues this run once more, with ``{excluded}`` where the host list of unfit nodes goes;
    empty: a run without enough fit nodes ends. ``check_commands`` are the user's own checks, for a shell.
    """

    level: Level = Level.OFF
    budget: float = 60.0
    alone: bool = False
    all_pairs: bool = False
    confirm: int = 3
    limits: tuple[tuple[str, float], ...] = ()
    cluster: str = ""
    findings: str = ""
    python: str = ""
    resubmit: tuple[str, ...] = ()
    check_commands: tuple[str, ...] = ()


@frozen
class Interpreter:
    """The ranks' Python and why it is that one, in words; an empty ``path``: they are another program.

    ``by_setup``: nobody named it, so one that the setup of the job puts first on PATH takes its place.
    """

    path: str = ""
    why: str = ""
    by_setup: bool = False

    def __str__(self) -> str:
        return f"{self.path} ({self.why})" if self.why else self.path


@frozen
class WatchOrders:
    """How ranks are watched while they run.

    ``on``: an observer stands beside them on every node. It samples every ``sample_seconds``; where
    nothing moves for ``hang_seconds`` the run hangs, and ``on_hang`` (``report``, ``restart`` or
    ``kill``) is what is done then.
    """

    on: bool = False
    sample_seconds: float = 10.0
    hang_seconds: float = 600.0
    on_hang: str = "report"


@frozen
class Survival:
    """How a run goes on after its job was ended from outside.

    ``requeue`` is a word of ``contract.REQUEUE_WORDS``, empty where the run ends with its job.
    ``resubmit`` is the argument list that queues the run once more: ``{excluded}`` in a word stands
    for the host list of excluded nodes (the word is dropped where that is empty), and the word
    ``{dependency}`` for ``--dependency=afterany:ID`` (dropped where nothing is waited for).
    ``notice`` is how many seconds before its end a job hears of it. ``signal`` is the number of the signal
    that the user lets Slurm send then (``--sbatch signal=…``, 0: none). The run goes on after at most
    ``max_preemptions`` preemptions and ``max_time_limits`` time limits; it ends after ``no_progress``
    attempts in a row that failed and got no further (0: never for that). ``on_event`` is a shell
    line that hears of what happens to the run.
    """

    requeue: str = ""
    resubmit: tuple[str, ...] = ()
    notice: float = 120.0
    max_preemptions: int = 0
    max_time_limits: int = 0
    no_progress: int = 3
    on_event: str = ""
    signal: int = 0


@frozen
class Orders:
    """``orders.json``: everything coordinator and agents need beside the files next to it.

    Strings are exact: bytes that are not UTF-8 travel as surrogate escapes. ``command`` is the
    final argument list of a rank (``PYTHON -u script args``), ``environment`` what the user asked
    for on top of what the job inherits.
    ``launch`` is the argument list that starts one agent per node with the secret on its stdin
    (an ``srun``); empty: the coordinator starts the agents itself, all on this machine.
    ``hide_gpus``: nobody asked for GPUs, so neither the check nor ranks may see those of the machine.
    ``node_gpus``: GPUs are those of the node, and Slurm gave none.
    ``input`` is the file that each rank gets as standard input ('': none).
    ``pipes_output``: ranks write to pipes, because they open ``/dev/stdout`` or ``/dev/stderr`` by name.
    ``time_limit`` is in seconds, 0 where the scheduler keeps the time. ``nodes`` is how many train, at
    most where ``min_nodes`` (0: exactly ``nodes``) may do, and ``elastic`` where attempts may differ in that;
    ``spares`` more are allocated, for those that turn out to be unfit. ``in_allocation``: the job is
    of the user's, which is there before and after the run: nobody gives it back. ``shape`` is which of
    several shapes of the run this is, -1 where it has but one.
    ``grace`` and ``kill_wait`` are the seconds from TERM to KILL: of the other ranks after a failure, and of
    all ranks when the run is ended (cancel, time limit, preemption), a little less than Slurm gives.
    """

    run_id: str
    run_name: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    cpus_per_rank: int
    command: tuple[str, ...]
    cwd: str
    environment: tuple[tuple[str, str], ...] = ()
    launch: tuple[str, ...] = ()
    per_node: bool = False
    max_restarts: int = 0
    time_limit: float = 0.0
    spares: int = 0
    min_nodes: int = 0
    elastic: bool = False
    preflight: Preflight = Preflight()
    watch: WatchOrders = WatchOrders()
    survival: Survival = Survival()
    grace: float = contract.GRACE_SECONDS
    kill_wait: float = contract.KILL_WAIT_SECONDS
    hide_gpus: bool = False
    input: str = ""
    pipes_output: bool = False
    node_gpus: bool = False
    interpreter: Interpreter = Interpreter()
    container: Container = Container()
    in_allocation: bool = False
    shape: int = -1
    format: int = contract.FORMAT

    @property
    def allocated(self) -> int:
        """How many nodes there are in all: those that train and the spares."""
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
