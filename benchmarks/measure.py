"""How figures are made: both sides in turn in one run, then medians, spread and ratio; knows no figure."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# What is measured is the launch; the pre-flight has figures of its own and says so to each run.
os.environ.setdefault("CLUSTERRUN_PREFLIGHT", "off")
# Installed programs have compiled modules. A checkout compiles its own at the first, uncounted start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Side = Callable[[], float]
"""Does the thing once, and returns what it took (mostly seconds)."""


@dataclass(frozen=True)
class Measured:
    """What one side took, each time."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """The middle half's width as a share of the median: above 0.2 the machine was too busy."""
        if len(self.values) < 3 or not self.median:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / self.median


def in_turn(sides: Mapping[str, Side], rounds: int, warm: int = 1) -> tuple[Measured, ...]:
    """Run all sides once per round, each round beginning with another one.

    In turn, so that what else the machine does falls on all of them; the first `warm` rounds, which
    fill caches, do not count.
    """
    names = list(sides)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = sides[name]()
            if number >= warm:
                taken[name].append(value)
    return tuple(Measured(name, tuple(values)) for name, values in taken.items())


def process(command: Sequence[str], limit: float = 120.0, **options: object) -> Side:
    """A side that runs the command and takes the seconds from its start to its end; a failure is an error."""

    def once() -> float:
        began = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, **options)  # type: ignore[call-overload]
        seconds = time.perf_counter() - began
        if run.returncode:
            raise RuntimeError(f"{list(command)} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        return seconds

    return once


def table(
    title: str, measured: Sequence[Measured], goal: str = "", scale: float = 1e3, unit: str = "ms"
) -> str:
    """A table of medians, each with its ratio to the last one, against which it is measured."""
    against = measured[-1].median
    rows = [
        (
            one.name,
            f"{one.median * scale:.1f} {unit}",
            f"{one.spread:.0%}",
            f"{one.median / against:.2f} ×" if against else "–",
            str(len(one.values)),
        )
        for one in measured
    ]
    heads = ("", "median", "spread", "ratio", "runs")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [heads, *rows]
    ]
    return "\n".join([title, *(line.rstrip() for line in lines), *([f"goal: {goal}"] if goal else [])])


def cpu_seconds(pid: int) -> float:
    """Processor time a process has used, user and system, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mebibytes(pid: int) -> float:
    """Memory of a process that is its own (its proportional share), in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no memory of its own")
