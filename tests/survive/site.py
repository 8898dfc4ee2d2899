"""Runs on a lab that are disturbed: what a test asks of them, and what must be true of each at its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterrun import proc
from clusterrun.lab.lab import Lab
from clusterrun.lab.processes import LabProcess
from clusterrun.model import contract
from clusterrun.model.document import decode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.record import RunState
from clusterrun.system import Completed
from tests.survive import trainer

ROOT = Path(__file__).resolve().parents[2]
TRAINER = Path(trainer.__file__)
CANARY = "canary-5f3a9c"
"""Stands in the environment of every run: nothing that is written or printed may show it."""
# Seconds within which every run ends after any fault.
LIMIT = 240.0
SAMPLE = 0.5
# For labs with many runs: on a busy machine Slurm would otherwise mark healthy nodes as down.
PATIENT = (("SlurmdTimeout", "30"),)


class Broken(AssertionError):
    """A law that was broken, with the observation."""


def until(true: Callable[[], Any], what: str, limit: float = 90.0) -> Any:
    """Wait for a true answer and return it. Raise an error with ``what`` after ``limit`` seconds."""
    end = time.monotonic() + limit
    while not (value := true()):
        if time.monotonic() > end:
            raise Broken(f"waited {limit:g} s in vain for: {what}")
        time.sleep(0.1)
    return value


@dataclass
class Site:
    """A lab, and a folder with the runs' home."""

    lab: Lab
    folder: Path
    patrol: Patrol = field(init=False)

    def __post_init__(self) -> None:
        self.patrol = Patrol(self.lab)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @contextlib.contextmanager
    def fault(self, kind: str, host: str = "", **details: str | int | bool) -> Iterator[None]:
        """Break something on a host, or stop the controller, for a while."""
        created = self.lab.fault(kind, host, **details)
        try:
            yield
        finally:
            self.lab.heal(created.host)

    def types(self, *arguments: str, limit: float = 120.0) -> Completed:
        """Run the command line on the login host. A traceback is never an answer."""
        environment = {"CLUSTERRUN_HOME": str(self.home), "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        environment |= {"CLUSTERRUN_PREFLIGHT": "off"}
        argv = [sys.executable, "-m", "clusterrun", *arguments]
        result = self.lab.exec(argv, env=environment, cwd=str(self.folder), timeout=limit)
        if "Traceback" in result.err:
            raise Broken(f"{arguments}: {result.err}")
        return result

    def submit(self, *options: str, name: str, training: Training) -> Run:
        """Submit a training, and watch it from the first moment on."""
        arguments = [*options, "--name", name, "--env", f"CANARY={CANARY}", "--json", str(TRAINER)]
        result = self.types("submit", "--cluster", "slurm", *arguments, *training.words(self.folder / name))
        if result.code:
            raise Broken(f"submit {options}: {result.err}")
        run = Run(self, Path(json.loads(result.out)["run_dir"]), training)
        self.patrol.watch(run)
        return run


@dataclass(frozen=True)
class Training:
    """The size of a training."""

    ranks: int = 4
    steps: int = 40
    seconds: float = 0.2  # per step
    every: int = 5  # steps between checkpoints
    more: tuple[str, ...] = ()

    @property
    def weights(self) -> str:
        return trainer.expected(self.ranks, self.steps)

    def words(self, folder: Path) -> tuple[str, ...]:
        return str(folder / "kept"), str(self.steps), str(self.seconds), str(self.every), *self.more


@dataclass
class Run:
    """One run, its processes on every host, and the laws of its end."""

    site: Site
    folder: Path
    training: Training
    twins: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    newest: int = -1

    # --- what it says ---

    @property
    def state(self) -> RunState | None:
        """Return the coordinator's state; None if there is none yet."""
        try:
            return decode(RunState, json.loads((self.folder / "state.json").read_text()))
        except FileNotFoundError:
            return None

    def status(self) -> dict[str, Any]:
        """Return the run in ``status --json``."""
        result = self.site.types("status", "--json", self.folder.name)
        (actual,) = json.loads(result.out)["runs"]
        return dict(actual)

    def step(self) -> int:
        """Return the newest step that the newest attempt with steps reported."""
        message = (_json(path).get("step") for path in sorted(self.folder.glob("attempts/*/progress.json")))
        return max((step for step in message if step is not None), default=0)

    def attempt(self) -> int:
        """Return the number of the newest attempt."""
        return max((int(path.name) for path in self.folder.glob("attempts/*")), default=-1)

    def outputs(self) -> str:
        """Return the output of the ranks of all attempts."""
        return "\n".join(p.read_text(errors="replace") for p in sorted(self.folder.glob("attempts/*/*.out")))

    def trains(self, step: int = 8, attempt: int = 0, limit: float = 120.0) -> None:
        """Wait until this step is done, in this attempt or a later one."""
        until(
            lambda: (self.attempt() >= attempt and self.step() >= step) or self.over(),
            f"{self.folder.name}: step {step} of attempt {attempt}; {self.told()}",
            limit,
        )
        if self.over():
            raise Broken(f"{self.folder.name} ended too early: {self.told()}")

    def over(self) -> bool:
        """Return whether the coordinator has reported its end."""
        state = self.state
        return bool(state and state.state.ended)

    def told(self) -> str:
        """Return state, reason and lineage in a line, for the reader of a failure."""
        state = self.state
        if state is None:
            return "no state yet"
        lineage = [(a.epoch, a.cause, a.outcome, a.failure.why if a.failure else "") for a in state.attempts]
        return f"{state.state.value}/{state.phase.value}: {state.reason!r} {lineage}"

    def job_output(self) -> str:
        """Return the output of its coordinators and agents."""
        return (self.folder / "job.out").read_text(errors="replace")

    # --- its processes ---

    def processes(self) -> list[LabProcess]:
        """Return every process with the run's mark or started with its folder, on any host."""
        return [p for p in self.site.lab.processes() if self._owns(p)]

    def _owns(self, process: LabProcess) -> bool:
        mark = proc.environment(process.process).get(contract.MARKER_VARIABLE, "")
        return mark.startswith(self.folder.name) or str(self.folder) in process.command + _cwd(process)

    def find(self, kind: str, node: str = "") -> list[LabProcess]:
        """Return processes of a kind (``agent``, ``coordinate``, ``srun``, ``rank``) on one node or all."""
        mark = {"agent": "agent.pyz agent", "coordinate": "agent.pyz coordinate", "rank": "trainer.py"}
        local = [p for p in self.site.lab.processes() if node in ("", p.host)]
        if kind == "srun":
            return [p for p in local if p.name == "srun" and str(self.folder) in p.command]
        results = [p for p in local if mark[kind] in p.command and str(self.folder) in (p.command + _cwd(p))]
        return results if kind != "rank" else [p for p in results if "RANK" in proc.environment(p.process)]

    def kill(self, kind: str, node: str = "", number: int = 0) -> LabProcess:
        """Send SIGKILL to one of them, the youngest first."""
        result = sorted(until(lambda: self.find(kind, node), f"a {kind} of {self.folder.name}"), key=_youth)
        with contextlib.suppress(ProcessLookupError):
            os.kill(result[number].process, signal.SIGKILL)
        return result[number]

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of the newest attempt, in order."""
        state = until(lambda: (s := self.state) and s.attempts and s.attempts[-1].nodes and s, "its nodes")
        return tuple(state.attempts[-1].nodes)

    # --- its end ---

    def ends(self, limit: float = LIMIT) -> dict[str, Any]:
        """Wait for the end that ``status`` tells; whatever is seen until then is judged by ``laws``."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY")
        end = time.monotonic() + limit
        while (message := self.status())["state"] not in ended:
            if time.monotonic() > end:
                raise Broken(f"I1 {self.folder.name}: no end within {limit:g} s: {message}; {self.told()}")
            time.sleep(0.5)
        return message

    def look(self) -> None:
        """Check once that the state is whole, and that no attempt comes after a later one."""
        try:
            state = self.state
        except (OSError, ValueError, ClusterrunError) as error:
            self.odd.append(f"the state cannot be read: {error!r}")
            return
        if state is not None and state.epoch < self.newest:
            self.odd.append(f"attempt {state.epoch} after {self.newest}")
        self.newest = max(self.newest, state.epoch if state else -1)

    def same_weights(self) -> None:
        """Check that the training ended with the weights of an undisturbed one."""
        expected, message = f"weights {self.training.weights}", self.outputs()
        # More than once where its end was disturbed.
        if {line for line in message.splitlines() if line.startswith("weights ")} != {expected}:
            raise Broken(f"not {expected}: {self.told()}\n{message[-2000:]}")

    def laws(self, budget: int = 20) -> None:
        """Check the laws that hold at the end of every run. Raise ``Broken``."""
        remaining = self.leftovers()
        secrets = [str(p) for p in self._files() if p.name != "orders.json" and CANARY in _text(p)]
        attempts = self.state.attempts if self.state else ()
        broken = {
            "I2 processes, jobs or files are left": remaining,
            "I3 two attempts lived at once": self.twins,
            "I4 the state went back, or could not be read": self.odd,
            "I6 a secret is told": secrets,
            "I7 more restarts than the budget allows": [len(attempts)] if len(attempts) > budget + 1 else [],
        }
        if result := {law: observed for law, observed in broken.items() if observed}:
            raise Broken(f"{self.folder.name}: {result}; {self.told()}")

    def leftovers(self, limit: float = 60.0) -> list[str]:
        """Return the processes, jobs and files that remain of the run after ``limit`` seconds."""
        with contextlib.suppress(Broken):
            until(lambda: not self._left(), "nothing is left", limit)
        return self._left()

    def _left(self) -> list[str]:
        queue = self.site.lab.exec(["squeue", "-h", "-o", "%i %T %k"]).out.splitlines()
        return [
            *(f"{p.host}: {p.command}" for p in self.processes()),
            *(f"job {line}" for line in queue if self.folder.name in line and "COMPLETING" not in line),
            *(str(p) for p in self._files() if p.name.startswith(".")),
            *(str(p) for p in Path("/tmp").glob(f"*{self.folder.name}*")),
        ]

    def _files(self) -> Iterator[Path]:
        return (path for path in self.folder.rglob("*") if path.is_file() and path.name != "agent.pyz")


def _youth(process: LabProcess) -> int:
    return -process.inner


def _cwd(process: LabProcess) -> str:
    """Return the folder of a rank, whose environment names its run."""
    return proc.environment(process.process).get("CLUSTERRUN_RUN_DIR", "")


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


class Patrol:
    """Checks all runs of a lab twice a second: the attempts of live ranks, and the state.

    A resumed node has its old ranks until its shim has killed them. Ranks that live half a second later break
    the law.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._over = threading.Event()
        self._runs: dict[str, Run] = {}
        self._thread = threading.Thread(target=self._walk, daemon=True)
        self._thread.start()

    def watch(self, run: Run) -> None:
        """Look at a run from now on."""
        self._runs[run.folder.name] = run

    def forget(self, run: Run) -> None:
        """Look at its state no longer."""
        self._runs.pop(run.folder.name, None)
        time.sleep(2 * SAMPLE)

    def stop(self) -> None:
        """Look no longer."""
        self._over.set()
        self._thread.join()

    def _walk(self) -> None:
        before: dict[tuple[str, int], set[int]] = {}
        while not self._over.wait(SAMPLE):
            try:
                now = self._ranks()
            except OSError:  # a host was switched off meanwhile
                continue
            # Ranks of one look may be ending while the next attempt starts. Ranks of two looks are not.
            lasting = [key for key in now if now[key] & before.get(key, set())]
            for name in {name for name, _ in lasting}:
                alive = sorted(attempt for run_name, attempt in lasting if run_name == name)
                if len(alive) > 1 and name in self._runs:
                    self._runs[name].twins.append(f"ranks of attempts {alive}")
            before = now
            for run in list(self._runs.values()):
                run.look()

    def _ranks(self) -> dict[tuple[str, int], set[int]]:
        """Return the ranks by run and attempt, without those of a frozen node."""
        result: dict[tuple[str, int], set[int]] = {}
        frozen = {fault.host for fault in self._lab.faults if fault.kind == "freeze"}
        for process in self._lab.processes():
            if process.host in frozen:
                continue
            if TRAINER.name in process.command or "train.py" in process.command:
                message = proc.environment(process.process)
                if "RANK" in message and message.get("CLUSTERRUN_ATTEMPT", "").isdigit():
                    key = message.get("CLUSTERRUN_RUN_ID", ""), int(message["CLUSTERRUN_ATTEMPT"])
                    result.setdefault(key, set()).add(process.process)
        return result
