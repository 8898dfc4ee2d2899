"""Define a validated submission as the user requested it, without defaults of a site."""

from __future__ import annotations

import enum
import re

from clusterrun.model import container, gpu_request, limits, node_range
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS
from clusterrun.model.orders import Level


class Cluster(enum.Enum):
    """The place of a run. ``AUTO`` is resolved before planning."""

    AUTO = "auto"
    SLURM = "slurm"
    LOCAL = "local"


class OnUnfit(enum.Enum):
    """The reaction to too few fit nodes: end the run, or queue it again without the unfit ones."""

    FAIL = "fail"
    RESUBMIT = "resubmit"


# ``max_restarts`` if the user did not set it: 0, or ``RESTARTS`` if the run can continue in another job.
UNSAID = -1
RESTARTS = 3
# Seconds: the longest time that sbatch accepts for ``--signal``.
LONGEST_NOTICE = 65535

# Name of a variable that every shell between the user and a rank passes on.
_VARIABLE = r"(?a)[A-Za-z_][A-Za-z0-9_]*"


@frozen
class JobSpec:
    """One submission as requested. Empty strings and zeros mean "not set". Raises ``BadInput``."""

    command: tuple[str, ...]  # as typed: ``train.py --lr 1``, ``-m pkg.mod``, ``./program``
    cwd: str  # absolute
    name: str = ""
    nodes: int = 1  # the most nodes that train
    min_nodes: int = 0  # the least; 0: exactly ``nodes``
    elastic: bool = False  # attempts may differ in the number of nodes
    gpus: int = 0  # per node
    gpu_type: str = ""  # '': any
    gpus_from: str = "slurm"  # ``slurm``: requested from Slurm; ``node``: those of whole nodes
    ranks_per_node: int = 0  # CPU ranks, if ``gpus`` is 0
    cpus_per_rank: int = 0
    time: int = 0  # seconds; 0: the site's default
    # Least time limit in seconds if a job with ``time`` cannot start; 0: ``time``
    time_min: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: str = ""
    nodelist: str = ""
    mem: str = ""
    sbatch: tuple[str, ...] = ()  # ``KEY`` or ``KEY=VALUE``, without leading dashes
    srun: tuple[str, ...] = ()  # the same
    setup: tuple[str, ...] = ()  # shell lines
    environment: tuple[tuple[str, str], ...] = ()  # exact strings, with surrogate escapes for foreign bytes
    python: str = ""
    container: str = ""
    mount: tuple[str, ...] = ()
    container_runtime: str = ""
    template: str = ""
    cluster: Cluster = Cluster.AUTO
    per_node: bool = False
    numa_binding: str = ""  # as torchrun's; '': ranks are not bound
    input: str = ""  # file that each rank reads as standard input; '': none, ``-``: the input of the command
    snapshot: bool = False
    snapshot_include: tuple[str, ...] = ()
    max_restarts: int = UNSAID
    requeue: bool | None = None  # None: not said, so the site decides whether Slurm may requeue the job
    requeue_by: str = ""  # one of ``contract.REQUEUE_WORDS``; implies ``requeue``
    max_preemptions: int = 20
    max_time_limits: int = 20
    notice: int = 120  # seconds
    kill_wait: int = 0  # seconds from SIGTERM to SIGKILL when the run is ended
    no_progress: int = 3
    on_event: str = ""  # shell line
    notify: tuple[str, ...] = ()  # addresses of messages; in the record of a run, their shortened forms
    after: tuple[str, ...] = ()
    spares: int = 0
    preflight: str = ""  # value of a ``Level``; '': full if several nodes train, else quick
    preflight_budget: int = 60  # seconds
    preflight_limit: tuple[tuple[str, float], ...] = ()  # numbers by name
    check_command: tuple[str, ...] = ()
    on_unfit: OnUnfit = OnUnfit.FAIL
    avoid_bad: bool = False
    bad_since: int = 7 * 86400  # greatest age of a finding that counts, in seconds
    hang_after: int = 600  # seconds; 0: hangs are not detected
    on_hang: str = "report"
    alone: bool = False  # only the pre-flight check runs
    all_pairs: bool = False
    table: bool = False  # the check measures collectives by size, and the bandwidth of each GPU
    burn: int = 0  # seconds of load on the GPUs in a check

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise BadInput("there is no command to run", "say what to run: clusterrun submit train.py")
        if self.command == ("-m",):
            raise BadInput("-m needs a module", "say which: clusterrun submit -m package.module")
        for field, row in _NUMBERS:
            setting = getattr(self, field)
            if setting < row.least and setting != row.default:
                problem = f"--{row.name} must be at least {row.least}, not {setting}"
                raise BadInput(problem, f"give --{row.name} {row.least} or more")
        for field, row in _CHOICES:
            setting = getattr(self, field)
            if setting and getattr(setting, "value", setting) not in row.choices:
                remedy = f"give {' or '.join(row.choices)}"
                raise BadInput(f"--{row.name} must not be {setting!r}", remedy)
        if self.gpus and self.ranks_per_node not in (0, self.gpus) and not self.per_node:
            problem = (
                f"--ranks-per-node {self.ranks_per_node} with --gpus {self.gpus}: every GPU has one rank"
            )
            raise BadInput(problem, "leave --ranks-per-node out, or use --gpus 0 for CPU ranks")
        if self.gpus_from_node and self.gpu_type:
            problem = f"--gpus {self.gpus_asked} with --gpus-from node: Slurm is not asked for a type of GPU"
            remedy = f"name such nodes: --gpus {self.gpus} --constraint {self.gpu_type}, or --partition"
            raise BadInput(problem, remedy)
        for name, value in self.environment:
            if not re.fullmatch(_VARIABLE, name) or "\0" in value:
                problem = f"--env {name!r}: not the name of a variable, or a NUL character in its value"
                remedy = "a name has letters, digits and _, and no digit first: --env KEY=VALUE or --env KEY"
                raise BadInput(problem, remedy)
        if self.numa_binding and (self.per_node or not self.gpus):
            problem = "--numa-binding without --gpus: a rank is bound to processors near its GPU"
            remedy = "give --gpus, or leave --numa-binding out"
            if self.per_node:
                problem = "--numa-binding with --per-node: clusterrun does not start the ranks"
                remedy = "let the launcher bind them: torchrun --numa-binding"
            raise BadInput(problem, remedy)
        if 0 < self.time < self.time_min:
            raise BadInput("--time-min is longer than --time", "give a --time-min below --time")
        if not self.container and (self.mount or self.container_runtime):
            option = "--mount" if self.mount else "--container-runtime"
            raise BadInput(f"{option} without a container", "name its image: --container IMAGE")
        if self.container.startswith("-") or not self.container.isprintable():
            raise BadInput(f"--container {self.container!r} is not an image", "give a path, or a name")
        for text in self.mount:
            container.mount(text)
        for command in self.check_command:
            if not command.strip() or "\0" in command:
                raise BadInput(f"--check-command {command!r} is no command", "give a line for a shell")
        if self.alone and self.preflight == Level.OFF.value:
            raise BadInput("a check with --preflight off checks nothing", "say full or quick")
        try:
            limits.chosen(self.preflight_limit)
        except ValueError as error:
            remedy = "clusterrun help preflight says what each means"
            raise BadInput(f"--preflight-limit: {error}", remedy) from error
        if self.notice > LONGEST_NOTICE:
            problem = f"--notice must be at most {LONGEST_NOTICE} s, not {self.notice} s"
            raise BadInput(problem, f"give --notice {LONGEST_NOTICE}s or less")
        if "\0" in self.on_event:
            raise BadInput("--on-event has a NUL character in it", "leave it out")

    @property
    def goes_on(self) -> str:
        """Return how the run continues in another job, from ``contract.REQUEUE_WORDS``; '' if it does not."""
        return self.requeue_by or ("requeue" if self.requeue else "")

    @property
    def restarts(self) -> int:
        if self.max_restarts != UNSAID:
            return self.max_restarts
        return RESTARTS if self.spares or self.goes_on else 0

    @property
    def level(self) -> Level:
        return Level(self.preflight or ("full" if self.nodes > 1 or self.alone else "quick"))

    @property
    def fits_holes(self) -> bool:
        return bool(self.min_nodes or self.time_min)

    @property
    def nodes_asked(self) -> str:
        """Return the nodes that train, ``4`` or ``1-4``."""
        return node_range.as_text(self.nodes, self.min_nodes)

    @property
    def least_allocated(self) -> int:
        """Return the least number of nodes that a job needs to start, spares included."""
        return (self.min_nodes or self.nodes) + self.spares

    @property
    def allocated(self) -> int:
        """Return the most nodes of a job: those that train and their spares."""
        return self.nodes + self.spares

    @property
    def gpus_asked(self) -> str:
        return gpu_request.as_text(self.gpus, self.gpu_type)

    @property
    def gpus_from_node(self) -> bool:
        """Return whether the job takes whole nodes with their GPUs, without a GPU request to Slurm."""
        return bool(self.gpus) and self.gpus_from == "node"

    @property
    def local_size(self) -> int:
        return self.ranks_per_node or self.gpus or 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.local_size


_FIELDS = [
    (option.field, option) for option in CONFIGURABLE.values() if option.field in JobSpec.__annotations__
]
_NUMBERS = [pair for pair in _FIELDS if pair[1].kind in ("number", "gpus", "nodes", *DURATIONS)]
_CHOICES = [pair for pair in _FIELDS if pair[1].choices]
