"""Complete names of runs, sweeps, profiles and hosts from the disk, without asking a scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from clusterrun.cli.lazy_group import HOST
from clusterrun.config import settings
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.states import State
from clusterrun.runs.store import Store, name_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from clusterrun.config.profiles import Configuration
    from clusterrun.runs.sweep_records import Sweeps


def runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _named(Store, context, incomplete)


def sweeps(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from clusterrun.runs.sweep_records import Sweeps

    return _named(lambda home: Sweeps(Store(home)), context, incomplete)


def _named(store_of: Callable[[str], Store | Sweeps], context: click.Context, incomplete: str) -> list[str]:
    if context.meta.get(HOST):
        return []  # runs of another machine: a TAB asks nobody there
    try:
        ids = store_of(settings.home(os.environ)).ids()[:200]
    except ClusterrunError:
        return []
    return _beginning(["last", *map(name_of, ids), *ids], incomplete)


def _beginning(candidates: Iterable[str], incomplete: str) -> list[str]:
    return [candidate for candidate in dict.fromkeys(candidates) if candidate.startswith(incomplete)]


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # for a TAB alone

    return [CompletionItem(incomplete, type="file")]


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
# Settings of an option that takes the name of a file.
FILE: dict[str, Any] = {"metavar": "FILE", "shell_complete": files}


def states(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _beginning([*(state.value.lower() for state in State), "live", "ended"], incomplete.lower())


# Settings of an option that chooses runs by their states.
STATE: dict[str, Any] = {"metavar": "STATE", "multiple": True, "shell_complete": states}


def profile_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _beginning(
        (name for configuration in _configurations() for name, _ in configuration.profiles), incomplete
    )


def host_names(incomplete: str) -> list[str]:
    return _beginning(
        (host.name for configuration in _configurations() for host in configuration.hosts), incomplete
    )


def _configurations() -> list[Configuration]:
    from clusterrun.config import profiles  # only here: many a command completes run names and reads no file

    try:
        return profiles.load(os.getcwd(), os.environ)
    except ClusterrunError:
        return []
