"""Phase × fault × victim: cells that cover all pairs. Each training must end like an undisturbed one.

    python -m benchmarks.bench_matrix [FIRST [COUNT]] | [CELL …]

Every run must fulfil the laws I1 to I7. The benchmark also counts how often the end of an attempt names the
struck node and the cause. The cells are the same each time.
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
# Only the observer notices a rank that stays stopped.
HANGS = ("--hang-after", "15s", "--on-hang", "restart")
TRAINING = Training(ranks=3, steps=30, more=("slow=1",))
# Patterns of a named cause, by the beginning of the fault's name. All other faults make a node silent.
CAUSES = {
    "killed": r"SIGKILL|was lost|loss of|ended with",
    "wrong clock": r"credential expired|clock",
    "out of memory": r"out of memory",
    "no files": r"Too many open files",
    "home": r"No space left|script could not start",
    "read-only": r"Read-only file system|script could not start",
}
SILENT = r"lost|loss|nothing has moved|did not join|could not be reached|onnection failure"
# A full disk of the lab belongs to one host, so others do not see a folder that is made on it. A shared disk
# would show it or refuse it. Ends with this message are not counted.
ARTIFICE = r"cannot be opened: No such file or directory"


@dataclass
class Reports:
    """The ends of attempts that the fault caused: their texts, and how many name the node and the cause."""

    texts: list[str] = field(default_factory=list)
    node: int = 0
    cause: int = 0
    missed: bool = False

    def hear(self, text: str, cell: Cell, hosts: tuple[str, ...]) -> None:
        """Count the text of one end."""
        cause = next((c for name, c in CAUSES.items() if cell.fault.startswith(name)), SILENT)
        self.texts.append(text)
        # A launcher is no node. If it was struck, its name counts.
        self.node += any(name in text for name in (*hosts, *(["launcher", "srun"] * (cell.victim == "srun"))))
        self.cause += bool(re.search(cause, text))


ReportsByCell = dict[Cell, Reports]


# --- one cell -------------------------------------------------------------------------------------


def play(cell: Cell, reports_by_cell: ReportsByCell) -> Callable[[Ground], None]:
    """Return a function that runs a cell and puts the reports of its attempts into ``reports_by_cell``."""

    def run(ground: Ground) -> None:
        name = str(cell).replace(" ", "").replace("×", "-")
        training = ground.submit(name, *OPTIONS, *options(cell), training=TRAINING, nodes=TRAINING.ranks)
        with contextlib.ExitStack() as healing:
            reach(ground, training, cell.phase)
            before, hosts = ended(training, cell), ()
            with contextlib.suppress(Missed):
                hosts = strike(ground, training, cell, healing)
            reports_by_cell[cell] = Reports(missed=not hosts)
            try:
                if not startless(training, cell, hosts, reports_by_cell[cell]):
                    completed(training, budget=20)
            finally:
                read_reports(training, cell, hosts, before, reports_by_cell[cell])

    return run


def startless(run: Run, cell: Cell, hosts: tuple[str, ...], reports: Reports) -> bool:
    """Return whether Slurm could not open the job's output on its first node, so that the job failed."""
    is_waiting = cell.phase in WAITING and cell.victim == "coordinator"
    if not is_waiting or not cell.fault.startswith(("home", "read-only")):
        return False
    status = run.ends()
    if status["state"] != "FAILED":
        return False
    run.laws()
    reports.hear(status["reason"], cell, hosts)
    return True


def options(cell: Cell) -> Iterator[str]:
    """Yield the options of a cell."""
    yield from ("--spares", "2" if cell.phase == "swap" else "1")
    if (cell.fault, cell.victim) == ("stopped for good", "rank"):
        yield from HANGS
    if cell.phase == "pre-flight":
        yield from ("--preflight", "quick")
    if cell.phase == "queued":
        yield from ("--sbatch", "hold")


def reach(ground: Ground, run: Run, phase: str) -> None:
    """Bring the run to the phase."""
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
    """Requeue the job. Return when the first has ended and the second waits."""
    job = run.status()["job_id"]
    ground.slurm("scontrol", "requeue", job)
    until(lambda: ground.slurm("squeue", "-h", "-o", "%T", "-j", job).strip() == "PENDING", "the queue")


# Actions that bring a run to these phases.
AGAIN: dict[str, Callable[[Ground, Run], object]] = {
    "restart": lambda ground, run: run.kill("rank"),
    "swap": lambda ground, run: ground.site.lab.fault("kill", run.nodes()[1]),
}


def ended(run: Run, cell: Cell) -> int:
    """Return how many attempts were over when the run was struck; in the queue all are."""
    attempts = run.state.attempts if run.state else ()
    return sum(bool(attempt.outcome) or cell.phase in WAITING for attempt in attempts)


def read_reports(run: Run, cell: Cell, hosts: tuple[str, ...], first: int, reports: Reports) -> None:
    """Add the texts of failed attempts from ``first`` on to ``reports``.

    Earlier attempts ended before the run was struck. The reason of the next attempt counts too, because a
    coordinator that is gone reports nothing.
    """
    attempts = run.state.attempts if run.state else ()
    for attempt, following in itertools.zip_longest(attempts[first:], attempts[first + 1 :]):
        if attempt.outcome not in ("", "COMPLETED", "PENDING"):
            failure, after = attempt.failure, following.reason if following else ""
            texts = (failure.node, failure.why, *failure.last_lines, failure.traceback) if failure else ()
            text = " ".join((*texts, "|", attempt.outcome, after))
            if not (cell.fault.startswith("home") and re.search(ARTIFICE, text)):
                reports.hear(text, cell, hosts)


def main() -> None:
    """Run all cells, COUNT of them from FIRST on, or the named ones. Exit code 1 if a law was broken."""
    arguments = sys.argv[1:]
    if all(word.isdigit() for word in arguments):
        first, count = (*map(int, arguments), *(0, 1000)[len(arguments) :])
        cells = cover()[first : first + count]
    else:
        cells = [Cell(*word.split(" × ")) for word in arguments]
    lab = Lab(f"matrix-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=AT_ONCE * SIZE, gpus=0, settings=PATIENT))
    site = Site(lab, Path(tempfile.mkdtemp(prefix="matrix-")))
    reports_by_cell: ReportsByCell = {}
    try:
        broken = list(played(Grounds(site, SIZE, AT_ONCE), cells, reports_by_cell))
    finally:
        site.patrol.stop()
        lab.down()
    report(len(cells), len(broken), reports_by_cell)
    raise SystemExit(1 if broken else 0)


def report(cells: int, broken: int, reports_by_cell: ReportsByCell) -> None:
    """Print the figures."""
    outcomes = Counter(ends=0, node=0, cause=0)
    for reports in reports_by_cell.values():
        outcomes.update(ends=len(reports.texts), node=reports.node, cause=reports.cause)
    missed = sum(reports.missed for reports in reports_by_cell.values())
    print(f"{cells} cells of {len(cover())}: {broken} broken, {missed} not struck in time    goal: 0")
    for what in ("node", "cause"):
        share = outcomes[what] / outcomes["ends"] if outcomes["ends"] else 1.0
        print(
            f"failures that name the {what}: {outcomes[what]} of {outcomes['ends']} ({share:.0%})  goal: 99 %"
        )
    print(end="", flush=True)


def played(grounds: Grounds, cells: list[Cell], reports_by_cell: ReportsByCell) -> Iterator[str]:
    """Run the cells and print each result. Yield what was broken."""

    def play_cell(cell: Cell) -> str:
        began = time.monotonic()
        broken_law = grounds.run(play(cell, reports_by_cell))
        reports = reports_by_cell.get(cell, Reports())
        names = f"{len(reports.texts)} failures, {reports.node} name the node, {reports.cause} the cause"
        names += "; it ended before it was struck" * reports.missed
        print(f"{time.monotonic() - began:6.1f} s  {cell}: {broken_law[:1500] or 'ok'}; {names}", flush=True)
        if reports.texts and min(reports.node, reports.cause) < len(reports.texts):
            print("".join(f"            {text[:600]!r}\n" for text in reports.texts), end="", flush=True)
        return broken_law

    with ThreadPoolExecutor(AT_ONCE) as people:
        yield from filter(None, people.map(play_cell, cells))


if __name__ == "__main__":
    main()
