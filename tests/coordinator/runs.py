"""A run on this machine for tests: real coordinator, shims, agents, ranks, and a look for what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterrun import proc
from clusterrun.model import contract
from clusterrun.model.document import decode, encode
from clusterrun.model.orders import Orders
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import RunState
from clusterrun.protocol.bootstrap import Timeouts
from tests.program import packed_once

PYTHONS = Path.home() / ".pyenv" / "versions"
ROOT = Path(__file__).resolve().parents[2]
START = (
    "import sys, json; from clusterrun.node.main import coordinate;"
    "from clusterrun.protocol.bootstrap import Timeouts;"
    "sys.exit(coordinate(sys.argv[1], Timeouts(**json.loads(sys.argv[2]))))"
)

USUAL = Timeouts()


def pythons() -> list[str]:
    """Return this Python, and one of every other installed version."""
    results = {sys.executable}
    for minor in ("3.9", "3.10", "3.11", "3.12", "3.13"):
        results |= {str(path) for path in sorted(PYTHONS.glob(f"{minor}.*/bin/python"))[:1]}
    return sorted(results)


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait for a true value of ``condition`` and return it. Fail with ``what`` if it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {seconds} s in vain for: {what}")


class Run:
    """One run directory and its coordinator process."""

    def __init__(self, folder: Path, orders: Orders) -> None:
        self.folder = folder
        self.orders = orders
        self.paths = RunPaths(str(folder))
        folder.mkdir(mode=0o700)
        (folder / "agent.pyz").write_bytes(packed_once().read_bytes())
        (folder / "orders.json").write_text(json.dumps(encode(orders)))
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(self, timeouts: Timeouts = USUAL) -> None:
        command = [sys.executable, "-I", "-S", self.paths.agent, "coordinate", str(self.folder)]
        if timeouts != USUAL:
            command = [sys.executable, "-c", START, str(self.folder), json.dumps(encode(timeouts))]
        self.kept = timeouts == USUAL
        self.coordinator = subprocess.Popen(command, stderr=subprocess.PIPE, env=self.environment)

    def wait(self, seconds: float = 120.0) -> int:
        _, self.words = self.coordinator.communicate(timeout=seconds)
        return self.coordinator.returncode

    def ended(self, timeouts: Timeouts = USUAL) -> RunState:
        """Start, wait, and return the final state. Its exit code is the process's."""
        self.start(timeouts)
        code = self.wait()
        state = self.state()
        assert state.exit_code == code, self.words
        return state

    def state(self) -> RunState:
        return decode(RunState, json.loads((self.folder / "state.json").read_bytes()))

    def output(self, rank: int, stream: str = "out", epoch: int = 0) -> bytes:
        paths = self.paths.attempt(epoch)
        return Path(paths.out(rank) if stream == "out" else paths.err(rank)).read_bytes()

    def coordinating(self) -> int:
        """Return the process that coordinates: the supervisor's child, if there is a supervisor."""
        pid = self.coordinator.pid
        if not self.kept:
            return pid
        below = until(lambda: [p.pid for p in proc.descendants(pid) if p.parent == pid], "a coordinator")
        return int(below[0])

    def shims(self) -> list[int]:
        pid = self.coordinating()
        return [p.pid for p in proc.descendants(pid) if p.parent == pid]

    def agents(self) -> list[int]:
        shims = self.shims()
        return [p.pid for p in proc.descendants(self.coordinator.pid) if p.parent in shims]

    def marked(self) -> list[proc.Process]:
        """Return every process with the mark of this run."""
        return [
            process
            for process in proc.processes()
            if process.state not in proc.GONE_STATES
            and proc.environment(process.pid).get(contract.MARKER_VARIABLE, "").startswith(self.orders.run_id)
        ]

    def running(self, count: int) -> list[proc.Process]:
        """Wait until ``count`` ranks have said ``up``, and the processes with the run's mark."""
        size = self.orders.nodes * (1 if self.orders.per_node else self.orders.ranks_per_node)
        assert count <= size
        until(lambda: sum(self._says_up(rank) for rank in range(size)) >= count, f"{count} ranks up")
        return self.marked()

    def _says_up(self, rank: int) -> bool:
        assert self.coordinator.poll() is None, f"the run has ended: {self.state().reason}"
        try:
            return b"up" in self.output(rank)
        except FileNotFoundError:
            return False

    def left(self) -> list[proc.Process]:
        """Return every live process of this run: ranks and ours."""
        ours = [
            p for p in proc.processes() if str(self.folder) in _command_line(p.pid) and p.pid != os.getpid()
        ]
        return self.marked() + [p for p in ours if p.state not in proc.GONE_STATES]

    def end(self) -> None:
        for process in self.left():
            try:
                os.kill(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if hasattr(self, "coordinator"):
            self.coordinator.kill()
            self.coordinator.communicate()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


@contextmanager
def runs(folder: Path) -> Iterator[Callable[..., Run]]:
    """Yield a function that makes runs. At the end no process and no descriptor of them may be left."""
    created: list[Run] = []
    before = len(os.listdir("/proc/self/fd"))

    def make(command: list[str], nodes: int = 2, ranks: int = 2, **more: Any) -> Run:
        run_id = f"r{os.getpid()}-{time.monotonic_ns()}-{len(created)}"
        orders = Orders(run_id, "a name", nodes, ranks, 0, 1, tuple(command), str(folder), **more)
        created.append(Run(folder / run_id, orders))
        return created[-1]

    try:
        yield make
        for run in created:
            assert run.left() == [], "processes were left behind"
            drafts = [path.name for path in run.folder.rglob(".*")]
            assert drafts == [], "files were left behind"
    finally:
        for run in created:
            run.end()
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors were left open"
