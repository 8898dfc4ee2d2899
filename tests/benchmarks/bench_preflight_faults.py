"""Faults on a real Slurm, each checked several times: who was named, who was blamed wrongly, in what time.

`python -m tests.benchmarks.bench_preflight_faults [--times 3] [--healthy 50] [part of a name …]`
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from tests.lab.preflight_cases import CASES, Blame, Case, Found, play
from tests.lab.test_slurm_runs import site

NODES = 12


@dataclass(frozen=True)
class Row:
    """All that came of one case."""

    case: Case
    found: tuple[Found, ...]

    @property
    def exact(self) -> int:
        """How often exactly the right ones were named."""
        return sum(map(self.case.exact, self.found))

    @property
    def innocents(self) -> set[object]:
        """Who was blamed wrongly, ever."""
        right = self.case.named if self.case.grade == "fail" else Blame()
        return {
            one for f in self.found for one in (f.blamed.nodes - right.nodes) | (f.blamed.links - right.links)
        }

    def __str__(self) -> str:
        seconds = statistics.median(f.report.get("seconds", 0.0) for f in self.found)
        total = statistics.median(f.seconds for f in self.found)
        wrong = ", ".join(sorted(map(_name, self.innocents))) or "nobody"
        exact = f"{self.exact} of {len(self.found)}"
        line = f"{self.case.name:<42} {exact:>9}  {wrong:<24} {seconds:6.1f} {total:6.1f}"
        inexact = [f for f in self.found if not self.case.exact(f)]
        return line + "".join(f"\n    {f.status['state']}: {f.status['reason']}; {f.said}" for f in inexact)


def _name(one: object) -> str:
    return " ".join((one[0], one[2], one[1])) if isinstance(one, tuple) else str(one)


def rows(lab: Lab, cases: list[Case], times: int, healthy: int) -> Iterator[Row]:
    """Each case in turn; what was broken is healed before the next."""
    for case in cases:
        found = []
        for _ in range(healthy if case.named == Blame() else times):
            with tempfile.TemporaryDirectory() as folder:
                found.append(play(case, site(lab, Path(folder))))
            lab.heal()
            if not lab.wait_idle(120.0):
                why = lab.exec(["sinfo", "--list-reasons"]).out
                raise SystemExit(f"after {case.name} the nodes are not idle again:\n{why}")
        yield Row(case, tuple(found))


def main() -> int:
    """Print a line for each case; the number of cases that were not exact every time is the exit code."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--times", type=int, default=1, help="how often each fault is made")
    asked.add_argument("--healthy", type=int, default=1, help="how often nothing is")
    asked.add_argument("names", nargs="*", help="only cases with one of these in their name")
    said = asked.parse_args()
    cases = [c for c in CASES if not said.names or any(name in c.name for name in said.names)]
    lab = Lab("faults")
    # A step waits a minute for the word of dead nodes below it: that must not drain those above them.
    lab.up(LabSpec(name="faults", nodes=NODES, settings=(("UnkillableStepTimeout", "90"),)))
    try:
        print(f"{'fault':<42} {'exact':>9}  {'blamed wrongly':<24} {'check':>6} {'run':>6}")
        inexact = 0
        for row in rows(lab, cases, said.times, said.healthy):
            print(row, flush=True)
            inexact += row.exact != len(row.found)
        return inexact
    finally:
        lab.down()


if __name__ == "__main__":
    sys.exit(main())
