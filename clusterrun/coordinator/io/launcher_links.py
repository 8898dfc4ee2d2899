"""Find the nodes that hold a connection to srun; decides nothing.

The slurmstepd of each task opens a connection before srun hands out its input. Name lookups may take long, so
this runs in its own process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from clusterrun import proc
from clusterrun.runtime.network import addresses

_ESTABLISHED, _DIALLED, _LISTENING = "01", "02", "0A"
# Not a valid node name.
SETTLED = "-"


def main(process: int, names: Sequence[str]) -> int:
    """Print each of the nodes ``names`` that opened a connection to ``process``.

    Then print ``SETTLED`` if there is such a node, and ``process`` has no pending connection to a node.
    """
    rows, sockets = proc.TcpTables().rows(process), proc.sockets(process)
    peers, dialled_addresses = connected(rows, sockets), dialled(rows, sockets)
    addresses_by_name = {name: set(addresses(name)) for name in names}
    reached = [name for name in names if peers & addresses_by_name[name]]
    settled = reached and not dialled_addresses & {
        address for node_addresses in addresses_by_name.values() for address in node_addresses
    }
    for line in (*reached, *([SETTLED] if settled else [])):
        print(line, flush=True)
    return 0


def connected(rows: Iterable[Sequence[str]], sockets: set[str]) -> set[str]:
    """Return the addresses of the connections that the owner of ``sockets`` (inode numbers) accepted."""
    return _peers(rows, sockets, (_ESTABLISHED,), accepted=True)


def dialled(rows: Iterable[Sequence[str]], sockets: set[str]) -> set[str]:
    """Return the addresses to which the owner of ``sockets`` opened, or tries to open, connections."""
    return _peers(rows, sockets, (_ESTABLISHED, _DIALLED), accepted=False)


def _peers(
    rows: Iterable[Sequence[str]], sockets: set[str], states: Collection[str], accepted: bool
) -> set[str]:
    own_rows = [columns for columns in rows if columns[9] in sockets]
    ports = {columns[1].rpartition(":")[2] for columns in own_rows if columns[3] == _LISTENING}
    return {
        proc.address(columns[2].rpartition(":")[0])
        for columns in own_rows
        if columns[3] in states and (columns[1].rpartition(":")[2] in ports) == accepted
    }
