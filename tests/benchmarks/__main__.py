"""`make bench`: runs every bench_*.py, one process each, or those named; knows no figure."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 1800


def main(names: list[str]) -> int:
    """Run them one after another; the number of those that failed is the exit code."""
    scripts = sorted(HERE.glob("bench_*.py"))
    known = [script.stem.removeprefix("bench_") for script in scripts]
    unknown = set(names) - set(known)
    if unknown:
        told = f"no such figure: {', '.join(sorted(unknown))}; there are: {', '.join(known)}"
        print(told, file=sys.stderr)
        return 2
    print(
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}", flush=True
    )
    return sum(run(script) for script, name in zip(scripts, known, strict=True) if not names or name in names)


def run(script: Path) -> bool:
    """Whether it failed; what it prints goes straight through."""
    print(f"\n== {script.stem.removeprefix('bench_')}", flush=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", f"tests.benchmarks.{script.stem}"]
    try:
        failed = subprocess.run(command, cwd=HERE.parents[1], timeout=LIMIT, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    seconds = time.perf_counter() - began
    print(f"{'FAILED' if failed else 'done'} after {seconds:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
