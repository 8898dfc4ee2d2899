"""Find the processes of a Slurm job on this node, and tell its ranks from their launchers.

A job that clusterrun did not start has ranks of torchrun, srun, mpirun, accelerate, DeepSpeed, Lightning, Ray
or ``multiprocessing``. Each gives its ranks other variables, or none.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.job_looks import DRIVER, RankName
from clusterrun.model import contract
from clusterrun.model.frozen import Any, frozen, replace

# Seconds to read a process's variables. The reader waits while the process holds its memory map.
READ_SECONDS = 0.5
_JOB = re.compile(rb"/job_(\d+)(?:/step_(\w+))?")
# Variables that number ranks, the most specific first, with the variable of the world's size.
_NUMBERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
# The arguments that number a rank where no variable does. LoRA has a rank too, but no world.
_RANK_ARGUMENT = re.compile(r"\0--(?:global[-_])?rank[=\0](\d+)\0")
_WORLD_ARGUMENT = re.compile(r"\0--world(?:[-_]size)?[=\0](\d+)\0")
# The title of the daemon that starts the tasks of a step: ``slurmstepd: [41.0]``.
_DAEMON_TITLE = re.compile(rb"slurmstepd: \[(\d+)\.(\w+)\]")
SLURM_TASK, SLURM_TASKS = "SLURM_PROCID", "SLURM_NTASKS"
LOCAL_RANK = "LOCAL_RANK"
_LAUNCHERS = frozenset(
    ("accelerate", "deepspeed", "gcs_server", "hydra_pmi_proxy", "lightning", "mpiexec", "mpiexec.hydra")
    + ("mpirun", "orted", "prte", "prted", "prterun", "ray", "raylet", "srun", "torchrun")
)
_LAUNCHER_MODULES = re.compile(
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.\w+|deepspeed\.launcher\.\w+|lightning\.fabric\.cli"
)
_NODES = re.compile(r"\0--(?:nnodes|num[_-]machines)[=\0](\d+)")
_HELPERS = re.compile(r"multiprocessing\.(?:resource_tracker|forkserver)|torch/_inductor/compile_worker")
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
# Variables of processes that clusterrun has started beside the ranks.
_BESIDE = frozenset((contract.BESIDE_VARIABLE, contract.RANK_PID_VARIABLE))
_DAEMONS = frozenset(("slurmstepd",))
# Ray tells its workers their ranks by messages.
_RAY = frozenset(("ray", "raylet"))
UNNUMBERED, RAY_DRIVER = RankName("", -1, 0), RankName(DRIVER, -1, 0)


@frozen
class JobProcess:
    """A process of the job, with the variables and the arguments it was started with."""

    process: proc.Process
    environment: Mapping[str, str]
    arguments: tuple[str, ...]
    program: str  # name of the file that it runs
    step: str  # the number or the name of its job step
    is_complete: bool = True  # its variables could be read

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_python(self) -> bool:
        return bool(_PYTHON.fullmatch(self.program))

    @property
    def launcher(self) -> str:
        """Return the launcher that it runs; '' if it is none."""
        for word in self.arguments[:6]:
            name = os.path.basename(word)
            if name in _LAUNCHERS:
                return name
            if _LAUNCHER_MODULES.fullmatch(word):
                package = word.partition(".")[0]
                return "torchrun" if package == "torch" else package
        return self.program if self.program in _LAUNCHERS else ""

    @property
    def least_nodes(self) -> int:
        """Return the fewest nodes that a launcher starts ranks on; 0: unknown."""
        match = _NODES.search("\0".join(self.arguments))
        return max(
            0, _digits(match[1] if match else self.environment.get("PET_NNODES", "").partition(":")[0])
        )

    def rendezvous(self, setting: str) -> str:
        """Return how a launcher meets those of other nodes: its ``--rdzv-SETTING``; '' if it names none."""
        match = re.search(rf"\0--rdzv[-_]{setting}[=\0]([^\0]+)", "\0".join(self.arguments))
        return match[1] if match else self.environment.get(f"PET_RDZV_{setting.upper()}", "")


@frozen
class RankProcess:
    """A process that is a rank, and what its variables say about its place."""

    name: RankName
    pid: int
    environment: Mapping[str, str]


@frozen
class JobProcesses:
    """The ranks of a job on this node, the launchers, and how many processes it has in all."""

    ranks: tuple[RankProcess, ...]
    launchers: tuple[JobProcess, ...]
    count: int
    unreadable: tuple[int, ...] = ()  # processes whose variables could not be read
    programs: tuple[str, ...] = ()  # the programs that they run


def of_job(job_id: str, own_step: str, node: str) -> list[JobProcess]:
    """Return the processes of the job on ``node``, without those of ``own_step``.

    The control group names the job of a process. Without control groups of Slurm the environment does, or
    Slurm's daemon above a process that was started with an empty environment (``env -i``).
    """
    mark = f"SLURM_JOB_ID={job_id}".encode()
    # This process is in the control group of its own step, if Slurm makes any. In a heterogeneous job that
    # has the number of the component, and the variable that of the whole job.
    own_group = _JOB.search(proc.content("/proc/self/cgroup"))
    processes: list[JobProcess] = []

    def examine(pid: int, environ: bytes) -> None:
        match = _JOB.search(proc.content(f"/proc/{pid}/cgroup")) if own_group else None
        inherited = ""
        if match and own_group:
            is_of_job = match[1] == own_group[1]
        else:
            is_of_job = mark in environ.split(b"\0")
            if not is_of_job and not own_group and b"SLURM_JOB_ID=" not in environ:
                # Slurm's daemon among the ancestors tells job and step.
                above = (ancestor for ancestor in map(proc.find_alive, proc.ancestors(pid)) if ancestor)
                daemon = next((ancestor.pid for ancestor in above if ancestor.name in _DAEMONS), 0)
                title = _DAEMON_TITLE.match(proc.content(f"/proc/{daemon}/cmdline"))
                job, inherited = (title[1].decode(), title[2].decode()) if title else ("", "")
                is_of_job = job == job_id
        process = proc.find_alive(pid) if is_of_job else None
        if process is None or process.name in _DAEMONS:
            return
        environment = proc.variables(environ)
        if environment.get("SLURMD_NODENAME", node) != node or not _BESIDE.isdisjoint(environment):
            return
        step = environment.get("SLURM_STEP_ID", inherited)
        if match and match[2] and not environment:
            step = match[2].decode()
        if step and step == own_step:
            return
        arguments = proc.content(f"/proc/{pid}/cmdline") if environment else b""
        argv = tuple(os.fsdecode(word) for word in arguments.split(b"\0")[:-1])
        program = _program(pid) or process.name
        processes.append(JobProcess(process, environment, argv, program, step, bool(environment)))

    pids = proc.pids()
    environs = read_each(pids, lambda pid: proc.content(f"/proc/{pid}/environ"))
    for pid in pids:
        examine(pid, environs.get(pid, b""))
    return processes


def _program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe").partition(" (deleted)")[0])
    except OSError:
        return ""


def within_limit(read: Callable[[], Any], otherwise: Any) -> Any:
    """Return the result of ``read``, or ``otherwise`` if it takes longer than ``READ_SECONDS``."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(read()), daemon=True)
    thread.start()
    thread.join(READ_SECONDS)
    return result[0] if result else otherwise


def read_each(keys: Iterable[int], read: Callable[[int], bytes]) -> dict[int, bytes]:
    """Return the result of ``read`` for each key. A key is left out if that takes over ``READ_SECONDS``."""
    results: dict[int, bytes] = {}
    waiting = list(reversed(list(keys)))

    def work() -> None:
        with suppress(IndexError):  # another thread has taken the last key
            while True:
                key = waiting.pop()
                results[key] = read(key)

    while waiting:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        count = -1
        while thread.is_alive() and count < len(results):
            count = len(results)
            thread.join(READ_SECONDS)
    return results


def sorted_out(processes: Sequence[JobProcess], loads_torch: Callable[[int], bool]) -> JobProcesses:
    """Tell the ranks from launchers, shells, data-loader workers and other helpers."""
    by_pid = {process.pid: process for process in processes}
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.process.parent, []).append(process.pid)

    def below(process: JobProcess) -> list[JobProcess]:
        pids = proc.below(process.pid, len(processes), lambda pid: children.get(pid, []))
        return [by_pid[pid] for pid in pids]

    heads = [process for process in processes if _is_head(process, by_pid.get(process.process.parent))]
    below_by_pid = {head.pid: below(head) for head in heads}
    numbered = {head.pid for head in heads if _number(head)}
    for head in [head for head in heads if head.pid in numbered]:
        # A script that sets RANK by itself hands it to the programs that it starts.
        ancestors: list[JobProcess] = []
        parent = by_pid.get(head.process.parent)
        while parent is not None and parent not in ancestors:
            ancestors.append(parent)
            parent = by_pid.get(parent.process.parent)
        above = [process for process in ancestors if process.is_python and not process.launcher]
        trainer = next(filter(_may_train, (head, *below_by_pid[head.pid])), head)
        if any(loads_torch(process.pid) for process in above) and not loads_torch(trainer.pid):
            numbered.remove(head.pid)
            heads.remove(head)
    names: dict[int, RankName] = {}
    for head in heads:
        descendants = below_by_pid[head.pid]
        if any(process.pid in numbered for process in descendants):
            continue  # it started the ranks
        if head.is_python and not head.launcher and not any(process.is_python for process in descendants):
            trainers = [head]
        else:
            trainers = _with_torch((head, *descendants), loads_torch)
            if not trainers and head.launcher not in _RAY:  # Ray starts programs of its own
                trainers = [next(filter(_may_train, (head, *descendants)), head)]
        name = _number(head) or _slurm_number(head) or UNNUMBERED
        if len(trainers) > 1 or head.launcher in _RAY:
            name = UNNUMBERED
        names.update((trainer.pid, name) for trainer in trainers if not trainer.launcher)
    names.update(_of_lightning(processes, by_pid))
    if not names:
        candidates: Sequence[JobProcess] = processes
        rays = [process for process in processes if process.launcher in _RAY]
        if rays:
            candidates = [process for ray in rays for process in below(ray)]
        trainers = _with_torch(candidates, loads_torch)
        names = {process.pid: UNNUMBERED for process in trainers}
        if not trainers and (rays or not any(process.launcher for process in processes)):
            # The script runs python without a launcher, and the program does without torch.
            of_script = [process for process in processes if not rays or process not in candidates]
            name = RAY_DRIVER if rays else UNNUMBERED
            names = {process.pid: name for process in _with_torch(of_script, lambda pid: True)}
    equal: dict[tuple[RankName, str], list[int]] = {}
    for pid, name in names.items():
        equal.setdefault((name, by_pid[pid].step), []).append(pid)
    for (name, _), pids in equal.items():
        training = [pid for pid in pids if len(pids) > 1 and name.rank >= 0 and loads_torch(pid)]
        for pid in pids if training else ():
            if pid not in training:
                del names[pid]  # a monitor that a rank's shell has started and left
    ranks = []
    for pid, name in names.items():
        process = by_pid[pid]
        environment = process.environment
        task = _slurm_number(process)
        address = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
        placed = replace(
            name,
            step=process.step,
            address="" if address == ":" else address,
            parent=process.process.parent,
            # The ranks of torchrun are numbered by it. Others may have a RANK that nobody uses.
            task=task.rank if task and "TORCHELASTIC_RUN_ID" not in environment else -1,
            layout=environment.get("SLURM_STEP_TASKS_PER_NODE", ""),
        )
        ranks.append(RankProcess(placed, pid, environment))
    launchers = []
    for process in processes:
        starter = by_pid.get(process.process.parent)
        is_outermost = starter is None or starter.launcher != process.launcher
        if process.launcher and process.pid not in names and is_outermost:
            launchers.append(process)
    unreadable = tuple(process.pid for process in processes if not process.is_complete)
    programs = tuple(sorted({process.program for process in processes}))
    return JobProcesses(tuple(ranks), tuple(launchers), len(processes), unreadable, programs)


def _is_head(process: JobProcess, parent: JobProcess | None) -> bool:
    """Return whether a rank begins with this process: its parent does not have the same number."""
    own_number = _number(process) or _slurm_number(process)
    if own_number is None or _is_helper(process):
        return False
    theirs = (_number(parent) or _slurm_number(parent)) if parent else None
    return theirs is None or (own_number.variable, own_number.rank) != (theirs.variable, theirs.rank)


def _number(process: JobProcess) -> RankName | None:
    for variable, sizes in _NUMBERS:
        number = _digits(process.environment.get(variable, ""))
        if number >= 0:
            return RankName(variable, number, max(0, _digits(process.environment.get(sizes, ""))))
    line = "\0".join(("", *process.arguments, ""))
    rank, world = _RANK_ARGUMENT.search(line), _WORLD_ARGUMENT.search(line)
    if rank and world and int(rank[1]) < int(world[1]) and process.is_python and not process.launcher:
        return RankName("--rank", int(rank[1]), int(world[1]))
    return None


def _slurm_number(process: JobProcess) -> RankName | None:
    """Return the number of a task of srun. The batch script and what it starts are no task.

    Their step has no number, or a negative one (Slurm 26.05).
    """
    number = _digits(process.environment.get(SLURM_TASK, ""))
    if number < 0 or _digits(process.environment.get("SLURM_STEP_ID", "")) < 0:
        return None
    return RankName(SLURM_TASK, number, max(0, _digits(process.environment.get(SLURM_TASKS, ""))))


def _digits(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def _with_torch(processes: Sequence[JobProcess], loads_torch: Callable[[int], bool]) -> list[JobProcess]:
    """Return the outermost processes that have loaded torch, without launchers and helpers."""
    candidates = [process for process in filter(_may_train, processes) if loads_torch(process.pid)]
    pids = {process.pid for process in candidates}
    return [process for process in candidates if process.process.parent not in pids]


def _may_train(process: JobProcess) -> bool:
    return process.is_python and not process.launcher and not _is_helper(process)


def _is_helper(process: JobProcess) -> bool:
    return any(_HELPERS.search(word) for word in process.arguments[:8])


def _of_lightning(processes: Iterable[JobProcess], by_pid: Mapping[int, JobProcess]) -> dict[int, RankName]:
    """Return the ranks that Lightning starts by itself: it gives them LOCAL_RANK and NODE_RANK only.

    Their parent is the node's first rank.
    """
    ranks = {}
    for process in processes:
        environment = process.environment
        local, parent = _digits(environment.get(LOCAL_RANK, "")), by_pid.get(process.process.parent)
        if local < 1 or _number(process) or parent is None or LOCAL_RANK in parent.environment:
            continue
        if not (process.is_python and parent.is_python) or parent.launcher:
            continue
        node, size = _digits(environment.get("NODE_RANK", "0")), _digits(environment.get("WORLD_SIZE", ""))
        siblings = [
            sibling
            for sibling in processes
            if sibling.process.parent == parent.pid and LOCAL_RANK in sibling.environment
        ]
        ranks_per_node = 1 + len(siblings)
        ranks[process.pid] = RankName(LOCAL_RANK, max(0, node) * ranks_per_node + local, max(0, size))
        ranks[parent.pid] = RankName(LOCAL_RANK, max(0, node) * ranks_per_node, max(0, size))
    return ranks
