"""All ring pairs of eight nodes: torch workers that fork their tests, beside new processes for each pair."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.measure import Side, in_turn, table
from tests.preflight.torch_worker.nodes import Node, begin, group, running

NODES = 8
ROUNDS = 3
NAMES = [f"n{number}" for number in range(1, NODES + 1)]
RING = [(place, (place + 1) % NODES) for place in range(NODES)]
MATCHINGS = (RING[::2], RING[1::2])
LIMIT = 120.0

PLAIN = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
rank, port = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timedelta(seconds=60))
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
given = torch.arange(16384) * (rank + 1)
dist.all_reduce(given)
assert torch.equal(given, torch.arange(16384) * 3)
content = torch.zeros(1_000_000)
for turn in range(4):
    began = time.perf_counter()
    dist.all_reduce(content)
    for sender in (0, 1):
        if rank == sender:
            dist.send(content, 1 - rank)
        else:
            dist.recv(content, sender)
    seconds = time.perf_counter() - began
dist.barrier()
dist.destroy_process_group()
"""
"""A check as a user would write it: a checked sum, then four times an all-reduce and a message each way."""


def one_after_the_other() -> float:
    """Test every pair of the ring with two new processes. Return the seconds."""
    began = time.perf_counter()
    for _ in RING:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = [sys.executable, "-c", PLAIN]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        both = [subprocess.Popen([*command, rank, port], env=environment) for rank in ("0", "1")]
        if any(process.wait(LIMIT) for process in both):
            raise RuntimeError("a pair of the plain script failed")
    return time.perf_counter() - began


def round_of(nodes: Sequence[Node], pairs: Sequence[tuple[int, int]]) -> None:
    """Test one matching: all of its pairs at once."""
    for first, second in pairs:
        members = nodes[first], nodes[second]
        begin(group(*members, limit=LIMIT, megabytes=4.0), *members)
    for node in nodes:
        result = node.answer()
        if not result.passed:
            raise RuntimeError(f"{node.name}: {result}")


def warm_from_the_start() -> float:
    """Start the torch workers of all nodes and test both matchings. Return the seconds."""
    began = time.perf_counter()
    with running(*NAMES) as nodes:
        for pairs in MATCHINGS:
            round_of(nodes, pairs)
        return time.perf_counter() - began


def both_matchings(nodes: Sequence[Node]) -> Side:
    """Return a side that tests the ring with warm processes."""

    def once() -> float:
        began = time.perf_counter()
        for pairs in MATCHINGS:
            round_of(nodes, pairs)
        return time.perf_counter() - began

    return once


def main() -> None:
    """Run as many rounds as the first argument has. All nodes share the cores of this machine."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with running(*NAMES) as nodes:
        sides: dict[str, Side] = {
            "torch workers, started already": both_matchings(nodes),
            "torch workers, from their start": warm_from_the_start,
            "one pair after the other, new processes": one_after_the_other,
        }
        title = f"the {NODES} pairs of a ring of {NODES} nodes on {os.cpu_count()} cores, gloo"
        print(table(title, in_turn(sides, rounds, warm=0), scale=1, unit="s"), flush=True)


if __name__ == "__main__":
    main()
