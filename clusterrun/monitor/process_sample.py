"""Read what the kernel shows of one rank's process: state, children, sockets, locks and files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import Backlog, ChildProcess, ProcessSample
from clusterrun.diagnosis.kernel_waits import KernelWait, kernel_wait

MOST_CHILDREN = 64
# One retransmission is normal. Retransmissions on a path that is cut continue.
LEAST_RETRIES = 2
MOST_PEERS = 16


def read_sample(
    pid: int,
    state: str,
    waits_in: str,
    busy: float,
    seconds: float,
    files: tuple[Mapping[str, int], Mapping[str, int]],
    stacks_of: Callable[[Sequence[int]], Mapping[int, tuple[str, ...]]],
    tcp: proc.TcpTables,
) -> ProcessSample:
    """Return the sample of a process that was observed for ``seconds`` and kept ``busy`` processors busy.

    ``files`` are the sizes of the files that it writes, at the beginning and at the end. ``stacks_of``
    returns the stacks of some of the children that are not stopped.
    """
    addresses, ports, backlog = connections(pid, tcp)
    holder, lock = awaited_lock(pid)
    file, grown = most_grown(*files)
    children = [child for child in map(proc.find_alive, proc.below(pid, MOST_CHILDREN)) if child]
    stacks = stacks_of([child.pid for child in children if not child.stopped])
    own_files = set(proc.descriptors(pid).values())
    return ProcessSample(
        pid=pid,
        state=state,
        waits_in=waits_in,
        busy=round(busy, 3),
        seconds=round(seconds, 3),
        children=tuple(
            ChildProcess(
                child.pid,
                child.name,
                child.state,
                proc.waiting_in(child.pid),
                stacks.get(child.pid, ()),
                proc.waits_for_own_thread(child.pid) and len(proc.listed(f"/proc/{child.pid}/task")) == 1,
                child.seconds,
                _waits_for_pipe_of(own_files, child.pid),
            )
            for child in children
        ),
        ended=tuple(child.pid for child in proc.children(pid) if child.state in proc.GONE_STATES),
        addresses=addresses,
        ports=ports,
        backlog=backlog,
        lock=lock,
        lock_holder=holder,
        file=file,
        written=round(grown / seconds),
    )


def _waits_for_pipe_of(files: Collection[str], child: int) -> bool:
    """Return whether ``child`` waits for a pipe that is one of ``files``."""
    is_in_pipe = kernel_wait(proc.waiting_in(child)) in (KernelWait.PIPE, KernelWait.FULL_PIPE)
    return is_in_pipe and awaited_file(child) in files


def connections(
    pid: int, tcp: proc.TcpTables
) -> tuple[tuple[str, ...], tuple[int, ...], tuple[Backlog, ...]]:
    """Return the TCP addresses and listening ports of ``pid``, and the peers that acknowledge no data."""
    sockets = proc.sockets(pid)
    backlogs: dict[str, Backlog] = {}
    own_addresses: set[str] = set()
    ports = [port for inode, (_, port) in tcp.listeners(pid).items() if inode in sockets]
    for cells in tcp.rows(pid) if sockets else ():
        if cells[9] not in sockets:
            continue
        own_addresses.add(proc.address(cells[1].partition(":")[0]))
        waiting, retries = int(cells[4].partition(":")[0], 16), int(cells[6], 16)
        if waiting and retries >= LEAST_RETRIES:
            peer = proc.address(cells[2].partition(":")[0])
            before = backlogs.get(peer, Backlog(peer, 0, 0))
            backlogs[peer] = Backlog(peer, before.waiting + waiting, max(before.retries, retries))
    owed = sorted(backlogs.values(), key=lambda backlog: (-backlog.retries, -backlog.waiting, backlog.peer))
    addresses = tuple(sorted(own_addresses))[:MOST_PEERS]
    return addresses, tuple(sorted(set(ports)))[:MOST_PEERS], tuple(owed[:MOST_PEERS])


def most_grown(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[str, int]:
    """Return the file that grew most and by how many bytes. All bytes of a new file count."""
    grown = {path: size - before.get(path, 0) for path, size in after.items()}
    path = max(grown, key=lambda path: grown[path], default="")
    return (path, grown[path]) if path and grown[path] > 0 else ("", 0)


def used(pid: int) -> float:
    """Return the processor seconds of a process and of its descendants."""
    moments = [proc.find_alive(process) for process in (pid, *proc.below(pid, MOST_CHILDREN))]
    return sum(moment.seconds for moment in moments if moment)


def awaited_lock(pid: int) -> tuple[int, str]:
    """Return the holder of the file lock that ``pid`` waits for (0: none), and the file ('': unknown).

    /proc/locks lists each lock, then the processes that wait for it, marked by an arrow. It lists no lock
    that a process of another node or container holds. The call that waits has the file as its first argument.
    """
    holder = 0
    for fields in _file_locks():
        if fields[1] != "->":
            holder = int(fields[4])
        elif int(fields[5]) == pid and holder > 0:
            return holder, _locked(holder, fields[6]) or _locked(pid, fields[6])
    waits_for_lock = kernel_wait(proc.waiting_in(pid)) is KernelWait.FILE_LOCK
    return 0, awaited_file(pid) if waits_for_lock else ""


def polled_lock(pid: int, path: str = "") -> tuple[int, str]:
    """Return another process that holds the lock of ``path``, and that file; (0, '') without one.

    Without a ``path``, it is a file that ``pid`` has open. A lock for readers is left out: ``pid`` may share
    it. The status of a file is read, so its server may not answer.
    """
    files = {}
    for file in [f"root{path}"] if path else [f"fd/{number}" for number in proc.descriptors(pid)]:
        with suppress(OSError):
            status = os.stat(f"/proc/{pid}/{file}")
            if stat.S_ISREG(status.st_mode):
                files[str(status.st_ino)] = path or os.readlink(f"/proc/{pid}/{file}")
    for fields in _file_locks():
        file = files.get(fields[5].rpartition(":")[2], "")
        if not file or fields[3] != "WRITE" or int(fields[4]) in (-1, 0, pid):
            continue
        # Another file system may have the same inode number.
        if os.path.basename(_locked(int(fields[4]), fields[5])) == os.path.basename(file):
            return int(fields[4]), file
    return 0, ""


def awaited_file(pid: int) -> str:
    """Return the file, pipe or socket that a thread waits for in a call of the kernel; '' if unknown.

    The first argument of a call is its descriptor; of a poll, it is the address of a list of descriptors.
    """
    call = proc.content(f"/proc/{pid}/syscall").split()
    if len(call) < 3:
        return ""
    number = int(call[1], 16)
    if "poll" in proc.waiting_in(pid):
        try:
            with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                memory.seek(number)
                number = int.from_bytes(memory.read(4), sys.byteorder) if int(call[2], 16) == 1 else -1
        except (OSError, OverflowError, ValueError):
            return ""
    return proc.descriptors(pid).get(number, "")


def reads_input(pid: int) -> bool:
    """Return whether a thread waits for data of its standard input, a pipe or a terminal."""
    call = proc.content(f"/proc/{pid}/syscall").split()
    reads = kernel_wait(proc.waiting_in(pid)) in (KernelWait.PIPE, KernelWait.TERMINAL)
    return reads and len(call) > 1 and int(call[1], 16) == 0


def awaited_peer(pid: int, tcp: proc.TcpTables) -> str:
    """Return ``ADDRESS:PORT`` of the peer whose data a thread waits for; '' if it waits for none."""
    inode = awaited_file(pid).removeprefix("socket:[").removesuffix("]")
    for cells in tcp.rows(pid) if inode.isdigit() else ():
        address, _, port = cells[2].partition(":")
        if cells[9] == inode and int(port, 16):
            return f"{proc.address(address)}:{int(port, 16)}"
    return ""


def _file_locks() -> list[list[str]]:
    lines = proc.text("/proc/locks").split("\n")
    return [fields for line in lines if len(fields := line.split()) > 7]


def _locked(pid: int, identity: str) -> str:
    """Return the file with ``identity`` (device and inode number) that ``pid`` has open; '' if unknown.

    The status of a file is not read: its server may not answer.
    """
    inode = identity.rpartition(":")[2]
    for number, path in proc.descriptors(pid).items():
        lines = proc.content(f"/proc/{pid}/fdinfo/{number}").decode("ascii", "replace").split("\n")
        if any(line.split()[:2] == ["ino:", inode] or identity in line.split() for line in lines):
            return path
    return ""
