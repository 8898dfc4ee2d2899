"""`make bench`: runs every bench_*.py, one process each, or those (or parts) named; knows no figure."""

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
    known = [script.stem.removeprefix("bench_") for script in sorted(HERE.glob("bench_*.py"))]
    if names and names[0] not in known:
        print(f"no such figure: {names[0]}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    print(
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}", flush=True
    )
    return sum(run(name, parts) for name, parts in asked(names or known, known).items())


def asked(words: list[str], known: list[str]) -> dict[str, list[str]]:
    """Each benchmark that is named, with its own words after it: ``launch empty submit``."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word in known:
            name = word
            found[name] = []
        else:
            found[name].append(word)
    return found


def run(name: str, parts: list[str]) -> bool:
    """Whether it failed; what it prints goes straight through."""
    print(f"\n== {' '.join([name, *parts])}", flush=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.bench_{name}", *parts]
    try:
        failed = subprocess.run(command, cwd=HERE.parents[1], timeout=LIMIT, check=False).returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    seconds = time.perf_counter() - began
    print(f"{'FAILED' if failed else 'done'} after {seconds:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
