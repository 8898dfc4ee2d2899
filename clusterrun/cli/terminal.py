"""How values look to people: tables, times, colours where a terminal is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

from clusterrun.model import node_range
from clusterrun.model.visible import visible

ROOM = 30
"""Columns of a terminal that the last column of a table should have beside the rest; else it stands below."""
INDENT = "    "


def coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


COLOURS = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35}


def painted(text: str, style: str) -> str:
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if style else text


_FIRST_ODD = "\u0300"
"""Below it a character takes one column."""


def width_of(text: str) -> int:
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


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Print ``rows`` on stdout: plain aligned lines in a pipe, fitted to the width of a terminal.

    ``spare`` names the columns that a narrow terminal does without, so that the last one has ``ROOM``.
    """
    cells = [list(heads), *([visible(cell) for cell in row] for row in rows)]
    if not sys.stdout.isatty():
        print("\n".join(aligned(cells)))
        return
    width = columns()
    styles = ["bold" if coloured(sys.stdout) else ""]
    print("\n".join(fitted(narrowed(cells, spare, width, ROOM), width, styles)))


def columns() -> int:
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = _widths(rows)
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def narrowed(rows: list[list[str]], spare: Sequence[str], width: int, room: int) -> list[list[str]]:
    """``rows`` without as many of the spare columns as it takes to leave so much room for the last one."""
    for head in spare:
        if sum(_widths(rows)[:-1]) + 2 * (len(rows[0]) - 1) + room <= width:
            break
        place = rows[0].index(head)
        rows = [row[:place] + row[place + 1 :] for row in rows]
    return rows


def fitted(rows: Sequence[Sequence[str]], width: int, styles: Sequence[str], of: str = "") -> list[str]:
    """A table for ``width`` columns; its last one folds, or stands below where there is no room for it.

    Of the styles the first is for the heads, the others are for what stands below the head ``of``.
    """
    *widths, last = _widths(rows)
    left = width - sum(widths) - 2 * len(widths)
    lines = []
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else ""
        shown = [
            painted(padded(cell, wide), style if not number or head == of else "")
            for cell, wide, head in zip(row, widths, rows[0])
        ]
        if left >= min(ROOM, last):
            first, *more = folded(row[-1], left)
            lines.append("  ".join([*shown, painted(first, "" if number else style)]).rstrip())
            lines += [" " * (width - left) + part for part in more]
        else:
            lines.append("  ".join(shown).rstrip())
            lines += [INDENT + part for part in folded(row[-1], width - len(INDENT)) if number and part]
    return lines


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width_of, column)) for column in zip(*rows)]


def iso(moment: float | None) -> str | None:
    """Seconds since the epoch as ISO 8601 with zone (UTC), to the millisecond."""
    if moment is None:
        return None
    milliseconds = round(moment * 1000)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{seconds}.{milliseconds % 1000:03d}+00:00"


def local_time(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment))
