"""Ranks that train on request, with or without the entries by which they are watched.

    watched.py SOCKET

Rank 0 sends a line to SOCKET. For each answer ``ENTRIES SECONDS`` all ranks open or close their entries
and train for about SECONDS. Rank 0 then sends the seconds of a step: wall time, and CPU time of all ranks.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import socket
import sys
import time
from types import ModuleType
from typing import TextIO

import torch
import torch.distributed as dist

WARM, TOGETHER = 400, 20
"""Steps that do not count, and steps between two looks at the clock."""
SIGNAL = signal.SIGRTMAX - 7
FOLDER = "/proc/self/fd"


class Doors:
    """The entries that the prelude opened at this rank's start. They can be closed and opened again."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._prelude = loaded(os.path.join(folder, "clusterrun_prelude.py"))
        self.open = bool(self._found())
        if not self.open:
            raise SystemExit("this rank has no entries")

    def become(self, is_open: bool) -> None:
        if is_open and not self.open:
            os.environ[self._prelude.SWITCH] = str(int(SIGNAL))
            self._prelude.begin(self._folder)
            assert self._found(), "the entries do not open"
        elif self.open and not is_open:
            self._close()
        self.open = is_open

    def _found(self) -> dict[int, str]:
        links = {int(name): link(name) for name in os.listdir(FOLDER)}
        return {number: target for number, target in links.items() if "memfd:clusterrun." in target}

    def _close(self) -> None:
        faulthandler.unregister(SIGNAL)
        descriptors = self._found()
        ask = next(int(t.split(" ")[0].rpartition(".")[2]) for t in descriptors.values() if ".facts." in t)
        threads = len(os.listdir("/proc/self/task"))
        os.write(ask, b"\n")  # no question: the thread that would answer ends
        until = time.monotonic() + 10.0
        while len(os.listdir("/proc/self/task")) >= threads and time.monotonic() < until:
            time.sleep(0.001)
        ends = [int(name) for name in os.listdir(FOLDER) if link(name) == link(ask)]
        for number in (*descriptors, *ends):
            os.close(number)


def link(name: str | int) -> str:
    try:
        return os.readlink(f"{FOLDER}/{name}")
    except OSError:
        return ""


def loaded(path: str) -> ModuleType:
    """Load the same file that ranks load."""
    spec = importlib.util.spec_from_file_location("clusterrun_prelude_again", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Steps:
    """A little work and a collective, again and again."""

    def __init__(self) -> None:
        self._work = torch.randn(256, 256)

    def take(self, count: int) -> None:
        for _ in range(count):
            for _ in range(4):
                self._work = torch.tanh(self._work @ self._work)
            dist.all_reduce(self._work)

    def during(self, seconds: float) -> tuple[float, float]:
        """Train for about ``seconds``. Return the seconds per step: wall time, and CPU time of all ranks."""
        go_on, count = torch.ones(1), 0
        wall, own = time.perf_counter(), time.process_time()
        while go_on.item():
            self.take(TOGETHER)
            count += TOGETHER
            go_on.fill_(time.perf_counter() < wall + seconds)
            dist.broadcast(go_on, 0)
        taken = torch.tensor([time.process_time() - own], dtype=torch.float64)
        seconds = time.perf_counter() - wall
        dist.all_reduce(taken)
        return seconds / count, taken.item() / count


def serve(entries: Doors, stream: TextIO | None) -> None:
    steps = Steps()
    steps.take(WARM)
    while True:
        wish = torch.tensor(asked(stream))
        dist.broadcast(wish, 0)
        if wish[1] <= 0:
            return
        entries.become(bool(wish[0]))
        dist.barrier()
        taken = steps.during(float(wish[1]))
        if stream:
            stream.write("{} {}\n".format(*taken))
            stream.flush()


def asked(stream: TextIO | None) -> list[float]:
    """Return the next request: with entries or not, and the seconds; [] at the end."""
    fields = stream.readline().split() if stream else []
    return [float(word) for word in fields] or [0.0, 0.0]


def main() -> None:
    (path,) = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stream = None
    if dist.get_rank() == 0:
        line = socket.socket(socket.AF_UNIX)
        line.connect(path)
        stream = line.makefile("rw")
        stream.write("ready\n")
        stream.flush()
    serve(Doors(os.path.join(os.environ["CLUSTERRUN_RUN_DIR"], "prelude")), stream)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
