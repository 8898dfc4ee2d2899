"""One look at the ranks of a job that clusterrun did not start: values that the nodes report."""

from __future__ import annotations

from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.model.frozen import frozen
from clusterrun.model.usage import GpuUse

NOT_INSTALLED = "py-spy is not installed there"
NO_PYTHON = "they run no Python"


@frozen
class RankName:
    """The number and the world of a rank, by its variables.

    variable: the variable that numbers it; '' if none does
    rank: its number; -1: unknown
    size: ranks of its world; 0: unknown
    step: the job step that it is in
    address: ``MASTER_ADDR:MASTER_PORT``
    parent: the process that started it
    task: its number among the tasks of its step; -1: unknown
    layout: how many tasks of its step each node has, as Slurm writes it: ``3,1`` or ``2(x4)``
    spawned: its index among the processes of ``torch.multiprocessing.spawn``; -1: it is none of them
    own: the number that a variable of its script shows; -1: none
    """

    variable: str
    rank: int
    size: int
    step: str = ""
    address: str = ""
    parent: int = 0
    task: int = -1
    layout: str = ""
    spawned: int = -1
    own: int = -1


@frozen
class SeenRank:
    """A rank as its node saw it. The number in ``snapshot`` is not final: other nodes may have the same.

    counters: ``NAME=NUMBER`` of variables of the script that count steps
    numbers, before: the same of all its whole numbers, at the end of the look and at its beginning
    changed: its main thread ran during the look, and came to another place
    """

    name: RankName
    snapshot: RankSnapshot
    counters: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    changed: bool = False


@frozen
class SeenLauncher:
    """A launcher: its program, state, and its main thread's stack if it has started no rank.

    nodes: the fewest nodes that it starts ranks on, by its arguments; 0: unknown
    """

    name: str
    pid: int
    state: str
    stack: tuple[str, ...] = ()
    nodes: int = 0


@frozen
class JobLook:
    """The processes of a job on one node.

    clock: its wall clock when it began
    processes: processes of the job on it
    programs: the programs that these run, if none is a rank
    problems: why stacks or variables could not be read, in sentences
    ras: ranks in which NCCL's RAS service listens
    """

    node: str
    clock: float
    ranks: tuple[SeenRank, ...] = ()
    launchers: tuple[SeenLauncher, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    processes: int = 0
    problems: tuple[str, ...] = ()
    ras: int = 0
    programs: tuple[str, ...] = ()
