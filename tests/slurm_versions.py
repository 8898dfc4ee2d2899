"""`make test-slurm-versions`: run the tests that use a lab on each release of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from clusterrun.lab import needs, roots
from clusterrun.lab.namespaces import LabError
from clusterrun.model.errors import ClusterrunError
from tests.lab_fixture import SLURM_VARIABLE

# Seconds for the tests on one release.
LIMIT = 7200.0


@dataclass(frozen=True)
class Outcome:
    """How the tests on one release of Slurm ended; times in seconds."""

    version: str
    passed: int
    skipped: int
    failed: int
    seconds: float

    def __str__(self) -> str:
        counts = f"{self.passed:5} passed {self.skipped:5} skipped {self.failed:5} failed"
        return f"Slurm {self.version:10}{counts} {self.seconds:7.0f} s"


def fetch(suites: Sequence[str]) -> list[str]:
    """Fetch the Slurm of each suite that is absent. Return the failures with their reasons."""
    local = {path.name for path in roots.fetched_roots().values()}
    absent = [suite for suite in suites if suite not in local]
    if absent and needs.program("debootstrap") is None and os.geteuid() == 0:
        subprocess.run([sys.executable, "-m", "clusterrun", "lab", "install", "--roots"])
    return [message for suite in absent if (message := _refused(suite))]


def _refused(suite: str) -> str:
    """Fetch ``suite``. Return the reason of a failure, or ''."""
    try:
        roots.make(suite, "", print)
    except (ClusterrunError, OSError, subprocess.SubprocessError) as error:
        return f"Debian {suite} (Slurm {roots.SUITES.get(suite, '?')}): {error}"
    return ""


def releases() -> dict[str, str]:
    """Return every installed release with its value for ``lab up --slurm``; '' is the machine's own."""
    try:
        own = {roots.choose_root("").version: ""}
    except (LabError, OSError):
        own = {}
    fetched = sorted(roots.fetched_roots(), key=lambda version: [int(part) for part in version.split(".")])
    return {**{version: version for version in fetched}, **own}


def tested(version: str, expected: str, options: Sequence[str]) -> Outcome:
    """Run the tests on one release and show their output. A session that breaks off counts as failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        argv = [sys.executable, "-m", "pytest", "-m", "lab", f"--junit-xml={report}", *options]
        code = _code(argv, {**os.environ, SLURM_VARIABLE: expected})
        suites = (
            [entry.attrib for entry in ElementTree.parse(report).iter("testsuite")] if report.exists() else []
        )
    counts = {
        name: sum(float(suite[name]) for suite in suites)
        for name in ("tests", "skipped", "failures", "errors", "time")
    }
    failed = int(counts["failures"] + counts["errors"])
    return Outcome(
        version,
        int(counts["tests"] - counts["skipped"]) - failed,
        int(counts["skipped"]),
        failed or int(code != 0),
        counts["time"],
    )


def _code(argv: Sequence[str], environment: dict[str, str]) -> int:
    try:
        return subprocess.run(argv, env=environment, timeout=LIMIT).returncode
    except subprocess.TimeoutExpired as error:
        print(error, flush=True)
        return 1


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m tests.slurm_versions SUITE… [-- PYTEST_ARGS…]``. Return 1 if anything failed."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    lacking = fetch(arguments[:at])
    outcomes = []
    for version, expected in releases().items():
        print(f"== Slurm {version}", flush=True)
        outcomes.append(tested(version, expected, arguments[at + 1 :]))
    print("\n".join(["", *map(str, outcomes), *(f"not tested: {entry}" for entry in lacking)]))
    return int(not outcomes or any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
