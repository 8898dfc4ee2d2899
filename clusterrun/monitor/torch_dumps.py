"""Fetch the flight records and stacks that torch itself offers for a rank, if its variables ask for it.

torch writes its flight records into a file when a collective times out (``TORCH_FR_DUMP_TEMP_FILE``) or when
somebody writes into a pipe (``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``). Its worker server answers on a socket
(``TORCH_WORKER_SERVER_SOCKET``). A rank whose Python place changes is not asked: a query of its events can
end the capture of a CUDA graph.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Sequence
from contextlib import suppress

from clusterrun import proc
from clusterrun.diagnosis.evidence import LookOptions
from clusterrun.diagnosis.flight_dump import groups_and_records, read_dump
from clusterrun.diagnosis.job_looks import SeenRank
from clusterrun.diagnosis.stacks import of_faulthandlers_last
from clusterrun.model.frozen import Any, replace
from clusterrun.monitor.job_processes import FILES, PIPE, SERVER, RankProcess

# The server keeps the records of gloo and those of NCCL apart.
HANDLERS = ("fr_trace_json", "dump_nccl_trace_json")
SERVER_SECONDS = 2.0
# torch looks at the pipe once a second.
PIPE_SECONDS = 5.0
PAUSE = 0.1
MOST_BYTES = 64 << 20


def flight_dumps(ranks: Sequence[RankProcess]) -> dict[int, dict[str, Any]]:
    """Return the flight records of the ranks that offer them, by process."""
    dumps: dict[int, dict[str, Any]] = {}
    before: dict[int, float] = {}
    for rank in ranks:
        if document := _of_server(rank):
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


def with_flight_records(seen: Sequence[SeenRank], settled: Sequence[RankProcess]) -> list[SeenRank]:
    """Return ``seen`` with the flight records of the ranks in ``settled`` that offer them."""
    dumps = flight_dumps(settled)
    ranks = []
    for rank in seen:
        document = dumps.get(rank.snapshot.process.pid, {})
        groups, records = groups_and_records(document, rank.name.size, LookOptions().records)
        snapshot = replace(rank.snapshot, groups=groups, records=records, answered=bool(groups))
        ranks.append(replace(rank, snapshot=snapshot))
    return ranks


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


def has_server(rank: RankProcess) -> bool:
    """Return whether this rank itself listens on the socket that its variables name.

    Ranks with one variable may all name the socket of the first of them.
    """
    name = rank.environment.get(SERVER, "")
    if not name:
        return False
    own = proc.sockets(rank.pid)
    lines = proc.content(f"/proc/{rank.pid}/net/unix").decode("utf-8", "replace").split("\n")[1:]
    return any(cells[6] in own for line in lines if len(cells := line.split()) > 7 and cells[7] == name)


def _of_server(rank: RankProcess) -> dict[str, Any]:
    if not has_server(rank):
        return {}
    documents = [read_dump(ask_server(rank, handler)) for handler in HANDLERS]
    documents = [document for document in documents if document]
    if not documents:
        return {}
    config: dict[str, Any] = {}
    for document in documents:
        config.update(document.get("pg_config") or {})
    entries = [entry for document in documents for entry in document["entries"]]
    return {**documents[0], "entries": entries, "pg_config": config}


def ask_server(rank: RankProcess, handler: str) -> bytes:
    """Return the answer of a rank's worker server; empty if there is none in time."""
    until = time.monotonic() + SERVER_SECONDS
    answer = b""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(SERVER_SECONDS)
            peer.connect(_path(rank, rank.environment[SERVER]))
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


def stacks_of_servers(ranks: Sequence[RankProcess]) -> dict[int, tuple[str, ...]]:
    """Return the main threads' stacks that worker servers give, by process."""
    texts = {rank.pid: ask_server(rank, "dump_traceback") for rank in ranks if has_server(rank)}
    stacks = {pid: of_faulthandlers_last(text.decode("utf-8", "replace")) for pid, text in texts.items()}
    return {pid: stack for pid, stack in stacks.items() if stack}
