"""Render tables, times and sizes for people, with colours on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TextIO

from clusterrun.model import node_range
from clusterrun.model.frozen import frozen
from clusterrun.model.visible import visible
from clusterrun.reports.view import View

# The least width of a table's last column. If less is left, the column is printed below its row.
ROOM = 30
INDENT = "    "
# Columns between two columns of a table.
GAP = 2


def coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


CLEAR = "\r\x1b[K"


def has_live_line() -> bool:
    """Return whether a line on stderr can be replaced."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def renew_line(text: str) -> None:
    """Replace the line on stderr by ``text``; '' removes it. Print nothing if no line can be replaced."""
    if has_live_line():
        import shutil  # slow to import, and only a live line needs it

        width = shutil.get_terminal_size((110, 24)).columns
        sys.stderr.write(f"{CLEAR}{visible(text)[: width - 1]}")
        sys.stderr.flush()


COLOURS = {"bold": 1, "red": 31, "green": 32, "yellow": 33, "magenta": 35}


def painted(text: str, style: str) -> str:
    return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if style else text


# All characters below it take one column.
_FIRST_ODD = "\u0300"


def width_of(text: str) -> int:
    if max(text, default="") < _FIRST_ODD:
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def size_words(nodes: int, each: int, gpu_type: str, gpus: int, least: int = 0) -> str:
    """Return the size of a run, such as ``2 nodes × 8 h100 GPUs = 16 ranks``.

    ``each`` is the number of ranks per node, ``least`` the smallest number of nodes (0: exactly ``nodes``).
    """
    kind = (f"{visible(gpu_type)} GPU" if gpu_type else "GPU") if gpus else "CPU rank"
    nodes_word = "nodes" if nodes > 1 else "node"
    kind += "s" if each > 1 else ""
    size = f"{node_range.as_text(nodes, least)} {nodes_word} × {each} {kind}"
    ranks = node_range.as_text(nodes * each, least * each)
    return size + (f" = {ranks} ranks" if nodes * each > 1 else "")


def padded(text: str, width: int) -> str:
    return text + " " * (width - width_of(text))


def folded(text: str, width: int) -> list[str]:
    """Return ``text`` in lines of at most ``width`` columns, broken between words if possible."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and width_of(line) + 1 + width_of(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while width_of(line) > width:
            end = next(
                length for length in range(len(line), 0, -1) if width_of(line[:length]) <= max(width, 2)
            )
            lines.append(line[:end])
            line = line[end:]
    return [*lines, line]


@frozen
class Drawing:
    """A table as lines for a terminal."""

    lines: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # headers of the omitted columns


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Print ``rows`` on stdout: plain aligned lines in a pipe, fitted to the width of a terminal.

    ``spare`` names the columns that a narrow terminal omits, so that the last column has ``ROOM``.
    """
    _print([list(heads), *([visible(cell) for cell in row] for row in rows)], spare)


def show(view: View, values: Iterable[object], now: float = 0.0) -> None:
    """Print the table of a view, as ``table`` does."""
    _print(view.cells(values, now), view.spare)


def _print(cells: list[list[str]], spare: Sequence[str]) -> None:
    if sys.stdout.isatty():
        put(drawn(cells, spare, columns(), coloured(sys.stdout)))
    else:
        print("\n".join(aligned(cells)))


def put(drawing: Drawing) -> None:
    """Print a table on a terminal, and name its omitted columns on stderr."""
    print("\n".join(drawing.lines))
    if drawing.left_out:
        print(left_out_line(drawing.left_out), file=sys.stderr)


def left_out_line(heads: Sequence[str]) -> str:
    return f"no room for {', '.join(heads)}: a wider terminal shows more"


def columns() -> int:
    return os.get_terminal_size(sys.stdout.fileno()).columns or 80


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = _widths(rows)
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def drawn(
    cells: list[list[str]],
    spare: Sequence[str],
    width: int,
    has_colours: bool,
    styles: Mapping[str, Sequence[str]] | None = None,
    is_last_below: bool = False,
    silent: Collection[int] = (),
) -> Drawing:
    """Draw a table, headers first, for a terminal that is ``width`` columns wide.

    Columns of ``spare`` are omitted, in that order, until the last column has ``ROOM``, or until the others
    fit if ``is_last_below``. The last column is printed below its row if it has too little room. It is
    omitted then for the ``silent`` rows. ``styles`` holds the style of each row by the header of its column.
    """
    narrowed_cells = narrowed(cells, spare, width, -GAP if is_last_below else ROOM)
    heads = narrowed_cells[0]
    *widths, last = _widths(narrowed_cells)
    margin = sum(widths) + GAP * len(widths)
    is_beside = width - margin >= min(ROOM, last)
    lines = []
    for number, row in enumerate(narrowed_cells, -1):
        row_styles = [styles[head][number] if styles and head in styles else "" for head in heads]
        if number < 0:
            row_styles = ["bold"] * len(heads)
        painter = [style if has_colours and cell else "" for cell, style in zip(row, row_styles)]
        pads = [" " * (column + GAP - width_of(cell)) for column, cell in zip(widths, row)]
        line = "".join(painted(cell, style) + pad for cell, style, pad in zip(row, painter, pads))
        if is_beside:
            first, *others = (painted(part, painter[-1]) for part in folded(row[-1], width - margin))
            lines += [line + first, *(" " * margin + part for part in others)]
            continue
        lines.append(line)
        if number >= 0 and number not in silent:
            lines += [INDENT + part for part in folded(row[-1], width - len(INDENT)) if part]
    left_out = tuple(head for head in cells[0] if head not in heads)
    return Drawing(tuple(line.rstrip() for line in lines), left_out)


def narrowed(
    rows: list[list[str]], spare: Sequence[str], width: int, room: int | None = None
) -> list[list[str]]:
    """Return ``rows`` without spare columns, until the last column has ``room`` (None: until it fits)."""
    for head in spare:
        *widths, last = _widths(rows)
        if sum(widths) + GAP * len(widths) + (last if room is None else room) <= width:
            break
        place = rows[0].index(head)
        rows = [row[:place] + row[place + 1 :] for row in rows]
    return rows


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width_of, column)) for column in zip(*rows)]


def local_time(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment))
