"""Read what the kernel knows of processes on this machine from /proc.

Do not read ``environment``, ``cmdline`` or ``maps`` of a process that may be in trouble: they wait for a lock
that it may hold. No other read of this file blocks.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TICKS = os.sysconf("SC_CLK_TCK")
# A zombie has ended, and its parent has not collected it.
GONE_STATES = "ZXx"
# Stopped by SIGSTOP, or by a debugger.
STOPPED_STATES = ("T", "t")
# Programs that run scripts of commands, by the name of their file.
SHELLS = frozenset(
    ("ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "sh", "tcsh", "yash", "zsh")
)
# FUTEX_PRIVATE_FLAG of linux/futex.h
_PRIVATE = 0x80


@frozen
class Process:
    """One process at one moment. ``pid`` and ``started`` together identify it for ever."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    started: int  # clock ticks since boot
    seconds: float = 0.0  # processor time that it and its ended children have used

    @property
    def stopped(self) -> bool:
        return self.state in STOPPED_STATES


def find(pid: int) -> Process | None:
    """Return the process, which may be a zombie; None if there is none."""
    # A name may hold spaces and parentheses. Only the last parenthesis closes it.
    head, _, tail = content(f"/proc/{pid}/stat").rpartition(b")")
    name, fields = head.partition(b"(")[2].decode("utf-8", "replace"), tail.split()
    if not fields:
        return None
    parent, session, started = (int(fields[place]) for place in (1, 3, 19))
    seconds = sum(map(int, fields[11:15])) / TICKS
    return Process(pid, name, fields[0].decode(), parent, session, started, seconds)


def find_alive(pid: int) -> Process | None:
    """Return the process as it is now; None if it has ended."""
    process = find(pid)
    return None if process is None or process.state in GONE_STATES else process


def started_at(pid: int) -> float:
    """Return when the process started, in seconds since the epoch; 0.0 if it has ended."""
    process = find_alive(pid)
    if process is None:
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + process.started / TICKS


def seconds_without_processor(pid: int) -> float:
    """Return how long the process was ready to run and waited for a processor; 0.0 if that is unknown."""
    fields = content(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def runs(pid: int) -> bool:
    """Return whether the process lives and is not stopped, so that it may answer."""
    process = find_alive(pid)
    return process is not None and not process.stopped


def described(process: Process) -> str:
    """Return the name, state and kernel function of a process: ``nvidia-smi (D in wait_rm)``."""
    where = waiting_in(process.pid)
    state = f"{process.state} in {where}" if where else process.state
    return f"{process.name} ({state})"


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes() -> list[Process]:
    return [process for process in map(find, pids()) if process]


def descendants(root: int) -> list[Process]:
    """Return every process below ``root``, at any depth, without ``root``; zombies included."""
    return [process for process in map(find, below(root, sys.maxsize)) if process]


def children(pid: int) -> list[Process]:
    """Return the processes that ``pid`` started; zombies included."""
    return [process for process in map(find, children_lookup()(pid)) if process]


def is_shell(pid: int) -> bool:
    """Return whether the process runs a shell."""
    return _program(pid) in SHELLS


def is_python(pid: int) -> bool:
    """Return whether the process runs Python."""
    return _program(pid).startswith(("python", "pypy"))


def _program(pid: int) -> str:
    """Return the file name of the program that the process runs; '' if it has ended or may not be read."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def below(pid: int, most: int = 200, children_of: Callable[[int], list[int]] | None = None) -> list[int]:
    """Return the numbers of at most ``most`` processes that descend from ``pid``, nearest first.

    ``children_of``: a lookup that several calls share.
    """
    children_of = children_of or children_lookup()
    pids_below: list[int] = []
    waiting = [pid]
    while waiting and len(pids_below) < most:
        child_pids = children_of(waiting.pop(0))
        pids_below += child_pids
        waiting += child_pids
    return pids_below[:most]


def children_lookup() -> Callable[[int], list[int]]:
    """Return a function from the number of a process to the numbers of its children.

    A kernel without CONFIG_PROC_CHILDREN lists no children. All processes are then read, once.
    """
    if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        return _listed_children
    pids_by_parent: dict[int, list[int]] = {}
    for process in processes():
        pids_by_parent.setdefault(process.parent, []).append(process.pid)
    return lambda pid: pids_by_parent.get(pid, [])


def _listed_children(pid: int) -> list[int]:
    lists = (content(f"/proc/{pid}/task/{thread}/children") for thread in listed(f"/proc/{pid}/task"))
    return [int(word) for children in lists for word in children.split()]


def ancestors(pid: int) -> list[int]:
    chain: list[int] = []
    process = find(pid)
    while process and process.parent > 0:
        chain.append(process.parent)
        process = find(process.parent)
    return chain


def environment(pid: int) -> dict[str, str]:
    """Return the environment ``pid`` was started with; empty if it may not be read or was overwritten."""
    return variables(content(f"/proc/{pid}/environ"))


def variables(environ: bytes) -> dict[str, str]:
    """Return the variables in the content of a file ``environ``."""
    pairs = (item.partition(b"=") for item in environ.split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, sign, value in pairs if sign}


def waiting_in(pid: int) -> str:
    """Return the kernel function in which ``pid`` sleeps; '' if the kernel does not say."""
    return content(f"/proc/{pid}/wchan").decode("ascii", "replace").strip("0\n")


def waits_for_own_thread(pid: int) -> bool:
    """Return whether a process waits until another thread of its own wakes it; False if that is unknown.

    Other processes release the locks of ``multiprocessing``: their futex has no private flag.
    """
    fields = text(f"/proc/{pid}/syscall").split()
    return waiting_in(pid).startswith("futex") and len(fields) > 2 and bool(int(fields[2], 16) & _PRIVATE)


def catches(pid: int, number: int) -> bool:
    """Return whether ``pid`` has a handler for the signal. Without one the signal may end it."""
    return in_mask(f"/proc/{pid}/status", b"SigCgt:", number)


def in_mask(status: str, field: bytes, number: int) -> bool:
    """Return whether a signal is in a mask of the file ``status`` of a process or thread."""
    for line in content(status).split(b"\n"):
        if line.startswith(field):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def reads_pipe(pid: int) -> bool:
    """Return whether the standard input of ``pid`` is a pipe."""
    try:
        return stat.S_ISFIFO(os.stat(f"/proc/{pid}/fd/0").st_mode)
    except OSError:
        return False


def descriptors(pid: int) -> dict[int, str]:
    """Return the target of each open descriptor of ``pid``; empty without the permission to look."""
    paths = {}
    for name in listed(f"/proc/{pid}/fd"):
        try:
            paths[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
    return paths


def written_files(pid: int) -> dict[str, int]:
    """Return the position of ``pid`` in each file that it writes, by path, without its standard streams.

    fdinfo has the position. The size of a file is not read: its server may not answer.
    """
    positions = {}
    for number, path in descriptors(pid).items():
        if number <= 2 or not path.startswith("/") or path.startswith(("/memfd:", "/dev/", "/proc/")):
            continue
        lines = content(f"/proc/{pid}/fdinfo/{number}").split(b"\n")
        info = dict(line.split(b":\t", 1) for line in lines if b":\t" in line)
        if int(info.get(b"flags", b"0"), 8) & os.O_ACCMODE != os.O_RDONLY:
            positions[path] = int(info.get(b"pos", b"0"))
    return positions


def sockets(pid: int) -> set[str]:
    return {target[8:-1] for target in descriptors(pid).values() if target.startswith("socket:[")}


class TcpTables:
    """The TCP sockets of several processes at one moment.

    Each network namespace is read once. The kernel walks its whole table of connections for each read, which
    takes 10 ms on a small machine and more on a large one.
    """

    def __init__(self) -> None:
        self._rows: dict[str, list[list[str]]] = {}

    def rows(self, pid: int) -> list[list[str]]:
        """Return the cells of each socket of /proc/PID/net/tcp, and of tcp6."""
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/net")
        except OSError:
            namespace = str(pid)
        if namespace not in self._rows:
            files = [content(f"/proc/{pid}/net/{table}") for table in ("tcp", "tcp6")]
            lines = [line for file in files for line in file.decode("ascii", "replace").split("\n")[1:]]
            self._rows[namespace] = [cells for line in lines if len(cells := line.split()) > 9]
        return self._rows[namespace]

    def listeners(self, pid: int) -> dict[str, tuple[str, int]]:
        """Return address and port of all listening sockets that ``pid`` can reach, by inode."""
        places = {cells[9]: cells[1].partition(":") for cells in self.rows(pid) if cells[3] == "0A"}
        return {inode: (address(digits), int(port, 16)) for inode, (digits, _, port) in places.items()}


def address(digits: str) -> str:
    """Return an address of /proc/net as text: ``0200640A`` is 10.100.0.2, in this machine's byte order."""
    import socket  # commands that only look at processes do not need it

    packed = b"".join(bytes.fromhex(digits[index : index + 8])[::-1] for index in range(0, len(digits), 8))
    if len(packed) == 16 and packed.startswith(bytes(10) + b"\xff\xff"):
        packed = packed[12:]
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def memory() -> tuple[int, int]:
    """Return the bytes of memory, and those that new processes can get; 0 if unknown."""
    cells = (line.split() for line in content("/proc/meminfo").split(b"\n"))
    sizes = {row[0]: int(row[1]) << 10 for row in cells if len(row) > 1}
    return sizes.get(b"MemTotal:", 0), sizes.get(b"MemAvailable:", sizes.get(b"MemFree:", 0))


def content(path: str) -> bytes:
    """Return the whole file; empty if there is none."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def text(path: str) -> str:
    return content(path).decode("utf-8", "replace")


def listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
