"""Faults on a real Slurm, each checked several times: who was named, who was blamed wrongly, in what time.

`python -m benchmarks.bench_preflight_faults [--times 3] [--healthy 50] [part of a name …]`

`--random 20 --seed 1` makes two or three faults at once instead, drawn by chance: seeds 1 to 20.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from tests.lab.preflight_cases import CASES, Blame, Case, Found, play
from tests.lab.preflight_mixtures import GPUS, mixture
from tests.lab.test_preflight_local_faults import PROLOG
from tests.lab.test_slurm_runs import site

NODES = 12


@dataclass(frozen=True)
class Row:
    """All that came of one case."""

    case: Case
    found: tuple[Found, ...]

    @property
    def exact(self) -> int:
        """Return how often exactly the right nodes and links were named."""
        return sum(map(self.case.exact, self.found))

    @property
    def innocents(self) -> set[object]:
        """Return the nodes and links that were ever blamed wrongly."""
        right = self.case.named if self.case.grade == "fail" else Blame()
        return {
            target
            for f in self.found
            for target in (f.blamed.nodes - right.nodes) | (f.blamed.links - right.links)
        }

    def __str__(self) -> str:
        seconds = statistics.median(f.report.get("seconds", 0.0) for f in self.found)
        total = statistics.median(f.seconds for f in self.found)
        wrong = ", ".join(sorted(map(_name, self.innocents))) or "nobody"
        exact = f"{self.exact} of {len(self.found)}"
        line = f"{self.case.name:<42} {exact:>9}  {wrong:<24} {seconds:6.1f} {total:6.1f}"
        inexact = [f for f in self.found if not self.case.exact(f)]
        return line + "".join(f"\n    {f.status['state']}: {f.status['reason']}; {f.said}" for f in inexact)


def _name(target: object) -> str:
    return " ".join((target[0], target[2], target[1])) if isinstance(target, tuple) else str(target)


def rows(lab: Lab, cases: list[Case], times: int, healthy: int, budget: str) -> Iterator[Row]:
    """Run each case in turn. Each fault is healed before the next case."""
    for case in cases:
        outcomes = []
        for _ in range(healthy if case.named == Blame() else times):
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(play(case, site(lab, Path(folder)), budget))
                lab.heal()
            for file in prolog(lab).parent.glob("n*"):
                file.unlink()
            if not lab.wait_idle(120.0):
                why = lab.exec(["sinfo", "--list-reasons"]).out
                raise SystemExit(f"after {case.name} the nodes are not idle again:\n{why}")
        yield Row(case, tuple(outcomes))


def prolog(lab: Lab) -> Path:
    """Return the script that sets a node's variables from the file beside it that has the node's name."""
    return Path(dict(lab.state.spec.settings)["TaskProlog"])


def lab_spec(name: str, folder: Path) -> LabSpec:
    """Return a lab of twelve nodes; ``folder`` is for the prolog."""
    script = folder / "prolog.sh"
    script.write_text(PROLOG.format(folder=folder))
    script.chmod(0o755)
    folder.chmod(0o755)
    # A step waits a minute for the word of dead nodes below it: that must not drain those above them.
    settings = (("UnkillableStepTimeout", "90"), ("TaskProlog", str(script)))
    return LabSpec(name=name, nodes=NODES, gpus=GPUS, settings=settings)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1, help="how often each fault is made")
    parser.add_argument("--healthy", type=int, default=1, help="how often nothing is")
    parser.add_argument("--random", type=int, default=0, help="so many mixtures of faults instead")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first mixture")
    parser.add_argument("--budget", default="60s", help="the time that each check has")
    parser.add_argument("--lab", default="faults", help="the name of the lab")
    parser.add_argument("names", nargs="*", help="only cases with one of these in their name")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Case]:
    """Return the whole list, its named cases, or mixtures."""
    if options.random:
        seeds = range(options.seed, options.seed + options.random)
        return [replace(case, name=f"{seed}: {case.name}") for seed in seeds for case in [mixture(seed).case]]
    return [c for c in CASES if not options.names or any(name in c.name for name in options.names)]


def main() -> int:
    """Print a line for each case; the number of cases that were not exact every time is the exit code."""
    options = arguments()
    lab = Lab(options.lab)
    with tempfile.TemporaryDirectory() as folder:
        lab.up(lab_spec(options.lab, Path(folder)))
        try:
            print(f"{'fault':<42} {'exact':>9}  {'blamed wrongly':<24} {'check':>6} {'run':>6}")
            inexact = 0
            for row in rows(lab, chosen(options), options.times, options.healthy, options.budget):
                print(row, flush=True)
                inexact += row.exact != len(row.found)
            return inexact
        finally:
            lab.down()


if __name__ == "__main__":
    sys.exit(main())
