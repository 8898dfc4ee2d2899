"""Look at the ranks of a job that clusterrun did not start, on this node, within a time limit.

A rank that moves is never stopped: py-spy reads it without blocking it. A rank whose main thread does not run
is read a second time with its native frames, which stops it for some milliseconds and costs it nothing.
"""

from __future__ import annotations

import ast
import base64
import itertools
import json
import os
import select
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import ProcessSample, PythonStacks, RankSnapshot, ThreadWait
from clusterrun.diagnosis.job_looks import NO_PYTHON, NOT_INSTALLED, JobLook, SeenLauncher, SeenRank
from clusterrun.diagnosis.spied_process import SpiedProcess, read_spied
from clusterrun.diagnosis.stacks import (
    ENDED_PYTHON,
    STORE_WAIT,
    TOGETHER,
    Doing,
    frame_of_worker,
    function_of,
    in_data_loader,
    is_in_python,
    is_library,
    joins_processes,
    line_of,
    location,
    reads_of_process,
)
from clusterrun.model.document import encode_set
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.usage import GpuUse
from clusterrun.monitor.external_tools import GPU_PROGRAM, find_program, spy_dump, spy_program
from clusterrun.monitor.job_processes import (
    JobProcess,
    JobProcesses,
    RankProcess,
    of_job,
    sorted_out,
    within_limit,
)
from clusterrun.monitor.process_sample import awaited_peer, read_sample, used
from clusterrun.monitor.sampling import count, use_between
from clusterrun.monitor.script_lines import (
    loop_around,
    mpi_call,
    open_block,
    parsed,
    passes_no_group,
    store_call,
)
from clusterrun.monitor.torch_dumps import servers_of, stacks_of_servers, with_flight_records
from clusterrun.rank_hooks.clusterrun_witness import THREAD_WAITS

# Seconds for one answer of py-spy, which usually takes 0.02 s, or 0.2 s with native frames.
SPY_SECONDS = 8.0
# All stacks of a node are read within this time.
ALL_SPIES_SECONDS = 12.0
MOST_SPIES = 16
MOST_WORKERS = 2
# A line of srun's output of up to 1,024 bytes is not mixed with lines of other nodes.
LINE = 900
MARK = "clusterrun-look"
# Seconds until the first sample of a job's use.
FIRST_USE_SECONDS = 1.0
# Seconds after which the samples end, if the client has gone without ending the step.
MOST_USE_SECONDS = 6 * 3600.0
# Without native frames, a rank that waits for others in C++ looks as if it were in user code.
NO_NATIVE = "its native frames could not be read"
# Kernel functions in which no collective sleeps for a second: the end of a program, a pipe, a FIFO without
# another end, a lock of a file, a terminal, a connection, a sleep.
_NOT_OF_TORCH = (
    *("do_wait", "pipe_", "anon_pipe_", "wait_for_partner", "fifo_open"),
    *("flock_", "locks_lock_inode", "posix_lock", "fcntl_"),
    *("n_tty_read", "inet_csk_accept", "inet_csk_wait_for_connect", "hrtimer_nanosleep", "do_nanosleep"),
    *("common_nsleep", "sigsuspend", "do_sigtimedwait", "__do_sys_pause"),
)
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")
_NONBLOCKING = ("--nonblocking", "--locals")
_NATIVE = ("--native", "--locals")
_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
# The users that may read the stacks of a process, for each value of the setting that restricts it.
_SCOPES = {
    "1": "its ancestors or root only: an administrator sets it to 0",
    "2": "root only: an administrator sets it to 0",
    "3": "no process until the node restarts",
}
_DENIED = ("permission denied", "operation not permitted")
# py-spy's message about a program that is not Python, as the shell that will start torchrun.
_NO_PYTHON = "Failed to find python version"
# py-spy's message about a process whose interpreter has ended, and has not yet begun.
_NO_INTERPRETER = "Failed to find a python interpreter"
# py-spy's message if it may not stop a process, and the value of Seccomp in /proc/PID/status with a filter.
_NO_TRACES, _FILTERED = "Failed to get stack traces", "2"


@frozen
class Moment:
    """A rank at the beginning of the look, or at its end, before py-spy may stop it."""

    # state, waits_in: of the thread that trains: the kernel's letter, '' if it is gone; the kernel function
    # that it sleeps in
    state: str
    waits_in: str
    used: float  # processor seconds of its process tree
    # switches, ran_at: of the thread that trains: how often it left a processor, and when it last ran on one,
    # in seconds of the kernel's clock; -1: unknown
    switches: int
    ran_at: float
    files: Mapping[str, int]
    output: tuple[int, float]  # where its standard output stood


class JobLooker:
    """A look at the ranks of job ``job_id`` on ``node``. ``own_step`` is the step of this process."""

    def __init__(self, job_id: str, node: str, own_step: str, path: str) -> None:
        self._node, self._path = node, path
        self._processes: JobProcesses = sorted_out(of_job(job_id, own_step, node), loads_torch)
        self._problems: dict[str, None] = {}
        self._problem_by_pid: dict[int, str] = {}
        self._until = time.monotonic() + ALL_SPIES_SECONDS
        self._tcp = proc.TcpTables()

    def look(self, seconds: float) -> JobLook:
        """Return what this node shows. It takes ``seconds``, and some more to read the stacks."""
        clock = time.time()
        gpus: tuple[GpuUse, ...] = ()
        if any(map(os.path.exists, GPU_DEVICES)) or find_program(GPU_PROGRAM, self._path.split(os.pathsep)):
            from clusterrun.monitor.gpu_reader import GpuWatch  # most looks of jobs need no such module

            gpu_watch = GpuWatch(self._path)  # it forks, so it comes before any thread
            gpus = gpu_watch.look()
            gpu_watch.close()
        ranks = self._with_spawned(self._processes.ranks)
        began = time.monotonic()
        before = {rank.pid: _moment(rank.pid) for rank in ranks}
        first = self._spied([rank.pid for rank in ranks], _NONBLOCKING)
        threads = {pid: spied.thread for pid, spied in first.items() if spied.thread}
        before.update((pid, _moment(pid, thread)) for pid, thread in threads.items())
        first.update(self._spied(list(threads), _NONBLOCKING))
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        length = time.monotonic() - began
        after = {rank.pid: _moment(rank.pid, threads.get(rank.pid, 0)) for rank in ranks}
        unmoved = [pid for pid in before if _is_still(before[pid], after[pid])]
        moving = [rank.pid for rank in ranks if rank.pid not in unmoved]
        second = {pid: spied for pid, spied in self._spied(moving, _NONBLOCKING).items() if spied.main}
        # A rank that spins while it waits for its GPU stays in one place. Only native frames show that.
        spinning = [pid for pid in second if _is_same(first[pid], second[pid]) and uses_gpu(pid)]
        unclear = [
            *(pid for pid in unmoved if _may_be_in_torch(first[pid].main, after[pid].waits_in)),
            *(pid for pid in spinning if _may_be_in_torch(first[pid].main, "")),
        ]
        native = self._spied(unclear, _NATIVE)
        second.update((pid, spied) for pid, spied in native.items() if spied.main)
        settled = [
            rank
            for rank in ranks
            if rank.pid in unmoved or _is_same(first[rank.pid], second.get(rank.pid, SpiedProcess()))
        ]
        observed = []
        servers = servers_of(ranks)
        mute = {pid: servers[pid] for pid in servers if not second.get(pid, first[pid]).main}
        second.update((pid, SpiedProcess(main=stack)) for pid, stack in stacks_of_servers(mute).items())
        for rank in ranks:
            stacks = first[rank.pid], second.get(rank.pid, first[rank.pid])
            observed.append(self._seen(rank, stacks, before[rank.pid], after[rank.pid], length))
        observed = with_flight_records(observed, settled, servers)
        launchers = tuple(self._launcher(process, bool(observed)) for process in self._processes.launchers)
        if self._processes.unreadable:
            pids = self._processes.unreadable
            self._problems.setdefault(
                f"the variables of {len(pids)} processes cannot be read: {refusal(pids[0])}"
            )
        return JobLook(
            self._node,
            clock,
            tuple(observed),
            launchers,
            gpus,
            self._processes.count,
            tuple(self._problems),
            () if observed else self._processes.programs,
        )

    def _spied(self, pids: Sequence[int], options: Sequence[str]) -> dict[int, SpiedProcess]:
        """Read several processes at a time, as many as there are processors."""
        waiting, spied = list(reversed(pids)), {pid: SpiedProcess() for pid in pids}

        def work() -> None:
            while True:
                try:
                    pid = waiting.pop()
                except IndexError:
                    return
                spied[pid] = self._spy(pid, options)

        count = min(len(pids), MOST_SPIES, max(2, os.cpu_count() or 1))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.1, self._until + SPY_SECONDS - time.monotonic()))
        return spied

    def _spy(self, pid: int, options: Sequence[str]) -> SpiedProcess:
        process = proc.find_alive(pid)
        seconds = min(SPY_SECONDS, self._until - time.monotonic())
        if process is None or seconds <= 0 or (process.stopped and options is not _NONBLOCKING):
            return SpiedProcess()
        program = spy_program(pid, self._path)
        if not program:
            self._note(pid, NOT_INSTALLED)
            return SpiedProcess()
        text, problem = spy_dump(program, pid, options, seconds)
        if _NO_INTERPRETER in problem and _loads(pid, b"-packages/"):
            return SpiedProcess(main=(ENDED_PYTHON,))
        if problem and proc.find_alive(pid):
            self._note(pid, refusal(pid) if is_denied(problem, pid) else f"py-spy: {problem}")
        return read_spied(text, thread_numbers(pid)) if text else SpiedProcess()

    def _note(self, pid: int, problem: str) -> None:
        if _NO_PYTHON in problem:
            problem = NO_PYTHON
        else:
            self._problems.setdefault(problem)
        self._problem_by_pid[pid] = problem

    def _with_spawned(self, ranks: Sequence[RankProcess]) -> list[RankProcess]:
        """Replace a process that waits for ranks that it started by ``multiprocessing`` by these.

        ``torch.multiprocessing.spawn`` numbers them. Others are ranks if one of them is in a collective.
        """
        result: list[RankProcess] = []
        parents = [rank for rank in ranks if proc.children(rank.pid)]
        stacks = self._spied([rank.pid for rank in parents], _NONBLOCKING)
        for rank in ranks:
            spawned: dict[int, int] = {}
            spied: dict[int, SpiedProcess] = {}
            if rank.pid in stacks and joins_processes(stacks[rank.pid].main):
                pids = [child.pid for child in proc.children(rank.pid)]
                spied = self._spied(pids, _NONBLOCKING)
                spawned = {pid: child.spawned for pid, child in spied.items() if child.spawned >= 0}
            # The process with the highest number may have ended.
            spawns = stacks[rank.pid].spawns if spawned else 0
            spawned_per_rank = max(spawns, max(spawned.values(), default=-1) + 1)
            for pid, index in spawned.items():
                name = replace(
                    rank.name,
                    rank=max(0, rank.name.rank) * spawned_per_rank + index,
                    spawned=index,
                    parent=rank.pid,
                )
                size = rank.name.size * spawned_per_rank if rank.name.variable else 0
                result.append(RankProcess(replace(name, size=size), pid, rank.environment))
            meets = {pid for pid, child in spied.items() if location(child.main).doing in TOGETHER}
            unnumbered = replace(rank.name, variable="", rank=-1, size=0, task=-1, parent=rank.pid)
            workers = [pid for pid, child in spied.items() if pid in meets or frame_of_worker(child.main)]
            if not spawned and meets:
                result += [RankProcess(unnumbered, pid, rank.environment) for pid in workers]
            elif not spawned:
                result.append(rank)
        return result

    def _seen(
        self,
        rank: RankProcess,
        stacks: tuple[SpiedProcess, SpiedProcess],
        before: Moment,
        after: Moment,
        seconds: float,
    ) -> SeenRank:
        pid, (first, last) = rank.pid, stacks
        if not after.state or not (last.main or proc.find_alive(pid)):
            return SeenRank(rank.name, RankSnapshot(rank.name.rank, self._node, ProcessSample(pid, "")))
        idle = -1.0
        if after.ran_at >= 0:
            idle = max(0.0, kernel_time() - after.ran_at)
        busy = (after.used - before.used) / seconds
        files = (before.files, after.files)
        sample = read_sample(
            pid,
            after.state,
            after.waits_in,
            busy,
            seconds,
            files,
            lambda pids: self._stacks_of_workers(last.main, pids),
            self._tcp,
        )
        sample = replace(sample, idle=round(idle, 1), switches=after.switches)
        lock = within_limit(lambda: os.stat(last.lock), None) if last.lock else None
        if lock is not None:
            sample = replace(sample, lock=last.lock, lock_older=round(proc.started_at(pid) - lock.st_mtime))
        request = last.request
        if location(last.main).doing is Doing.RENDEZVOUS and not request.store and rank.name.address:
            request = replace(request, store=rank.name.address)
        thread_waits: tuple[ThreadWait, ...] = ()
        place, call, block, loop = location(last.main, last.native), last.call, "", ""
        tree = ast.Module([], [])
        if place.frame and place.doing in (Doing.USER, Doing.COLLECTIVE):
            tree = within_limit(lambda: parsed(pid, place.frame), tree)
        if place.doing is Doing.USER and place.frame == last.main[0] and _loads(pid, b"/mpi4py/"):
            last = replace(last, native=last.native or mpi_call(tree, place.frame))
            place = location(last.main, last.native)
        if last.connects:
            thread_waits = (ThreadWait("connect", place.frame, last.connects),)
        elif place.doing is Doing.USER and (peer := awaited_peer(last.thread or pid, self._tcp)):
            thread_waits = (ThreadWait("read", place.frame, peer),)
        elif place.doing is Doing.USER and (kind := _thread_wait(last.main)):
            thread_waits = (ThreadWait(kind, place.frame),)
        if place.frame and place.doing is Doing.USER:
            loop = loop_around(tree, place.frame, dict(last.values))
        elif place.frame and place.operation == STORE_WAIT:
            call = store_call(tree, place.frame, dict(last.values))
        elif last.takes_group[0] and passes_no_group(tree, place.frame, *last.takes_group):
            call = replace(call, is_of_all=True)
        if place.doing in TOGETHER:
            block = within_limit(lambda: open_block(pid, last), "")
        waits = location(first.main).doing in TOGETHER
        is_still = _is_still(before, after)
        changed = bool(first.main and last.main) and not is_still and not _is_same(first, last)
        is_unclear = is_still and not last.native and _may_be_in_torch(last.main, after.waits_in)
        snapshot = RankSnapshot(
            rank=rank.name.rank,
            node=self._node,
            process=sample,
            stacks=PythonStacks(
                main=last.main,
                source="py-spy" if last.main else "",
                threads=last.threads,
                waits=thread_waits,
                native=last.native,
                block=block,
                loop=loop,
            ),
            call=call,
            request=request,
            clock=time.time(),
            quiet=max(0.0, time.time() - after.output[1]) if after.output[1] else -1.0,
            printed=after.output[0] != before.output[0],
            moved=waits and changed,
        )
        if not last.main:
            snapshot = replace(snapshot, problem=self._problem_by_pid.get(pid, ""))
        elif is_unclear and snapshot.location.doing is Doing.USER:
            snapshot = replace(snapshot, problem=NO_NATIVE)
        counters = (last.counters, last.numbers, first.numbers)
        return SeenRank(replace(rank.name, own=last.rank), snapshot, *counters, changed=changed)

    def _stacks_of_workers(self, stack: tuple[str, ...], pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        """Return the stacks of some children ``pids`` of a rank that waits for them or for their data."""
        if not (in_data_loader(stack) or reads_of_process(stack) or joins_processes(stack)):
            return {}
        workers = [pid for pid in pids if proc.is_python(pid) and not proc.children(pid)]
        workers.sort(key=lambda pid: getattr(proc.find_alive(pid), "state", "") != "R")
        # All workers of a loader do the same. Any other process may hold the rank up.
        most = MOST_WORKERS if in_data_loader(stack) else MOST_SPIES
        spied = self._spied(workers[:most], _NONBLOCKING)
        return {pid: process.main for pid, process in spied.items()}

    def _launcher(self, process: JobProcess, has_ranks: bool) -> SeenLauncher:
        stack: tuple[str, ...] = ()
        if process.is_python and not has_ranks:
            stack = self._spy(process.pid, _NONBLOCKING).main
        state = proc.find_alive(process.pid)
        letter = state.state if state else ""
        return SeenLauncher(
            process.launcher, process.pid, letter, stack, process.least_nodes, process.endpoint
        )


def uses_gpu(pid: int) -> bool:
    return any(path.startswith(("/dev/nvidia", "/dev/kfd")) for path in proc.descriptors(pid).values())


def _thread_wait(stack: tuple[str, ...]) -> str:
    """Return the kind of ``ThreadWait`` that the library's frames show; '' for none."""
    kind = ""
    for frame in itertools.takewhile(is_library, stack):
        file = os.path.basename(line_of(frame).rpartition(":")[0])
        kind = THREAD_WAITS.get((file, function_of(frame)), kind)
    return kind


def _is_still(before: Moment, after: Moment) -> bool:
    """Return whether the main thread has not run between the two moments."""
    return before.switches >= 0 and (before.switches, before.ran_at) == (after.switches, after.ran_at)


def _is_same(first: SpiedProcess, second: SpiedProcess) -> bool:
    """Return whether two looks show one place, and one step of the user's loops."""
    return bool(first.main) and (first.main, first.counters) == (second.main, second.counters)


def _may_be_in_torch(stack: tuple[str, ...], waits_in: str) -> bool:
    """Return whether a thread in user code may wait in native code, which its Python frames do not show.

    ``waits_in`` is the kernel function that it has slept in during the whole look.
    """
    if location(stack).doing is not Doing.USER or is_in_python(stack):
        return False
    return not waits_in.startswith(_NOT_OF_TORCH)


def _moment(pid: int, thread: int = 0) -> Moment:
    """Return the present state of ``thread`` of a process, by default of its main thread."""
    thread = thread or pid
    # /proc shows a thread as well, if its number is known.
    process = proc.find_alive(thread) or proc.find_alive(pid)
    return Moment(
        state=process.state if process else "",
        waits_in=proc.waiting_in(thread),
        used=used(pid),
        switches=switches(thread),
        ran_at=last_ran(thread),
        files=proc.written_files(pid),
        output=output(pid),
    )


def switches(pid: int) -> int:
    """Return how often the main thread has left a processor; -1 if that is unknown."""
    lines = proc.content(f"/proc/{pid}/task/{pid}/status").split(b"\n")
    counts = [int(line.split()[1]) for line in lines if b"voluntary_ctxt_switches:" in line]
    return sum(counts) if counts else -1


def thread_numbers(pid: int) -> dict[int, int]:
    """Return the number of each thread of a process by its number in the process's own PID namespace."""
    if len(_status(pid).get("NSpid", "").split()) < 2:
        return {}
    numbers = {}
    with suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            inner = _status(thread).get("NSpid", "").split()
            if inner:
                numbers[int(inner[-1])] = thread
    return numbers


def last_ran(pid: int) -> float:
    """Return when the main thread last began to run, in seconds of the kernel's clock; -1 if unknown.

    The kernel sets the value to 0 when it moves a thread to another processor.
    """
    for line in proc.content(f"/proc/{pid}/task/{pid}/sched").split(b"\n")[:8]:
        if line.startswith(b"se.exec_start"):
            with suppress(ValueError, IndexError):
                return float(line.split(b":")[1]) / 1000 or -1.0
    return -1.0


def kernel_time() -> float:
    """Return the present time of the clock of ``last_ran``: this thread runs now."""
    return last_ran(os.getpid())


def output(pid: int) -> tuple[int, float]:
    """Return how far a rank has written its standard output and error, and when the file last changed.

    A pipe or a terminal has no such time: 0.
    """
    position, changed = 0, 0.0
    for number in (1, 2):
        path = f"/proc/{pid}/fd/{number}"
        with suppress(OSError):
            target = os.readlink(path)
            if not target.startswith("/") or target.startswith(("/dev/", "/proc/")):
                continue
            status = within_limit(lambda path=path: os.stat(path), None)  # type: ignore[misc]
            if status is not None:
                position += status.st_size
                changed = max(changed, status.st_mtime)
    return position, changed


def loads_torch(pid: int) -> bool:
    """Return whether a process has loaded torch's library."""
    return _loads(pid, b"libtorch")


def _loads(pid: int, part: bytes) -> bool:
    """Return whether a process has loaded a library with ``part`` in its path."""
    return part in within_limit(lambda: proc.content(f"/proc/{pid}/maps"), b"")


def is_denied(problem: str, pid: int) -> bool:
    """Return whether py-spy may not read or stop a process. It reports that in several ways."""
    if any(phrase in problem.lower() for phrase in _DENIED):
        return True
    if _status(os.getpid()).get("Seccomp") == _FILTERED and problem.startswith(_NO_TRACES):
        return True
    try:
        os.readlink(f"/proc/{pid}/exe")
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def refusal(pid: int) -> str:
    """Return which setting forbids to read the memory of another process of the same user."""
    with suppress(OSError):
        if os.stat(f"/proc/{pid}/environ").st_uid != os.getuid():
            return "the ranks belong to another user, or have changed their rights: they permit no look"
    scope = proc.text(_SCOPE).strip()
    if scope in _SCOPES:
        return f"kernel.yama.ptrace_scope is {scope} there, so stacks may be read by {_SCOPES[scope]}"
    status, own_status = _status(pid), _status(os.getpid())
    if int(status.get("CapPrm", "0"), 16) & ~int(own_status.get("CapPrm", "0"), 16):
        return "the ranks have more rights than this step, which lacks CAP_SYS_PTRACE (as in a container)"
    if own_status.get("Seccomp") == _FILTERED:
        return "a seccomp filter is active in this step (as in a container), and it forbids ptrace"
    with suppress(OSError):
        if os.readlink(f"/proc/{pid}/ns/user") != os.readlink("/proc/self/ns/user"):
            return (
                "the ranks run in a container of another user namespace, which forbids to read their stacks"
            )
    return "a security module (SELinux, AppArmor) or a container forbids ptrace there"


def _status(pid: int) -> dict[str, str]:
    lines = proc.text(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, sign, value in (line.partition(":") for line in lines) if sign}


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
