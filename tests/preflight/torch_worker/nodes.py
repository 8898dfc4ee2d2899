"""Nodes of a pre-flight as real torch workers on this machine, and partners that behave badly."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from clusterrun import proc
from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import replace
from clusterrun.preflight.tasks import GroupMember, GroupResult, GroupTask, TorchStarted

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120
"""How long anything may take on a busy machine before a test fails for it."""
DOOR = (
    "import os, sys; from clusterrun.preflight.torch_worker.torch_server import main; "
    "sys.exit(main(dict(os.environ)))"
)


def until(true: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for a condition; a failure says which."""
    limit = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < limit, f"after {seconds:g} s still not: {what}"
        time.sleep(0.01)


class Node:
    """One torch worker."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", DOOR],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )
        self._rest = b""
        self._up: TorchStarted | None = None
        self._ports: list[int] = []

    @property
    def up(self) -> TorchStarted:
        if self._up is None:
            self._up = decode(TorchStarted, self._line())
            self._ports += self._up.ports
        return self._up

    def port(self) -> int:
        """Return a port that listens and that no test has used."""
        assert self.up.up
        return self._ports.pop(0)

    def ask(self, task: GroupTask) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(encode(task)).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self) -> GroupResult:
        result = decode(GroupResult, self._line())
        self._ports += result.ports
        return result

    def children(self) -> list[int]:
        """Return the processes of tests that run or have just ended."""
        return [entry.pid for entry in proc.descendants(self.process.pid)]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            pipe.close()

    def idle(self) -> None:
        """Wait until no process of a test is left."""
        until(lambda: not self.children(), "the last test's process is gone")

    def _line(self) -> object:
        assert self.process.stdout
        pipe = self.process.stdout.fileno()
        limit = time.monotonic() + SECONDS
        while b"\n" not in self._rest:
            assert select.select([pipe], [], [], max(0, limit - time.monotonic()))[0], (
                f"{self.name} is silent"
            )
            data = os.read(pipe, 65536)
            assert data, f"{self.name} has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


def alive(pids: Iterable[int]) -> bool:
    """Return whether any of these processes lives."""
    return any(entry and entry.state not in proc.GONE_STATES for entry in map(proc.find, pids))


@contextmanager
def running(*names: str, environment: Mapping[str, str] | None = None) -> Iterator[list[Node]]:
    """Yield warm processes, started together and ready."""
    nodes = [Node(name, environment) for name in names]
    try:
        assert all(node.up.up for node in nodes)
        yield nodes
    finally:
        for node in nodes:
            node.end()


def group(*nodes: Node, kind: str = "pair", limit: float = SECONDS, **fields: object) -> GroupTask:
    """Return a test of these nodes as the first one gets it. Its messages are small."""
    members = tuple(GroupMember(place, node.name, "127.0.0.1") for place, node in enumerate(nodes))
    plain = GroupTask(1, kind, members, 0, 1, 0, "lo", limit, 1.0)
    return replace(plain, **{"port": nodes[0].port() if kind != "product" else 0, **fields})


def begin(task: GroupTask, *nodes: Node) -> None:
    """Send every member the task with its own place."""
    for place, node in enumerate(nodes):
        node.ask(replace(task, place=place))


def results(*nodes: Node, **fields: object) -> list[GroupResult]:
    """Test these nodes together; their results in their order."""
    begin(group(*nodes, **fields), *nodes)  # type: ignore[arg-type]
    return [node.answer() for node in nodes]


BAD_PARTNER = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist
print("ready", flush=True)
long = timedelta(seconds=100)
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, timeout=long, wait_for_workers=False)
store = dist.PrefixStore("group", dist.PrefixStore("test 1", store))
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=long)
dist.all_reduce(torch.zeros(16384, dtype=torch.int64))
os.kill(os.getpid(), {"dies": signal.SIGKILL, "stops": signal.SIGSTOP}[sys.argv[2]])
"""


@contextmanager
def partner(port: int, deed: str) -> Iterator[None]:
    """Be the second member of test 1: give zeros to the first sum, and then ``dies`` or ``stops``."""
    process = subprocess.Popen(
        [sys.executable, "-c", BAD_PARTNER, str(port), deed],
        stdout=subprocess.PIPE, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    try:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.communicate()
