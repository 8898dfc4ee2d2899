"""Phase × fault × victim: a cover of all pairs, each a training that must end as an undisturbed one.

    python -m tests.benchmarks.bench_matrix [FIRST [COUNT]]

What is asked of every run are the laws I1 to I7, not what it says; how often a failure names the node that
was struck is counted. The cover is the same each time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.processes import Process
from clusterrun.lab.spec import LabSpec
from tests.survive.faults import Ground, Grounds, completed
from tests.survive.site import PATIENT, Run, Site, Training, until

PHASES = ("starting", "training", "checkpoint", "restart", "ending")
FAULTS = (
    "killed",
    "stopped 1 s",
    "stopped 20 s",
    "stopped for good",
    "cut off 6 s",
    "cut off 40 s",
    "unheard 40 s",
    "deaf 40 s",
    "slurmd killed",
    "home full 20 s",
    "power cut",
)
VICTIMS = ("coordinator", "agent", "rank", "spare")
AT_ONCE, SIZE = 3, 6
OPTIONS = ("--max-restarts", "8", "--requeue", "--spares", "1")
HANGS = ("--hang-after", "15s", "--on-hang", "restart")
"""Only the observer sees that a rank which is stopped for good does nothing."""
TRAINING = Training(ranks=3, steps=30, more=("slow=1",))


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    phase: str
    fault: str
    victim: str

    def __str__(self) -> str:
        return f"{self.phase} × {self.fault} × {self.victim}"


def cover() -> list[Cell]:
    """Cells in which every two values of different columns meet; the same ones each time."""
    left = list(map(Cell, *zip(*itertools.product(PHASES, FAULTS, VICTIMS), strict=True)))
    missing = {pair for cell in left for pair in pairs(cell)}
    chosen = []
    while missing:
        best = max(left, key=lambda cell: len(pairs(cell) & missing))
        missing -= pairs(best)
        chosen.append(best)
        left.remove(best)
    return chosen


def pairs(cell: Cell) -> set[tuple[str, str]]:
    """The pairs of values that meet in a cell."""
    return set(itertools.combinations((cell.phase, cell.fault, cell.victim), 2))


# --- one cell -------------------------------------------------------------------------------------


def play(cell: Cell, seen: list[tuple[Cell, str]]) -> Callable[[Ground], None]:
    """The run of a cell; how its failures name the struck node goes to ``seen``."""

    def run(ground: Ground) -> None:
        name = str(cell).replace(" ", "").replace("×", "-")
        watched = HANGS if (cell.fault, cell.victim) == ("stopped for good", "rank") else ()
        training = ground.submit(name, *OPTIONS, *watched, training=TRAINING, nodes=TRAINING.ranks)
        reach(training, cell.phase)
        with contextlib.ExitStack() as healing:
            hosts = strike(ground, training, cell, healing)
            completed(training, budget=20)
        seen.append((cell, named(training, cell, hosts)))

    return run


def reach(run: Run, phase: str) -> None:
    """Wait for the phase."""
    if phase == "starting":
        until(lambda: run.find("agent"), "the first agent")
        return
    run.trains({"training": 7, "checkpoint": 4, "ending": TRAINING.steps - 2}.get(phase, 6))
    if phase == "checkpoint":
        until(lambda: run.step() >= 5, "the checkpoint")
    if phase == "restart":
        run.kill("rank")
        until(lambda: run.over() or ((state := run.state) and len(state.attempts) > 1), "the restart", 60)


def victim(run: Run, who: str) -> Process:
    """The process that is struck; the spare's agent is the one on a node without a rank."""
    if who == "coordinator":
        return sorted(until(lambda: run.find("coordinate"), "a coordinator"), key=lambda p: p.inner)[-1]
    if who == "rank":
        return until(lambda: run.find("rank") or run.find("agent"), "a rank")[-1]
    agents = until(lambda: run.find("agent"), "agents")
    busy = {p.host for p in run.find("rank")}
    idle = [p for p in agents if p.host not in busy]
    return (idle or agents)[-1] if who == "spare" else agents[-1]


def strike(ground: Ground, run: Run, cell: Cell, healing: contextlib.ExitStack) -> tuple[str, ...]:
    """Do it, and return the hosts struck; what lasts for a time heals then, the rest at the end."""
    found, hosts = victim(run, cell.victim), ()
    if cell.fault in ("killed", "stopped 1 s", "stopped 20 s", "stopped for good"):
        end = process_struck(found, kill=cell.fault == "killed")
    else:
        end, hosts = host_struck(ground, run, cell, found.host)
    seconds = [int(word) for word in cell.fault.split() if word.isdigit()]
    if seconds:
        time.sleep(seconds[0])
        end()
    else:
        healing.callback(end)
    return (found.host, *hosts)


def process_struck(found: Process, kill: bool) -> Callable[[], None]:
    """Kill or stop it; what lets it go on."""

    def send(number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.process, number)

    send(signal.SIGKILL if kill else signal.SIGSTOP)
    return lambda: None if kill else send(signal.SIGCONT)


def host_struck(
    ground: Ground, run: Run, cell: Cell, host: str
) -> tuple[Callable[[], None], tuple[str, ...]]:
    """A fault of the host's network, disk, power or slurmd; what heals it, and the other end of a link."""
    lab, word = ground.site.lab, cell.fault.split()[0]
    first = victim(run, "coordinator").host
    other = first if host != first else next(p.host for p in run.find("agent") if p.host != first)
    orders: dict[str, tuple[str, str, dict[str, str]]] = {
        "cut": ("cut", host, {}),
        "unheard": ("cut", host, {"to": other}),
        "deaf": ("cut", other, {"to": host}),
        "slurmd": ("kill", host, {"process": "slurmd"}),
        "home": ("disk-full", host, {"path": str(run.folder)}),
        "power": ("kill", host, {}),
    }
    kind, where, details = orders[word]
    lab.fault(kind, where, **details)

    def heal() -> None:
        lab.heal(where)

    return heal, (other,) if word in ("unheard", "deaf") else ()


def named(run: Run, cell: Cell, hosts: tuple[str, ...]) -> str:
    """Whether what the attempts say of their ends names a struck host, where any of them failed.

    A restart was brought about by a rank that was killed on purpose: that failure is another's.
    """
    attempts = run.state.attempts if run.state else ()
    failures = [a.failure for a in attempts if a.failure and a.outcome in ("FAILED", "NODE_FAIL")]
    failures = failures[1:] if cell.phase == "restart" else failures
    if not failures:
        return "no failure"
    return (
        "named" if any(host == f.node or host in f.why for f in failures for host in hosts) else "not named"
    )


def main() -> None:
    """All cells, or COUNT of them from FIRST on; exit code 1 if any law was broken."""
    first, count = (int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 0), (2, 1000)))
    cells = cover()[first : first + count]
    lab = Lab(f"matrix-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=AT_ONCE * SIZE, gpus=0, settings=PATIENT))
    site = Site(lab, Path(tempfile.mkdtemp(prefix="matrix-")))
    seen: list[tuple[Cell, str]] = []
    try:
        broken = list(played(Grounds(site, SIZE, AT_ONCE), cells, seen))
    finally:
        site.patrol.stop()
        lab.down()
    tally = Counter(word for _, word in seen)
    failed = tally["named"] + tally["not named"]
    print(f"{len(cells)} cells of {len(cover())}: {len(broken)} broken    goal: 0")
    share = tally["named"] / failed if failed else 1.0
    print(
        f"failures that name the node: {tally['named']} of {failed} ({share:.0%})    goal: 99 %", flush=True
    )
    raise SystemExit(1 if broken else 0)


def played(grounds: Grounds, cells: list[Cell], seen: list[tuple[Cell, str]]) -> Iterator[str]:
    """What was broken, cell by cell; each is told as it ends."""

    def one(cell: Cell) -> tuple[Cell, str, float]:
        began = time.monotonic()
        return cell, grounds.run(play(cell, seen)), time.monotonic() - began

    with ThreadPoolExecutor(AT_ONCE) as people:
        for cell, wrong, seconds in people.map(one, cells):
            how = dict(seen).get(cell, "")
            print(f"{seconds:6.1f} s  {cell}: {wrong[:1500] or f'ok, {how}'}", flush=True)
            if wrong:
                yield wrong


if __name__ == "__main__":
    main()
