"""A rank of a tiny training without torch: the same weights at the end, however often it was interrupted.

    trainer.py FOLDER STEPS SECONDS EVERY [crash=STEP] [slow=SECONDS] [fill=BYTES]

Every step sums a number of each rank at rank 0, which a rank that is gone or cut off keeps from ending, as
with NCCL. Rank 0 keeps a checkpoint every EVERY steps through the training room, as jobs/train.py does.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from clusterrun import training
from clusterrun.training import checkpoints

WORD = 8
GREEDY = signal.SIGRTMIN
"""Told so, a rank takes more memory than any limit lets it have."""
MUCH = 1 << 30
JOIN_SECONDS = 120.0


class Kept(training.Checkpoints):
    """Checkpoints of plain values, so that no rank has to load torch."""

    def _load(self, path: str) -> Any:
        return json.loads(Path(path).read_bytes())


def dumping(state: Any) -> Any:
    """Return a function that writes the state, padded to its size."""
    return lambda file: file.write(json.dumps(state).encode().ljust(state["fill"]))


class Company:
    """The sockets between rank 0 and the others."""

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self._rank = rank
        self._others = _accepted(size, port) if rank == 0 else [_joined(rank, address, port)]

    def sum(self, mine: int, extra: int) -> tuple[int, int]:
        """Return the sum over all ranks, and rank 0's ``extra``."""
        if self._rank == 0:
            total = mine + sum(_heard(other) for other in self._others)
            for other in self._others:
                other.sendall(total.to_bytes(WORD, "big") + extra.to_bytes(WORD, "big"))
            return total, extra
        (leader,) = self._others
        leader.sendall(mine.to_bytes(WORD, "big"))
        return _heard(leader), _heard(leader)


def _accepted(size: int, port: int) -> list[socket.socket]:
    with socket.create_server(("", port), backlog=size) as entry:
        results = [entry.accept()[0] for _ in range(size - 1)]
    return [other for _, other in sorted((_heard(other), other.fileno(), other)[::2] for other in results)]


def _joined(rank: int, address: str, port: int) -> socket.socket:
    until = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            leader = socket.create_connection((address, port), timeout=5)
            leader.settimeout(None)
            leader.sendall(rank.to_bytes(WORD, "big"))
            return leader
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _heard(other: socket.socket) -> int:
    data = b""
    while len(data) < WORD:
        more = other.recv(WORD - len(data))
        if not more:
            raise ConnectionError("another rank is gone")
        data += more
    return int.from_bytes(data, "big")


def gradient(rank: int, step: int) -> int:
    """Return the part of a step that a rank adds."""
    return int.from_bytes(hashlib.blake2b(b"%d %d" % (rank, step), digest_size=4).digest(), "big")


def stepped(weights: str, total: int, step: int) -> str:
    """Return the weights after one more step."""
    return hashlib.blake2b(f"{weights} {total} {step}".encode(), digest_size=8).hexdigest()


def expected(size: int, steps: int) -> str:
    """Return the final state of an undisturbed training."""
    weights = ""
    for step in range(steps):
        weights = stepped(weights, sum(gradient(rank, step) for rank in range(size)), step)
    return weights


def main(folder: str, steps: int, seconds: float, every: int, **how: str) -> None:
    """Train, or continue from the newest checkpoint that is whole."""
    checkpoints.dumping = dumping
    signal.signal(GREEDY, lambda *_: b"x" * MUCH)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    retained = Kept(folder)
    state = (retained.latest() if rank == 0 else None) or {"step": 0, "weights": "", "fill": 0}
    state["fill"] = int(how.get("fill", 0))
    sidecars = Company(rank, size, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    _, first = sidecars.sum(0, state["step"])
    print(f"rank {rank} of {size} from step {first}", flush=True)
    for step in range(first, steps):
        time.sleep(seconds)
        if how.get("crash") == str(step + 1) and rank == 1:
            os._exit(3)  # at once, or the others would end first
        stop = training.should_stop(1) if rank == 0 else False
        total, stopping = sidecars.sum(gradient(rank, step), int(stop))
        state |= {"step": step + 1, "weights": stepped(state["weights"], total, step)}
        if rank == 0:
            training.progress(step + 1)
            if stopping or (step + 1) % every == 0 or step + 1 == steps:
                time.sleep(float(how.get("slow", 0)))
                retained.save(state, step + 1)
        if stopping:
            print(f"stopped after step {step + 1}", flush=True)
            return
    if rank == 0:
        print(f"weights {state['weights']}", flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    named = dict(word.split("=", 1) for word in words[4:])
    main(words[0], int(words[1]), float(words[2]), int(words[3]), **named)
