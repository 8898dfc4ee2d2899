"""Why a rank is where it is, and what to do about that, in words for people; pure."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.diagnosis.evidence import ChildProcess, RankSeen
from clusterrun.diagnosis.job_snapshot import STOPPED
from clusterrun.diagnosis.stack_location import Doing, place, short
from clusterrun.model.frozen import frozen

MOST_THREADS = 2
_FINDER = "<frozen importlib"
"""What stands between a module's own code and the line that imports it."""
_SCRIPT = (" <module>", " _run_module_as_main")
"""The outermost frame of a main thread, until its script has ended."""


@frozen
class Explanation:
    """``certain``: it will not go on by itself, as far as one can see without waiting longer."""

    why: str
    remedy: str
    certain: bool = False


def reason(rank: RankSeen) -> Explanation:
    """Why ``rank`` does not join the others."""
    return _of_state(rank) or _of_place(rank)


def _of_state(rank: RankSeen) -> Explanation | None:
    if not rank.state:
        why = "its process has ended, while others still wait for it"
        remedy = "let all ranks make the same number of steps: uneven data, or an exit in one rank only"
        return Explanation(why, remedy, certain=True)
    if rank.state in STOPPED:
        why = "a debugger holds it" if rank.state == "t" else "it is stopped (SIGSTOP)"
        remedy = f"on {rank.node}: kill -CONT {rank.pid}, or find out who stopped it"
        return Explanation(why, remedy, certain=True)
    if rank.state == "D" and not rank.works:
        where = f" ({rank.waits_in})" if rank.waits_in else ""
        why = f"it waits in the kernel for a disk or a network file system{where}{_at(rank)}"
        remedy = f"try the file system on that node: clusterrun exec --node {rank.node} -- ls …"
        return Explanation(why, remedy)
    return None


def _of_place(rank: RankSeen) -> Explanation:
    here = place(rank.stack)
    if here.doing is Doing.DATA:
        return _of_data(rank)
    if here.doing is Doing.IMPORT:
        return _of_import(rank, here.frame)
    if here.doing in (Doing.COLLECTIVE, Doing.RENDEZVOUS):
        why = f"it waits in {here.operation}{_at(rank)}, which the others have not called"
        return Explanation(why, "let every rank call the same collectives in the same order")
    if rank.works:
        where = f"in user code{_at(rank)}" if here.frame else "where no Python stack could be read"
        why = f"it is busy {where}, {rank.busy * 100:.0f} % of a processor"
        remedy = "is that an endless loop, or work that only this rank has? the others wait for it"
    elif here.doing is Doing.UNKNOWN:
        why = f"it sleeps{f' in {rank.waits_in}' if rank.waits_in else ''} and shows no Python stack"
        status = f"clusterrun exec --rank {rank.rank} -- cat /proc/{rank.pid}/status"
        remedy = f"look at it on {rank.node}: {status}"
    elif has_ended(rank):
        held = f"; it is{_at(rank)}" if here.frame else ""
        why = f"its script has ended, and its process has not{held}{_others(rank)}"
        remedy = "a thread that is no daemon, or an atexit function, holds it: end it before the script ends"
    elif rank.call == "store":
        key = f"the key {rank.key}" if rank.key else "a key"
        why = f"it waits for {key} of the store{_at(rank)}{_others(rank)}"
        remedy = "which rank sets that key, under which name and condition? compare both"
    elif rank.lock_holder:
        why = f"it waits for the lock of {rank.lock or 'a file'}{_at(rank)}, "
        why += f"which process {rank.lock_holder} of its node holds"
        remedy = f"what does that process do? clusterrun exec --node {rank.node} -- ps -fp {rank.lock_holder}"
    elif rank.children and any("/subprocess.py:" in frame for frame in rank.stack[:4]):
        program = f"{rank.children[0].name} (process {rank.children[0].pid})"
        why = f"it waits in user code{_at(rank)}, for {program}"
        remedy = f"why does {program} not end?"
    else:
        why = f"it waits in user code{_at(rank)}{_others(rank)}"
        remedy = "what does that line wait for: a file, a lock, another process, the network?"
    return Explanation(why, remedy)


def _of_import(rank: RankSeen, frame: str) -> Explanation:
    if frame and _FINDER not in "".join(rank.stack[: rank.stack.index(frame)]):
        why = f"it is still importing, and {'busy' if rank.works else 'waits'}{_at(rank)}, in that module"
        return Explanation(why, "what does that line wait for, or work at, while it is imported?")
    remedy = "Python on a slow file system: look at that node's file server, or bring a container"
    return Explanation(f"it is still importing{_at(rank)}", remedy)


def has_ended(rank: RankSeen) -> bool:
    """Whether the script of a rank is over, and something holds its process."""
    return bool(rank.stack) and not rank.stack[-1].endswith(_SCRIPT)


def _others(rank: RankSeen) -> str:
    """What other threads and tasks do, one of which may hold what the main thread waits for."""
    told = [one.partition(": ") for one in rank.tasks]
    failed = [f"; a task had failed: {error}, at {short(frame)}" for frame, _, error in told if error]
    waiting = [frame for frame, _, error in told if not error]
    tasks = _at_places("its asyncio task waits", "its asyncio tasks wait", waiting)
    threads = _at_places("another thread is", "other threads are", rank.threads)
    return tasks + "".join(failed[:MOST_THREADS]) + threads


def _at_places(one: str, several: str, frames: Iterable[str]) -> str:
    shown = list(dict.fromkeys(map(short, frames)))[:MOST_THREADS]
    return f"; {one if len(shown) == 1 else several} at {' and '.join(shown)}" if shown else ""


def _of_data(rank: RankSeen) -> Explanation:
    stopped = [child for child in rank.children if child.state in (*STOPPED, "D")]
    told = [child for child in rank.children if child.stack]
    why = f"it waits for its data-loader{_at(rank)}"
    why += "".join(f"; {_child(child)}" for child in (stopped or told)[:2])
    remedy = "see what the dataset does there: a slow or missing file, a lock, too few workers"
    return Explanation(why, remedy, certain=bool(stopped) and stopped[0].state in STOPPED)


def _child(child: ChildProcess) -> str:
    states = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a disk", "R": "runs"}
    where = f" in {child.waits_in}" if child.state == "D" and child.waits_in else ""
    return f"worker {child.pid} {states.get(child.state, 'waits')}{where}{_at(child)}"


def _at(process: RankSeen | ChildProcess) -> str:
    frame = place(process.stack).frame
    return f" at {short(frame)}" if frame else ""
