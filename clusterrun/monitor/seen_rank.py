"""Join the states and the stacks of a rank to the evidence that its node reports."""

from __future__ import annotations

import ast
import itertools
import os
import re
import time
from collections.abc import Sequence

from clusterrun import proc
from clusterrun.diagnosis.evidence import ProcessSample, PythonStacks, RankSnapshot, ThreadWait
from clusterrun.diagnosis.job_looks import SeenRank
from clusterrun.diagnosis.kernel_waits import KernelWait, kernel_wait
from clusterrun.diagnosis.stacks import (
    SOME_WAIT,
    SOME_WAITS,
    STORE_WAIT,
    TOGETHER,
    Doing,
    StackLocation,
    ThreadPlace,
    function_of,
    in_data_loader,
    is_in_backward,
    is_library,
    joins_processes,
    line_of,
    location,
    reads_of_process,
    waits_for_program,
)
from clusterrun.model.frozen import replace
from clusterrun.monitor.job_processes import within_limit
from clusterrun.monitor.mpi_lines import mpi_call
from clusterrun.monitor.process_sample import awaited_peer, polled_lock, read_sample, reads_input
from clusterrun.monitor.rank_look import RankLook, kernel_time
from clusterrun.monitor.request_lines import awaited_request
from clusterrun.monitor.script_lines import (
    ScriptFrame,
    calls_in_line,
    group_argument,
    line_number,
    loop_around,
    open_block,
    own_lock_holder,
    parsed,
    polled_store,
    position,
    script_frames,
    store_call,
)
from clusterrun.monitor.stack_reader import MOST_SPIES, StackReader, loads
from clusterrun.rank_hooks.clusterrun_witness import THREAD_WAITS

_BETWEEN_TWO = re.compile(r"(?i)send|recv|probe")
# The part of a frame in which a thread of a pool runs its tasks.
_POOL = "/concurrent/futures/thread.py:"
# Without native frames, a rank that waits for others in C++ looks as if it were in user code.
NO_NATIVE = "its native frames could not be read"


def seen_rank(
    look: RankLook, node: str, seconds: float, reader: StackReader, tcp: proc.TcpTables
) -> SeenRank:
    """Return the evidence of a look that took ``seconds``."""
    pid, name, stacks, after = look.pid, look.rank.name, look.last, look.after
    if not after.state or not (stacks.main or proc.find_alive(pid)):
        return SeenRank(name, RankSnapshot(name.rank, node, ProcessSample(pid, "")))
    place, call, loop = location(stacks.main, stacks.native), stacks.call, ""
    frames = within_limit(lambda: script_frames(pid, look.last), [])
    is_in_script = bool(frames) and place.frame in stacks.main[:1]
    may_be_in_mpi = place.doing is Doing.USER or place.operation.startswith("MPI_")
    if is_in_script and may_be_in_mpi and loads(pid, b"/mpi4py/"):
        native, call = within_limit(lambda: mpi_call(frames, name.rank, name.size), ((), call))
        stacks = replace(stacks, native=stacks.native or native)
        place = location(stacks.main, stacks.native)
    elif is_in_script and (place.doing is Doing.USER or place.operation in SOME_WAITS):
        half = place.operation if place.operation != SOME_WAIT else ""
        awaited = within_limit(lambda: awaited_request(frames, name.rank, name.size, half), call)
        if awaited.name:
            function = f"c10d::Work::wait{awaited.function.capitalize()}"
            stacks = replace(stacks, native=(function, *stacks.native))
            place, call = location(stacks.main, stacks.native), awaited
    if frames and place.doing is Doing.USER:
        loop = loop_around(frames[0])
        polled = polled_store(frames[0], name.size)
        if loop and polled.name:
            stacks = replace(stacks, native=("c10d::Store::check", *stacks.native))
            call = polled
            place = location(stacks.main, stacks.native)
    elif frames and place.operation == STORE_WAIT:
        call = store_call(frames[0])
    elif frames and stacks.takes_group[0]:
        group = group_argument(frames[0], *stacks.takes_group)
        call = replace(call, group=group or "", is_of_all=call.is_of_all or group == "")
    request = stacks.request
    if place.doing is Doing.RENDEZVOUS and not request.store and name.address:
        request = replace(request, store=name.address)
    block = ""
    steps: tuple[str, ...] = ()
    if place.doing in TOGETHER or is_in_backward(stacks.main):
        steps = position(frames)
        # A wait in the script's own line may be for a message of one other rank.
        may_meet_all = place.frame != stacks.main[0] or call.is_of_all
        is_half = place.operation != SOME_WAIT and _BETWEEN_TWO.search(place.operation)
        meets_all = may_meet_all and not is_half
        block = open_block(stacks, frames, meets_all)
    snapshot = RankSnapshot(
        rank=name.rank,
        node=node,
        process=_process_sample(look, seconds, reader, tcp, loop),
        stacks=PythonStacks(
            main=stacks.main,
            source="py-spy" if stacks.main else "",
            threads=_threads(look),
            waits=_waits(look, place, frames, tcp),
            native=stacks.native,
            block=block,
            loop=loop,
            position=steps,
        ),
        call=call,
        request=request,
        clock=time.time(),
        quiet=max(0.0, time.time() - after.output[1]) if after.output[1] else -1.0,
        printed=after.output[0] != look.before.output[0],
        moved=look.has_moved and location(look.first.main).doing in TOGETHER,
    )
    is_unclear = look.is_still and not stacks.native and look.may_be_in_torch
    if not stacks.main:
        snapshot = replace(snapshot, problem=reader.problem_by_pid.get(pid, ""))
    elif is_unclear and snapshot.location.doing is Doing.USER:
        snapshot = replace(snapshot, problem=NO_NATIVE)
    return SeenRank(
        replace(name, own=stacks.rank),
        snapshot,
        stacks.counters,
        stacks.numbers,
        look.first.numbers,
        changed=look.has_moved,
    )


def _threads(look: RankLook) -> tuple[ThreadPlace, ...]:
    """Return the other threads with what they wait for.

    Threads of a pool that all wait for the result of a task leave no thread to run it.
    """
    stacks = look.last
    pools = [stack for stack in stacks.others if any(_POOL in frame for frame in stack)]
    is_full = bool(pools) and all(_thread_wait(stack) == "result" for stack in pools)
    waits = {}
    for stack in stacks.others:
        user_frames = [frame for frame in stack if not is_library(frame)]
        kind = "pool" if is_full and stack in pools else _thread_wait(stack)
        waits.update(dict.fromkeys(user_frames[:1], kind))
    return tuple(
        replace(_without_chance(thread, look), waits=waits.get(thread.frame, "")) for thread in stacks.threads
    )


def _thread_wait(stack: Sequence[str]) -> str:
    """Return the kind of ``ThreadWait`` that a thread with this stack is in; '' if that is unknown."""
    kind = ""
    for frame in itertools.takewhile(is_library, stack):
        file = os.path.basename(line_of(frame).rpartition(":")[0])
        kind = THREAD_WAITS.get((file, function_of(frame)), kind)
    return kind


def _without_chance(thread: ThreadPlace, look: RankLook) -> ThreadPlace:
    """Return a thread as holder of the interpreter's lock only if the thread that trains asks for the lock.

    Both stacks show the holder in one place then. A thread that waits for the lock wakes up to ask for it,
    and sleeps in between.
    """
    sleeps = any(moment.waits_in.startswith("futex") for moment in (look.before, look.after))
    is_asked_for = sleeps and not look.is_still
    return replace(thread, holds_lock=is_asked_for and thread.holds_lock and thread in look.first.threads)


def _process_sample(
    look: RankLook, seconds: float, reader: StackReader, tcp: proc.TcpTables, loop: str
) -> ProcessSample:
    def stacks_of(pids: Sequence[int]) -> dict[int, tuple[str, ...]]:
        return _stacks_of_workers(look, pids, reader)

    before, after = look.before, look.after
    busy = (after.used - before.used) / seconds
    files = (before.files, after.files)
    sample = read_sample(look.pid, after.state, after.waits_in, busy, seconds, files, stacks_of, tcp)
    idle = max(0.0, kernel_time() - after.ran_at) if after.ran_at >= 0 else -1.0
    sample = replace(sample, idle=round(idle, 1), switches=after.switches)
    path = look.last.lock
    lock = within_limit(lambda: os.stat(path), None) if path else None
    if lock is not None:
        age = round(proc.started_at(look.pid) - lock.st_mtime)
        sample = replace(sample, lock=path, lock_older=age)
    if path or "LOCK_NB" in loop or _sleeps_in_native_code(look):
        holder, file = within_limit(lambda: polled_lock(look.pid, path), (0, ""))
        sample = replace(sample, lock=file, lock_holder=holder) if holder else sample
    return sample


def _sleeps_in_native_code(look: RankLook) -> bool:
    """Return whether a thread sleeps in a line that calls no ``sleep``, as SQLite does between two tries."""
    frame = next(iter(look.last.main), "")
    if not frame or kernel_wait(look.after.waits_in) is not KernelWait.SLEEP:
        return False
    tree = within_limit(lambda: parsed(look.pid, frame), ast.Module([], []))
    calls = [name for name, _ in calls_in_line(tree, line_number(frame))]
    return bool(calls) and "sleep" not in calls


def _stacks_of_workers(
    look: RankLook, pids: Sequence[int], reader: StackReader
) -> dict[int, tuple[str, ...]]:
    """Return the stacks of some children ``pids`` of a rank that waits for them or for their data."""
    stack = look.last.main
    waits = (in_data_loader, reads_of_process, joins_processes, waits_for_program)
    is_in_wait = kernel_wait(look.after.waits_in) in (KernelWait.PIPE, KernelWait.PROCESS)
    if not (is_in_wait or any(waits_for_processes(stack) for waits_for_processes in waits)):
        return {}
    workers = [pid for pid in pids if proc.is_python(pid) and not proc.children(pid)]
    workers.sort(key=lambda pid: getattr(proc.find_alive(pid), "state", "") != "R")
    return {pid: process.main for pid, process in reader.read(workers[:MOST_SPIES]).items()}


def _waits(
    look: RankLook, place: StackLocation, frames: Sequence[ScriptFrame], tcp: proc.TcpTables
) -> tuple[ThreadWait, ...]:
    """Return what the thread that trains waits for outside collectives; () if that is unknown."""
    stacks = look.last
    if stacks.connects:
        return (ThreadWait("connect", place.frame, stacks.connects),)
    if place.doing is not Doing.USER:
        return ()
    thread = stacks.thread or look.pid
    if reads_input(thread):
        return (ThreadWait("input", place.frame),)
    peer = awaited_peer(thread, tcp)
    if peer:
        return (ThreadWait("read", place.frame, peer),)
    is_in_script = bool(frames) and place.frame == stacks.main[0]
    if is_in_script and look.is_still and look.after.waits_in.startswith("futex"):
        holder = own_lock_holder(frames)
        if holder:
            return (ThreadWait("lock", place.frame, holder, number=0),)
    kind = _thread_wait(stacks.main)
    return (ThreadWait(kind, place.frame),) if kind else ()
