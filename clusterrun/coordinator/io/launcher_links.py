"""Which nodes hold a connection to srun: each task's slurmstepd opens one before srun hands out its input.

It looks names up, which may take long, and so it runs in a process of its own; decides nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from clusterrun import proc
from clusterrun.runtime.network import addresses

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED, _DIALLED, _LISTENING = "01", "02", "0A"
SETTLED = "-"
"""Not a valid node name."""


def main(process: int, names: Sequence[str]) -> int:
    """Print each of the nodes ``names`` from which a connection to ``process`` came in.

    And ``SETTLED`` where there are any, and ``process`` has no pending connection to a node.
    """
    rows, sockets = list(_rows()), proc.sockets(process)
    peers, asked = connected(rows, sockets), dialled(rows, sockets)
    own = {name: set(addresses(name)) for name in names}
    found = [name for name in names if peers & own[name]]
    settled = found and not asked & {one for known in own.values() for one in known}
    for line in (*found, *([SETTLED] if settled else [])):
        print(line, flush=True)
    return 0


def connected(rows: Iterable[str], sockets: set[str]) -> set[str]:
    """The addresses whose connections a program accepted that has these sockets (inode numbers).

    ``rows`` are those of /proc/net/tcp and tcp6, without their heads.
    """
    return _peers(rows, sockets, (_ESTABLISHED,), accepted=True)


def dialled(rows: Iterable[str], sockets: set[str]) -> set[str]:
    """The addresses to which it began connections that stand, or that it still tries."""
    return _peers(rows, sockets, (_ESTABLISHED, _DIALLED), accepted=False)


def _peers(rows: Iterable[str], sockets: set[str], states: Collection[str], accepted: bool) -> set[str]:
    found = [words for words in map(str.split, rows) if len(words) > 9 and words[9] in sockets]
    ports = {words[1].rpartition(":")[2] for words in found if words[3] == _LISTENING}
    return {
        proc.address(words[2].rpartition(":")[0])
        for words in found
        if words[3] in states and (words[1].rpartition(":")[2] in ports) == accepted
    }


def _rows() -> Iterator[str]:
    for table in _TABLES:
        yield from proc.text(table).splitlines()[1:]
