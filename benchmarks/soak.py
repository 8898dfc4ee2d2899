"""Run trainings while something breaks every few seconds. Then everything heals, and all of them must end.

    python -m benchmarks.soak --minutes 60 --seed 1

It prints each fault and the end of each run. At the end it prints how often each of the laws I1 to I7 was
broken, whether every training ended with the weights of an undisturbed one, and which processes and files
remain on the machine. The same seed draws the same runs and the same faults.
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
# Mean seconds between two faults.
PAUSE = 12.0
# Seconds that a run may take after the last fault.
LAST = 420.0


@dataclass
class Findings:
    """Counts of runs and faults, broken laws, and failures that name a struck node."""

    runs: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    failures: int = 0
    blamed: int = 0


class Soak:
    """One soak: a lab, its runs, and the thread that disturbs them."""

    def __init__(self, lab: Lab, folder: Path, seed: int, seconds: float) -> None:
        self.site = Site(lab, folder)
        self.findings = Findings()
        self.struck: list[tuple[float, str]] = []
        self._chance = random.Random(f"{seed}:faults")
        self._draws = random.Random(f"{seed}:runs")
        self._until = time.monotonic() + seconds
        self._alive: list[Run] = []
        self._striking: Run | None = None
        self._numbers = iter(range(1_000_000))
        self._lock = threading.Lock()

    def run(self) -> Findings:
        """Run and disturb trainings until the time is up. Return what happened."""
        disturber = threading.Thread(target=self._disturb)
        disturber.start()
        with ThreadPoolExecutor(AT_ONCE) as people:
            for _ in range(AT_ONCE):
                people.submit(self._trainings)
        disturber.join()
        self.site.patrol.stop()
        return self.findings

    # --- the runs ---

    def _trainings(self) -> None:
        while time.monotonic() < self._until:
            try:
                self._training()
            except (Broken, ClusterrunError, AssertionError, OSError) as error:
                self.findings.broken.append(f"{type(error).__name__}: {error}")
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
        """Submit a training. Repeat the submission while the controller is away."""
        budget = ("--max-restarts", "40", "--no-progress", "0")
        while True:
            try:
                options_of_run = ("--nodes", str(training.ranks), "--gpus", "0", *budget, *options)
                return self.site.submit(*options_of_run, name=name, training=training)
            except Broken as error:
                if "nothing was queued" not in str(error):
                    raise
                time.sleep(2)

    def _end(self, run: Run) -> None:
        limit = max(0.0, self._until - time.monotonic()) + LAST
        status = run.ends(limit)
        # A process that is still stopped continues, and ends, when its fault is over.
        until(lambda: self._striking is not run, f"nothing is done to {run.folder.name} any more", LAST)
        self.findings.runs[status["state"]] += 1
        self._blame(run)
        say(f"{run.folder.name} {status['state']}: {run.told()[:600]}")
        if status["state"] != "COMPLETED":
            raise Broken(f"{run.folder.name} is {status['state']}: {status['reason']}; {run.told()}")
        run.same_weights()
        run.laws(budget=60)

    def _blame(self, run: Run) -> None:
        """Count the failures of a run, and those that name a struck node (I5)."""
        attempts = run.state.attempts if run.state else ()
        for attempt in attempts:
            if attempt.failure and attempt.outcome in ("FAILED", "NODE_FAIL"):
                hit = {
                    host for at, host in self.struck if attempt.failure.at - 90 < at < attempt.failure.at + 5
                }
                is_named = attempt.failure.node in hit or any(host in attempt.failure.why for host in hit)
                self.findings.failures += 1
                self.findings.blamed += is_named
                if not is_named:
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

    def _strike(self, kind: str, act: Callable[[Disturbance], str], what: Disturbance) -> None:
        at = time.time()
        try:
            host = act(what)
        except (Broken, ClusterrunError, OSError, AssertionError) as error:
            say(f"   {kind} missed: {str(error)[:120]}")
            return
        targets = [*host.split(), *(["launcher"] if kind == "srun killed" else [])]
        self.struck += [(when, word) for when in (at, time.time()) for word in targets]
        self.findings.faults[kind] += 1
        say(f"   {kind} {host} ({what.run.folder.name})")


def say(line: str) -> None:
    """Print a line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def left_on_the_machine(before: set[str]) -> list[str]:
    """Return processes and files of runs that did not exist before."""
    return sorted(traces() - before)


def traces() -> set[str]:
    """Return processes by their command, and files in memory and /tmp, that a run may have left."""
    traces = {
        f"process {pid}: {line}" for pid, line in _commands() if "agent.pyz" in line or "trainer.py" in line
    }
    for folder in ("/tmp", "/dev/shm"):
        traces |= {str(path) for path in Path(folder).glob("*clusterrun*")}
    return traces


def _commands() -> list[tuple[str, str]]:
    commands: list[tuple[str, str]] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(
                (path.parent.name, path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            )
        except OSError:
            continue
    return [(pid, line) for pid, line in commands if "soak-" in line]


def main() -> None:
    """Run a soak. Exit code 1 if a law was broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    before = traces()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    lab = Lab(f"soak-{os.getpid()}")
    lab.up(LabSpec(name=lab.name, nodes=NODES, gpus=0, preempt=Preempt.REQUEUE, settings=PATIENT))
    try:
        findings = Soak(lab, folder, arguments.seed, 60 * arguments.minutes).run()
        remains = left_on_the_machine(before)
    finally:
        lab.down()
    report(arguments.minutes, arguments.seed, findings, remains)
    if not findings.broken:
        shutil.rmtree(folder)
    raise SystemExit(1 if findings.broken or remains else 0)


def report(minutes: float, seed: int, findings: Findings, remains: list[str]) -> None:
    """Print the figures of a soak."""
    names = ("I1", "I2", "I3", "I4", "I5", "I6", "I7")
    laws = Counter(law for message in findings.broken for law in names if law in message)
    print(
        f"\n{minutes:g} minutes, seed {seed}: {sum(findings.faults.values())} faults {dict(findings.faults)}"
    )
    print(f"runs: {dict(findings.runs)}; broken: {len(findings.broken)} {dict(laws)}    goal: 0")
    print("\n".join(f"  {message[:1000]}" for message in findings.broken))
    share = findings.blamed / findings.failures if findings.failures else 1.0
    print(f"failures that name a struck node: {findings.blamed} of {findings.failures} ({share:.0%})")
    print(f"left on the machine: {remains or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
