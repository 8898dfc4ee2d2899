"""What the kernel says of a process, read from /proc where reading cannot block; signals nobody.

``cmdline``, ``environ`` and ``maps`` are not read: they wait for a lock that a process in trouble may hold.
"""

from __future__ import annotations

import os

from clusterrun.model.frozen import frozen

TICKS = os.sysconf("SC_CLK_TCK")
GONE = "ZXx"


@frozen
class Moment:
    """A process at one moment: its state, its parent, and the seconds of processor time it has used."""

    pid: int
    name: str
    state: str
    parent: int
    seconds: float


def look(pid: int) -> Moment | None:
    """The process now; None where it has ended."""
    # A name may hold spaces and parentheses: only the last one closes it.
    head, _, tail = content(f"/proc/{pid}/stat").rpartition(b")")
    words = tail.split()
    if len(words) < 13 or chr(words[0][0]) in GONE:
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Moment(pid, name, words[0].decode(), int(words[1]), (int(words[11]) + int(words[12])) / TICKS)


def below(pid: int, most: int = 200) -> list[int]:
    """The processes that descend from ``pid``, nearest first."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < most:
        parent = waiting.pop(0)
        for thread in _listed(f"/proc/{parent}/task"):
            children = [int(word) for word in content(f"/proc/{parent}/task/{thread}/children").split()]
            found += children
            waiting += children
    return found[:most]


def waits_in(pid: int) -> str:
    """The kernel function in which ``pid`` sleeps, where the kernel says so."""
    return content(f"/proc/{pid}/wchan").decode("ascii", "replace").strip("0\n")


def catches(pid: int, number: int) -> bool:
    """Whether ``pid`` has a handler for the signal: without one it would end it."""
    for line in content(f"/proc/{pid}/status").split(b"\n"):
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def descriptors(pid: int) -> dict[int, str]:
    """What each open descriptor of ``pid`` leads to; empty where one may not look."""
    found = {}
    for name in _listed(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
    return found


def content(path: str) -> bytes:
    """The whole file; empty where there is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
