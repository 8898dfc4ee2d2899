"""Commands that read their program from standard input are recognised."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.script import checks
from clusterrun.script.interpreter_calls import InterpreterCall, interpreter_call, reads_input
from clusterrun.script.launch_commands import without_python
from clusterrun.script.plan import MachineFacts, plan


@pytest.mark.parametrize("line", [
    "bash", "/bin/sh", "bash -e -x", "bash -l", "bash -s one two", "bash -es", "bash -o pipefail", "bash -",
    "bash /dev/stdin", "python3", "python -u", "python -W ignore -", "python3.11 -X dev", "perl", "ruby -",
    "./train.sh --config /dev/stdin", "nice -n 3 bash -s -- alpha", "env -u A B=1 timeout 1h python -",
])  # fmt: skip
def test_a_command_without_a_program_of_its_own_reads_it_from_standard_input(line: str) -> None:
    assert reads_input(shlex.split(line))


@pytest.mark.parametrize("line", [
    "bash run.sh", "bash -e run.sh", "bash -c true", "bash -ec true", "bash -o pipefail run.sh",
    "sh --version", "bash -- run.sh", "python train.py", "python -u train.py -", "python -m pkg",
    "python -Im pkg", "python -c pass",
    "python -W ignore train.py", "python3 --version", "perl -e 1", "train.py", "cat", "-m package",
    "timeout 1h cat",
])  # fmt: skip
def test_other_commands_do_not(line: str) -> None:
    assert not reads_input(shlex.split(line))


@pytest.mark.parametrize(("line", "call"), [
    ("python -uX dev -m pkg -x", InterpreterCall(True, ("-uX", "dev"), module="pkg", arguments=("-x",))),
    ("python -mpkg", InterpreterCall(True, module="pkg")),
    ("python3 -c pass -m", InterpreterCall(True, code="pass", arguments=("-m",))),
    ("bash -o posix run.sh -c", InterpreterCall(False, ("-o", "posix"), script="run.sh", arguments=("-c",))),
    ("bash -lc true x", InterpreterCall(False, ("-l",), code="true", arguments=("x",))),
])  # fmt: skip
def test_the_program_of_an_interpreter_is_its_first_free_argument(line: str, call: InterpreterCall) -> None:
    assert interpreter_call(shlex.split(line)) == call


@pytest.mark.parametrize(("line", "command"), [
    ("python -u t.py -O", "t.py -O"), ("python -m pkg", "-m pkg"), ("python -O t.py", "python -O t.py"),
])  # fmt: skip
def test_an_option_of_python_is_not_dropped(line: str, command: str) -> None:
    assert without_python(tuple(line.split())) == tuple(command.split())


def test_input_that_ranks_would_never_read_is_refused_before_the_queue(tmp_path: Path) -> None:
    site = MachineFacts(slurm=True, python="/bin/true")
    spec = JobSpec(("bash", "-e"), cwd=str(tmp_path), python="/bin/true", setup=("true",))
    with pytest.raises(BadInput, match="bash -e would read from standard input, and ranks have none"):
        checks.check(plan(spec, "r", "t", "/runs/r", site))
    with pytest.raises(BadInput, match="is not a file that can be read"):
        checks.check(plan(replace(spec, input="nowhere"), "r", "t", "/runs/r", site))
    (tmp_path / "script").write_text("true\n")
    for requested, path in (("script", f"{tmp_path}/script"), ("-", "/runs/r/stdin")):
        created = plan(replace(spec, input=requested), "r", "t", "/runs/r", site)
        assert checks.check(created) == ()
        assert (created.spec.input, created.orders.input) == (path, path)
