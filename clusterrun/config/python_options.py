"""Give the Python functions their options from the option table: names, signatures, help, and the stub."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from textwrap import wrap
from typing import TypeVar

from clusterrun.model.errors import BadInput
from clusterrun.model.nearest import did_you_mean
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS, EVERY, PREFLIGHT, RESOURCES, Option

F = TypeVar("F", bound=Callable[..., object])
AFTER = Option("after", "list", "Start when these runs have succeeded.", "RUN", ())
ALL_PAIRS = Option("all-pairs", "switch", "Test every pair of nodes: as many rounds as nodes.", "", False)
_OF_A_TERMINAL = ("follow", "wait")

SUBMIT = (*(option for option in EVERY if option.name not in _OF_A_TERMINAL), AFTER)
CHECK = (*RESOURCES, *PREFLIGHT, CONFIGURABLE["preflight"], ALL_PAIRS)

# Replacements for names that users try.
INSTEAD = {
    "follow": "for line in submit(...).logs(follow=True): print(line)",
    "wait": "submit(...).wait()",
    "environment": "env={'KEY': 'VALUE'}",
    "profile": "options are not read from files here: submit(**options)",
    "gres": "gpus='h100:8'",
    "gpus_per_node": "gpus=8",
    "cpus_per_task": "cpus_per_rank=4",
}


def check(function: str, keywords: Mapping[str, object], options: Iterable[Option]) -> None:
    """Refuse a keyword that is not an option of ``function``. Raises ``BadInput`` with the nearest one."""
    fields = [option.field for option in options]
    for name in keywords:
        if name not in fields:
            guess = did_you_mean(name, fields, f"help(clusterrun.{function}) shows every option")
            raise BadInput(f"{function}() has no option {name!r}", INSTEAD.get(name, guess))


def annotation(option: Option) -> str:
    """Return the type of an option's values for readers and editors.

    None means that the option is not set.
    """
    kinds = {
        "number": "int",
        "switch": "bool",
        "gpus": "int | str",
        "nodes": "int | str",
        "list": "str | Iterable[str]",
        **dict.fromkeys(DURATIONS, "float | str | timedelta"),
    }
    special_types = {
        "env": "Mapping[str, str] | Iterable[str]",
        "preflight-limit": "Mapping[str, float] | Iterable[str]",
        "after": "Run | str | Iterable[Run | str]",
        "python": "str | PathLike[str]",
        "template": "str | PathLike[str]",
    }
    text_type = f"Literal[{', '.join(_quoted(option.choices))}]" if option.choices else "str"
    return f"{special_types.get(option.name) or kinds.get(option.kind, text_type)} | None"


def with_options(options: tuple[Option, ...]) -> Callable[[F], F]:
    """Return a decorator that shows every option in ``help``, ``inspect.signature`` and completion."""

    def decorate(function: F) -> F:
        plain = inspect.signature(function)
        own_parameters = [
            parameter
            for parameter in plain.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        keyword = inspect.Parameter.KEYWORD_ONLY
        fields = {option.field: annotation(option) for option in options}
        keywords = [
            inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in fields.items()
        ]
        function.__signature__ = plain.replace(parameters=[*own_parameters, *keywords])  # type: ignore[attr-defined]
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{described(options)}"
        return function

    return decorate


def _quoted(values: Iterable[str]) -> list[str]:
    return [f'"{word}"' for word in values]


def described(options: Iterable[Option]) -> str:
    """Return one line for each option."""
    lines = []
    for option in options:
        choices = f" One of {', '.join(_quoted(option.choices))}." if option.choices else ""
        default = f" (default: {option.holds})" if option.holds else ""
        text = f"{option.field}: {option.help}{choices}{default}"
        lines += wrap(text, 98, initial_indent=" " * 4, subsequent_indent=" " * 8)
    return "\n".join(lines)
