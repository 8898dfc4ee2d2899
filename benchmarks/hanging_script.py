"""A training script that hangs in one of many ways, for jobs that clusterrun did not start.

    torchrun … hanging_script.py CASE

Each function below is a case. It runs on every rank of four after some common steps.
``bench_foreign_jobs.py`` knows who is to blame in each.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

LONG = 100_000.0
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
SIZE_NAMES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")


def first_of(names: tuple[str, ...]) -> int:
    return next(int(os.environ[name]) for name in names if name in os.environ)


def begin() -> tuple[int, int]:
    """Make the group and return rank and size."""
    rank, size = first_of(RANK_NAMES), first_of(SIZE_NAMES)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    return rank, size


def mark_up() -> None:
    with open(os.path.join(os.environ["MARKS"], f"up-{os.environ['RANK']}"), "w"):
        pass


# --- one rank does something else ---


def sleeps(rank: int) -> None:
    if rank == 3:
        time.sleep(LONG)
    dist.all_reduce(torch.ones(4))


def endless_loop(rank: int) -> None:
    while rank == 1:
        pass
    dist.all_reduce(torch.ones(4))


def computes(rank: int) -> None:
    work = torch.randn(300, 300)
    while rank == 2:
        work = torch.tanh(work @ work)
    dist.barrier()


def stopped(rank: int) -> None:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


def waits_for_queue(rank: int) -> None:
    if rank == 0:
        queue.Queue().get()
    dist.broadcast(torch.ones(4), 0)


def waits_for_program(rank: int) -> None:
    if rank == 1:
        subprocess.run(["sleep", str(LONG)])
    dist.barrier()


def waits_for_lock(rank: int) -> None:
    lock = threading.Lock()
    lock.acquire()
    if rank == 3:
        lock.acquire()
    dist.all_reduce(torch.ones(4))


def waits_for_file_lock(rank: int) -> None:
    with open(os.path.join(os.environ["MARKS"], "cache.lock"), "w") as file:
        if rank == 1:
            holder = subprocess.Popen(["flock", file.name, "sleep", str(LONG)])
            time.sleep(1)
            assert holder.poll() is None
            fcntl.flock(file, fcntl.LOCK_EX)
        dist.all_reduce(torch.ones(4))


def reads_pipe(rank: int) -> None:
    if rank == 2:
        read, _ = os.pipe()
        os.read(read, 1)
    dist.all_gather([torch.ones(4) for _ in range(dist.get_world_size())], torch.ones(4))


def polls_file(rank: int) -> None:
    while rank == 0 and not os.path.exists("/nowhere/ready"):
        time.sleep(0.1)
    dist.barrier()


def asks_user(rank: int) -> None:
    if rank == 0:
        read, _ = os.pipe()
        os.dup2(read, 0)
        input("continue? ")
    dist.barrier()


def joins_thread(rank: int) -> None:
    if rank == 1:
        thread = threading.Thread(target=time.sleep, args=(LONG,), daemon=True)
        thread.start()
        thread.join()
    dist.all_reduce(torch.ones(4))


class Items(torch.utils.data.Dataset):
    """Its tenth item never comes on rank 1."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if first_of(RANK_NAMES) == 1 and index == 9:
            time.sleep(LONG)
        return torch.ones(2)


def data_loader(rank: int) -> None:
    for batch in torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=1):
        dist.all_reduce(batch.sum())


def data_without_workers(rank: int) -> None:
    for batch in torch.utils.data.DataLoader(Items(), batch_size=4):
        dist.all_reduce(batch.sum())


def accepts(rank: int) -> None:
    """Serve metrics to a client that never calls."""
    if rank == 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()
    dist.all_reduce(torch.ones(4))


async def _answer() -> None:
    await asyncio.Event().wait()


def awaits(rank: int) -> None:
    if rank == 2:
        asyncio.run(_answer())
    dist.barrier()


def returns_early(rank: int) -> None:
    """End the script while a thread keeps the process alive."""
    if rank == 2:
        threading.Thread(target=time.sleep, args=(LONG,)).start()
        return
    dist.all_reduce(torch.ones(4))


def retries(rank: int) -> None:
    """Catch the error and try again for ever."""
    while rank == 3:
        try:
            raise OSError("no space left on device")
        except OSError:
            time.sleep(0.5)
    dist.all_reduce(torch.ones(4))


# --- in the backward pass ---


def model() -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))


def skips_backward(rank: int) -> None:
    net = model()
    for step in range(10):
        loss = net(torch.ones(2, 8)).sum()
        if rank == 1 and step == 4:
            time.sleep(LONG)
        loss.backward()


def logs_in_the_middle(rank: int) -> None:
    net = model()
    net(torch.ones(2, 8)).sum().backward()
    if rank == 0:
        time.sleep(LONG)  # "uploads" the metrics
    net(torch.ones(2, 8)).sum().backward()


def uneven_data(rank: int) -> None:
    """Give rank 3 one batch fewer. It waits at the end of the epoch."""
    net = model()
    for _ in range(5 if rank == 3 else 6):
        net(torch.ones(2, 8)).sum().backward()
    dist.barrier()


# --- ranks make different calls ---


def extra_barrier(rank: int) -> None:
    if rank == 2:
        dist.barrier()
    dist.all_reduce(torch.ones(4))


def only_rank_0_saves(rank: int) -> None:
    if rank == 0:
        time.sleep(LONG)  # "saves"
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()


def other_branch(rank: int) -> None:
    if rank == 1:
        dist.broadcast(torch.ones(4), 1)
    else:
        dist.all_reduce(torch.ones(1000))


def half_and_half(rank: int) -> None:
    """Split the ranks into two and two, so that no rank may be blamed."""
    if rank < 2:
        dist.all_reduce(torch.ones(4))
    else:
        dist.barrier()


def recv_without_send(rank: int) -> None:
    if rank == 1:
        dist.recv(torch.ones(4), 0)
    dist.barrier()


def all_receive_first(rank: int) -> None:
    size = dist.get_world_size()
    dist.recv(torch.ones(4), (rank - 1) % size)
    dist.send(torch.ones(4), (rank + 1) % size)


def waits_for_key(rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank == 3:
        store.wait(["never_set"], __import__("datetime").timedelta(seconds=LONG))
    dist.barrier()


def exits_early(rank: int) -> None:
    """End a process while others wait (under launchers that do not notice)."""
    if rank == 1:
        os._exit(0)
    while True:
        try:
            dist.monitored_barrier(timeout=__import__("datetime").timedelta(seconds=LONG))
        except RuntimeError:
            time.sleep(0.2)


def healthy(rank: int) -> None:
    while True:
        time.sleep(0.05)
        dist.all_reduce(torch.ones(4))


def healthy_slow(rank: int) -> None:
    """Take steps of three seconds, in turn on each rank."""
    for step in range(10_000):
        if step % dist.get_world_size() == rank:
            time.sleep(3)
        dist.all_reduce(torch.ones(4))


# --- before there is a group ---


def absent_in_init(rank: int) -> None:
    if rank == 2:
        time.sleep(LONG)
    dist.init_process_group("gloo")


def other_world_size(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=5 if rank == 3 else 4)


def other_port(rank: int) -> None:
    if rank == 1:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    dist.init_process_group("gloo")


BEFORE = (absent_in_init, other_world_size, other_port)


def main() -> None:
    case = globals()[sys.argv[1]]
    rank, size = first_of(RANK_NAMES), first_of(SIZE_NAMES)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    torch.set_num_threads(1)
    os.environ.setdefault("MARKS", tempfile.gettempdir())
    if case in BEFORE:
        mark_up()
    else:
        begin()
        mark_up()
    case(rank)


if __name__ == "__main__":
    main()
