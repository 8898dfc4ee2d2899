"""`clusterrun help`: the pages of the documentation in the terminal, as they came with this version."""

from __future__ import annotations

import os
import re
import sys

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.lazy_group import meant
from clusterrun.cli.main import COMMANDS, root
from clusterrun.cli.reference import expanded
from clusterrun.cli.terminal import table
from clusterrun.model.errors import BadInput
from clusterrun.shipped import folder

_NOT_FOR_A_TERMINAL = re.compile(r"^```\{toctree\}.*?^```\n|^!\[.*?\]\(.*?\)\n", re.MULTILINE | re.DOTALL)


def _topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in sorted({*_pages(), *COMMANDS}) if name.startswith(incomplete)]


@click.command("help")
@click.argument("topic", nargs=-1, shell_complete=_topics)
def show(topic: tuple[str, ...]) -> None:
    """Show a page of the documentation, the help of a command, or the pages that hold a word.

    Without TOPIC it lists the pages. On a terminal a page is shown by your pager.

    \b
    Examples:
      clusterrun help
      clusterrun help my-job-hangs
      clusterrun help logs
      clusterrun help NCCL_SOCKET_IFNAME
      clusterrun help skill
    """
    pages = _pages()
    if topic == ("skill",):
        print(skill(), end="")
    elif not topic:
        table(("TOPIC", "IS ABOUT"), [[name, _title(_read(name))] for name in pages])
        say("show one: clusterrun help TOPIC; search in all: clusterrun help WORD")
    elif len(topic) == 1 and topic[0] in pages:
        _show(expanded(_NOT_FOR_A_TERMINAL.sub("", _read(topic[0]))))
    elif topic[0] in COMMANDS:
        root.main([*topic, "--help"], "clusterrun", standalone_mode=False)
    else:
        _found(" ".join(topic), pages)


def _pages() -> list[str]:
    return sorted(n[:-3] for n in os.listdir(folder("docs")) if n.endswith(".md") and n != "index.md")


def _read(*name: str) -> str:
    with open(os.path.join(folder("docs"), *name) + ".md", encoding="utf-8") as file:
        return file.read()


def skill() -> str:
    """What an assistant must know, as a file for it: the page `assistants` says what to do with it."""
    return _read("skill", "SKILL")


def _title(text: str) -> str:
    return text.split("\n", 1)[0].lstrip("# ").replace("`", "")


def _found(words: str, pages: list[str]) -> None:
    rows = [
        [name, line.strip()]
        for name in pages
        for line in expanded(_read(name)).splitlines()
        if words.lower() in line.lower()
    ]
    if not rows:
        near = meant(words, [*pages, *COMMANDS])
        raise BadInput(f"no page is named {words!r} or holds it.{near}", "clusterrun help lists the pages")
    table(("TOPIC", "SAYS"), rows)


def _show(text: str) -> None:
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(Console().width, 120))
    with console.capture() as shown:
        console.print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(shown.get())
