"""Phase × fault × victim: a cover of all pairs, each a training that must end as an undisturbed one.

    python -m benchmarks.bench_matrix [FIRST [COUNT]] | [CELL …]

What is asked of every run are the laws I1 to I7, not what it says; how often the end of an attempt names the
node that was struck, and what happened to it, is counted. The cover is the same each time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cells import WAITING, Cell, cover
from benchmarks.strikes import Missed, strike
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.model.states import Phase
from tests.survive.faults import Ground, Grounds, completed
from tests.survive.site import PATIENT, Run, Site, Training, until

AT_ONCE, SIZE = 5, 6
OPTIONS = ("--max-restarts", "8", "--requeue")
HANGS = ("--hang-after", "15s", "--on-hang", "restart")
"""Only the observer sees that a rank which is stopped for good does nothing."""
TRAINING = Training(ranks=3, steps=30, more=("slow=1",))
CAUSES = {
    "killed": r"SIGKILL|was lost|loss of|ended with",
    "wrong clock": r"credential expired|clock",
    "out of memory": r"out of memory",
    "no files": r"Too many open files",
    "home": r"No space left|script could not start",
    "read-only": r"Read-only file system|script could not start",
}
"""What is said of the cause, by how a fault's name begins; of all others: that a node was not heard."""
SILENT = r"lost|loss|nothing has moved|did not join|could not be reached|onnection failure"
ARTIFICE = r"cannot be opened: No such file or directory"
"""A full disk of the lab is one host's own: others do not see a folder made there, as on a shared disk they
would (or it were refused). What they say of that is not counted."""


@dataclass
class Told:
    """What the ends of attempts say, of those that something which was done to the run brought about."""

    words: list[str] = field(default_factory=list)
    node: int = 0
    cause: int = 0
    missed: bool = False

    def hear(self, words: str, cell: Cell, hosts: tuple[str, ...]) -> None:
        """One more end."""
        cause = next((c for name, c in CAUSES.items() if cell.fault.startswith(name)), SILENT)
        self.words.append(words)
        # A launcher is no node: where it was struck, its own name says what.
        self.node += any(
            name in words for name in (*hosts, *(["launcher", "srun"] * (cell.victim == "srun")))
        )
        self.cause += bool(re.search(cause, words))


Seen = dict[Cell, Told]


# --- one cell -------------------------------------------------------------------------------------


def play(cell: Cell, seen: Seen) -> Callable[[Ground], None]:
    """The run of a cell; what the ends of its attempts say goes to ``seen``."""

    def run(ground: Ground) -> None:
        name = str(cell).replace(" ", "").replace("×", "-")
        training = ground.submit(name, *OPTIONS, *options(cell), training=TRAINING, nodes=TRAINING.ranks)
        with contextlib.ExitStack() as healing:
            reach(ground, training, cell.phase)
            before, hosts = ended(training, cell), ()
            with contextlib.suppress(Missed):
                hosts = strike(ground, training, cell, healing)
            seen[cell] = Told(missed=not hosts)
            try:
                if not startless(training, cell, hosts, seen[cell]):
                    completed(training, budget=20)
            finally:
                told(training, cell, hosts, before, seen[cell])

    return run


def startless(run: Run, cell: Cell, hosts: tuple[str, ...], found: Told) -> bool:
    """A job of whose script Slurm cannot open the output on its first node: it has failed, and says where."""
    there = cell.phase in WAITING and cell.victim == "coordinator"
    if not there or not cell.fault.startswith(("home", "read-only")):
        return False
    if (said := run.ends())["state"] != "FAILED":
        return False
    run.laws()
    found.hear(said["reason"], cell, hosts)
    return True


def options(cell: Cell) -> Iterator[str]:
    """What the run of a cell is asked for besides."""
    yield from ("--spares", "2" if cell.phase == "swap" else "1")
    if (cell.fault, cell.victim) == ("stopped for good", "rank"):
        yield from HANGS
    if cell.phase == "pre-flight":
        yield from ("--preflight", "quick")
    if cell.phase == "queued":
        yield from ("--sbatch", "hold")


def reach(ground: Ground, run: Run, phase: str) -> None:
    """Wait for the phase."""
    if phase == "queued":
        return
    if phase == "starting":
        until(lambda: run.find("agent"), "the first agent")
    elif phase == "pre-flight":
        until(lambda: (state := run.state) and state.phase is Phase.PREFLIGHT, "the check")
    else:
        run.trains({"training": 7, "checkpoint": 4, "ending": TRAINING.steps - 4}.get(phase, 6))
    if phase == "checkpoint":
        until(lambda: run.step() >= 5, "the checkpoint")
    if phase == "between jobs":
        requeued(ground, run)
    elif phase in AGAIN:
        AGAIN[phase](ground, run)
        until(lambda: run.over() or ((state := run.state) and len(state.attempts) > 1), phase, 60)


def requeued(ground: Ground, run: Run) -> None:
    """Between two jobs: nothing of the first runs any more, and the second waits."""
    job = run.status()["job_id"]
    ground.slurm("scontrol", "requeue", job)
    until(lambda: ground.slurm("squeue", "-h", "-o", "%T", "-j", job).strip() == "PENDING", "the queue")


AGAIN: dict[str, Callable[[Ground, Run], object]] = {
    "restart": lambda ground, run: run.kill("rank"),
    "swap": lambda ground, run: ground.site.lab.fault("kill", run.nodes()[1]),
}
"""What brings these phases about."""


def ended(run: Run, cell: Cell) -> int:
    """How many attempts were over when the run was struck; in the queue all are, whoever says so later."""
    attempts = run.state.attempts if run.state else ()
    return sum(bool(attempt.outcome) or cell.phase in WAITING for attempt in attempts)


def told(run: Run, cell: Cell, hosts: tuple[str, ...], first: int, found: Told) -> None:
    """What was said of the attempts from ``first`` on, as far as they failed, goes to ``found``.

    Those before it had ended when the run was struck: what made them end is not what the cell did. The
    reason of the next attempt counts too: of a coordinator that is gone nobody else tells.
    """
    attempts = run.state.attempts if run.state else ()
    for attempt, following in itertools.zip_longest(attempts[first:], attempts[first + 1 :]):
        if attempt.outcome not in ("", "COMPLETED", "PENDING"):
            failure, after = attempt.failure, following.reason if following else ""
            said = (failure.node, failure.why, *failure.last_lines, failure.traceback) if failure else ()
            words = " ".join((*said, "|", attempt.outcome, after))
            if not (cell.fault.startswith("home") and re.search(ARTIFICE, words)):
                found.hear(words, cell, hosts)


def main() -> None:
    """All cells, or COUNT of them from FIRST on, or those named; exit code 1 if any law was broken."""
    words = sys.argv[1:]
    if all(word.isdigit() for word in words):
        first, count = (*map(int, words), *(0, 1000)[len(words) :])
        cells = cover()[first : first + count]
    else:
        cells = [Cell(*word.split(" × ")) for word in words]
    lab = Lab(f"matrix-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=AT_ONCE * SIZE, gpus=0, settings=PATIENT))
    site = Site(lab, Path(tempfile.mkdtemp(prefix="matrix-")))
    seen: Seen = {}
    try:
        broken = list(played(Grounds(site, SIZE, AT_ONCE), cells, seen))
    finally:
        site.patrol.stop()
        lab.down()
    report(len(cells), len(broken), seen)
    raise SystemExit(1 if broken else 0)


def report(cells: int, broken: int, seen: Seen) -> None:
    """The figures."""
    outcomes = Counter(ends=0, node=0, cause=0)
    for one in seen.values():
        outcomes.update(ends=len(one.words), node=one.node, cause=one.cause)
    missed = sum(one.missed for one in seen.values())
    print(f"{cells} cells of {len(cover())}: {broken} broken, {missed} not struck in time    goal: 0")
    for what in ("node", "cause"):
        share = outcomes[what] / outcomes["ends"] if outcomes["ends"] else 1.0
        print(
            f"failures that name the {what}: {outcomes[what]} of {outcomes['ends']} ({share:.0%})  goal: 99 %"
        )
    print(end="", flush=True)


def played(grounds: Grounds, cells: list[Cell], seen: Seen) -> Iterator[str]:
    """What was broken, cell by cell; each is told as it ends."""

    def one(cell: Cell) -> str:
        began = time.monotonic()
        wrong = grounds.run(play(cell, seen))
        said = seen.get(cell, Told())
        names = f"{len(said.words)} failures, {said.node} name the node, {said.cause} the cause"
        names += "; it ended before it was struck" * said.missed
        print(f"{time.monotonic() - began:6.1f} s  {cell}: {wrong[:1500] or 'ok'}; {names}", flush=True)
        if said.words and min(said.node, said.cause) < len(said.words):
            print("".join(f"            {words[:600]!r}\n" for words in said.words), end="", flush=True)
        return wrong

    with ThreadPoolExecutor(AT_ONCE) as people:
        yield from filter(None, people.map(one, cells))


if __name__ == "__main__":
    main()
