"""Options that several `clusterrun lab` commands share; knows click and nothing of a lab."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import click

HELP = {"help_option_names": ["-h", "--help"]}
NAME = click.option(
    "--name", default="lab", show_default=True, help="Name of the lab; several may be up at once."
)

Command = Callable[..., Any]


def choice(option: str, words: type[enum.Enum], text: str) -> Callable[[Command], Command]:
    """An option whose values are those of an enum, the first being the default."""
    values = [word.value for word in words]
    return click.option(option, default=values[0], show_default=True, type=click.Choice(values), help=text)


def say(line: str) -> None:
    """Tell the user something that is not data."""
    click.echo(line, err=True)
