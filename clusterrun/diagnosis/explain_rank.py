"""Explain why one rank does not join the others, and what to do about it; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from clusterrun.diagnosis.calls import STOPPED
from clusterrun.diagnosis.evidence import ChildProcess, RankSnapshot
from clusterrun.diagnosis.kernel_waits import KernelWait, kernel_wait
from clusterrun.diagnosis.stacks import (
    ENDED_PYTHON,
    TOGETHER,
    Doing,
    ThreadPlace,
    frame_of_worker,
    hands_over_queue,
    is_at_debugger,
    is_idle_worker,
    joins_processes,
    location,
    own_stack,
    polls_for_lock_file,
    script_has_ended,
    short,
    waits_for_coroutine,
    waits_for_pool,
    waits_for_program,
    waits_for_ray,
    waits_for_semaphore,
)
from clusterrun.model.duration import spoken
from clusterrun.model.frozen import frozen

MOST_THREADS = 2
_FINDER = "<frozen importlib"
STEP_REMEDY = "the run holds the resources of its job: start that srun with --overlap, or submit its command"
_FILE = re.compile(r"exists|is_?file|is_?dir|glob|listdir|stat\b")
WAIT_REMEDY = "what does that line wait for: a file, a lock, another process, the network?"

_FORK_REMEDY = (
    "a fork copies locks as they are, without the thread that releases them: start that process by "
    'get_context("spawn") or "forkserver", or before any thread'
)
# The explanation of each ``ThreadWait.kind``.
_THREAD_WAITS = {
    "lock": "for a lock",
    "join": "for the end of another thread",
    "put": "to put an item into a full queue",
    "get": "for an item of an empty queue",
    "done": "until the items of a queue are done",
    "event": "for an event of another thread",
    "result": "for the result of another thread's task",
    "pool": "for the result of a task, and no thread of its pool is free to run that",
    "read": "for data from",
    "connect": "for a connection to",
    "request": "for a request of a client",
}


@frozen
class Reason:
    """Why a rank is where it is. ``certain``: it will not continue by itself."""

    why: str
    remedy: str
    certain: bool = False


def reason(rank: RankSnapshot) -> Reason:
    """Return why ``rank`` does not join the others."""
    process, place = rank.process, rank.location
    if not process.state and not process.pid:
        remedy = "how did it end? its output says more; was it started at all: is the world's size right?"
        return Reason("it has no process: it has ended, or was never started", remedy, certain=True)
    if not process.state:
        remedy = "let all ranks make the same number of steps: uneven data, or an exit in one rank only"
        return Reason("its process has ended, while others still wait for it", remedy, certain=True)
    if process.state in STOPPED:
        why = "a debugger holds it" if process.state == "t" else "it is stopped (SIGSTOP)"
        remedy = f"on {rank.node}: kill -CONT {process.pid}, or find out who stopped it"
        return Reason(why, remedy, certain=True)
    if rank.writes:
        why = f"it writes {process.file}, {process.written / 1e6:.1f} MB/s{at(rank.stacks.main)}"
        return Reason(why, "a checkpoint that takes long: write less, or to a faster file system")
    if process.state == "D" and not rank.works:
        where = f" ({process.waits_in})" if process.waits_in else ""
        why = f"it waits in the kernel for a disk or a network file system{where}{at(rank.stacks.main)}"
        remedy = f"try the file system on that node: clusterrun exec --node {rank.node} -- ls …"
        return Reason(why, remedy)
    if place.doing is Doing.DATA:
        children = rank.process.children
        stopped = [child for child in children if child.state in (*STOPPED, "D")]
        text = stopped or [child for child in children if child.stack and not is_idle_worker(child.stack)]
        why = f"it waits for its data-loader{at(rank.stacks.main)}"
        why += "".join(f"; {_child(child, own_stack(child.stack))}" for child in text[:2])
        remedy = "see what the dataset does there: a slow or missing file, a lock, too few workers"
        if any(child.lacks_thread for child in text):
            remedy = _FORK_REMEDY
        return Reason(why, remedy, certain=bool(stopped) and stopped[0].state in STOPPED)
    if place.doing is Doing.IMPORT:
        stack, frame = rank.stacks.main, rank.location.frame
        if frame and _FINDER not in "".join(stack[: stack.index(frame)]):
            does = "busy" if rank.works else "waits"
            why = f"it is still importing, and {does}{at(stack)}, in that module"
            return Reason(why, "what does that line wait for, or work at, while it is imported?")
        remedy = "Python on a slow file system: look at that node's file server, or bring a container"
        return Reason(f"it is still importing{at(stack)}", remedy)
    if place.doing in (Doing.COLLECTIVE, Doing.RENDEZVOUS):
        why = f"it waits in {place.operation}{at(rank.stacks.main)}, which the others have not called"
        return Reason(why, "let every rank call the same collectives in the same order")
    return _of_user_code(rank)


def _of_user_code(rank: RankSnapshot) -> Reason:
    process, code, where = rank.process, rank.location, at(rank.stacks.main)
    loop = f", while {rank.stacks.loop}" if rank.stacks.loop else ""
    workers = [(child, frame) for child in process.children if (frame := frame_of_worker(child.stack))]
    below = "".join(f"; its {_child(child, (frame,))}" for child, frame in workers[:MOST_THREADS])
    holder = next((thread.frame for thread in rank.stacks.threads if thread.holds_lock), "")
    if holder:
        why = f"it waits for the lock of Python's interpreter (GIL){where}, which another thread holds at "
        remedy = "that line calls a library which keeps the GIL while it waits or computes: call it by "
        remedy += "ctypes.CDLL instead of PyDLL, or in a process of its own"
        return Reason(why + short(holder), remedy)
    if rank.works:
        place = f"in user code{where}" if code.frame else "where no Python stack could be read"
        why = f"it is busy {place}, {process.busy * 100:.0f} % of a processor{loop}{below}"
        return Reason(why, "is that an endless loop, or work that only this rank has? the others wait for it")
    if code.doing is Doing.UNKNOWN:
        sleeps = f"it sleeps in {process.waits_in}" if process.waits_in else "it sleeps"
        status = f"clusterrun exec --rank {rank.rank} -- cat /proc/{process.pid}/status"
        return Reason(f"{sleeps} and shows no Python stack", f"look at it on {rank.node}: {status}")
    if script_has_ended(rank.stacks.main):
        held = f"; it is{where}" if code.frame else ""
        why = f"its script has ended, and its process has not{held}{_others(rank)}"
        remedy = "a thread that is no daemon, or an atexit function, holds it: end it before the script ends"
        if rank.stacks.main == (ENDED_PYTHON,):
            why += ": it waits in a library's exit function, as MPI_Finalize, which waits for all ranks"
            remedy = "did its script fail? its output says more. python -m mpi4py SCRIPT ends all ranks then"
        return Reason(why, remedy)
    if rank.call.name == "store":
        name = rank.call.key or rank.call.key_source
        key = f"the key {name}" if name else "a key"
        lines = key_lines(rank)
        call_lines = f"; {' and '.join(lines[:MOST_THREADS])}" if lines and not rank.call.key else ""
        why = f"it waits for {key} of the store{where}{call_lines}{_others(rank)}"
        return Reason(why, "which rank sets that key, under which name and condition? compare both")
    if is_at_debugger(rank.stacks.main):
        why = f"it waits at the prompt of a debugger{where}"
        return Reason(why, "remove that breakpoint() or pdb.set_trace()")
    if any(wait.kind == "input" for wait in rank.stacks.waits):
        why = f"it waits for its standard input{where}, as input() does"
        return Reason(
            why, "a job has nobody who types: ask for nothing there, or pass the answer as an option"
        )
    if process.lock_holder:
        why = f"it waits for the lock of {process.lock or 'a file'}{where}, "
        why += f"which process {process.lock_holder} of its node holds"
        ps = f"clusterrun exec --node {rank.node} -- ps -fp {process.lock_holder}"
        return Reason(why, f"what does that process do? {ps}")
    if process.lock and not polls_for_lock_file(rank.stacks.main):
        why = f"it waits for the lock of {process.lock}{where}, which no process that its node sees holds"
        return Reason(why, f"which process of another node or container has it open? fuser {process.lock}")
    if polls_for_lock_file(rank.stacks.main):
        remedy = "does the process that made that file still run? If not, remove the file"
        if not process.lock:
            remedy += ". torch keeps that of an extension as ~/.cache/torch_extensions/*/*/lock"
            return Reason(f"it waits until a lock file is gone{where}", remedy)
        why = f"it waits until the lock file {process.lock} is gone{where}"
        if process.lock_older > 0:
            why += f", which is {spoken(process.lock_older)} older than this process"
        return Reason(why, f"{remedy}: rm {shlex.quote(process.lock)}")
    kernel = kernel_wait(process.waits_in)
    calls_program = kernel is KernelWait.PROCESS and not joins_processes(rank.stacks.main)
    calls_program = calls_program or kernel is KernelWait.PIPE or waits_for_program(rank.stacks.main)
    if process.children and calls_program:
        full = [child for child in process.children if kernel_wait(child.waits_in) is KernelWait.FULL_PIPE]
        # A program of Python shows its line. A worker has the rank's own code.
        in_python = [
            child
            for child in process.children
            if location(child.stack).line
            and not (frame_of_worker(child.stack) or is_idle_worker(child.stack))
        ]
        fed = [child for child in process.children if child.waits_for_rank and kernel is KernelWait.PROCESS]
        child = (full or fed or in_python or process.children)[0]
        program = f"{child.name} (process {child.pid})"
        child_waits = kernel_wait(child.waits_in)
        remedy = f"why does {program} not end? clusterrun exec --node {rank.node} -- ps -fp {child.pid}"
        if child.name == "srun":
            remedy = f"{STEP_REMEDY}; or does its program not end?"
        elif full:
            remedy = (
                "read its output while it runs: subprocess.run(capture_output=True), communicate(), or a file"
            )
        elif fed:
            remedy = "close its standard input before the wait for its end, or let communicate() do both"
        child_place = location(child.stack)
        waits = f" {child_waits.value}" if child_waits else ""
        waits += ", whose other end this rank has" * (child in fed)
        if child_place.doing in TOGETHER:
            waits = f" in {child_place.operation}"
        verb = "runs" if child.state == "R" else "waits"
        does = f", which {verb}{waits}{at(child.stack)}" if waits or child_place.line else ""
        is_deadlock = child in fed and child.state != "R"
        return Reason(f"it waits in user code{where}, for {program}{does}", remedy, certain=is_deadlock)
    if waits_for_ray(rank.stacks.main):
        remedy = (
            "do the tasks that it waits for run (ray list tasks)? ray status shows whether a CPU is free for "
        )
        remedy += "them: workers of Ray Train hold theirs"
        return Reason(f"it waits for a task or an object of Ray{where}", remedy)
    if waits_for_idle_pool(rank):
        why = f"it waits for its pool of processes{where}, whose workers wait for a task: one has "
        why += "probably died, and its task is lost"
        remedy = (
            "was a worker killed for lack of memory (dmesg there)? concurrent.futures raises an error then"
        )
        return Reason(why, remedy)
    waits = kernel.value if kernel else ""
    if waits_for_semaphore(rank.stacks.main):
        waits = "for a lock of multiprocessing"
    waits = f", {waits}" if waits else ""
    waits += loop * (kernel is KernelWait.SLEEP)
    full = [child for child in process.children if hands_over_queue(child.stack)]
    if full:
        why = (
            f"it waits in user code{where}, for process {full[0].pid}, which has put more into a queue than "
        )
        return Reason(f"{why}was taken out", "empty the queue before the process that filled it is joined")
    lacks_thread = any(child.lacks_thread for child, _ in workers)
    if waits_for_coroutine(rank.stacks.main) and not rank.stacks.tasks:
        remedy = (
            "its coroutines cannot be seen from outside: let it print asyncio.all_tasks() and their stacks"
        )
        return Reason(f"its event loop waits for a coroutine{where}{below}{_others(rank)}", remedy)
    if rank.stacks.waits and not waits and not lacks_thread:
        return _of_threads(rank, where, below)
    remedy = _FORK_REMEDY if lacks_thread else WAIT_REMEDY
    if loop and waits.endswith(loop):
        remedy = loop_remedy(loop)
    if process.ended and joins_processes(rank.stacks.main):
        below += f"; process {process.ended[-1]}, which it started, has ended"
        remedy = (
            "did that process fail, or was it killed for lack of memory (dmesg there)? Its output says more"
        )
    return Reason(f"it waits in user code{where}{waits}{below}{_others(rank)}", remedy, lacks_thread)


def loop_remedy(condition: str) -> str:
    remedy = (
        "what should make that condition false? give the loop a limit, and let it print what it waits for"
    )
    if _FILE.search(condition):
        remedy = f"which rank makes that file, and on a file system that all nodes share? {remedy}"
    return remedy


def key_lines(rank: RankSnapshot) -> list[str]:
    """Return ``train.py:33 sets f'loss_{step}'`` for the lines near a rank that set other keys of a store."""
    setting = [entry.split("\t")[:2] for entry in rank.call.sets]
    return [
        f"{short(line)} sets {key}" for line, key in setting if key != (rank.call.key or rank.call.key_source)
    ]


def waits_for_idle_pool(rank: RankSnapshot) -> bool:
    """Return whether a rank waits for a ``multiprocessing.Pool``, and no process below it has a task.

    A thread in user code may be about to yield the next task of ``imap``.
    """
    stacks = [child.stack for child in rank.process.children]
    is_pool = waits_for_pool(rank.stacks.main) and not rank.stacks.threads
    return is_pool and bool(stacks) and all(map(is_idle_worker, stacks))


def _of_threads(rank: RankSnapshot, where: str, below: str) -> Reason:
    """Explain a main thread that waits for something inside its process, by the chain of these waits."""
    first, *others = rank.stacks.waits
    if first.kind in ("read", "connect"):
        remedy = f"does {first.holder} answer there, and {rank.node} reach it? give the request a timeout"
        why = f"it waits {_THREAD_WAITS[first.kind]} {first.holder}{where}{below}"
        for wait in others:
            why += f"; a thread there is at {short(wait.frame)}, where it waits {_THREAD_WAITS[wait.kind]}"
            remedy = "what ends the wait of that thread? Its rank may wait for this one"
        return Reason(why, remedy)
    why, is_deadlock = f"it waits {_THREAD_WAITS[first.kind]}{where}", False
    for position, wait in enumerate(rank.stacks.waits):
        why += f"; that thread waits {_THREAD_WAITS[wait.kind]}" if position else ""
        if not wait.holder:
            continue
        verb = "is" if wait.kind == "join" else "holds it"
        thread = "another thread"
        if 0 <= wait.number <= position:
            is_deadlock = True
            thread = "the same thread" if wait.number == position else "the first one"
        thread = "it" if wait.kind == "join" else thread
        why += f", and {thread} {verb} at {short(wait.holder)}"
    if is_deadlock:
        why += ": a deadlock"
        remedy = "let all threads take these locks in the same order"
        if not others:
            remedy = "take that lock once, or use threading.RLock; let a signal handler only set a flag"
        return Reason(why, remedy, certain=True)
    remedy = "which thread or process should end that wait, and does it still run? Give the wait a timeout"
    if first.kind == "lock" and not first.holder:
        why += ", and no thread is inside a with of it"
        remedy = "is each acquire() of that lock followed by a release(), also after an exception? use with"
    elif any(thread.waits == "pool" for thread in rank.stacks.threads):
        remedy = "let no task wait for a task of its own pool, or give that pool more threads (max_workers)"
    elif first.kind == "join" and others:
        remedy = (
            "end that thread's own wait before it is joined: empty its queue, or give put and get a timeout"
        )
    others_wait = "" if first.holder else _others(rank)
    return Reason(f"{why}{below}{others_wait}", remedy)


def _child(child: ChildProcess, stack: tuple[str, ...]) -> str:
    states = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a disk", "R": "runs"}
    where = f" in {child.waits_in}" if child.state == "D" and child.waits_in else ""
    lacks = ", for a lock or thread of its parent that its fork has not" if child.lacks_thread else ""
    return f"worker {child.pid} {states.get(child.state, 'waits')}{where}{at(stack)}{lacks}"


def _others(rank: RankSnapshot) -> str:
    """Describe other threads and tasks. One of them may hold what the main thread waits for."""
    entries = [entry.partition(": ") for entry in rank.stacks.tasks]
    failed = [f"; a task had failed: {error}, at {short(frame)}" for frame, _, error in entries if error]
    waiting = [frame for frame, _, error in entries if not error]
    tasks = _at_places("its asyncio task waits", "its asyncio tasks wait", map(short, waiting))
    threads = _at_places("another thread is", "other threads are", map(_thread_place, rank.stacks.threads))
    return tasks + "".join(failed[:MOST_THREADS]) + threads


def _thread_place(thread: ThreadPlace) -> str:
    waits = f", where it waits {_THREAD_WAITS[thread.waits]}" if thread.waits in _THREAD_WAITS else ""
    return short(thread.frame) + waits


def _at_places(singular: str, plural: str, places: Iterable[str]) -> str:
    lines = list(dict.fromkeys(places))[:MOST_THREADS]
    if not lines:
        return ""
    threads = singular if len(lines) == 1 else plural
    return f"; {threads} at {' and '.join(lines)}"


def at(stack: tuple[str, ...]) -> str:
    """Return `` at train.py:33 (step)``; '' if the user's line is unknown."""
    line = location(stack).line
    return f" at {line}" if line else ""
