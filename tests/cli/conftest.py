"""The command line as a user has it: a process, a home of its own, and a small program to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterrun.model.document import encode
from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Report
from tests.reports.reports import FOUND

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, sys, time
rank = int(os.environ["RANK"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], *map(ascii, sys.argv[1:]), flush=True)
if "wait" in sys.argv:
    time.sleep(7200)
if "fail" in sys.argv and rank == 1:
    print("about to fail", file=sys.stderr, flush=True)
    sys.exit(7)
"""


@dataclass(frozen=True)
class Said:
    """The output and the exit code of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class CommandLine:
    """A folder with ``train.py``, and a home without Slurm."""

    folder: Path
    environment: dict[str, str]

    def start(self, *args: str, **options: object) -> subprocess.Popen[str]:
        """Start ``clusterrun args`` and leave it running."""
        return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
            [sys.executable, "-m", "clusterrun", *args],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",
            **options,
        )

    def __call__(self, *args: str, limit: float = 120.0) -> Said:
        """Run ``clusterrun args`` to its end."""
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return Said(process.returncode, out, err)


@pytest.fixture(scope="session")
def make_context() -> Callable[[Path], CommandLine]:
    def make(folder: Path) -> CommandLine:
        (folder / "work").mkdir()
        (folder / "work/train.py").write_text(PROGRAM)
        retained = {name: os.environ[name] for name in ("LANG", "LD_LIBRARY_PATH") if name in os.environ}
        return CommandLine(
            folder / "work",
            {
                **retained,
                "PATH": f"{folder / 'bin'}:/bin:/usr/bin",
                "HOME": str(folder),
                "CLUSTERRUN_HOME": str(folder / "home"),
                "CLUSTERRUN_CLUSTER": "local",
                "CLUSTERRUN_PREFLIGHT": "off",
                "PYTHONPATH": str(ROOT),
                "TZ": "UTC",
            },
        )

    return make


@pytest.fixture
def clusterrun(tmp_path: Path, make_context: Callable[[Path], CommandLine]) -> Iterator[CommandLine]:
    """Yield a fresh context. Runs that are left on it are ended."""
    context = make_context(tmp_path)
    yield context
    if (tmp_path / "home/live").is_dir() and (alive := os.listdir(tmp_path / "home/live")):
        context("cancel", *alive)


@pytest.fixture(scope="session")
def ended(
    tmp_path_factory: pytest.TempPathFactory, make_context: Callable[[Path], CommandLine]
) -> CommandLine:
    """Return a context with one completed run, shared by tests that only read."""
    context = make_context(tmp_path_factory.mktemp("ended"))
    result = context("submit", "--nodes", "2", "--ranks-per-node", "3", "--wait", "train.py")
    assert result.code == 0, result
    leave_report(context, FOUND)
    return context


@pytest.fixture(scope="session")
def live(
    tmp_path_factory: pytest.TempPathFactory, make_context: Callable[[Path], CommandLine]
) -> Iterator[CommandLine]:
    """Yield a context with one lasting run of 2 nodes × 2 ranks, shared by tests that only read."""
    context = make_context(tmp_path_factory.mktemp("live"))
    result = context("submit", "--nodes", "2", "--ranks-per-node", "2", "--name", "stays", "train.py", "wait")
    assert result.code == 0, result
    end = time.monotonic() + 120
    while "training" not in context("status", "--json").out:
        assert time.monotonic() < end, "the ranks do not run within the limit"
    yield context
    context("cancel", "stays")


def leave_report(context: CommandLine, report: Report) -> Path:
    """Put ``report`` where the coordinator of the newest run would have left it; the run directory."""
    run_dir = max(Path(context.environment["CLUSTERRUN_HOME"], "runs").iterdir())
    text = json.dumps(encode(replace(report, run_id=run_dir.name)))
    (run_dir / "attempts/000/preflight.json").write_text(text)
    return run_dir
