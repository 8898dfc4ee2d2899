"""Flight records and stacks that torch offers: a file, a pipe that asks for it, and its worker server."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_INET6, create_server

import pytest

from clusterrun.diagnosis.flight_dump import groups_and_records
from clusterrun.diagnosis.job_looks import RankName
from clusterrun.monitor import torch_dumps
from clusterrun.monitor.job_processes import RankProcess
from clusterrun.monitor.torch_dumps import flight_dumps, servers_of, stacks_of_servers

DUMP = {"entries": [{"process_group": ["0", "default_pg"], "collective_seq_id": 3}]}
SERVED = """
import os, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
from torch.distributed.elastic.control_plane import worker_main
def step():
    open("up", "w").close()
    time.sleep(600)
with worker_main():
    if "PORT" in os.environ:  # as torch.distributed.debug.start_debug_server does it
        servers = [_WorkerServer("::", int(os.environ["PORT"])) for _ in range(int(os.environ["SERVERS"]))]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    dist.barrier()
    step()
"""


def rank(pid: int, **environment: str) -> RankProcess:
    return RankProcess(RankName("RANK", 0, 1), pid, environment)


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


def test_a_file_that_torch_wrote_since_the_start_of_the_rank_is_read(sleeper: int, tmp_path: Path) -> None:
    path = tmp_path / "dump-0"
    path.write_bytes(pickle.dumps(DUMP))
    os.utime(path, (time.time() + 60, time.time() + 60))
    asks = rank(sleeper, TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/dump-")
    assert flight_dumps([asks]) == {sleeper: DUMP}
    os.utime(path, (1.0, 1.0))
    assert flight_dumps([asks]) == {}
    assert flight_dumps([rank(sleeper)]) == {}


def test_torch_dumps_on_request_through_its_pipe_and_the_new_file_is_read(
    sleeper: int, tmp_path: Path
) -> None:
    path, pipe = tmp_path / "dump-0", tmp_path / "ask-0.pipe"
    path.write_bytes(pickle.dumps({**DUMP, "old": True}))
    os.utime(path, (1.0, 1.0))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)

    def answer() -> None:
        os.read(reader, 8)
        path.write_bytes(pickle.dumps(DUMP)[:9])
        path.write_bytes(pickle.dumps(DUMP))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    names = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/dump-"}
    names["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = f"{tmp_path}/ask-"
    assert flight_dumps([rank(sleeper, **names)]) == {sleeper: DUMP}
    thread.join()
    os.close(reader)


def test_a_pipe_without_a_reader_or_an_answer_does_not_delay_for_ever(
    sleeper: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_dumps, "PIPE_SECONDS", 0.3)
    os.mkfifo(tmp_path / "ask-0.pipe")
    names = {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump-"}
    names["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = f"{tmp_path}/ask-"
    assert flight_dumps([rank(sleeper, **names)]) == {}
    reader = os.open(tmp_path / "ask-0.pipe", os.O_RDWR)
    assert flight_dumps([rank(sleeper, **names)]) == {}
    os.close(reader)


@contextmanager
def served(folder: Path, **names: str) -> Iterator[RankProcess]:
    """Yield a rank with torch that sleeps in ``step``."""
    pytest.importorskip("torch.distributed.elastic.control_plane")
    environment = {**os.environ, **names}
    with subprocess.Popen([sys.executable, "-c", SERVED], env=environment, cwd=folder) as process:
        try:
            until = time.monotonic() + 240
            while not (folder / "up").exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            yield rank(process.pid, **names)
        finally:
            process.kill()


@pytest.mark.parametrize("is_tcp", [False, True])
def test_the_worker_server_of_torch_gives_records_and_stacks(is_tcp: bool, tmp_path: Path) -> None:
    socket = {"TORCH_WORKER_SERVER_SOCKET": str(tmp_path / "socket")}
    with served(tmp_path, **({"PORT": "0", "SERVERS": "1"} if is_tcp else socket)) as process:
        servers = servers_of([process])
        document = flight_dumps([process], servers)[process.pid]
        _, records = groups_and_records(document, 1, 9)
        assert [(record.operation, record.sequence, record.done) for record in records] == [
            ("all_reduce", 1, True),
            ("barrier", 2, True),
        ]
        stack = stacks_of_servers(servers)[process.pid]
        assert [frame.rpartition(" ")[2] for frame in stack] == ["step", "<module>"]
        assert servers_of([rank(os.getpid(), **socket)]) == {}


def test_a_server_on_a_port_of_two_sockets_is_not_asked(tmp_path: Path) -> None:
    with create_server(("::", 0), family=AF_INET6) as free:
        port = str(free.getsockname()[1])
    with served(tmp_path, PORT=port, SERVERS="2") as process:
        assert (tmp_path / "up").exists()
        assert servers_of([process]) == {}
