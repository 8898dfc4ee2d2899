"""Every example in every help text, and in the file for assistants, is run as it stands."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from clusterrun.cli.help import skill
from clusterrun.cli.main import COMMANDS, root
from tests.cli.conftest import CommandLine

NOT_HERE = ("lab",)
"""Its examples start a whole cluster: the lab's own tests run them."""

IN_AN_ALLOCATION = ("run",)
"""Commands that need an allocation. Their lines are parsed and refused."""
TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nValueError: x\n'
OF_A_SWEEP = ("list", "results", "retry", "continue")
"""Without a sweep it shows that the line is understood."""
BESIDE = ("exec", "shell", "top", "forward")
"""They need a live run, and programs that are not everywhere: here it shows that the line is understood."""

EXTRAS = (("mcp", "mcp.server.mcpserver", "mcp 2", "mcp"),)
"""A word of an example, and what that imports which may not be installed."""


def commands(
    command: click.Command, path: tuple[str, ...] = (), but: tuple[str, ...] = NOT_HERE
) -> dict[tuple[str, ...], click.Command]:
    """Return every command below ``command`` by its words, without those in ``but``."""
    commands_by_path = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and name not in but:
                commands_by_path |= commands(below, (*path, name), but)
    return commands_by_path


def examples() -> list[str]:
    texts = [*(command.help or "" for command in commands(root).values()), skill()]
    return sorted(
        {line.strip() for text in texts for line in re.findall(r"^ +clusterrun .*", text, re.MULTILINE)}
    )


@pytest.mark.parametrize("path", list(commands(root)), ids=" ".join)
def test_every_command_has_help_and_examples(path: tuple[str, ...], ended: CommandLine) -> None:
    long, short = ended(*path, "--help"), ended(*path, "-h")
    assert (long.code, long.out, long.err) == (0, short.out, "")
    assert "Examples:" in long.out


@pytest.mark.parametrize("line", examples())
def test_an_example_works(line: str, ended: CommandLine) -> None:
    arguments = shlex.split(line)[1:]
    for word, module, package, extra in EXTRAS:
        if word in arguments:
            why = f"{package} is not installed: pip install 'clusterrun[{extra}]'"
            pytest.importorskip(module, reason=why, exc_type=ImportError)
    if arguments[0] == "--host":
        arguments = arguments[2:]  # there, as here
    if arguments[0] in ("submit", "check", "alloc") and arguments[1:2] not in (["report"], ["nodes"]):
        arguments.insert(1, "--dry-run")
    elif arguments[0] == "rehearse":
        arguments.insert(1, "--list-faults")
    elif arguments[0] == "sweep" and arguments[1] not in OF_A_SWEEP:
        (ended.folder / "points.csv").write_text("lr\n0.1\n")
        arguments[1:1] = ["start", "--dry-run"]
    elif arguments[0] == "convert":
        (ended.folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\nsrun python train.py\n")
    elif "--log" in arguments:
        (ended.folder / "slurm-4711.out").write_text(TRACEBACK)
    elif arguments[:2] == ["bench", "scaling"]:
        arguments.insert(2, "--dry-run")
    result = ended(*arguments)
    if arguments[0] == "sweep" and arguments[1] in OF_A_SWEEP:
        assert (result.code, "no sweep" in result.out + result.err) in ((0, True), (5, True)), result
    elif arguments[0] in BESIDE:
        assert (result.code, "has ended (COMPLETED)" in result.err) == (2, True), result
    elif arguments == ["diagnose", "4711"]:
        assert (result.code, "there is no run '4711'" in result.err) == (5, True), result
    elif arguments[0] in ("alloc", "plan", "gpus") or "--all-jobs" in arguments:
        assert (result.code, "Slurm cannot be used here" in result.err) == (4, True), result
    elif arguments[0] == "init":
        exists = "exists and is not replaced" in result.err  # another example writes one
        assert (result.code, exists) in ((2, True), (4, False)), result
    elif arguments[0] in IN_AN_ALLOCATION:
        assert (result.code, "this shell is in no allocation" in result.err) == (2, True), result
    else:
        assert result.code == 0, result


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NOT_HERE])
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name: str, ended: CommandLine) -> None:
    assert COMMANDS[name].help.rstrip(".").split()[0] in ended(name, "--help").out.split("\n\n")[1]


def test_every_command_of_the_lab_has_examples_that_it_understands() -> None:
    every = commands(root, but=())
    for path, command in every.items():
        lines = re.findall(r"(?m)^ +(?:sudo )?clusterrun (lab .*)", command.help or "")
        assert lines or path[:1] != ("lab",), path
        for arguments in map(shlex.split, lines):
            path = max((p for p in every if tuple(arguments[: len(p)]) == p), key=len)
            assert not isinstance(every[path], click.Group), arguments
            every[path].make_context(" ".join(path), arguments[len(path) :])
