"""Counters of this machine and its processes, and the use between two readings; reads /proc and /sys only."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.model.frozen import frozen
from clusterrun.model.usage import RankUse

PAGE = os.sysconf("SC_PAGE_SIZE")
INFINIBAND = "/sys/class/infiniband"
WORD = 4
"""InfiniBand counts data in words of four bytes."""


@frozen
class Counted:
    """Counters at one moment (steady seconds): processor seconds of all cores, bytes in and out."""

    at: float
    busy: float
    received: int
    sent: int
    ranks: tuple[tuple[int, float, int], ...]
    """Rank, processor seconds of it and all below it, bytes of memory."""


def count(now: float, pids: Mapping[int, int]) -> Counted:
    """Read everything; ``pids`` are by rank. A rank that has ended is left out."""
    words = proc.content("/proc/stat").partition(b"\n")[0].split()[1:9]
    ticks = [int(word) for word in words]
    busy = (sum(ticks) - sum(ticks[3:5])) / proc.TICKS  # without idling, and waiting for a disk
    received, sent = _network()
    ranks = tuple((rank, *used) for rank, pid in pids.items() if (used := _process(pid)))
    return Counted(now, busy, received, sent, ranks)


def ranks_between(before: Counted, after: Counted) -> tuple[RankUse, ...]:
    seconds = max(after.at - before.at, 1e-3)
    earlier = {rank: used for rank, used, _ in before.ranks}
    return tuple(
        RankUse(rank, round(max(0.0, used - earlier.get(rank, used)) / seconds, 3), memory)
        for rank, used, memory in after.ranks
    )


def memory() -> tuple[int, int]:
    """Bytes taken, and bytes in all."""
    found = {}
    for line in proc.content("/proc/meminfo").split(b"\n"):
        name, _, value = line.partition(b":")
        if value:
            found[name] = int(value.split()[0]) * 1024
    total = found.get(b"MemTotal", 0)
    return total - found.get(b"MemAvailable", found.get(b"MemFree", 0)), total


def _network() -> tuple[int, int]:
    """Bytes received and sent, over all networks but the one inside this machine."""
    received = sent = 0
    for line in proc.content("/proc/net/dev").split(b"\n")[2:]:
        name, _, rest = line.partition(b":")
        words = rest.split()
        if len(words) > 8 and name.strip() != b"lo":
            received, sent = received + int(words[0]), sent + int(words[8])
    for device in proc.listed(INFINIBAND):
        for port in proc.listed(f"{INFINIBAND}/{device}/ports"):
            received += WORD * _number(f"{INFINIBAND}/{device}/ports/{port}/counters/port_rcv_data")
            sent += WORD * _number(f"{INFINIBAND}/{device}/ports/{port}/counters/port_xmit_data")
    return received, sent


def _number(path: str) -> int:
    text = proc.content(path).strip()
    return int(text) if text.isdigit() else 0


def _process(pid: int) -> tuple[float, int] | None:
    """Processor seconds and bytes of a process and of all that it has started."""
    own = proc.look(pid)
    if own is None:
        return None
    seconds, resident = own.seconds, _memory(pid, shared=True)
    for child in proc.below(pid):
        moment = proc.look(child)
        if moment is not None:
            seconds += moment.seconds
            # What workers share with the rank is counted once.
            resident += _memory(child, shared=False)
    return seconds, resident


def _memory(pid: int, shared: bool) -> int:
    words = proc.content(f"/proc/{pid}/statm").split()
    if len(words) < 3:
        return 0
    return (int(words[1]) - (0 if shared else int(words[2]))) * PAGE
