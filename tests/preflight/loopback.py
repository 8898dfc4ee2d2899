"""Real examiners of one machine, each standing for a node, driven as agents would drive them."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clusterrun.model.orders import Level, Orders, Preflight
from clusterrun.preflight import tasks
from clusterrun.preflight.session.session import (
    AskExaminer,
    Session,
    SessionNode,
    SessionOutcome,
)
from clusterrun.runtime.machine_events import Now
from tests.program import packed_once

LIMIT = 120.0


def run_directory(folder: Path) -> Path:
    """Make a run directory that contains only the program."""
    shutil.copy(packed_once(), folder / "agent.pyz")
    return folder


class Node:
    """One examiner: a process of its own, as the agent starts it."""

    def __init__(self, run_dir: Path, name: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(run_dir / "agent.pyz"), "examine", str(run_dir), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TZ": "UTC", **(environment or {})},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.half = b""

    def tell(self, number: int, body: str) -> None:
        self.stdin.write(json.dumps({"number": number, "body": body}).encode() + b"\n")
        self.stdin.flush()

    def ask(self, number: int, task: Any) -> Any:
        """Return the answer to ``task``. It must be the next message."""
        self.tell(number, tasks.message_text(task))
        return self.hear(number, task)

    def hear(self, number: int, task: Any) -> Any:
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while b"\n" not in self.half:
                assert selector.select(LIMIT), f"no answer to {task}"
                data = os.read(self.stdout.fileno(), 1 << 20)
                assert data, "the examiner ended"
                self.half += data
        line, _, self.half = self.half.partition(b"\n")
        document = json.loads(line)
        assert document["number"] == number
        return tasks.answer(task, document["body"])

    def end(self) -> int:
        """Close its input; what it exits with."""
        self.stdin.close()
        try:
            return self.process.wait(LIMIT)
        finally:
            self.process.kill()
            self.stdout.close()


def loopback_orders(nodes: int, level: Level = Level.FULL, **more: Any) -> Orders:
    return Orders(
        run_id="r1",
        run_name="r",
        nodes=nodes,
        ranks_per_node=1,
        gpus_per_node=0,
        cpus_per_rank=1,
        command=(sys.executable, "t.py"),
        cwd="/",
        preflight=Preflight(level=level, python=sys.executable, budget=300.0, **more),
    )


class Loopback:
    """Nodes of one machine under one check."""

    def __init__(self, run_dir: Path, orders: Orders, environments: dict[int, dict[str, str]]) -> None:
        total = orders.nodes + orders.spares
        self.nodes = [Node(run_dir, f"n{n}", environments.get(n)) for n in range(total)]
        local = [SessionNode(node, f"n{node}", "127.0.0.1") for node in range(total)]
        self.machine = Session(orders, local, Now(time.monotonic(), time.time()), str(run_dir))

    def outcome(self) -> SessionOutcome:
        with selectors.DefaultSelector() as selector:
            for number, node in enumerate(self.nodes):
                selector.register(node.stdout, selectors.EVENT_READ, number)
            self.send(self.machine.begin())
            while self.machine.outcome is None:
                due = self.machine.wakes_at()
                assert due is not None
                for key, _ in selector.select(max(0.0, due - time.monotonic())):
                    if not self.listen(key.data):
                        selector.unregister(key.fileobj)
                        self.send(self.machine.lost(time.monotonic(), key.data, "its examiner ended"))
                self.send(self.machine.tick(time.monotonic()))
            return self.machine.outcome

    def listen(self, number: int) -> bool:
        node = self.nodes[number]
        data = os.read(node.stdout.fileno(), 1 << 20)
        *lines, node.half = (node.half + data).split(b"\n")
        for message in map(json.loads, lines):
            self.send(self.machine.answered(time.monotonic(), number, message["number"], message["body"]))
        return bool(data)

    def send(self, asks: Iterable[AskExaminer]) -> None:
        for ask in asks:
            try:
                self.nodes[ask.node].tell(ask.number, ask.body)
            except OSError:  # it has ended: that is heard at its output
                pass

    def end(self) -> None:
        for node in self.nodes:
            node.process.send_signal(signal.SIGCONT)
            try:
                node.stdin.close()
            except OSError:
                pass
            node.process.kill()
            node.process.wait(LIMIT)
            node.stdout.close()
