"""Trainings, and something that breaks every few seconds; then everything heals, and all must end.

    python -m benchmarks.soak --minutes 60 --seed 1

Prints each fault as it strikes and each run as it ends. At the end: which of the laws I1 to I7 were broken
and how often, whether every training ended with the weights of an undisturbed one, and what is left on the
machine. The same seed draws the same runs and the same faults.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import disturbances
from benchmarks.disturbances import Disturbance
from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec, Preempt
from clusterrun.model.errors import ClusterrunError
from tests.survive.site import PATIENT, Broken, Run, Site, Training, until

AT_ONCE, NODES = 2, 12
PAUSE = 12.0
"""Mean seconds between two faults."""
LAST = 420.0
"""Seconds that a run may take once nothing breaks any more."""


@dataclass
class Findings:
    """What the soak saw."""

    runs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    failures: int = 0
    blamed: int = 0


class Soak:
    """One soak: a lab, its runs, and who disturbs them."""

    def __init__(self, lab: Lab, folder: Path, seed: int, seconds: float) -> None:
        self.site = Site(lab, folder)
        self.found = Findings()
        self.struck: list[tuple[float, str]] = []
        self._chance = random.Random(f"{seed}:faults")
        self._draws = random.Random(f"{seed}:runs")
        self._until = time.monotonic() + seconds
        self._alive: list[Run] = []
        self._striking: Run | None = None
        self._numbers = iter(range(1_000_000))
        self._lock = threading.Lock()

    def whole(self) -> Findings:
        """All of it."""
        disturber = threading.Thread(target=self._disturb)
        disturber.start()
        with ThreadPoolExecutor(AT_ONCE) as people:
            for _ in range(AT_ONCE):
                people.submit(self._trainings)
        disturber.join()
        self.site.patrol.stop()
        return self.found

    # --- the runs ---

    def _trainings(self) -> None:
        while time.monotonic() < self._until:
            try:
                self._training()
            except (Broken, ClusterrunError, AssertionError, OSError) as error:
                self.found.broken.append(f"{type(error).__name__}: {error}")
                say(f"BROKEN {error}")

    def _training(self) -> None:
        with self._lock:
            draws = self._draws
            steps, ranks = draws.randint(100, 250), draws.choice([2, 3, 4])
            options = ["--requeue", "--requeue-by", draws.choice(["requeue", "chain"])]
            options += ["--spares", "1"] if draws.random() < 0.4 else []
            training = Training(ranks=ranks, steps=steps, seconds=0.2)
            name = f"soak{next(self._numbers)}"
        run = self._submitted(name, options, training)
        self._alive.append(run)
        try:
            self._end(run)
        finally:
            self._alive.remove(run)

    def _submitted(self, name: str, options: list[str], training: Training) -> Run:
        """A submission that is refused because the controller is away is made again."""
        budget = ("--max-restarts", "40", "--no-progress", "0")
        while True:
            try:
                words = ("--nodes", str(training.ranks), "--gpus", "0", *budget, *options)
                return self.site.submit(*words, name=name, training=training)
            except Broken as error:
                if "nothing was queued" not in str(error):
                    raise
                time.sleep(2)

    def _end(self, run: Run) -> None:
        limit = max(0.0, self._until - time.monotonic()) + LAST
        said = run.ends(limit)
        # Who was stopped when the run ended goes on, and ends, once that is over.
        until(lambda: self._striking is not run, f"nothing is done to {run.folder.name} any more", LAST)
        self.found.runs[said["state"]] += 1
        self._blame(run)
        say(f"{run.folder.name} {said['state']}: {run.told()[:600]}")
        if said["state"] != "COMPLETED":
            raise Broken(f"{run.folder.name} is {said['state']}: {said['reason']}; {run.told()}")
        run.same_weights()
        run.laws(budget=60)

    def _blame(self, run: Run) -> None:
        """How many of its failures name a node that something was done to (I5)."""
        attempts = run.state.attempts if run.state else ()
        for attempt in attempts:
            if attempt.failure and attempt.outcome in ("FAILED", "NODE_FAIL"):
                hit = {
                    host for at, host in self.struck if attempt.failure.at - 90 < at < attempt.failure.at + 5
                }
                named = attempt.failure.node in hit or any(host in attempt.failure.why for host in hit)
                self.found.failures += 1
                self.found.blamed += named
                if not named:
                    say(f"I5? {run.folder.name} attempt {attempt.epoch}: {attempt.failure}; struck: {hit}")

    # --- the faults ---

    def _disturb(self) -> None:
        while time.monotonic() < self._until:
            time.sleep(self._chance.expovariate(1 / PAUSE))
            kind = self._chance.choice(list(disturbances.ALL))
            pick = random.Random(self._chance.random())
            runs = [run for run in list(self._alive) if not run.over()]
            if not runs or time.monotonic() > self._until:
                continue
            self._striking = run = pick.choice(runs)
            try:
                if not run.over():
                    self._strike(kind, disturbances.ALL[kind], Disturbance(self.site, run, pick))
            finally:
                self._striking = None
        self.site.lab.heal()

    def _strike(self, kind: str, done: Callable[[Disturbance], str], what: Disturbance) -> None:
        at = time.time()
        try:
            host = done(what)
        except (Broken, ClusterrunError, OSError, AssertionError) as error:
            say(f"   {kind} missed: {str(error)[:120]}")
            return
        words = [*host.split(), *(["launcher"] if kind == "srun killed" else [])]
        self.struck += [(when, word) for when in (at, time.time()) for word in words]
        self.found.faults[kind] += 1
        say(f"   {kind} {host} ({what.run.folder.name})")


def say(line: str) -> None:
    """A line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def left_on_the_machine(before: set[str]) -> list[str]:
    """Processes and files of any run that were not there before."""
    return sorted(traces() - before)


def traces() -> set[str]:
    """What a run could leave on this machine: processes by their command, files in memory and in /tmp."""
    found = {
        f"process {pid}: {line}" for pid, line in _commands() if "agent.pyz" in line or "trainer.py" in line
    }
    for folder in ("/tmp", "/dev/shm"):
        found |= {str(path) for path in Path(folder).glob("*clusterrun*")}
    return found


def _commands() -> list[tuple[str, str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append((path.parent.name, path.read_bytes().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:
            continue
    return [(pid, line) for pid, line in found if "soak-" in line]


def main() -> None:
    """Exit code 1 if any law was broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    before = traces()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    lab = Lab(f"soak-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=NODES, gpus=0, preempt=Preempt.REQUEUE, settings=PATIENT))
    try:
        found = Soak(lab, folder, asked.seed, 60 * asked.minutes).whole()
        left = left_on_the_machine(before)
    finally:
        lab.down()
    report(asked.minutes, asked.seed, found, left)
    if not found.broken:
        shutil.rmtree(folder)
    raise SystemExit(1 if found.broken or left else 0)


def report(minutes: float, seed: int, found: Findings, left: list[str]) -> None:
    """The figures of a soak."""
    laws = Counter(
        law for one in found.broken for law in ("I1", "I2", "I3", "I4", "I5", "I6", "I7") if law in one
    )
    print(f"\n{minutes:g} minutes, seed {seed}: {sum(found.faults.values())} faults {dict(found.faults)}")
    print(f"runs: {dict(found.runs)}; broken: {len(found.broken)} {dict(laws)}    goal: 0")
    print("\n".join(f"  {one[:1000]}" for one in found.broken))
    share = found.blamed / found.failures if found.failures else 1.0
    print(
        f"failures that name a node something was done to: {found.blamed} of {found.failures} ({share:.0%})"
    )
    print(f"left on the machine: {left or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
