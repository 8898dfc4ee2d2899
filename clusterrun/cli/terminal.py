"""How values look to people: tables, times, colours where a terminal is; knows no run."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from clusterrun.model import node_range
from clusterrun.model.visible import visible

ROOM = 30
"""Columns of a terminal that the last column of a table should have."""
PAINTED = "STATE"


def coloured(stream: TextIO) -> bool:
    """Whether colours may go to ``stream``: a terminal, and nobody has said NO_COLOR."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


COLOURS = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35}


def painted(text: str, style: str) -> str:
    """``text`` in one of ``COLOURS``; as it is where ``style`` is ''."""
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if style else text


_FIRST_ODD = "\u0300"
"""Below it a character takes one column."""


def width_of(text: str) -> int:
    """The columns that ``text`` takes on a terminal."""
    if max(text, default="") < _FIRST_ODD:
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def size_words(nodes: int, each: int, gpu_type: str, gpus: int, least: int = 0) -> str:
    """The size of a run: ``2 nodes × 8 h100 GPUs = 16 ranks``; ``each`` node has so many ranks.

    ``least`` are the fewest nodes that will do (0: exactly ``nodes``).
    """
    kind = (f"{visible(gpu_type)} GPU" if gpu_type else "GPU") if gpus else "CPU rank"
    size = f"{node_range.said(nodes, least)} node{'s' if nodes > 1 else ''}"
    size += f" × {each} {kind}{'s' if each > 1 else ''}"
    ranks = node_range.said(nodes * each, least * each)
    return size + (f" = {ranks} ranks" if nodes * each > 1 else "")


def padded(text: str, width: int) -> str:
    """``text`` filled up to ``width`` columns."""
    return text + " " * (width - width_of(text))


def folded(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken between words where that can be."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and width_of(line) + 1 + width_of(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while width_of(line) > width:
            end = next(n for n in range(len(line), 0, -1) if width_of(line[:n]) <= max(width, 2))
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line]


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], spare: Sequence[str] = ()
) -> None:
    """Print ``rows`` on stdout: plain aligned lines in a pipe, fitted to the width of a terminal.

    ``styles`` has a colour for each row, '' for none; ``spare`` names the columns that a narrow
    terminal does without, the first one first. What folds is the last column.
    """
    cells = [list(heads), *([visible(cell) for cell in row] for row in rows)]
    if not sys.stdout.isatty():
        print("\n".join(_plain(cells)))
        return
    width = os.get_terminal_size(sys.stdout.fileno()).columns or 80
    _fitted(_narrowed(cells, spare, width), styles, width)


def _plain(rows: list[list[str]]) -> list[str]:
    widths = _widths(rows)
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]


def _narrowed(rows: list[list[str]], spare: Sequence[str], width: int) -> list[list[str]]:
    """``rows`` without as many of the spare columns as it takes to leave room for the last one."""
    for head in spare:
        if sum(_widths(rows)[:-1]) + 2 * (len(rows[0]) - 1) + ROOM <= width:
            break
        place = rows[0].index(head)
        rows = [row[:place] + row[place + 1 :] for row in rows]
    return rows


def _fitted(rows: list[list[str]], styles: Sequence[str], width: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for head, widest in zip(rows[0], _widths(rows)):
        last = head == rows[0][-1]
        drawn.add_column(head, overflow="fold", no_wrap=not last, min_width=None if last else widest)
    for row, style in zip(rows[1:], styles):
        drawn.add_row(
            *(Text(cell, style=style if head == PAINTED else "") for head, cell in zip(rows[0], row))
        )
    Console(force_terminal=coloured(sys.stdout), width=width, highlight=False).print(drawn)


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
