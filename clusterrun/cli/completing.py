"""What TAB offers for a RUN: names from the disk alone, no scheduler is asked."""

from __future__ import annotations

import os

import click

from clusterrun import settings
from clusterrun.model.errors import ClusterrunError
from clusterrun.store import Store, name_of


def runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names and ids of the newest runs that begin with what was typed."""
    try:
        ids = Store(settings.home(os.environ)).ids()[:200]
    except ClusterrunError:
        return []
    words = dict.fromkeys(["last", *map(name_of, ids), *ids])
    return [word for word in words if word.startswith(incomplete)]
