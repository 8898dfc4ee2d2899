"""A user's command line in a home of its own, here and in the lab; no answer may be a traceback."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from clusterrun import proc, system
from clusterrun.lab.lab import Lab
from clusterrun.model import contract
from clusterrun.system import Completed
from tests.lab_fixture import leftovers

ROOT = str(Path(__file__).resolve().parents[2])
LIMIT = 120.0


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait for a true value of ``condition`` and return it. Fail with ``what`` if it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain for: {what}")


class Person:
    """Somebody who types ``clusterrun …`` in ``folder``, on this machine or on the lab's login host."""

    def __init__(self, folder: Path, lab: Lab | None = None) -> None:
        self.folder = folder
        self.lab = lab
        self.home = folder / "home"

    def types(self, *arguments: str, env: Mapping[str, str] | None = None, cwd: str | Path = "") -> Completed:
        """Run the command line; a traceback is never an answer."""
        argv = [sys.executable, "-m", "clusterrun", *arguments]
        more = {"CLUSTERRUN_HOME": str(self.home), "PYTHONPATH": ROOT, "NO_COLOR": "1", **(env or {})}
        if self.lab:
            result = self.lab.exec(argv, timeout=LIMIT, env=more, cwd=cwd or self.folder)
        else:
            result = system.run(argv, LIMIT, env={**os.environ, **more}, cwd=cwd or self.folder)
        assert "this is a bug of clusterrun" not in result.err, result.err
        return result

    def submits(self, *arguments: str, **how: Any) -> Path:
        """Submit, and return the run directory at once."""
        cluster = "slurm" if self.lab else "local"
        result = self.types("submit", "--cluster", cluster, "--json", *arguments, **how)
        assert result.code == 0, result.err
        return Path(json.loads(result.out)["run_dir"])

    def waits(self, *arguments: str, **how: Any) -> Path:
        """Submit and wait for the end."""
        return self.submits("--wait", *arguments, **how)

    def status(self, run: Path) -> dict[str, Any]:
        """Return the run in ``status --json``."""
        result = self.types("status", "--json", run.name)
        actual: dict[str, Any] = json.loads(result.out)["runs"][0]
        return actual

    def reaches(self, run: Path, state: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until a run is in ``state``."""
        result: dict[str, Any] = until(
            lambda: (now := self.status(run))["state"] == state and now, f"{state}: {run.name}", seconds
        )
        return result

    def up(self, run: Path, ranks: int) -> None:
        """Wait until ``ranks`` ranks have said something."""
        until(lambda: sum(bool(p.stat().st_size) for p in logs(run)) >= ranks, f"{ranks} ranks up")


def logs(run: Path, attempt: int = 0) -> list[Path]:
    """Return the output files of the ranks, in order."""
    return sorted((run / "attempts" / f"{attempt:03}").glob("*.out"))


def marked(run: Path) -> list[proc.Process]:
    """Return every live process with the mark of a run, on any host of the lab too."""
    return [
        process
        for process in proc.processes()
        if process.state not in proc.GONE_STATES
        and proc.environment(process.pid).get(contract.MARKER_VARIABLE, "").startswith(run.name)
    ]


def lines_of(path: Path) -> int:
    """Return the number of lines of a file; 0 if there is none."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """Return a user on a machine without Slurm."""
    return Person(tmp_path)


@pytest.fixture
def user(tmp_path: Path, lab: Lab) -> Iterator[Person]:
    """Yield a user on the login host of the shared lab, which is restored afterwards."""
    yield Person(tmp_path, lab)
    healed = [str(fault) for fault in lab.heal()]
    remaining = leftovers(lab)
    assert (healed, remaining) == ([], [])
    assert lab.wait_idle(90), lab.node_states()


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.lab)])
def anybody(request: pytest.FixtureRequest) -> Person:
    """Return each of the two users."""
    name = "person" if request.param == "local" else "user"
    result: Person = request.getfixturevalue(name)
    return result
