"""Why a rank is where it is, and what to do about that, in words for people; pure."""

from __future__ import annotations

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
        return Explanation(
            "its process has ended, while others still wait for it",
            "let all ranks make the same number of steps: uneven data, or an exit in one rank only",
            certain=True,
        )
    if rank.state in STOPPED:
        holder = "a debugger holds it" if rank.state == "t" else "it is stopped (SIGSTOP)"
        return Explanation(
            holder, f"on {rank.node}: kill -CONT {rank.pid}, or find out who stopped it", certain=True
        )
    if rank.state == "D" and not rank.works:
        where = f" ({rank.waits_in})" if rank.waits_in else ""
        return Explanation(
            f"it waits in the kernel for a disk or a network file system{where}{_at(rank)}",
            f"try the file system on that node: clusterrun exec --node {rank.node} -- ls …",
        )
    return None


def _of_place(rank: RankSeen) -> Explanation:
    here = place(rank.stack)
    if here.doing is Doing.DATA:
        return _of_data(rank)
    if here.doing is Doing.IMPORT:
        return _of_import(rank, here.frame)
    if here.doing in (Doing.COLLECTIVE, Doing.RENDEZVOUS):
        return Explanation(
            f"it waits in {here.operation}{_at(rank)}, which the others have not called",
            "let every rank call the same collectives in the same order",
        )
    if rank.works:
        where = f"in user code{_at(rank)}" if here.frame else "where no Python stack could be read"
        return Explanation(
            f"it is busy {where}, {rank.busy * 100:.0f} % of a processor",
            "is that an endless loop, or work that only this rank has? the others wait for it",
        )
    if here.doing is Doing.UNKNOWN:
        return Explanation(
            f"it sleeps{f' in {rank.waits_in}' if rank.waits_in else ''} and shows no Python stack",
            f"look at it on {rank.node}: clusterrun exec --rank {rank.rank} -- cat /proc/{rank.pid}/status",
        )
    if has_ended(rank):
        return Explanation(
            f"its script has ended, and its process has not{_held(rank)}{_others(rank)}",
            "a thread that is no daemon, or an atexit function, holds it: end it before the script ends",
        )
    if rank.call == "store":
        key = f"the key {rank.key}" if rank.key else "a key"
        return Explanation(
            f"it waits for {key} of the store{_at(rank)}{_others(rank)}",
            "which rank sets that key, under which name and condition? compare both",
        )
    return _of_lock(rank) if rank.lock_holder else _of_wait(rank)


def _of_lock(rank: RankSeen) -> Explanation:
    file = rank.lock or "a file"
    return Explanation(
        f"it waits for the lock of {file}{_at(rank)}, which process {rank.lock_holder} of its node holds",
        f"what does that process do? clusterrun exec --node {rank.node} -- ps -fp {rank.lock_holder}",
    )


def _of_wait(rank: RankSeen) -> Explanation:
    runs = _program(rank)
    return Explanation(
        f"it waits in user code{_at(rank)}" + (f", for {runs}" if runs else _others(rank)),
        f"why does {runs} not end?"
        if runs
        else "what does that line wait for: a file, a lock, another process, the network?",
    )


def _of_import(rank: RankSeen, frame: str) -> Explanation:
    if frame and _FINDER not in "".join(rank.stack[: rank.stack.index(frame)]):
        return Explanation(
            f"it is still importing, and {'busy' if rank.works else 'waits'}{_at(rank)}, in that module",
            "what does that line wait for, or work at, while it is imported?",
        )
    return Explanation(
        f"it is still importing{_at(rank)}",
        "Python on a slow file system: look at that node's file server, or bring a container",
    )


def has_ended(rank: RankSeen) -> bool:
    """Whether the script of a rank is over, and something holds its process."""
    return bool(rank.stack) and not rank.stack[-1].endswith(_SCRIPT)


def _held(rank: RankSeen) -> str:
    """Which function of the user's runs after the script."""
    at = _at(rank)
    return f"; it is{at}" if at else ""


def _others(rank: RankSeen) -> str:
    """What other threads and tasks do, one of which may hold what the main thread waits for."""
    told = [one.partition(": ") for one in rank.tasks]
    failed = [f"; a task had failed: {error}, at {short(frame)}" for frame, _, error in told if error]
    wait = [short(frame) for frame, _, error in told if not error]
    return (
        _at_places("its asyncio task waits", "its asyncio tasks wait", wait)
        + "".join(failed[:MOST_THREADS])
        + _at_places("another thread is", "other threads are", [short(frame) for frame in rank.threads])
    )


def _at_places(one: str, several: str, places: list[str]) -> str:
    shown = list(dict.fromkeys(places))[:MOST_THREADS]
    return f"; {one if len(shown) == 1 else several} at {' and '.join(shown)}" if shown else ""


def _program(rank: RankSeen) -> str:
    """What a rank waits for that waits for a program."""
    waits = any("/subprocess.py:" in frame for frame in rank.stack[:4]) and rank.children
    return f"{rank.children[0].name} (process {rank.children[0].pid})" if waits else ""


def _of_data(rank: RankSeen) -> Explanation:
    stopped = [child for child in rank.children if child.state in (*STOPPED, "D")]
    told = [child for child in rank.children if child.stack]
    named = "".join(f"; {_child(child)}" for child in (stopped or told)[:2])
    return Explanation(
        f"it waits for its data-loader{_at(rank)}{named}",
        "see what the dataset does there: a slow or missing file, a lock, too few workers",
        certain=bool(stopped) and stopped[0].state in STOPPED,
    )


def _child(child: ChildProcess) -> str:
    frame = place(child.stack).frame if child.stack else ""
    doing = {"T": "is stopped", "t": "is held by a debugger", "D": "waits for a disk"}.get(
        child.state, "runs" if child.state == "R" else "waits"
    )
    where = f" in {child.waits_in}" if child.state == "D" and child.waits_in else ""
    return f"worker {child.pid} {doing}{where}" + (f" at {short(frame)}" if frame else "")


def _at(rank: RankSeen) -> str:
    frame = place(rank.stack).frame
    return f" at {short(frame)}" if frame else ""
