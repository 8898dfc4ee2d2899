"""The user's own checks: what the shell exits with, and its last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterrun.preflight import registry
from clusterrun.preflight.checks import check_command
from tests.preflight.checks.values import FAIL, PASS, UNDETERMINED, asked, verdicts


def reading(command: str, folder: Path) -> object:
    needs = asked(check_commands=(command,), cwd=str(folder))
    return json.loads(json.dumps(check_command.probe(needs)))


@pytest.mark.parametrize(
    ("command", "grade", "line"),
    [
        ("echo fit", PASS, ""),
        ("echo first; echo no scratch; exit 3", FAIL, "no scratch (exit code 3 of: echo first"),
        ("echo broken >&2; false", FAIL, "broken (exit code 1 of: "),
        ("exit 1", FAIL, "it printed nothing (exit code 1 of: exit 1)"),
        ("test -e here", PASS, ""),
        ("kill -9 $$", FAIL, "it printed nothing (exit code -9 of: kill -9 $$)"),
        ("no-such-program", UNDETERMINED, "not found (exit code 127 of: no-such-program)"),
        ("./here", UNDETERMINED, "ermission denied (exit code 126 of: ./here)"),
    ],
)
def test_exit_code_and_last_line_are_the_finding(
    tmp_path: Path, command: str, grade: object, line: str
) -> None:
    (tmp_path / "here").write_text("")
    message = verdicts(check_command, {"n1": reading(command, tmp_path)})
    assert [verdict for _, verdict, _ in message] == ([] if grade == PASS else [grade])
    assert all(line in text for _, _, text in message)


def test_the_check_runs_only_with_a_command() -> None:
    assert "check-command" not in registry.check_names(asked())
    assert "check-command" in registry.check_names(asked(check_commands=("true",)))
