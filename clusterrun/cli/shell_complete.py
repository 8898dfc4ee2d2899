"""What TAB offers for a RUN and a profile: names from the disk alone, no scheduler is asked."""

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


def _named(known: Callable[[str], Store | Sweeps], context: click.Context, incomplete: str) -> list[str]:
    if context.meta.get(HOST):
        return []  # runs of another machine: a TAB asks nobody there
    try:
        ids = known(settings.home(os.environ)).ids()[:200]
    except ClusterrunError:
        return []
    return _beginning(["last", *map(name_of, ids), *ids], incomplete)


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem  # for a TAB alone

    return [CompletionItem(incomplete, type="file")]


FILE: dict[str, Any] = {"metavar": "FILE", "shell_complete": files}
"""Of an option that takes the name of a file."""


def states(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _beginning([*(state.value.lower() for state in State), "live", "ended"], incomplete.lower())


STATE: dict[str, Any] = {"metavar": "STATE", "multiple": True, "shell_complete": states}
"""Of an option that chooses runs by their states."""


def profile_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return _beginning((name for one in _configurations() for name, _ in one.profiles), incomplete)


def host_names(incomplete: str) -> list[str]:
    return _beginning((host.name for one in _configurations() for host in one.hosts), incomplete)


def _configurations() -> list[Configuration]:
    from clusterrun.config import profiles  # only here: many a command completes run names and reads no file

    try:
        return profiles.load(os.getcwd(), os.environ)
    except ClusterrunError:
        return []
