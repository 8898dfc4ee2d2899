"""Ranks on a stage: real processes with the prelude, a real observer, and the detector that it reports to."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterrun.diagnosis.verdict import Diagnosis
from clusterrun.model.document import decode, encode
from clusterrun.model.orders import Orders, WatchOrders
from clusterrun.model.paths import RunPaths
from clusterrun.monitor.hang_detector import AskObserver, EndAttempt, HangDetector, Save, Warn
from clusterrun.monitor.rank_instrumentation import instrumented, write_hooks
from clusterrun.runtime.machine_events import Now

if TYPE_CHECKING:
    from clusterrun.monitor.hang_detector import HangDetectorAction

ROOT = Path(__file__).resolve().parents[2]
OBSERVE = "import sys; sys.path.insert(0, sys.argv[1]); from clusterrun.monitor.observer import main; "
OBSERVE += "sys.exit(main(sys.argv[2], int(sys.argv[3]), sys.argv[4], {'PATH': ''}))"
LIMIT = 90.0
HEAD = """
import os, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
"""


def until(condition: Callable[[], Any], what: str, seconds: float = LIMIT) -> Any:
    """Wait for a true value of ``condition`` and return it. Fail with ``what`` if it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain for: {what}")


def _now() -> Now:
    return Now(time.monotonic(), time.time())


class Node:
    """One observer and the ranks that it looks at."""

    def __init__(self, number: int, run_dir: str) -> None:
        self.number, self.name = number, f"n{number}"
        self.observer = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", OBSERVE, str(ROOT), run_dir, str(number), self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.rest = b""

    def ask(self, number: int, body: str) -> None:
        assert self.observer.stdin is not None
        self.observer.stdin.write(json.dumps({"number": number, "body": body}).encode() + b"\n")
        self.observer.stdin.flush()

    def said(self) -> Iterator[tuple[int, str]]:
        """Yield the output since the last call."""
        assert self.observer.stdout is not None
        while select.select([self.observer.stdout], [], [], 0)[0]:
            data = os.read(self.observer.stdout.fileno(), 1 << 16)
            if not data:
                return
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                message = json.loads(line)
                yield message["number"], message["body"]


class Stage:
    """A run of ``size`` ranks on one or more nodes, without agents: the test is the coordinator."""

    def __init__(
        self, folder: Path, body: str, size: int, nodes: int, watch: WatchOrders, torch: bool
    ) -> None:
        self.folder, self.size = folder, size
        folder.mkdir(mode=0o700)
        self.paths = RunPaths(str(folder)).attempt(0)
        Path(self.paths.folder).mkdir(parents=True)
        each = size // nodes
        self.orders = Orders("run", "run", nodes, each, 0, 1, ("true",), "/", watch=watch)
        (folder / "orders.json").write_text(json.dumps(encode(self.orders)))
        self.script = folder / "train.py"
        self.script.write_text((HEAD if torch else "import os, sys, time\n") + textwrap.dedent(body))
        write_hooks(str(folder / "prelude"))
        self.told: list[str] = []
        self.wishes: list[EndAttempt] = []
        self.ranks = self._ranks()
        self.nodes = [Node(number, str(folder)) for number in range(nodes)]
        for node in self.nodes:
            pids = {str(r): self.ranks[r].pid for r in range(node.number * each, (node.number + 1) * each)}
            node.ask(0, json.dumps({"ranks": pids, "epoch": 0}))
        names = [(node.number, node.name) for node in self.nodes]
        self.detector = HangDetector(self.orders, names, time.monotonic())

    def _ranks(self) -> list[subprocess.Popen[bytes]]:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        return [self._rank(rank, port) for rank in range(self.size)]

    def _rank(self, rank: int, port: int) -> subprocess.Popen[bytes]:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            "RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "CLUSTERRUN_RUN_DIR": str(self.folder),
            "CLUSTERRUN_ATTEMPT": "0",
            "FLAGS": str(self.folder),
        }
        with open(self.paths.out(rank), "wb") as out, open(self.paths.err(rank), "wb") as err:
            return subprocess.Popen(
                [sys.executable, "-u", str(self.script)],
                env=instrumented(environment, str(self.folder / "prelude")),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def printed(self, rank: int, word: str) -> bool:
        """Return whether a rank has printed ``word`` on its stdout."""
        return word in Path(self.paths.out(rank)).read_text(errors="replace")

    def ready(self, word: str = "ready") -> None:
        """Wait until every rank has printed ``word``."""
        until(lambda: all(self.printed(rank, word) for rank in range(self.size)), self.words())

    def words(self) -> str:
        """Return the ranks' error output, for the message of a failed test."""
        return "\n".join(Path(self.paths.err(rank)).read_text()[-2000:] for rank in range(self.size))

    def turn(self) -> None:
        """Let everybody speak once."""
        for node in self.nodes:
            for number, body in node.said():
                self._do(self.detector.on_answer(_now(), node.number, number, body))
        wakes_at = self.detector.wakes_at()
        if wakes_at is not None and wakes_at <= time.monotonic():
            self._do(self.detector.tick(_now()))

    def _do(self, actions: list[HangDetectorAction]) -> None:
        for action in actions:
            if isinstance(action, AskObserver):
                self.nodes[action.node].ask(action.number, action.body)
            elif isinstance(action, Save):
                Path(self.paths.beside(action.name)).write_text(action.text)
            elif isinstance(action, Warn):
                self.told.append(action.text)
            else:
                self.wishes.append(action)

    def diagnosis(self, name: str = "asked") -> Diagnosis:
        """Ask as a context does, and wait for the answer."""
        self._do(self.detector.on_request(_now(), name, "{}"))
        return self.saved(name)

    def saved(self, name: str) -> Diagnosis:
        """Wait for the diagnosis of that name and return it."""
        path = Path(self.paths.beside(f"{name}.json"))

        def is_saved() -> bool:
            self.turn()
            return path.exists()

        until(is_saved, f"{name}.json; {self.words()}")
        return decode(Diagnosis, json.loads(path.read_text()))

    def end(self) -> None:
        """End all processes."""
        for rank in self.ranks:
            try:
                os.killpg(rank.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            rank.wait(60)
        for node in self.nodes:
            assert node.observer.stdin is not None and node.observer.stdout is not None
            node.observer.stdin.close()
            try:
                node.observer.wait(60)
            finally:
                node.observer.kill()
                node.observer.wait(60)
                node.observer.stdout.close()


@contextmanager
def staged(
    folder: Path,
    body: str,
    size: int = 2,
    nodes: int = 1,
    watch: WatchOrders | None = None,
    torch: bool = True,
) -> Iterator[Stage]:
    """Start ranks that run ``body``. At the end no process of them is left."""
    stage = Stage(folder / "run", body, size, nodes, watch or WatchOrders(on=True, hang_seconds=0.0), torch)
    try:
        yield stage
    finally:
        stage.end()
