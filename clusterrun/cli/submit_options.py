"""The options of a submission as click has them, from the one table in `settings`, and back to a spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import files, profile_names
from clusterrun.config import option_table, profiles, settings
from clusterrun.config.option_table import Option
from clusterrun.config.settings import Setting, Source
from clusterrun.model.errors import BadInput
from clusterrun.model.spec import JobSpec

F = TypeVar("F", bound=Callable[..., Any])

_SHORT = {"follow": "-f", "nodes": "-N"}


def options(table: Iterable[Option]) -> Callable[[F], F]:
    """A decorator that gives a command the options of ``table``; one that is not said is None."""

    def decorate(command: F) -> F:
        for option in reversed(tuple(table)):
            command = _click(option)(command)
        return command

    return decorate


def _click(option: Option) -> Callable[[F], F]:
    name = f"--{option.name}"
    names = [_SHORT[option.name]] if option.name in _SHORT else []
    if option.kind == "switch":
        return click.option(*names, f"{name}/--no-{option.name}", default=None, help=option.help)
    unsaid = option_table.UNSAID.get(option.name, "")
    default = f"  [default: {option.default}]" if option.default not in ("", 0, (), unsaid) else ""
    return click.option(
        *names,
        name,
        type=_type(option),
        multiple=option.kind == "list",
        default=None,
        metavar=option.metavar or None,
        shell_complete=files if option.metavar in ("FILE", "PATH") else None,
        help=option.help + default,
    )


def _type(option: Option) -> Any:
    if option.choices:
        return click.Choice(option.choices)
    return int if option.kind == "number" else str


def profile_option(command: F) -> F:
    """``--profile``, which chooses a table of the configuration."""
    return click.option(
        "--profile",
        metavar="NAME",
        shell_complete=profile_names,
        help="Take options from [profile.NAME].",
    )(command)


def settled(given: dict[str, Any], profile: str | None, quiet: bool = False) -> dict[str, Setting]:
    """Every option with its value and origin: command line, environment, profile, project, user, built-in.

    Unless ``quiet``, stderr names the project's file where one was read: it may lie in any folder above.
    """
    said = tuple(
        (name, value)
        for key, value in given.items()
        if (name := key.replace("_", "-")) in option_table.CONFIGURABLE and value not in (None, ())
    )
    chosen = profile or os.environ.get(settings.PROFILE_VARIABLE, "")
    read = profiles.load(os.getcwd(), os.environ)
    for one in read:
        if not quiet and os.path.basename(one.path) == profiles.PROJECT_FILE:
            say(f"options are read from {one.path}")
    return settings.settle(
        [
            Source("command line", said),
            *settings.from_environment(os.environ),
            *profiles.sources(read, chosen),
        ]
    )


def to_spec(
    command: Sequence[str], settled: dict[str, Setting], after: tuple[str, ...] = (), **more: Any
) -> JobSpec:
    """The submission that the settings mean; ``more`` are fields of the spec. Raises ``BadInput``."""
    from clusterrun.api import spec_of

    for name, unsaid in option_table.UNSAID.items():
        if settled[name].value == unsaid and settled[name].origin != "built-in":
            raise BadInput(
                f"--{name} must be at least {unsaid + 1}, not {unsaid}",
                f"give --{name} {unsaid + 1} or more, or leave it out",
            )
    values: dict[str, Any] = {name.replace("-", "_"): setting.value for name, setting in settled.items()}
    values["environment"] = _environment(values.pop("env"))
    values["preflight_limit"] = tuple(limit(item) for item in values["preflight_limit"])
    if values["template"]:
        values["template"] = os.path.abspath(os.path.expanduser(values["template"]))
    del values["follow"], values["wait"], values["slurm_every"], values["trust"]
    return spec_of(command, os.getcwd(), {**values, "after": after, **more})


def limit(item: str) -> tuple[str, float]:
    """The name and number in a ``--preflight-limit``. Raises ``BadInput``."""
    name, _, number = item.partition("=")
    try:
        return name, float(number)
    except ValueError as error:
        raise BadInput(
            f"--preflight-limit {item!r} has no number", "write NAME=NUMBER: --preflight-limit slow_fail=0.4"
        ) from error


def _environment(items: Any) -> tuple[tuple[str, str], ...]:
    """Pairs from ``KEY=VALUE`` and ``KEY``; of one that is said twice the later counts."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals and name not in os.environ:
            raise BadInput(
                f"--env {name}: there is no variable {name} here", f"give its value: --env {name}=VALUE"
            )
        found[name] = value if equals else os.environ[name]
    return tuple(found.items())
