"""`clusterrun help`: shows the documentation pages of this version in the terminal."""

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
      clusterrun help survive
      clusterrun help logs
      clusterrun help NCCL_SOCKET_IFNAME
      clusterrun help skill
    """
    pages = _pages()
    if topic == ("skill",):
        print(skill(), end="")
    elif not topic:
        titles = {name: _read(name).split("\n", 1)[0].lstrip("# ").replace("`", "") for name in pages}
        table(("TOPIC", "IS ABOUT"), [[name, title] for name, title in titles.items()])
        say("show one: clusterrun help TOPIC; search in all: clusterrun help WORD")
    elif len(topic) == 1 and topic[0] in pages:
        text = expanded(_NOT_FOR_A_TERMINAL.sub("", _read(topic[0])))
        if not sys.stdout.isatty():
            print(text, end="")
            return
        from rich.console import Console
        from rich.markdown import Markdown

        console = Console(width=min(Console().width, 120))
        with console.capture() as captured:
            console.print(Markdown(text, hyperlinks=False))
        click.echo_via_pager(captured.get())
    elif topic[0] in COMMANDS:
        root.main([*topic, "--help"], "clusterrun", standalone_mode=False)
    else:
        text = " ".join(topic)
        rows = []
        for name in pages:
            lines = expanded(_read(name)).splitlines()
            rows += [[name, line.strip()] for line in lines if text.lower() in line.lower()]
        if not rows:
            similar = meant(text, [*pages, *COMMANDS])
            raise BadInput(
                f"no page is named {text!r} or holds it.{similar}", "clusterrun help lists the pages"
            )
        table(("TOPIC", "SAYS"), rows)


def _pages() -> list[str]:
    return sorted(
        file_name[:-3]
        for file_name in os.listdir(folder("docs"))
        if file_name.endswith(".md") and file_name != "index.md"
    )


def _read(*name: str) -> str:
    with open(os.path.join(folder("docs"), *name) + ".md", encoding="utf-8") as file:
        return file.read()


def skill() -> str:
    """Return the instructions for an assistant. The page `assistants` explains their use."""
    return _read("skill", "SKILL")
