"""`clusterrun init`: asks three questions and writes a first clusterrun.toml."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Sequence

import click

from clusterrun.cli.error_output import say
from clusterrun.config.profiles import PROJECT_FILE
from clusterrun.model.errors import BadInput, system_reason


@click.command()
@click.option("--yes", "is_silent", is_flag=True, help="Ask nothing; take the site's defaults.")
def init(is_silent: bool) -> None:
    """Write a clusterrun.toml for this folder, with a profile for each partition.

    It reads partitions, your accounts and modules, and asks for the partition, the account and the line that
    prepares the nodes. Enter takes the value in brackets.

    \b
    Examples:
      clusterrun init
    """
    from clusterrun.operations.context import Context
    from clusterrun.operations.new_configuration import configuration_text, site_offer

    path = os.path.join(os.getcwd(), PROJECT_FILE)
    if os.path.lexists(path):
        raise BadInput(f"{path} exists and is not replaced", "clusterrun config show tells what it holds")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK):
        raise BadInput(f"you may not write in {folder}", "cd to the folder of your project")
    offer = site_offer(Context(), getpass.getuser())
    asks = not is_silent and sys.stdin.isatty() and sys.stderr.isatty()
    if not asks and not is_silent:
        say("clusterrun init asks on a terminal only; standard input is not read; these values are taken:")
    names = [row.name for row in offer.partitions]
    partition = _answer(asks, "Partition", offer.default_partition, names)
    accounts = offer.accounts_of(partition) or offer.accounts
    account = _answer(asks, "Account", next(iter(accounts), ""), accounts)
    modules = [f"module load {name}" for name in offer.modules]
    setup = _answer(
        asks, "Line that prepares the nodes (module load …, source …; Enter: none)", "", modules, is_free=True
    )
    text = configuration_text(offer, partition, account, setup)
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadInput(f"{path} exists and is not replaced", "look at it, and try again") from None
    except OSError as error:
        message = f"{path} cannot be written: {system_reason(error)}"
        raise BadInput(message, "cd to the folder of your project") from None
    say(f"written: {path}", "next: clusterrun submit --dry-run train.py")


def _answer(asks: bool, question: str, default: str, choices: Sequence[str], is_free: bool = False) -> str:
    """Return what the user types, or ``default`` if nothing can be asked.

    ``is_free``: the user may type something that is none of ``choices``.
    """
    if not asks:
        say(f"{question.partition(' (')[0]}: {default or 'none'}")
        return default
    if choices:
        say(f"{question}: {', '.join(choices)}")
    while True:
        typed = click.prompt(question, default=default, show_default=bool(default), err=True)
        answer = str(typed).strip()
        if is_free or not choices or answer in choices:
            return answer
        say(f"{answer!r} is none of them: {', '.join(choices)}")
