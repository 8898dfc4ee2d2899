"""Measure several sides in turn in one run, and print medians, spread and ratio."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Benchmarks measure the launch. The pre-flight check has its own figures.
os.environ.setdefault("CLUSTERRUN_PREFLIGHT", "off")
# Installed programs have compiled modules. A checkout compiles its own at the first, uncounted start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Runs once and returns the measured value, mostly in seconds.
Side = Callable[[], float]


@dataclass(frozen=True)
class Measured:
    """The values of one side."""

    name: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Return the interquartile range as a share of the median. Above 0.2 the machine was too busy."""
        if len(self.values) < 3 or not self.median:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4)
        return (high - low) / self.median


def in_turn(sides: Mapping[str, Side], rounds: int, warm: int = 1) -> tuple[Measured, ...]:
    """Run all sides once per round. Each round begins with another side.

    So other work on the machine affects all sides. The first `warm` rounds fill caches and do not count.
    """
    names = list(sides)
    values: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            value = sides[name]()
            if number >= warm:
                values[name].append(value)
    return tuple(Measured(name, tuple(measured)) for name, measured in values.items())


def process(command: Sequence[str], limit: float = 120.0, **options: object) -> Side:
    """Return a side that runs the command and measures its seconds. Raise RuntimeError if it fails."""

    def once() -> float:
        began = time.perf_counter()
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, **options)  # type: ignore[call-overload]
        seconds = time.perf_counter() - began
        if run.returncode:
            raise RuntimeError(f"{list(command)} ended with {run.returncode}:\n{run.stdout}{run.stderr}")
        return seconds

    return once


def cpu_of(side: Side) -> Side:
    """Return a side that measures the CPU seconds of the processes that ``side`` runs."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        side()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return once


def table(
    title: str, measured: Sequence[Measured], goal: str = "", scale: float = 1e3, unit: str = "ms"
) -> str:
    """Return a table of medians, each with its ratio to the median of the last side."""
    against = measured[-1].median
    rows = [
        (
            side.name,
            f"{side.median * scale:.1f} {unit}",
            f"{side.spread:.0%}",
            f"{side.median / against:.2f} ×" if against else "–",
            str(len(side.values)),
        )
        for side in measured
    ]
    heads = ("", "median", "spread", "ratio", "runs")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in [heads, *rows]
    ]
    return "\n".join([title, *(line.rstrip() for line in lines), *([f"goal: {goal}"] if goal else [])])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mebibytes(pid: int) -> float:
    """Return the proportional share of memory (Pss) of a process in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} has no memory of its own")
