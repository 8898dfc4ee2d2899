"""Look at the ranks of a job that clusterrun did not start, on this node, within a time limit.

A rank that moves is never stopped: py-spy reads it without blocking it. A rank whose main thread does not run
is read a second time with its native frames, which stops it for some milliseconds and costs it nothing.
"""

from __future__ import annotations

import base64
import json
import os
import select
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

from clusterrun import proc
from clusterrun.diagnosis.job_looks import JobLook, SeenLauncher
from clusterrun.diagnosis.spied_process import SpiedProcess
from clusterrun.diagnosis.stacks import TOGETHER, Doing, frame_of_worker, joins_processes, location
from clusterrun.model.document import encode_set
from clusterrun.model.frozen import replace
from clusterrun.model.usage import GpuUse
from clusterrun.model.visible_gpus import VISIBLE_VARIABLES, named
from clusterrun.monitor.external_tools import GPU_PROGRAM, find_program
from clusterrun.monitor.job_processes import (
    JobProcess,
    JobProcesses,
    RankProcess,
    of_job,
    sorted_out,
    within_limit,
)
from clusterrun.monitor.rank_look import RankLook, moment_of
from clusterrun.monitor.sampling import count, use_between
from clusterrun.monitor.seen_rank import seen_rank
from clusterrun.monitor.stack_reader import StackReader, loads, refusal
from clusterrun.monitor.torch_dumps import servers_of, stacks_of_servers, with_flight_records

# A line of srun's output of up to 1,024 bytes is not mixed with lines of other nodes.
LINE = 900
MARK = "clusterrun-look"
# Seconds until the first sample of a job's use.
FIRST_USE_SECONDS = 1.0
# Seconds after which the samples end, if the client has gone without ending the step.
MOST_USE_SECONDS = 6 * 3600.0
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


class JobLooker:
    """A look at the ranks of job ``job_id`` on ``node``. ``own_step`` is the step of this process."""

    def __init__(self, job_id: str, node: str, own_step: str, path: str) -> None:
        self._node, self._path = node, path
        self._processes: JobProcesses = sorted_out(of_job(job_id, own_step, node), loads_torch)
        self._reader = StackReader(path)

    def look(self, seconds: float) -> JobLook:
        """Return what this node shows. It takes ``seconds``, and some more to read the stacks."""
        clock = time.time()
        gpus = self._gpus()
        ranks = self._with_spawned(self._processes.ranks)
        began = time.monotonic()
        looks = [RankLook(rank) for rank in ranks]
        first = self._reader.read([look.pid for look in looks])
        # The thread that trains may be another than the main thread, whose state says nothing then.
        threads = {pid: stacks.thread for pid, stacks in first.items() if stacks.thread}
        moments = {pid: moment_of(pid, thread) for pid, thread in threads.items()}
        first.update(self._reader.read(list(threads)))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        length = time.monotonic() - began
        for look in looks:
            look.before = moments.get(look.pid, look.before)
            look.after = moment_of(look.pid, threads.get(look.pid, 0))
            look.first = first[look.pid]
        self._read_second([look for look in looks if not look.is_still])
        # A rank that spins while it waits for its GPU stays in one place. Only native frames show that.
        in_place = [look for look in looks if look.is_still or (look.is_in_one_place and uses_gpu(look.pid))]
        self._read_second([look for look in in_place if look.may_be_in_torch], native=True)
        settled = [look.rank for look in looks if look.is_still or look.is_in_one_place]
        servers = servers_of(ranks)
        mute = {pid: servers[pid] for look in looks if (pid := look.pid) in servers and not look.last.main}
        stacks_by_pid = stacks_of_servers(mute)
        tcp = proc.TcpTables()
        observed = []
        for look in looks:
            if look.pid in stacks_by_pid:
                look.second = SpiedProcess(main=stacks_by_pid[look.pid])
            observed.append(seen_rank(look, self._node, length, self._reader, tcp))
        observed = with_flight_records(observed, settled, servers)
        launchers = tuple(self._launcher(process, bool(observed)) for process in self._processes.launchers)
        problems = self._reader.problems
        if self._processes.unreadable:
            pids = self._processes.unreadable
            problems.append(f"the variables of {len(pids)} processes cannot be read: {refusal(pids[0])}")
        return JobLook(
            self._node,
            clock,
            tuple(observed),
            launchers,
            gpus,
            self._processes.count,
            tuple(problems),
            () if observed else self._processes.programs,
        )

    def _gpus(self) -> tuple[GpuUse, ...]:
        """Return the use of the node's GPUs; () if the job uses none, or nothing reports it."""
        if not any(map(_has_gpu, self._processes.ranks)):
            return ()
        has_program = find_program(GPU_PROGRAM, self._path.split(os.pathsep))
        if not has_program and not any(map(os.path.exists, GPU_DEVICES)):
            return ()
        from clusterrun.monitor.gpu_reader import GpuWatch  # most looks of jobs need no such module

        gpu_watch = GpuWatch(self._path)  # it forks, so it comes before any thread
        gpus = gpu_watch.look()
        gpu_watch.close()
        return gpus

    def _read_second(self, looks: Sequence[RankLook], native: bool = False) -> None:
        stacks = self._reader.read([look.pid for look in looks], native)
        for look in looks:
            if stacks[look.pid].main:
                look.second = stacks[look.pid]

    def _with_spawned(self, ranks: Sequence[RankProcess]) -> list[RankProcess]:
        """Replace a process that waits for ranks that it started by ``multiprocessing`` by these."""
        stacks = self._reader.read([rank.pid for rank in ranks if proc.children(rank.pid)])
        result: list[RankProcess] = []
        for rank in ranks:
            parent = stacks.get(rank.pid, SpiedProcess())
            result += (self._spawned_by(rank, parent) if _has_started_ranks(rank, parent) else []) or [rank]
        return result

    def _spawned_by(self, rank: RankProcess, parent: SpiedProcess) -> list[RankProcess]:
        """Return the children of a process that are ranks.

        ``torch.multiprocessing.spawn`` numbers them. Others are ranks if one of them is in a collective.
        """
        children = self._reader.read([child.pid for child in proc.children(rank.pid)])
        numbered = {pid: child.spawned for pid, child in children.items() if child.spawned >= 0}
        names = {}
        if numbered:
            # The process with the highest number may have ended.
            number = max(parent.spawns, max(numbered.values()) + 1)
            size = rank.name.size * number if rank.name.variable else 0
            first = max(0, rank.name.rank) * number
            for pid, index in numbered.items():
                name = replace(rank.name, rank=first + index, size=size, parent=rank.pid)
                names[pid] = replace(name, spawned=index, spawns=number)
        else:
            meets = [pid for pid, child in children.items() if location(child.main).doing in TOGETHER]
            name = replace(rank.name, variable="", rank=-1, size=0, task=-1, parent=rank.pid)
            for pid, child in children.items():
                if meets and (pid in meets or frame_of_worker(child.main)):
                    names[pid] = name
        return [RankProcess(name, pid, rank.environment) for pid, name in names.items()]

    def _launcher(self, process: JobProcess, has_ranks: bool) -> SeenLauncher:
        stack: tuple[str, ...] = ()
        if process.is_python and not has_ranks:
            stack = self._reader.read([process.pid])[process.pid].main
        state = proc.find_alive(process.pid)
        letter = state.state if state else ""
        meets = process.rendezvous("endpoint"), process.rendezvous("id")
        return SeenLauncher(process.launcher, process.pid, letter, stack, process.least_nodes, *meets)


def _has_started_ranks(rank: RankProcess, stacks: SpiedProcess) -> bool:
    """Return whether a process may have started ranks by ``multiprocessing``, and waits for them."""
    if location(stacks.main).doing is not Doing.USER:
        return False
    if joins_processes(stacks.main):
        return True
    paths = [f"/proc/{child.pid}/cmdline" for child in proc.children(rank.pid)]
    lines = within_limit(lambda: [proc.content(path) for path in paths], [])
    return any(b"multiprocessing.spawn" in line for line in lines)


def _has_gpu(rank: RankProcess) -> bool:
    """Return whether a rank, or a process that it started, was given a GPU or has opened one."""
    pids = (rank.pid, *(child.pid for child in proc.children(rank.pid)))
    return any(named(rank.environment.get(name, "")) for name in VISIBLE_VARIABLES) or any(
        map(uses_gpu, pids)
    )


def uses_gpu(pid: int) -> bool:
    return any(path.startswith(("/dev/nvidia", "/dev/kfd")) for path in proc.descriptors(pid).values())


def loads_torch(pid: int) -> bool:
    """Return whether a process has loaded torch's library."""
    return loads(pid, b"libtorch")


def look_at_job(job_id: str, seconds: float, environment: Mapping[str, str], node: str) -> Iterator[str]:
    """Yield the lines that carry this node's look to the client."""
    step, path = environment.get("SLURM_STEP_ID", ""), environment.get("PATH", os.defpath)
    yield from lines_of(node, JobLooker(job_id, node, step, path).look(seconds))


def use_of_job(job_id: str, every: float, environment: Mapping[str, str], node: str) -> Iterator[str]:
    """Yield the lines that carry how the job uses this node, again and again, until no rank is left."""
    from clusterrun.monitor.gpu_reader import GpuWatch

    gpus = GpuWatch(environment.get("PATH", os.defpath))
    gpus.look()  # it forks, so it comes before any thread
    ranks = sorted_out(of_job(job_id, environment.get("SLURM_STEP_ID", ""), node), loads_torch).ranks
    numbers = {rank.pid: rank.name.rank for rank in ranks}
    # Several worlds may have ranks of one number, so the samples are by process.
    pids = {rank.pid: rank.pid for rank in ranks}
    before = count(time.monotonic(), pids)
    pause = min(every, FIRST_USE_SECONDS)
    until = time.monotonic() + MOST_USE_SECONDS
    while time.monotonic() < until:
        if select.select([0], [], [], pause)[0] and not os.read(0, 1):
            return  # the client has gone
        after = count(time.monotonic(), pids)
        use = use_between(node, before, after, gpus)
        numbered = (replace(rank, rank=numbers[rank.rank], pid=rank.rank) for rank in use.ranks)
        yield from lines_of(node, replace(use, ranks=tuple(numbered)))
        before, pause = after, every
        if pids and not after.ranks:
            return


def lines_of(node: str, value: object) -> Iterator[str]:
    """Yield lines that srun does not mix with those of other nodes: mark, node, place, count, data."""
    packed = base64.b64encode(zlib.compress(json.dumps(encode_set(value)).encode())).decode()
    parts = [packed[index : index + LINE] for index in range(0, len(packed), LINE)]
    for index, part in enumerate(parts):
        yield f"{MARK} {node} {index} {len(parts)} {part}"
