"""Print a help text with its options in groups, the common ones first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from clusterrun.model.option_table import GROUPS

F = TypeVar("F", bound=Callable[..., Any])
ALL = "--help-all"
# Columns for the names of options, and columns between names and texts.
WIDEST, GAP = 30, 2


class GroupedOption(click.Option):
    """An option in a group of the help text. ``--help`` shows it only if it is ``common``."""

    def __init__(
        self, *args: Any, group: str = "output", common: bool = False, holds: str = "", **named: Any
    ) -> None:
        super().__init__(*args, **named)
        self.group = group
        self.common = common
        self.holds = holds

    def row(self) -> tuple[str, str, str]:
        """Return names, text and the part that a short help omits. A switch shows only its first name."""
        names = ", ".join(self.opts[: 1 if self.opts[0].startswith("--") else 2])
        choices = f"[{'|'.join(self.type.choices)}]" if isinstance(self.type, click.Choice) else ""
        value = "" if self.is_flag else f" {self.metavar or choices or 'TEXT'}"
        repeatable = " Repeatable." if self.multiple else ""
        return (
            names + value,
            self.help or "",
            f"{repeatable} [default: {self.holds}]" if self.holds else repeatable,
        )


def grouped(*names: str, group: str = "output", **more: Any) -> Callable[[F], F]:
    return click.option(*names, cls=GroupedOption, group=group, **more)


class GroupedCommand(click.Command):
    """A command with many options: ``--help`` shows the common ones, ``--help-all`` every one."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        every = bool(ctx.meta.get(ALL))
        params = self.get_params(ctx)
        grouped = [option for option in params if isinstance(option, GroupedOption) and not option.hidden]
        shown_options = sorted(
            (option for option in grouped if every or option.common), key=lambda option: not option.common
        )
        widest = max((len(option.row()[0]) for option in shown_options), default=WIDEST)
        column = min(widest, WIDEST, formatter.width * 2 // 5)
        formatter.write_paragraph()
        for group, head in GROUPS.items():
            rows = [option.row() for option in shown_options if option.group == group]
            _write(formatter, head, rows, column, every)
        visible = [option for option in params if isinstance(option, click.Option) and not option.hidden]
        plain = [option for option in visible if option not in grouped]
        hidden = len(grouped) + len(plain) - len(shown_options) - 1
        _HELP_ALL.help = "Every switch has a --no- form too." if every else f"Show {hidden} more options."
        last = [option.get_help_record(ctx) for option in (plain if every else [_HELP_ALL])]
        _write(formatter, "Help" if every else "", [(*row, "") for row in last if row], column, every)


def _write(
    formatter: click.HelpFormatter, head: str, rows: list[tuple[str, str, str]], column: int, every: bool
) -> None:
    """Write a heading, unless it is empty, and its rows without empty lines, to fit a screen."""
    if not rows:
        return
    if head:
        formatter.write(f"{head}:\n")
    room = formatter.width - column - GAP - formatter.indent_increment
    texts = [
        (names, text + more if every or len(text + more) <= room else text) for names, text, more in rows
    ]
    texts[0] = (f"{texts[0][0]:<{column}}", texts[0][1])
    with formatter.indentation():
        formatter.write_dl(texts, col_max=column, col_spacing=GAP)


def _show_all(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta[ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


_HELP_ALL = click.Option(
    [ALL], is_flag=True, expose_value=False, is_eager=True, callback=_show_all, help="Show every option."
)
