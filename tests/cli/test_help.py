"""Help of a command with many options: the common ones in groups, on a screen; every one on demand."""

from __future__ import annotations

import re

import pytest

from clusterrun.model.option_table import GROUPS, PREFLIGHT, RESOURCES, SUBMISSION
from tests.cli.conftest import CommandLine

EVERY = (*RESOURCES, *PREFLIGHT, *SUBMISSION)


def rows(text: str) -> dict[str, list[str]]:
    """Return the options under each heading, by their first long name."""
    result: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if re.fullmatch(r"[A-Z].*:", line):
            result[line[:-1]] = []
        elif (option := re.match(r"  (?:-\w, )?(--[a-z-]+)", line)) and result:
            list(result.values())[-1].append(option[1])
    return result


def helped(context: CommandLine, *arguments: str, columns: int = 80) -> str:
    message = CommandLine(context.folder, {**context.environment, "COLUMNS": str(columns)})(*arguments)
    assert (message.code, message.err) == (0, "")
    return message.out


def test_help_shows_the_common_options_by_group_a_line_each(ended: CommandLine) -> None:
    text = helped(ended, "submit", "--help")
    result = rows(text)
    assert list(result) == [*GROUPS.values()]
    output = {option for options in result.values() for option in options}
    common = {f"--{option.name}" for option in EVERY if option.common}
    assert output == common | {"--dry-run", "--help-all"}
    block = text[text.index("Resources:") :].rstrip().split("\n")
    assert len(block) == len(output) + len(result) <= 24, "no option takes two lines"
    assert max(map(len, block)) <= 80


def test_help_all_shows_every_option_in_its_group(ended: CommandLine) -> None:
    result = rows(helped(ended, "submit", "--help-all"))
    for option in EVERY:
        assert f"--{option.name}" in result[GROUPS[option.group]]
    assert "--gres" in result["Resources"] and "--after" in result["Slurm"]


def test_every_option_of_a_command_belongs_to_a_known_group() -> None:
    assert {option.group for option in EVERY} <= set(GROUPS)


@pytest.mark.parametrize("columns", [52, 60, 80, 200])
@pytest.mark.parametrize("arguments", [("submit", "--help"), ("submit", "--help-all"), ("check", "--help")])
def test_help_fits_the_terminal(ended: CommandLine, arguments: tuple[str, ...], columns: int) -> None:
    text = helped(ended, *arguments, columns=columns)
    lines = text[text.index("Resources:") :].split("\n")
    assert [line for line in lines if len(line) > columns] == []


def test_the_examples_end_before_the_options_begin(ended: CommandLine) -> None:
    assert "train.py\n\nResources:\n" in helped(ended, "submit", "--help")


def test_help_shows_the_commands_that_people_use_before_the_others(ended: CommandLine) -> None:
    _, common, more = re.split(r"^(?:Commands|More commands):\n", helped(ended, "--help"), flags=re.MULTILINE)
    names = " ".join(line.split()[0] for line in common.strip().splitlines())
    assert names == "submit status logs cancel wait diagnose check top exec shell sweep run alloc lab"
    assert "  report " in more and "  bench " in more


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("report", "--json"), ("check", "report", "--json")),
        (("nodes", "--json"), ("check", "nodes", "--json")),
    ],
)
def test_a_command_has_its_old_and_its_new_name(
    ended: CommandLine, old: tuple[str, ...], new: tuple[str, ...]
) -> None:
    before, after = ended(*old), ended(*new)
    assert (before.code, before.out) == (after.code, after.out) == (0, after.out)


def test_options_that_few_need_are_shown_by_help_all_alone(ended: CommandLine) -> None:
    for arguments, option in ((("submit",), "--elastic"), (("report",), "--prometheus")):
        short, whole = helped(ended, *arguments, "--help"), helped(ended, *arguments, "--help-all")
        assert (option in short, option in whole) == (False, True)
