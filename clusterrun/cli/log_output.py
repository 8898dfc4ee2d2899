"""Print the output of ranks, with or without headings, until their run ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator

import click

from clusterrun.cli.error_output import discard_stdout
from clusterrun.cli.terminal import coloured
from clusterrun.logs.dedupe import folding
from clusterrun.logs.filters import LineFilter
from clusterrun.logs.format import headed, raw
from clusterrun.logs.merge import Piece
from clusterrun.operations.logs import RunLogs


def print_following(logs: RunLogs, fold: bool = False, line_filter: LineFilter | None = None) -> None:
    line_filter = line_filter or LineFilter()
    try:
        for data in _shown(line_filter(logs.following()), logs, fold, line_filter.as_is):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # exit code 0 would report that the run ended well
        discard_stdout()
        raise click.exceptions.Exit(128 + signal.SIGPIPE) from None


def print_pieces(pieces: Iterable[Piece], logs: RunLogs, fold: bool, as_is: bool) -> bool:
    """Write ``pieces`` to stdout. Return whether there were any."""
    has_printed = False
    for data in _shown(pieces, logs, fold, as_is):
        sys.stdout.buffer.write(data)
        has_printed = True
    sys.stdout.buffer.flush()
    return has_printed


def _shown(pieces: Iterable[Piece], logs: RunLogs, fold: bool, as_is: bool) -> Iterator[bytes]:
    if as_is:
        yield from raw(pieces)
        return
    headings = logs.headings(coloured(sys.stdout))
    yield from folding(pieces, headings) if fold else headed(pieces, headings)
