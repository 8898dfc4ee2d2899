"""The second set of hanging scripts for jobs that clusterrun did not start, beside `hanging_script.py`.

    torchrun … hanging_set_2.py CASE

Each function is a case of four ranks. `bench_foreign_jobs.py` holds the expected answers, which were written
before the first run.
"""

from __future__ import annotations

import ctypes
import datetime
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main

LONG = 100_000.0
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")


def first_of(names: tuple[str, ...]) -> int:
    return next(int(os.environ[name]) for name in names if name in os.environ)


def path_of(name: str) -> str:
    return os.path.join(os.environ["MARKS"], name)


def mark_up(rank: int) -> None:
    with open(path_of(f"up-{rank}"), "w"):
        pass


def begin(rank: int, size: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=3))
    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    mark_up(rank)


# --- one rank does something else ---


class Cache:
    """Two locks that two threads take in opposite order."""

    def __init__(self) -> None:
        self.index, self.data = threading.Lock(), threading.Lock()

    def refill(self) -> None:
        with self.data:
            time.sleep(1)
            with self.index:
                pass

    def get(self) -> None:
        with self.index:
            time.sleep(1)
            with self.data:
                pass


def locks_in_opposite_order(rank: int) -> None:
    if rank == 2:
        cache = Cache()
        threading.Thread(target=cache.refill, daemon=True).start()
        cache.get()
    dist.all_reduce(torch.ones(4))


class FromPipe(torch.utils.data.Dataset):
    """Rank 0 opens a FIFO that nobody writes."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if dist.is_initialized() and dist.get_rank() == 0 and index == 12:
            with open(path_of("shard-12"), "rb") as file:
                file.read()
        return torch.ones(2)


def worker_opens_fifo(rank: int) -> None:
    if rank == 0:
        os.mkfifo(path_of("shard-12"))
    loader = torch.utils.data.DataLoader(FromPipe(), batch_size=4, num_workers=2, persistent_workers=True)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for batch in loader:
        net(batch).sum().backward()


def gathers_where_others_reduce(rank: int) -> None:
    """Gather a metric of another kind, deep in a helper."""

    def summed(value: torch.Tensor) -> None:
        dist.all_reduce(value)

    def listed(value: torch.Tensor) -> None:
        dist.all_gather([torch.zeros_like(value) for _ in range(dist.get_world_size())], value)

    def report(metric: torch.Tensor) -> None:
        (listed if rank == 3 else summed)(metric)

    report(torch.ones(3))
    dist.barrier()


def ends_before_key(rank: int) -> None:
    """Let rank 2 find no work and leave without an error. The others wait for its key."""
    if rank == 2:
        os._exit(0)
    store = dist.distributed_c10d._get_default_store()
    store.set_timeout(datetime.timedelta(seconds=LONG))
    for other in range(dist.get_world_size()):
        if other == rank:
            store.set(f"ready-{rank}", "1")
        store.get(f"ready-{other}")


def writes_fifo(rank: int) -> None:
    """Open a FIFO for a log that nobody reads."""
    if rank == 1:
        os.mkfifo(path_of("log"))
        with open(path_of("log"), "w") as file:
            file.write("epoch 1\n")
    dist.barrier()


def pair_or_world(rank: int) -> None:
    """Let rank 1 wait for all ranks where it should wait for its pair."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    dist.barrier(None if rank == 1 else pairs[rank // 2])
    dist.all_reduce(torch.ones(4))


def matches_for_ever(rank: int) -> None:
    """Match a regular expression that takes exponential time and holds the interpreter's lock."""
    if rank == 1:
        re.match(r"(a+)+$", "a" * 60 + "b")
    dist.all_reduce(torch.ones(4))


def key_of_rank_0(rank: int) -> None:
    """Let rank 0 forget the key and wait for the others."""
    store = dist.distributed_c10d._get_default_store()
    if rank > 0:
        store.set_timeout(datetime.timedelta(seconds=LONG))
        store.get("learning rate")
    dist.barrier()


def full_pipe(rank: int) -> None:
    """Wait for a program whose output nobody reads."""
    if rank == 2:
        program = subprocess.Popen(["sh", "-c", "yes"], stdout=subprocess.PIPE)
        program.wait()
    dist.all_reduce(torch.ones(4))


def saves_to_fifo(rank: int) -> None:
    if rank == 3:
        os.mkfifo(path_of("model.pt"))
        torch.save({"w": torch.ones(1 << 20)}, path_of("model.pt"))
    dist.barrier()


def downloads(rank: int) -> None:
    """Download from a server that accepts and never answers."""
    if rank == 0:
        server = socket.create_server(("127.0.0.1", 0))
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/weights.bin")
    dist.broadcast(torch.ones(4), 0)


def holds_interpreter(rank: int) -> None:
    """Call a C function that keeps Python's lock, so that no thread of Python runs."""
    if rank == 2:
        ctypes.PyDLL(None).sleep(int(LONG))
    dist.all_reduce(torch.ones(4))


LOGGING = threading.Lock()


def _tokenize(text: str) -> int:
    with LOGGING:
        return len(text)


def pool_of_forks(rank: int) -> None:
    """Fork the processes of a pool while a thread holds a lock. They wait for it for ever."""
    if rank == 3:
        threading.Thread(target=lambda: LOGGING.acquire() and time.sleep(LONG), daemon=True).start()
        time.sleep(1)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(_tokenize, ["a", "b"])
    dist.all_reduce(torch.ones(4))


def asks_to_overwrite(rank: int) -> None:
    if rank == 0:
        os.mkfifo(path_of("terminal"))
        os.dup2(os.open(path_of("terminal"), os.O_RDWR), 0)
        if input("the output folder exists; overwrite? [y/n] ") == "n":
            sys.exit()
    dist.barrier()


def event_of_thread(rank: int) -> None:
    """Let a background thread fail, so that the event which it should set never comes."""
    ready = threading.Event()

    def load() -> None:
        if rank == 1:
            raise OSError("weights are missing")
        ready.set()

    threading.Thread(target=load).start()
    ready.wait()
    dist.all_reduce(torch.ones(4))


# --- nobody is to blame ---


def saves_slowly(rank: int) -> None:
    """Let rank 0 write its checkpoint at 4 MB a second."""
    if rank == 0:
        with open(path_of("checkpoint"), "wb") as file:
            for _ in range(600):
                file.write(os.urandom(1 << 20))
                file.flush()
                time.sleep(0.25)
                if file.tell() > 64 << 20:
                    file.seek(0), file.truncate()
    dist.barrier()


def pipeline(rank: int) -> None:
    """Run four stages that each work for a second, one after another."""
    while True:
        if rank > 0:
            dist.recv(torch.ones(4), rank - 1)
        time.sleep(1.0)
        if rank < 3:
            dist.send(torch.ones(4), rank + 1)
        dist.barrier()


def all_wait_for_data(rank: int) -> None:
    """Let every rank look for the next shard, which nobody writes yet."""
    while not os.path.exists(path_of("next-shard")):
        time.sleep(0.5)
    dist.barrier()


def two_and_two(rank: int) -> None:
    """Let two ranks sleep and two wait."""
    if rank in (1, 2):
        time.sleep(LONG)
    dist.all_reduce(torch.ones(4))


def run(case: str) -> None:
    rank, size = first_of(RANK_NAMES), first_of(SIZE_NAMES)
    with worker_main() if "TORCH_WORKER_SERVER_SOCKET" in os.environ else nullcontext():
        begin(rank, size)
        globals()[case](rank)


# --- a launcher of its own ---


def starts_like_deepspeed(case: str) -> None:
    """Start the ranks of this node with the variables that `deepspeed.launcher.launch` sets."""
    node = int(os.environ["SLURM_NODEID"])
    ranks = []
    for local in range(2):
        names = {"LOCAL_RANK": str(local), "RANK": str(2 * node + local), "WORLD_SIZE": "4"}
        names.update(CROSS_RANK=str(node), CROSS_SIZE="2", LOCAL_SIZE="2")
        command = [sys.executable, "-u", __file__, case, f"--local_rank={local}"]
        ranks.append(subprocess.Popen(command, env={**os.environ, **names}))
    for rank in ranks:
        rank.wait()


def main() -> None:
    word, *rest = sys.argv[1:]
    if word == "--deepspeed":
        starts_like_deepspeed(rest[0])
    else:
        run(word)


if __name__ == "__main__":
    main()
