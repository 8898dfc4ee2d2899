"""One look at the ranks of a job that clusterrun did not start: values that the nodes report."""

from __future__ import annotations

from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.model.frozen import frozen
from clusterrun.model.usage import GpuUse

NOT_INSTALLED = "py-spy is not installed there"
NO_PYTHON = "they run no Python"
DRIVER = "driver of Ray"  # in place of the variable that numbers a rank


@frozen
class RankName:
    """The number and the world of a rank, by its variables."""

    variable: str  # the variable that numbers it; '' if none does
    rank: int  # its number; -1: unknown
    size: int  # ranks of its world; 0: unknown
    step: str = ""  # the job step that it is in
    address: str = ""  # ``MASTER_ADDR:MASTER_PORT``
    parent: int = 0  # the process that started it
    task: int = -1  # its number among the tasks of its step; -1: unknown
    layout: str = ""  # how many tasks of its step each node has, as Slurm writes it: ``3,1`` or ``2(x4)``
    # its index among the processes of ``torch.multiprocessing.spawn``; -1: it is none of them
    spawned: int = -1
    spawns: int = 0  # the processes that its parent has started, as far as its node shows; 0: unknown
    own: int = -1  # the number that a variable of its script shows; -1: none


@frozen
class SeenRank:
    """A rank as its node saw it. The number in ``snapshot`` is not final: other nodes may have the same."""

    name: RankName
    snapshot: RankSnapshot
    counters: tuple[str, ...] = ()  # ``NAME=NUMBER`` of variables of the script that count steps
    # numbers, before: the same of all its whole numbers, at the end of the look and at its beginning
    numbers: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    changed: bool = False  # its main thread ran during the look, and came to another place


@frozen
class SeenLauncher:
    """A launcher: its program, state, and its main thread's stack if it has started no rank."""

    name: str
    pid: int
    state: str
    stack: tuple[str, ...] = ()
    nodes: int = 0  # the fewest nodes that it starts ranks on, by its arguments; 0: unknown
    endpoint: str = ""  # HOST:PORT at which it meets those of other nodes, by its arguments; '': unknown
    run_id: str = ""  # the name of the rendezvous, by its arguments; '': unknown


@frozen
class JobLook:
    """The processes of a job on one node."""

    node: str
    clock: float  # its wall clock when it began
    ranks: tuple[SeenRank, ...] = ()
    launchers: tuple[SeenLauncher, ...] = ()
    gpus: tuple[GpuUse, ...] = ()
    processes: int = 0  # processes of the job on it
    problems: tuple[str, ...] = ()  # why stacks or variables could not be read, in sentences
    programs: tuple[str, ...] = ()  # the programs that these run, if none is a rank
