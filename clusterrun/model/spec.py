"""What a user asks for, validated; knows no scheduler's syntax, no disk and no defaults of a site."""

from __future__ import annotations

import enum
import re

from clusterrun.model import container, gpu_request, limits, node_range, shapes
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS
from clusterrun.model.orders import Level


class Cluster(enum.Enum):
    """Where a run goes; ``AUTO`` is decided before anything is planned."""

    AUTO = "auto"
    SLURM = "slurm"
    LOCAL = "local"


class OnUnfit(enum.Enum):
    """What happens with too few fit nodes: the run ends, or is queued again without the unfit ones."""

    FAIL = "fail"
    RESUBMIT = "resubmit"


UNSAID = -1
"""A ``max_restarts`` that nobody said: then it is 0, or ``RESTARTS`` where a run can survive more."""
RESTARTS = 3
LONGEST_NOTICE = 65535
"""Seconds; sbatch takes no longer time for ``--signal``."""

_VARIABLE = r"(?a)[A-Za-z_][A-Za-z0-9_]*"
"""A name that every shell on the way to a rank hands on."""


@frozen
class JobSpec:
    """One submission, as asked. Empty strings and zeros mean "not said".

    ``command`` is as typed (``train.py --lr 1``, ``-m pkg.mod``, ``./program``); ``cwd`` is
    absolute. ``time`` is in seconds (0: the site's default; the duration as typed is not kept), and so is
    ``time_min``: with less than ``time`` the job may start where it would not end in time (0: with no less).
    ``nodes`` is the most that train, ``min_nodes`` the least (0: exactly ``nodes``). ``elastic``: attempts
    may differ in how many. ``shapes`` are several sizes, of which the first that starts is kept.
    ``gpus`` is per node, of ``gpu_type`` ('': any); Slurm is asked for them, or with ``gpus_from``
    ``node`` they are those of whole nodes. With 0 of them ``ranks_per_node`` CPU ranks run on each
    node.
    ``environment`` pairs are exact strings (surrogate escapes for foreign bytes). ``sbatch`` and
    ``srun`` are ``KEY`` or ``KEY=VALUE`` without dashes in front, ``setup`` shell lines.
    ``input`` is the file that each rank gets as standard input ('': none, ``-``: what the command gets).
    ``preflight`` is a ``Level``'s word; not said: full where more than one node trains, else quick.
    ``preflight_budget`` and ``bad_since`` (how old a finding may be that counts) are in seconds,
    ``preflight_limit`` numbers by name. ``hang_after`` is in seconds, 0: a hang is not looked for.
    ``alone``: nothing but the pre-flight check is run. ``requeue_by`` is of ``contract.REQUEUE_WORDS``
    and implies ``requeue``; ``notice`` is in seconds, ``on_event`` a shell line. ``kill_wait`` is the seconds
    from SIGTERM to SIGKILL when the run is ended (0: not said).
    Raises ``BadInput``.
    """

    command: tuple[str, ...]
    cwd: str
    name: str = ""
    nodes: int = 1
    min_nodes: int = 0
    elastic: bool = False
    shapes: str = ""
    gpus: int = 0
    gpu_type: str = ""
    gpus_from: str = "slurm"
    ranks_per_node: int = 0
    cpus_per_rank: int = 0
    time: int = 0
    time_min: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    exclude: str = ""
    nodelist: str = ""
    mem: str = ""
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    python: str = ""
    container: str = ""
    mount: tuple[str, ...] = ()
    container_runtime: str = ""
    template: str = ""
    cluster: Cluster = Cluster.AUTO
    per_node: bool = False
    input: str = ""
    snapshot: bool = False
    snapshot_include: tuple[str, ...] = ()
    max_restarts: int = UNSAID
    requeue: bool = False
    requeue_by: str = ""
    max_preemptions: int = 20
    max_time_limits: int = 20
    notice: int = 120
    kill_wait: int = 0
    no_progress: int = 3
    on_event: str = ""
    after: tuple[str, ...] = ()
    spares: int = 0
    preflight: str = ""
    preflight_budget: int = 60
    preflight_limit: tuple[tuple[str, float], ...] = ()
    check_command: tuple[str, ...] = ()
    on_unfit: OnUnfit = OnUnfit.FAIL
    avoid_bad: bool = False
    bad_since: int = 7 * 86400
    hang_after: int = 600
    on_hang: str = "report"
    alone: bool = False
    all_pairs: bool = False

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise BadInput("there is no command to run", "say what to run: clusterrun submit train.py")
        if self.command == ("-m",):
            raise BadInput("-m needs a module", "say which: clusterrun submit -m package.module")
        self._check_table()
        if self.gpus and self.ranks_per_node not in (0, self.gpus) and not self.per_node:
            seen = f"--ranks-per-node {self.ranks_per_node} with --gpus {self.gpus}: every GPU has one rank"
            raise BadInput(seen, "leave --ranks-per-node out, or use --gpus 0 for CPU ranks")
        if self.gpus_from_node and self.gpu_type:
            seen = f"--gpus {self.gpus_asked} with --gpus-from node: Slurm is not asked for a type of GPU"
            remedy = f"name such nodes: --gpus {self.gpus} --constraint {self.gpu_type}, or --partition"
            raise BadInput(seen, remedy)
        for name, value in self.environment:
            if not re.fullmatch(_VARIABLE, name) or "\0" in value:
                seen = f"--env {name!r}: not the name of a variable, or a NUL character in its value"
                remedy = "a name has letters, digits and _, and no digit first: --env KEY=VALUE or --env KEY"
                raise BadInput(seen, remedy)
        self._check_room()
        self._check_container()
        self._check_preflight()
        self._check_survival()

    def _check_table(self) -> None:
        for field, option in _NUMBERS:
            value = getattr(self, field)
            if value < option.least and value != option.default:
                seen = f"--{option.name} must be at least {option.least}, not {value}"
                raise BadInput(seen, f"give --{option.name} {option.least} or more")
        for field, option in _CHOICES:
            value = getattr(self, field)
            if value and getattr(value, "value", value) not in option.choices:
                remedy = f"give {' or '.join(option.choices)}"
                raise BadInput(f"--{option.name} must not be {value!r}", remedy)

    def _check_room(self) -> None:
        if self.min_nodes > self.nodes:
            seen = f"--nodes {self.min_nodes}-{self.nodes}: the least comes first"
            raise BadInput(seen, "give --nodes 1-4")
        shapes.read(self.shapes)
        if 0 < self.time < self.time_min:
            raise BadInput("--time-min is longer than --time", "give a --time-min below --time")

    def _check_container(self) -> None:
        if not self.container and (self.mount or self.container_runtime):
            option = "--mount" if self.mount else "--container-runtime"
            raise BadInput(f"{option} without a container", "name its image: --container IMAGE")
        if self.container.startswith("-") or not self.container.isprintable():
            raise BadInput(f"--container {self.container!r} is not an image", "give a path, or a name")
        for said in self.mount:
            container.mount(said)

    def _check_preflight(self) -> None:
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

    def _check_survival(self) -> None:
        if self.notice > LONGEST_NOTICE:
            seen = f"--notice must be at most {LONGEST_NOTICE} s, not {self.notice} s"
            raise BadInput(seen, f"give --notice {LONGEST_NOTICE}s or less")
        if "\0" in self.on_event:
            raise BadInput("--on-event has a NUL character in it", "leave it out")

    @property
    def goes_on(self) -> str:
        """How the run goes on in another job, of ``contract.REQUEUE_WORDS``; '' where it does not."""
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
    def shape_words(self) -> tuple[str, ...]:
        """Each shape as it was written; none where there is no choice."""
        return tuple(word for word, _ in shapes.read(self.shapes))

    @property
    def said_by_shapes(self) -> tuple[str, ...]:
        return tuple({name: "" for _, said in shapes.read(self.shapes) for name, _ in said})

    def shaped(self, shape: int) -> JobSpec:
        return replace(self, **dict(shapes.read(self.shapes)[shape][1]))

    @property
    def fits_holes(self) -> bool:
        return bool(self.min_nodes or self.time_min)

    @property
    def nodes_asked(self) -> str:
        """The nodes that train, ``4`` or ``1-4``."""
        return node_range.said(self.nodes, self.min_nodes)

    @property
    def least_allocated(self) -> int:
        """Nodes in all without which no job starts."""
        return (self.min_nodes or self.nodes) + self.spares

    @property
    def allocated(self) -> int:
        """Nodes in all, at most: those that train and their spares."""
        return self.nodes + self.spares

    @property
    def gpus_asked(self) -> str:
        return gpu_request.said(self.gpus, self.gpu_type)

    @property
    def gpus_from_node(self) -> bool:
        """Whether the job takes whole nodes with their GPUs, of which Slurm is told nothing."""
        return bool(self.gpus) and self.gpus_from == "node"

    @property
    def local_size(self) -> int:
        return self.ranks_per_node or self.gpus or 1

    @property
    def world_size(self) -> int:
        return self.nodes * self.local_size


_FIELDS = [(one.field, one) for one in CONFIGURABLE.values() if one.field in JobSpec.__annotations__]
_NUMBERS = [one for one in _FIELDS if one[1].kind in ("number", "gpus", "nodes", *DURATIONS)]
_CHOICES = [one for one in _FIELDS if one[1].choices]
