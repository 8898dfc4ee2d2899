"""Declare the options of `model/option_table.py` for click, and turn their values into a spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.grouped_help import grouped
from clusterrun.cli.shell_complete import files, profile_names, runs
from clusterrun.config import profiles, settings
from clusterrun.config.settings import Setting, Source
from clusterrun.model import gpu_request, option_table, sbatch_variables
from clusterrun.model.errors import BadInput
from clusterrun.model.option_table import Option
from clusterrun.model.spec import JobSpec
from clusterrun.script.sbatch_table import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])


def options(table: Iterable[Option]) -> Callable[[F], F]:
    """Return a decorator that adds the options of ``table``. An option that is not used is None."""

    def decorate(command: F) -> F:
        for option in reversed(tuple(table)):
            if option.kind == "gpus":
                command = _gres(command)
            command = _click(option)(command)
        return command

    return decorate


def _click(option: Option) -> Callable[[F], F]:
    name = f"--{option.name}"
    names = [*filter(None, [option.short]), name, *option.also, option.field]
    about: dict[str, Any] = {"help": option.help, "group": option.group, "common": option.common}
    if option.kind == "switch":
        switch = [
            f"{name}/--no-{option.name}" if option_name == name else option_name for option_name in names
        ]
        return grouped(*switch, default=None, **about)
    return grouped(
        *names,
        type=click.Choice(option.choices) if option.choices else int if option.kind == "number" else str,
        multiple=option.kind == "list",
        default=None,
        metavar=option.metavar or None,
        shell_complete=files if option.metavar in ("FILE", "PATH") else None,
        callback=_read(option) if option.kind in ("gpus", "nodes") else None,
        holds=option.holds,
        **about,
    )


def _read(option: Option) -> Callable[..., Any]:
    def checked(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        return None if value is None else settings.read_value(option, value, f"--{option.name}")

    return checked


_gres = grouped(
    "--gres", metavar="gpu:[TYPE:]G", help="GPUs per node, in the form of sbatch.", group="resources"
)


profile_option = grouped(
    "--profile",
    metavar="NAME",
    shell_complete=profile_names,
    help="Take options from [profile.NAME].",
    group="environment",
)
after_option = grouped(
    "--after",
    multiple=True,
    metavar="RUN",
    shell_complete=runs,
    help="Start when RUN has succeeded.",
    group="slurm",
)
dry_run_option = grouped("--dry-run", is_flag=True, help="Print the submission; submit nothing.", common=True)


def settled(options: dict[str, Any], profile: str | None, quiet: bool = False) -> dict[str, Setting]:
    """Return each option's value and origin.

    Order: command line, environment, profile, project, user, variables of sbatch, default.

    Print the path of the project's file unless ``quiet``, since it may be in any parent folder.
    """
    gres = options.pop("gres", None)
    if gres is not None and options.get("gpus") is not None:
        raise click.UsageError("--gpus and --gres are the same: give one of them")
    if gres is not None:
        gpus = option_table.CONFIGURABLE["gpus"]
        options = {**options, "gpus": settings.read_value(gpus, gpu_request.from_gres(gres), "--gres")}
    empty = [name.replace("_", "-") for name, value in options.items() if value == ""]
    if empty:
        raise click.UsageError(
            f"--{empty[0]} is empty; is a variable of your shell not set? else leave it out"
        )
    typed_values = tuple(
        (name, value)
        for key, value in options.items()
        if (name := key.replace("_", "-")) in option_table.CONFIGURABLE and value not in (None, ())
    )
    chosen = profile or os.environ.get(settings.PROFILE_VARIABLE, "")
    read = profiles.load(os.getcwd(), os.environ)
    for configuration in read:
        if not quiet and os.path.basename(configuration.path) == profiles.PROJECT_FILE:
            say(f"options are read from {configuration.path}")
    typed = Source("command line", typed_values)
    configured = profiles.sources(read, chosen)
    stronger = [typed, *settings.from_environment(os.environ), *configured]
    return settings.settle([*stronger, *settings.from_sbatch_variables(os.environ, stronger)])


def defaults(names: Iterable[str]) -> dict[str, Setting]:
    """Return the default settings of these options."""
    configurable = option_table.CONFIGURABLE
    return {name: Setting(name, configurable[name].default, settings.DEFAULT) for name in names}


def to_spec(
    command: Sequence[str], settled: dict[str, Setting], after: tuple[str, ...] = (), **more: Any
) -> JobSpec:
    """Return the spec of the settings. ``more`` are further fields. Raise ``BadInput`` for wrong values."""
    from clusterrun.config.spec_fields import spec_of

    for setting in settled.values():
        if setting.origin in sbatch_variables.OPTION_BY_VARIABLE:
            say(f"--{setting.name} {setting.value}: of {setting.origin} in this shell")
    for variable in settled["sbatch"].origin.split(" + "):
        if variable in sbatch_variables.PASSED_ON:
            entry = sbatch_variables.passed_on_entry(variable, os.environ)
            say(f"--sbatch {entry}: of {variable} in this shell")
    for variable, option_name in sbatch_variables.UNUSED.items():
        if os.environ.get(variable):
            row = OPTIONS[option_name]
            say(f"{variable} of this shell is not used: {row.refused or row.instead}")
    for name, setting in settled.items():
        option, value = option_table.CONFIGURABLE[name], setting.value
        unsaid = option.kind == "number" and option.otherwise and value == option.default
        if unsaid and isinstance(value, int) and setting.origin != settings.DEFAULT:
            message = f"--{name} must be at least {value + 1}, not {value}"
            raise BadInput(message, f"give --{name} {value + 1} or more, or leave it out")
    values: dict[str, Any] = {name.replace("-", "_"): setting.value for name, setting in settled.items()}
    is_without_gpus = settled["gpus"].origin != settings.DEFAULT and str(settled["gpus"].value) == "0"
    if is_without_gpus and not values["ranks_per_node"]:
        values["ranks_per_node"] = 1  # --gpus 0 asks for CPU ranks
    if values["template"]:
        values["template"] = os.path.abspath(os.path.expanduser(values["template"]))
    del values["follow"], values["wait"], values["slurm_every"], values["trust"]
    if settled["requeue"].origin == settings.DEFAULT:
        del values["requeue"]
    return spec_of(command, os.getcwd(), {**values, "after": after}, os.environ, **more)
