"""Run the named benchmarks, or all for `make bench`. Each bench_*.py has a process of its own."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Seconds of one benchmark, and seconds in which it then ends its lab and its processes.
LIMIT, END_LIMIT = 3600, 120


def main(names: list[str]) -> int:
    """Run the benchmarks one after another. Return the number of failed ones."""
    benchmarks = [script.stem.removeprefix("bench_") for script in sorted(HERE.glob("bench_*.py"))]
    if names and names[0] not in benchmarks:
        print(f"no such figure: {names[0]}; there are: {', '.join(benchmarks)}", file=sys.stderr)
        return 2
    print(
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}", flush=True
    )
    return sum(run(name, parts) for name, parts in parts_by_name(names or benchmarks, benchmarks).items())


def parts_by_name(arguments: list[str], benchmarks: list[str]) -> dict[str, list[str]]:
    """Return each named benchmark with the arguments after it: ``launch empty submit``."""
    parts: dict[str, list[str]] = {}
    name = ""
    for argument in arguments:
        if argument in benchmarks:
            name = argument
            parts[name] = []
        else:
            parts[name].append(argument)
    return parts


def run(name: str, parts: list[str]) -> bool:
    """Run a benchmark. Return whether it failed."""
    print(f"\n== {' '.join([name, *parts])}", flush=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", *parts]
    with subprocess.Popen(command, cwd=HERE.parents[1]) as benchmark:
        try:
            failed = benchmark.wait(LIMIT) != 0
        except subprocess.TimeoutExpired:
            failed = True
            benchmark.send_signal(signal.SIGINT)
            try:
                benchmark.wait(END_LIMIT)
            except subprocess.TimeoutExpired:
                benchmark.kill()
    seconds = time.perf_counter() - began
    print(f"{'FAILED' if failed else 'done'} after {seconds:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
