"""Render the measured numbers of a check as tables: collectives by size, GPUs, pairs of GPUs, and rails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from clusterrun.model.preflight_report import Quantity, Report

# More parts than this are summarized by their lowest, median and highest values.
MOST_ROWS = 16
# Numbers that every check measures. They are shown if the user asked for more.
_USUAL = {"matrix product", "send", "receive"}
_ARROW = " -> "


def lines(report: Report) -> Iterator[str]:
    """Yield the tables; nothing if the user asked for none."""
    if report.table:
        yield ""
        yield from _aligned(
            [
                ("operation", "bytes", "us", "algbw GB/s", "busbw GB/s"),
                *(
                    (
                        row.operation,
                        str(row.bytes),
                        f"{row.microseconds:.2f}",
                        f"{row.algorithm_gigabytes_per_second:.2f}",
                        f"{row.gigabytes_per_second:.2f}",
                    )
                    for row in report.table
                ),
            ]
        )
    if not report.table and {quantity.name for quantity in report.quantities} <= _USUAL:
        return
    peers = [quantity for quantity in report.quantities if _ARROW in quantity.part]
    for kind in ("GPU", "processors", "rail"):
        parts = [
            quantity
            for quantity in report.quantities
            if quantity.part.startswith(kind) and quantity not in peers
        ]
        if parts:
            yield ""
            yield from _aligned(_rows(parts))
    for node in dict.fromkeys(quantity.node for quantity in peers):
        yield ""
        of_node = [quantity for quantity in peers if quantity.node == node]
        values = {tuple(quantity.part.split(_ARROW)): quantity.value for quantity in of_node}
        gpus = list(dict.fromkeys(source for source, _ in values))
        header = (f"{node}, GB/s from \\ to", *gpus)
        rows = [(source, *(_text(values.get((source, target))) for target in gpus)) for source in gpus]
        yield from _aligned([header, *rows])


def _rows(quantities: Sequence[Quantity]) -> list[tuple[str, ...]]:
    """Return a row for each part of a node, or three rows for all parts if they are many."""
    columns = list(dict.fromkeys((quantity.name, quantity.unit) for quantity in quantities))
    header = ("node", "part", *(f"{name} {unit}" for name, unit in columns))
    parts: dict[tuple[str, str], dict[str, float]] = {}
    for quantity in quantities:
        parts.setdefault((quantity.node, quantity.part), {})[quantity.name] = quantity.value
    if len(parts) <= MOST_ROWS:
        rows = [(*part, *(_text(values.get(name)) for name, _ in columns)) for part, values in parts.items()]
        return [header, *rows]
    rows = []
    for title, choose in (("lowest", min), ("median", median), ("highest", max)):
        cells = [choose([values[name] for values in parts.values() if name in values]) for name, _ in columns]
        rows.append((f"{len(parts)} parts", title, *map(_text, cells)))
    return [header, *rows]


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        yield "  ".join([first.ljust(widths[0]), *cells]).rstrip()
