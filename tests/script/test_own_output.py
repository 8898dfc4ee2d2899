"""The law of commands that open their own output by name: found in the command and in the scripts it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.model.spec import JobSpec
from clusterrun.script.own_output import opens_own_output


@pytest.mark.parametrize("line", [
    "echo two > /dev/stderr",
    "echo 4 | tee /dev/stderr",
    "echo 3 >/dev/stdout",
    "curl -o /dev/fd/1 example.org",
    "echo 1 > /proc/self/fd/2",
    "echo 1 > /proc/$$/fd/2",
    "./helper.sh",
    "python3 helper.py --log x",
])  # fmt: skip
def test_a_name_of_the_own_output_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "helper.sh").write_text("cat data >/dev/stdout\n")
    (tmp_path / "helper.py").write_text("open('/dev/stderr', 'w').write('x')\n")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{line}\n")
    for command in (("./run.sh",), ("bash", "-e", "run.sh"), ("sh", "-c", line)):
        assert opens_own_output(JobSpec(command, cwd=str(tmp_path)))


@pytest.mark.parametrize("line", ["echo two >&2", "exec 2>/dev/null", "echo 3 > /dev/stdoutx", "./loop.sh"])
def test_other_commands_write_straight_to_their_logs(tmp_path: Path, line: str) -> None:
    (tmp_path / "loop.sh").write_text("./loop.sh; ./run.sh; ./binary\n")
    (tmp_path / "binary").write_bytes(b"\0/dev/stderr")
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{line}\n")
    assert not opens_own_output(JobSpec(("./run.sh",), cwd=str(tmp_path)))
