"""How values look to people: tables, times, colours where a terminal is; knows no run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from clusterrun.model.visible import visible


def coloured(stream: TextIO) -> bool:
    """Whether colours may go to ``stream``: a terminal, and nobody has said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Print ``rows`` on stdout: plain aligned lines in a pipe, fitted to the width of a terminal.

    ``styles`` has a colour for each row, '' for none.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        print("\n".join(_plain([list(heads), *cells])))
        return
    _fitted(heads, cells, styles)


def _plain(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _fitted(heads: Sequence[str], rows: list[list[str]], styles: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        last = place == len(heads) - 1
        drawn.add_column(head, overflow="fold" if last else "ellipsis", no_wrap=not last)
    for row, style in zip(rows, styles, strict=True):
        drawn.add_row(*(Text(cell, style=style if place == 2 else "") for place, cell in enumerate(row)))
    Console(no_color=not coloured(sys.stdout), highlight=False).print(drawn)


def iso(moment: float | None) -> str | None:
    """Seconds since the epoch as ISO 8601 with zone (UTC), to the millisecond."""
    if moment is None:
        return None
    milliseconds = round(moment * 1000)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{seconds}.{milliseconds % 1000:03d}+00:00"


def local_time(moment: float | None) -> str:
    """Seconds since the epoch for people, in their own zone."""
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment))
