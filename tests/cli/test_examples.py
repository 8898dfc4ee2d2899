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
"""They need an allocation: here it shows that the line is understood, and what is said without one."""
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
    """Every command below ``command`` by its words, without those named in ``but``."""
    found = {path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and name not in but:
                found |= commands(below, (*path, name), but)
    return found


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
def test_an_example_does_what_it_says(line: str, ended: CommandLine) -> None:
    words = shlex.split(line)[1:]
    for word, module, package, extra in EXTRAS:
        if word in words:
            why = f"{package} is not installed: pip install 'clusterrun[{extra}]'"
            pytest.importorskip(module, reason=why, exc_type=ImportError)
    if words[0] == "--host":
        words = words[2:]  # there, as here
    if words[0] in ("submit", "check", "alloc") and words[1:2] not in (["report"], ["nodes"]):
        words.insert(1, "--dry-run")
    elif words[0] == "rehearse":
        words.insert(1, "--list-faults")
    elif words[0] == "sweep" and words[1] not in OF_A_SWEEP:
        (ended.folder / "points.csv").write_text("lr\n0.1\n")
        words[1:1] = ["start", "--dry-run"]
    elif words[0] == "convert":
        (ended.folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH -N 2\nsrun python train.py\n")
    elif "--log" in words:
        (ended.folder / "slurm-4711.out").write_text(TRACEBACK)
    elif words[:2] == ["bench", "scaling"]:
        words.insert(2, "--dry-run")
    done = ended(*words)
    if words[0] == "sweep" and words[1] in OF_A_SWEEP:
        assert (done.code, "no sweep" in done.out + done.err) in ((0, True), (5, True)), done
    elif words[0] in BESIDE:
        assert (done.code, "has ended (COMPLETED)" in done.err) == (2, True), done
    elif words == ["diagnose", "4711"]:
        assert (done.code, "there is no run '4711'" in done.err) == (5, True), done
    elif words[0] in ("alloc", "plan", "gpus") or "--all-jobs" in words:
        assert (done.code, "Slurm cannot be used here" in done.err) == (4, True), done
    elif words[0] == "init":
        exists = "exists and is not replaced" in done.err  # another example writes one
        assert (done.code, exists) in ((2, True), (4, False)), done
    elif words[0] in IN_AN_ALLOCATION:
        assert (done.code, "this shell is in no allocation" in done.err) == (2, True), done
    else:
        assert done.code == 0, done


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NOT_HERE])
def test_the_one_line_of_a_command_is_how_its_help_begins(name: str, ended: CommandLine) -> None:
    assert COMMANDS[name].help.rstrip(".").split()[0] in ended(name, "--help").out.split("\n\n")[1]


def test_every_command_of_the_lab_has_examples_that_it_understands() -> None:
    every = commands(root, but=())
    for path, command in every.items():
        lines = re.findall(r"(?m)^ +(?:sudo )?clusterrun (lab .*)", command.help or "")
        assert lines or path[:1] != ("lab",), path
        for words in map(shlex.split, lines):
            known = max((p for p in every if tuple(words[: len(p)]) == p), key=len)
            assert not isinstance(every[known], click.Group), words
            every[known].make_context(" ".join(known), words[len(known) :])
