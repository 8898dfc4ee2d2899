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
    """A command that is imported when it is called."""

    module: str  # in `cli`
    attribute: str  # its name in the module
    help: str  # its line in the list of commands
    is_common: bool = False  # it stands before "More commands"
    is_hidden: bool = False  # an old name: it works, and no list or completion shows it


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
        return [name for name, entry in self._entries.items() if not entry.is_hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = getattr(import_module(f"clusterrun.cli.{entry.module}"), entry.attribute)
        found.params += [option for option in self._everywhere if option not in found.params]
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for head, is_common in (("Commands", True), ("More commands", False)):
            rows = [
                (name, entry.help)
                for name, entry in self._entries.items()
                if entry.is_common == is_common and not entry.is_hidden
            ]
            with formatter.section(head):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # for a TAB alone

        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=self._entries[name].help) for name in names] + options

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but a wrong name is answered with the nearest ones."""
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            raise click.UsageError(
                f"there is no command {args[0]!r}.{meant(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


def meant(word: str, known: Any) -> str:
    """`` Did you mean …?`` with the nearest of ``known``, or nothing."""
    near = nearest(word, known, most=2)
    return f" Did you mean {' or '.join(near)}?" if near else ""
