"""Load commands when they are called, and suggest names for unknown commands."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from clusterrun.model.frozen import frozen
from clusterrun.model.nearest import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


# The key in a context's meta data for the cluster that runs the command.
HOST = "clusterrun.host"


# Other names for a command: those of other programs, and a subcommand without its group.
_OTHER_NAMES = {
    **dict.fromkeys(("kill", "stop", "scancel", "abort"), "cancel"),
    **dict.fromkeys(("ps", "ls", "list", "queue", "squeue", "sacct", "jobs", "show"), "status"),
    **dict.fromkeys(("sbatch", "launch", "start", "torchrun", "python"), "submit"),
    **dict.fromkeys(("tail", "output", "attach"), "logs"),
    "ssh": "shell",
    "srun": "run",
    "salloc": "alloc",
    "sinfo": "gpus",
    "rm": "clean",
    "advise": "bench advise",
}


@frozen
class CommandEntry:
    """A command that is imported when it is called."""

    module: str  # in `cli`
    attribute: str  # its name in the module
    help: str  # its line in the list of commands
    is_common: bool = False  # listed before "More commands"


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; help and completion import none."""

    def __init__(
        self,
        *args: Any,
        entries: dict[str, CommandEntry],
        everywhere: tuple[click.Option, ...] = (),
        **named: Any,
    ) -> None:
        """Create a group whose commands also take the options ``everywhere``."""
        super().__init__(*args, **named)
        self._entries = entries
        self._everywhere = everywhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"clusterrun.cli.{entry.module}"), entry.attribute)
        command.params += [option for option in self._everywhere if option not in command.params]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for head, is_common in (("Commands", True), ("More commands", False)):
            rows = [
                (name, entry.help) for name, entry in self._entries.items() if entry.is_common == is_common
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
        """Resolve as click does. Raise ``UsageError`` with the nearest names if the name is unknown."""
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            name = _OTHER_NAMES.get(args[0], "")
            hint = f" Did you mean {name}?" if name else meant(args[0], self._entries)
            raise click.UsageError(f"there is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def meant(word: str, names: Any) -> str:
    """Return `` Did you mean …?`` with the nearest of ``names``, '' if none is near."""
    similar = nearest(word, names, most=2)
    return f" Did you mean {' or '.join(similar)}?" if similar else ""
