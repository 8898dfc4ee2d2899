"""Which peers of a process do not acknowledge what it sends, from the kernel's list of its connections."""

from __future__ import annotations

from clusterrun import proc
from clusterrun.diagnosis.evidence import Backlog
from clusterrun.model.frozen import frozen

LEAST_RETRIES = 2
"""One packet that is sent twice is nothing; a path that is cut keeps sending."""
_MOST = 16


@frozen
class Connections:
    """The addresses that a process speaks from, and the peers that owe it acknowledgements."""

    addresses: tuple[str, ...] = ()
    backlog: tuple[Backlog, ...] = ()


def connections(pid: int) -> Connections:
    """The TCP connections of ``pid``; the longest in debt come first."""
    sockets = proc.sockets(pid)
    found: dict[str, Backlog] = {}
    own: set[str] = set()
    for table in ("tcp", "tcp6") if sockets else ():
        for line in proc.content(f"/proc/{pid}/net/{table}").decode("ascii", "replace").split("\n")[1:]:
            words = line.split()
            if len(words) > 9 and words[9] in sockets:
                own.add(proc.address(words[1].partition(":")[0]))
                _add(found, words)
    owed = sorted(found.values(), key=lambda one: (-one.retries, -one.waiting, one.peer))
    return Connections(tuple(sorted(own))[:_MOST], tuple(owed[:_MOST]))


def _add(found: dict[str, Backlog], words: list[str]) -> None:
    waiting, retries = int(words[4].partition(":")[0], 16), int(words[6], 16)
    if not waiting or retries < LEAST_RETRIES:
        return
    peer = proc.address(words[2].partition(":")[0])
    before = found.get(peer, Backlog(peer, 0, 0))
    found[peer] = Backlog(peer, before.waiting + waiting, max(before.retries, retries))
