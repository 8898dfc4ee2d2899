"""`diagnose --log` as a command: text, JSON that fits its schema, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import make_schemas
from tests.cli.conftest import CommandLine

LOGS = Path(__file__).resolve().parents[1] / "recorded" / "foreign-logs"


def test_the_first_failure_is_printed(clusterrun: CommandLine) -> None:
    result = clusterrun("diagnose", "--log", str(LOGS / "torchrun-value-error.txt"))
    assert result.code == 0
    assert result.out.startswith(
        "crashed: rank 3 on gpu07 failed first: ValueError: expected 512 tokens, got 513"
    )


def test_a_culprit_without_a_known_node_is_printed_without_one(clusterrun: CommandLine) -> None:
    result = clusterrun("diagnose", "--log", str(LOGS / "others-step-on-after-the-end.txt"))
    assert "\nculprit\n  rank 2\n" in result.out


def test_a_log_without_an_error_has_an_exit_code_by_what_it_says_of_the_end(clusterrun: CommandLine) -> None:
    cut = clusterrun("diagnose", "--log", str(LOGS / "no-error-cut-off.txt"))
    assert (cut.code, "there is no error in it" in cut.out) == (1, True)
    finished = clusterrun("diagnose", "--log", str(LOGS / "no-error-finished.txt"))
    assert (finished.code, "saved to out/model.pt" in finished.out) == (0, True)
    survived = clusterrun("diagnose", "--log", str(LOGS / "handled-then-finished.txt"))
    assert (survived.code, "ended a rank" in survived.out) == (0, True)


def test_the_json_fits_its_schema_and_names_file_and_line(clusterrun: CommandLine) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is of the extra dev")
    result = clusterrun("diagnose", "--json", "--log", str(LOGS / "mpirun-exception-tagged.txt"))
    document = json.loads(result.out)
    jsonschema.validate(document, json.loads(make_schemas.text("diagnose-log")))
    assert [(error["rank"], error["file"], error["line"]) for error in document["errors"]] == [
        (1, "/home/p/hvd_train.py", 52)
    ]


def test_stdin_is_read(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "clusterrun", "diagnose", "--log", "-"]
    with open(LOGS / "srun-oom-kill.txt", "rb") as file:
        result = subprocess.run(program, stdin=file, capture_output=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith(b"out of memory: ranks 1-3 on nid001277")


def test_wrong_arguments_are_refused(clusterrun: CommandLine) -> None:
    assert clusterrun("diagnose", "--log", "missing.out").code == 2
    assert clusterrun("diagnose", "one", "two").code == 2
    path = str(LOGS / "torchrun-value-error.txt")
    refused = clusterrun("diagnose", path)
    assert refused.code == 2 and f"diagnose --log {path}" in refused.err
    for option in (("--limit", "2m"), ("--user", "bob")):
        assert clusterrun("diagnose", *option, "--log", path).code == 2
