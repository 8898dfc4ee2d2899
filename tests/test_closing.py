"""A test that fails by bad luck is run once more and named; one that fails twice fails the run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OF_AN_OUTER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTEST_ARGS", "VENV")
Suite = Callable[..., tuple[int, list[str]]]

SESSION = """
import pathlib, pytest

@pytest.fixture(scope="session")
def shared():
    with open("made", "a") as file:
        file.write("up ")
    yield
    with open("made", "a") as file:
        file.write("down ")

def first_time(name):
    seen = pathlib.Path(name)
    was = seen.exists()
    seen.touch()
    return not was
"""


@pytest.fixture(scope="module")
def second_chance() -> list[str]:
    """Return the arguments that ``.ci/run`` passes to pytest by ``make test``."""
    (test,) = [
        line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make test")
    ]
    plain = {name: value for name, value in os.environ.items() if name not in OF_AN_OUTER_MAKE}
    output = subprocess.run(
        ["make", "--dry-run", "--always-make", "-C", str(ROOT), *shlex.split(test)[1:]],
        capture_output=True, text=True, timeout=60, check=True, env=plain,
    ).stdout  # fmt: skip
    (line,) = [line for line in output.splitlines() if " -m pytest" in line]
    return line.split(" -m pytest")[1].split()


@pytest.fixture
def suite(tmp_path: Path, second_chance: list[str]) -> Suite:
    """Run some tests as ``.ci/run`` would: its exit code, and its last four lines."""

    def run(text: str, *arguments: str) -> tuple[int, list[str]]:
        (tmp_path / "test_x.py").write_text(SESSION + text)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
        options = ["-p", "tests.closing", *second_chance, "--reruns-delay", "0", *arguments]
        result = subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return result.returncode, result.stdout.splitlines()[-3:]

    return run


def test_a_test_that_passes_when_run_again_fails_no_run_and_is_counted_and_named(
    suite: Suite, tmp_path: Path
) -> None:
    code, (count, skips, again) = suite(
        "def test_luck(shared): assert not first_time('luck')\ndef test_good(shared): pass\n"
        "def test_none(): pytest.skip('no lab')\n"
    )
    assert code == 0 and "2 passed, 1 skipped, 1 rerun in" in count
    assert skips == "skipped: 1 (1 × no lab)"
    assert again == "passed only when run again: 1 (test_x.py::test_luck)"
    assert (tmp_path / "made").read_text() == "up down "  # what tests share is not made anew for it


def test_a_test_that_fails_twice_fails_the_run_and_is_not_among_them(suite: Suite) -> None:
    code, (count, _, again) = suite("def test_bad(): assert 0\ndef test_good(): pass\n")
    assert code == 1 and "1 failed, 1 passed, 1 rerun in" in count
    assert again == "passed only when run again: 0"


def test_a_shared_fixture_is_created_again_after_a_failure(suite: Suite) -> None:
    code, (_, _, again) = suite(
        "@pytest.fixture(scope='session')\ndef lab(shared): assert not first_time('lab')\n"
        "def test_one(lab): pass\ndef test_two(lab): pass\n"
    )
    assert (code, again) == (0, "passed only when run again: 1 (test_x.py::test_one)")


def test_a_fixture_that_fails_only_once_is_reported(suite: Suite) -> None:
    code, (_, _, again) = suite(
        "@pytest.fixture\ndef clean():\n    yield\n    assert not first_time('clean')\n"
        "def test_one(clean): pass\n"
    )
    assert (code, again) == (0, "passed only when run again: 1 (test_x.py::test_one)")


def test_a_counterexample_is_a_proof_and_gets_no_second_chance(suite: Suite) -> None:
    code, (count, _, again) = suite(
        "from hypothesis import given, strategies\n@given(strategies.integers())\n"
        "def test_all(n): assert n < 1000\n"
    )
    assert code == 1 and "1 failed in" in count and again == "passed only when run again: 0"


def test_six_failing_fixtures_are_no_bad_luck(suite: Suite) -> None:
    code, (count, _, again) = suite(
        "@pytest.mark.parametrize('n', range(6))\ndef test_luck(n): assert not first_time(f'luck{n}')\n"
    )
    assert (
        code == 1
        and "1 failed, 5 passed, 5 rerun in" in count
        and again.startswith("passed only when run again: 5 (test_x.py::test_luck[0], ")
    )
