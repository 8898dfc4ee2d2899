"""Fetch the flight records and stacks that torch itself offers for a rank, if its variables ask for it.

torch writes its flight records into a file when a collective times out (``TORCH_FR_DUMP_TEMP_FILE``) or when
somebody writes into a pipe (``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``). Its worker server answers on a socket
(``TORCH_WORKER_SERVER_SOCKET``), or on a TCP port (``torch.distributed.debug``). A rank whose Python place
changes is not asked: a query of its events can end the capture of a CUDA graph.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import LookOptions
from clusterrun.diagnosis.flight_dump import groups_and_records, read_dump
from clusterrun.diagnosis.job_looks import SeenRank
from clusterrun.diagnosis.stacks import of_faulthandlers_last
from clusterrun.model.frozen import Any, replace
from clusterrun.monitor.job_processes import RankProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    # The address of a worker server: the path of a socket, or host and port.
    Address = Union[str, tuple[str, int]]

FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
SERVER, SERVER_THREAD = "TORCH_WORKER_SERVER_SOCKET", "pt_workerserver"
# The server keeps the records of gloo and those of NCCL apart.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
SERVER_SECONDS = 2.0
# torch looks at the pipe once a second.
PIPE_SECONDS = 5.0
PAUSE = 0.1
MOST_BYTES = 64 << 20


def flight_dumps(
    ranks: Sequence[RankProcess], servers: Mapping[int, Address] = {}
) -> dict[int, dict[str, Any]]:
    """Return the flight records of the ranks that offer them, by process."""
    dumps: dict[int, dict[str, Any]] = {}
    before: dict[int, float] = {}
    for rank in ranks:
        if rank.pid in servers and (document := _of_server(servers[rank.pid])):
            dumps[rank.pid] = document
        elif path := _file(rank):
            before[rank.pid] = _written(path)
            if not _ask_by_pipe(rank):
                del before[rank.pid]
                if document := _of_file(path, proc.started_at(rank.pid)):
                    dumps[rank.pid] = document
    until = time.monotonic() + PIPE_SECONDS
    pending = [rank for rank in ranks if rank.pid in before]
    while pending and time.monotonic() < until:
        time.sleep(PAUSE)
        for rank in [rank for rank in pending if _written(_file(rank)) != before[rank.pid]]:
            if document := _of_file(_file(rank)):  # else it is not whole yet
                dumps[rank.pid] = document
                pending.remove(rank)
    return dumps


def with_flight_records(
    ranks: Sequence[SeenRank], settled: Sequence[RankProcess], servers: Mapping[int, Address]
) -> list[SeenRank]:
    """Return ``ranks`` with the flight records of the ranks in ``settled`` that offer them."""
    dumps = flight_dumps(settled, servers)
    with_records = []
    for rank in ranks:
        document = dumps.get(rank.snapshot.process.pid, {})
        groups, records = groups_and_records(document, rank.name.size, LookOptions().records)
        snapshot = replace(rank.snapshot, groups=groups, records=records, answered=bool(groups))
        with_records.append(replace(rank, snapshot=snapshot))
    return with_records


def _file(rank: RankProcess) -> str:
    """Return the file that torch writes for a rank; '' if no variable names it."""
    prefix = next((rank.environment[name] for name in FILES if rank.environment.get(name)), "")
    return _path(rank, f"{prefix}{rank.name.rank}") if prefix and rank.name.rank >= 0 else ""


def _path(rank: RankProcess, name: str) -> str:
    """Return a path of the rank's, which may be in a container, and relative to its folder."""
    return f"/proc/{rank.pid}/root{name}" if name.startswith("/") else f"/proc/{rank.pid}/cwd/{name}"


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _of_file(path: str, since: float = 0.0) -> dict[str, Any]:
    """Return the dump in a file that was written after ``since``, seconds since the epoch."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode) and status.st_mtime >= since and status.st_size <= MOST_BYTES:
                return read_dump(file.read(MOST_BYTES))
    return {}


def _ask_by_pipe(rank: RankProcess) -> bool:
    """Ask torch in a rank for a dump. Return whether something reads its pipe."""
    prefix = rank.environment.get(PIPE, "")
    if not prefix:
        return False
    with suppress(OSError):
        path = _path(rank, f"{prefix}{rank.name.rank}.pipe")
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"1\n") > 0
        finally:
            os.close(pipe)
    return False


# --- torch's worker server ---


def servers_of(ranks: Sequence[RankProcess]) -> dict[int, Address]:
    """Return the address of each rank's own worker server, by process."""
    addresses = {rank.pid: _unix_server(rank) or _tcp_server(rank.pid) for rank in ranks}
    return {pid: address for pid, address in addresses.items() if address}


def _unix_server(rank: RankProcess) -> str:
    """Return the path of the socket that the rank's variables name, if the rank itself listens on it.

    Ranks with one variable may all name the socket of the first of them.
    """
    name = rank.environment.get(SERVER, "")
    if not name:
        return ""
    rank_sockets = proc.sockets(rank.pid)
    lines = proc.content(f"/proc/{rank.pid}/net/unix").decode("utf-8", "replace").split("\n")[1:]
    is_own = any(
        cells[6] in rank_sockets for line in lines if len(cells := line.split()) > 7 and cells[7] == name
    )
    return _path(rank, name) if is_own else ""


def _tcp_server(pid: int) -> tuple[str, int] | None:
    """Return where torch's debug server listens in a process: a thread of that name waits in ``accept``.

    The first argument of that call is the socket. It does not count if this process cannot reach it, or if
    another socket shares its port (SO_REUSEPORT) and might answer.
    """
    for thread in proc.listed(f"/proc/{pid}/task"):
        folder = f"/proc/{pid}/task/{thread}"
        if proc.text(f"{folder}/comm").strip() != SERVER_THREAD:
            continue
        call = proc.text(f"{folder}/syscall").split()
        target = proc.descriptors(pid).get(int(call[1], 16), "") if len(call) > 1 else ""
        places = proc.TcpTables().listeners(os.getpid())
        place = places.get(target.removeprefix("socket:[").removesuffix("]"))
        if place and [port for _, port in places.values()].count(place[1]) == 1:
            return ("localhost" if place[0] in ("::", "0.0.0.0") else place[0]), place[1]
    return None


def _of_server(server: Address) -> dict[str, Any]:
    documents = [read_dump(ask_server(server, handler)) for handler in HANDLERS]
    documents = [document for document in documents if document]
    if not documents:
        return {}
    config: dict[str, Any] = {}
    for document in documents:
        config.update(document.get("pg_config") or {})
    entries = [entry for document in documents for entry in document["entries"]]
    return {**documents[0], "entries": entries, "pg_config": config}


def ask_server(server: Address, handler: str) -> bytes:
    """Return the answer of a worker server; empty if there is none in time."""
    until = time.monotonic() + SERVER_SECONDS
    answer = b""
    try:
        with _connected(server) as peer:
            request = (
                f"POST /handler/{handler}?includestacktraces=false HTTP/1.0\r\nContent-Length: 0\r\n\r\n"
            )
            peer.sendall(request.encode())
            while len(answer) < MOST_BYTES:
                peer.settimeout(max(0.01, until - time.monotonic()))
                data = peer.recv(1 << 16)
                if not data:
                    break
                answer += data
    except OSError:
        return b""
    head, _, body = answer.partition(b"\r\n\r\n")
    return body if b" 200 " in head.split(b"\r\n")[0] else b""


def _connected(server: Address) -> socket.socket:
    if not isinstance(server, str):
        return socket.create_connection(server, SERVER_SECONDS)
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(SERVER_SECONDS)
    try:
        peer.connect(server)
    except OSError:
        peer.close()
        raise
    return peer


def stacks_of_servers(servers: Mapping[int, Address]) -> dict[int, tuple[str, ...]]:
    """Return the main threads' stacks that worker servers give, by process."""
    texts = {pid: ask_server(server, "dump_traceback") for pid, server in servers.items()}
    stacks = {pid: of_faulthandlers_last(text.decode("utf-8", "replace")) for pid, text in texts.items()}
    return {pid: stack for pid, stack in stacks.items() if stack}
