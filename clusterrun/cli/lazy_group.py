"""Commands that load when they are called, and a guess at what a wrong word meant."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from clusterrun.model.frozen import frozen
from clusterrun.model.nearest import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


HOST = "clusterrun.host"
"""Where a context keeps the cluster on which the command is to run."""


@frozen
class CommandEntry:
    """The module of `cli` that has a command, its name there, and its one line in the list of commands."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; help and completion import none."""

    def __init__(
        self,
        *args: Any,
        entries: dict[str, CommandEntry],
        everywhere: tuple[click.Option, ...] = (),
        **named: Any,
    ) -> None:
        """``everywhere`` are options that each command takes too."""
        super().__init__(*args, **named)
        self._entries = entries
        self._everywhere = everywhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = getattr(import_module(f"clusterrun.cli.{entry.module}"), entry.attribute)
        found.params += [option for option in self._everywhere if option not in found.params]
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._entries.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # for a TAB alone

        fitting = [(name, entry) for name, entry in self._entries.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=entry.help) for name, entry in fitting] + options

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but a wrong name is answered with the nearest ones."""
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}.{meant(args[0], self._entries)}", ctx)
        return super().resolve_command(ctx, args)


def meant(word: str, known: Any) -> str:
    """`` Did you mean …?`` with the nearest of ``known``, or nothing."""
    near = nearest(word, known, most=2)
    return f" Did you mean {' or '.join(near)}?" if near else ""
