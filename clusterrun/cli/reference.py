"""Generate tables of options, commands, limits, metrics and JSON fields for the documents, as Markdown.

A document marks the place with ``<!-- table: NAME ARGUMENT -->``. The site and ``clusterrun help`` insert the
table.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import click

from clusterrun.cli.main import COMMANDS, root
from clusterrun.model import option_table
from clusterrun.model.limits import LIMITS
from clusterrun.reports.metrics import METRICS, PREFIX
from clusterrun.shipped import folder

_MARK = re.compile(r"^<!-- table: (\w+) ?(.*?) -->$", re.MULTILINE)
_NOT_RUN = re.compile(r"^<!-- not run: .* -->\n", re.MULTILINE)


def expanded(text: str) -> str:
    """Return a document with its tables and without notes to tests. Raise ``KeyError`` for unknown names."""
    return _NOT_RUN.sub("", _MARK.sub(lambda mark: "\n".join(_TABLES[mark[1]](mark[2])), text))


def command_of(*names: str) -> click.Command:
    """Return the command of these names, such as ``bench scaling``. Raise ``KeyError`` if there is none."""
    command: click.Command | None = root
    for word in names:
        if not isinstance(command, click.Group):
            raise KeyError(word)
        command = command.get_command(click.Context(command), word)
    if command is None:
        raise KeyError(" ".join(names))
    return command


def _options(names: str) -> Iterator[str]:
    command = command_of(*names.split())
    for group, head in option_table.GROUPS.items():
        group_options = [
            option for option in _options_of(command) if getattr(option, "group", "output") == group
        ]
        if group_options:
            yield from ("", f"### {head}", "", *_rows(group_options))


def _options_of(command: click.Command) -> list[click.Option]:
    options = (option for option in command.params if isinstance(option, click.Option))
    return [option for option in options if not option.hidden and option.name != "debug"]


def _rows(options: Iterable[click.Option]) -> Iterator[str]:
    yield from ("| option | does |", "|---|---|")
    for option in options:
        names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len))
        taken = "\\|".join(option.type.choices) if isinstance(option.type, click.Choice) else option.metavar
        value = f" `{taken}`" if taken and not option.is_flag else ""
        repeatable = " Repeatable." if option.multiple else ""
        if holds := getattr(option, "holds", ""):
            default = f" Default: {_cell(holds)}."
        elif not option.show_default or option.default in (None, "", ()) or "default:" in (option.help or ""):
            default = ""
        else:
            default = f" Default: `{option.default}`."
        yield f"| {names}{value} | {_cell(option.help or '')}{repeatable}{default} |"


def _commands(_: str) -> Iterator[str]:
    """Yield the section of every command: usage, options and examples."""
    for name in COMMANDS:
        yield from _command((name,))


def _command(names: tuple[str, ...]) -> Iterator[str]:
    command = command_of(*names)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _command((*names, name))
        return
    usage = command.collect_usage_pieces(click.Context(command, info_name=names[-1]))
    text, _, examples = (command.help or "").partition("\b\n")
    yield from ("", f"## {' '.join(names)}", "", "```", f"clusterrun {' '.join((*names, *usage))}", "```", "")
    yield from (_cell(paragraph) + "\n" for paragraph in text.strip().split("\n\n") if paragraph)
    if names in (("submit",), ("check",)):
        yield f"Its options are in [options](options.md#{'-'.join(('options-of', *names))})."
    elif command_options := _options_of(command):
        yield from _rows(command_options)
    lines = re.findall(r"^ +((?:sudo )?clusterrun .*)$", examples, re.MULTILINE)
    yield from ("", "```", *lines, "```") if lines else ()


def _variables(_: str) -> list[str]:
    options = option_table.CONFIGURABLE.values()
    kinds = [" | ".join(option.choices) or option.kind for option in options]
    rows = [(f"`{option.name}`", f"`{option.variable}`", kind) for option, kind in zip(options, kinds)]
    return _table(("key", "variable", "kind"), rows)


def _template_variables(_: str) -> list[str]:
    from clusterrun.script.render import VARIABLES  # imports jinja2, which only this table needs

    return _table(("name", "value"), [(f"`{name}`", meaning) for name, meaning in VARIABLES.items()])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return [f"| {' | '.join(heads)} |".replace("  ", " "), "|---" * len(heads) + "|", *lines]


def _schema(name: str) -> Iterator[str]:
    with open(os.path.join(folder("docs"), "schemas", f"{name}.json"), encoding="utf-8") as file:
        schema = json.load(file)
    yield from (_cell(schema["description"]), "", "| field | type | says |", "|---|---|---|")
    yield from _fields("", schema)


def _fields(path: str, schema: dict[str, Any]) -> Iterator[str]:
    for key, field in schema.get("properties", {}).items():
        if "enum" in field:
            kind = " \\| ".join(
                "null" if member is None else f"`{member}`" for member in field["enum"] if member != ""
            )
        else:
            types = field.get("type", "any")
            kind = " or ".join(types) if isinstance(types, list) else str(types)
        yield f"| `{path}{key}` | {kind} | {_cell(field.get('description', ''))} |"
        yield from _below(f"{path}{key}", field)


def _below(path: str, field: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of an object, or of the objects in a list or behind names."""
    yield from _fields(f"{path}.", field)
    for key, mark in (("items", "[]"), ("additionalProperties", ".NAME")):
        inner = field.get(key)
        if isinstance(inner, dict):
            yield from _below(path + mark, inner)


def _cell(text: str) -> str:
    """Return a text as one line of a table, with options as code and column marks escaped."""
    line = re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
    parts = line.split("`")  # every second one is code already
    parts[::2] = [re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", part) for part in parts[::2]]
    return "`".join(parts)


_TABLES = {
    "options": _options,
    "commands": _commands,
    "command_options": lambda names: _rows(_options_of(command_of(*names.split()))),
    "variables": _variables,
    "limits": lambda _: _table(
        ("name", "default", ""),
        [(f"`{limit.name}`", f"{limit.default:g} {limit.unit}", limit.meaning) for limit in LIMITS],
    ),
    "metrics": lambda _: _table(("metric", ""), [(f"`{PREFIX}{name}`", text) for name, text, _ in METRICS]),
    "template_variables": _template_variables,
    "schema": _schema,
}
