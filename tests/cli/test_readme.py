"""README and the documents name commands, options, files and tests that exist."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import click
import pytest

from clusterrun.cli import reference
from clusterrun.cli.main import COMMANDS, root
from clusterrun.cli.sweep import SweepGroup
from clusterrun.config import profiles
from clusterrun.model.limits import LIMITS
from clusterrun.model.world import (
    Lineage,
    Meeting,
    World,
    default_environment,
    node_environment,
    rank_environment,
)
from clusterrun.reports.metrics import METRICS, PREFIX
from tests.lab.test_documents import Example, every

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text below a heading, up to the next one."""
    return re.split(r"^## ", README.split(f"\n## {title}", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def options(command: click.Command) -> set[str]:
    return {
        name
        for p in command.params
        if isinstance(p, click.Option)
        for name in p.opts
        if name.startswith("--")
    }


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("name", ["submit", "check"])
def test_the_page_of_options_lists_each_option_once(name: str) -> None:
    command = root.get_command(click.Context(root), name)
    assert command is not None
    output = re.split(r"^## ", reference.expanded(page("options")), flags=re.MULTILINE)
    (part,) = (text for text in output if text.startswith(f"Options of {name}\n"))
    firsts = [re.split(r"(?<!\\)\|", row)[1] for row in part.splitlines() if row.startswith("| `")]
    messages = [option for first in firsts for option in re.findall(r"`(--[a-z-]+)", first)]
    assert sorted(messages) == sorted(options(command) - {"--debug"})


def test_every_mark_for_a_table_is_replaced() -> None:
    for document in DOCUMENTS:
        assert "<!--" not in reference.expanded(document.read_text(encoding="utf-8")), document.name


def test_the_list_has_the_common_commands_and_the_text_names_the_others() -> None:
    text = section('From "I have a script"')
    rows = re.findall(r"^- `([a-z]+)", text, re.MULTILINE)
    assert rows == [name for name, entry in COMMANDS.items() if entry.is_common]
    others = {name for name, entry in COMMANDS.items() if not entry.is_common}
    documented = re.findall(r"^## (\w+)", reference.expanded(page("commands")), re.MULTILINE)
    assert others - {"help", "completion", "config"} <= set(re.findall(r"`([a-z]+)`", text))
    assert others <= set(documented)


def test_the_page_of_variables_lists_the_variables_of_ranks() -> None:
    world, meeting, lineage = World(("a", "b"), 2), Meeting("a", 1), Lineage("r", "n", "/d", 0, 0)
    table, _, below = page("rank-environment").partition("\n\nOnly where")
    names = set(re.findall(r"`([A-Z_]+)`", table)) - {"False"}
    # Ranks find these only with --snapshot.
    names -= {name for name in names if name.startswith(("CLUSTERRUN_GIT_", "CLUSTERRUN_CODE_"))}
    assert names == set(rank_environment(world, 0, meeting, lineage, "")) | set(
        node_environment(world, 0, meeting, lineage)
    )
    assert set(default_environment(2, 2, "eth0")) <= set(re.findall(r"`([A-Z_]+)`", below))


def test_every_limit_and_every_metric_of_the_check_is_explained() -> None:
    text = reference.expanded(page("preflight"))
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    limits = [(limit.name, f"{limit.default:g} {limit.unit} | {limit.meaning}") for limit in LIMITS]
    assert [row for row in rows if not row[0].startswith(PREFIX)] == limits
    assert [row for row in rows if row[0].startswith(PREFIX)] == [
        (PREFIX + n, message) for n, message, _ in METRICS
    ]


def test_the_libraries_are_those_that_are_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = re.findall(r"^([a-z0-9]+)", setup["options"]["install_requires"], re.MULTILINE)
    assert sorted(
        word.lower() for word in re.findall(r"^- \[(\w+)\]", section("Built on"), re.MULTILINE)
    ) == sorted({"jinja": "jinja"}.get(name, name).replace("jinja2", "jinja") for name in needed)


def test_the_example_of_a_configuration_can_be_read(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", page("configuration"), re.DOTALL)
    assert text is not None
    (tmp_path / "clusterrun.toml").write_text(text[1])
    assert [name for name, _ in profiles.read(str(tmp_path / "clusterrun.toml")).profiles] == ["big"]


def anchors(document: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = reference.expanded(document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda path: path.name
)
def test_a_link_leads_to_a_page_and_a_heading(document: Path) -> None:
    for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", document.read_text(encoding="utf-8")):
        target = document.parent / name if name else document
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_line_in_the_documents_is_understood(document: Path) -> None:
    lines = re.findall(r"(?m)(?:`|^    |^\$ )(clusterrun [^`\n|…]+)", document.read_text(encoding="utf-8"))
    for line in lines:
        arguments = line.split(" && ")[0].split()[1:]
        command: click.Command | None = root
        while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
            command = command.get_command(click.Context(command), arguments.pop(0))
            assert command is not None, line
        if isinstance(command, SweepGroup):
            command = command.commands["start"]  # the word that may be left out
        known_options = (
            options(command) | {"--help", "--help-all", "-h", "-f", "-m", "--version", "--", "\\"}
            if command
            else set()
        )
        own = arguments[
            : next((n for n, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
        ]
        assert [word for word in own if word.partition("=")[0] not in known_options] == [], line


@pytest.mark.parametrize(
    "example",
    [element for element in every() if element.line.startswith("clusterrun ")],
    ids=lambda element: f"{element.document}:{element.number}",
)
def test_an_example_is_understood_to_its_last_option(example: Example) -> None:
    arguments = shlex.split(example.line, comments=True)[1:]
    arguments = arguments[
        : next((n for n, word in enumerate(arguments) if word in ("&&", "|", ">", ">>")), len(arguments))
    ]
    if arguments[:1] == ["--host"]:
        arguments = arguments[2:] or ["--version"]  # there as here; without a command it opens the connection
    command: click.Command = root
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        below = command.get_command(click.Context(command), arguments.pop(0))
        assert below is not None, example.line
        command = below
    if "--version" not in arguments:
        command.make_context(command.name, arguments)
