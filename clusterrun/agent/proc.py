"""What the kernel says of processes on this machine, read from /proc; signals nobody and decides nothing."""

from __future__ import annotations

import os

from clusterrun.model.frozen import frozen

GONE_STATES = "ZXx"
"""A zombie has ended; only its parent's look at it is missing."""


@frozen
class Process:
    """One process at one moment; ``pid`` and ``started`` (clock ticks since boot) name it for ever."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    started: int


def read(pid: int) -> Process | None:
    """The process ``pid``, or None if there is none."""
    line = _content(f"/proc/{pid}/stat")
    if not line:
        return None
    # A name may hold spaces and parentheses: only the last one closes it.
    head, _, tail = line.rpartition(b")")
    words = tail.split()
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(pid, name, words[0].decode(), int(words[1]), int(words[3]), int(words[19]))


def pids() -> list[int]:
    """Every process id on this machine."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def everyone() -> list[Process]:
    """Every process on this machine."""
    return [process for process in map(read, pids()) if process]


def descendants(root: int) -> list[Process]:
    """Every process below ``root``, at any depth, without ``root`` itself; zombies included."""
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        return _descendants_by_parent(root)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        for child in _children(waiting.pop()):
            process = read(child)
            if process:
                found.append(process)
                waiting.append(child)
    return found


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    lists = (_content(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(word) for children in lists for word in children.split()]


def _descendants_by_parent(root: int) -> list[Process]:
    below: dict[int, list[Process]] = {}
    for process in everyone():
        below.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += [child.pid for child in children]
    return found


def ancestors(pid: int) -> list[int]:
    """The chain of parents above ``pid``."""
    chain: list[int] = []
    process = read(pid)
    while process and process.parent > 0:
        chain.append(process.parent)
        process = read(process.parent)
    return chain


def environment(pid: int) -> dict[str, str]:
    """The environment ``pid`` was started with; empty if it may not be read or was overwritten."""
    pairs = (item.partition(b"=") for item in _content(f"/proc/{pid}/environ").split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if sign}


def waits_in(pid: int) -> str:
    """The kernel function in which ``pid`` sleeps, where the kernel says so."""
    return _content(f"/proc/{pid}/wchan").decode("ascii", "replace").strip("0\n")


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""
