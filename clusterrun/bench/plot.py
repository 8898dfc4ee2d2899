"""The picture of a study: measured speed-up against the ideal line; the only importer of matplotlib."""

from __future__ import annotations

import math
import os
from typing import Any

from clusterrun.bench.result import ResultRow, Table
from clusterrun.model.errors import BadInput

FORMATS = (".png", ".svg")
# Both axes are logarithmic if the largest world is this many times the smallest.
MANY = 16
# How far lines stand apart, as a share of the world.
APART = 0.012


def check(path: str) -> None:
    """Refuse before hours of measuring what could not be drawn after them. Raises ``BadInput``."""
    if os.path.splitext(path)[1].lower() not in FORMATS:
        root = os.path.splitext(path)[0] or "plot"
        raise BadInput(f"--plot {path!r}: a picture is {' or '.join(FORMATS)}", f"name it {root}.png")
    if not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        raise BadInput(f"--plot {path!r}: there is no such folder", "make it first, or draw elsewhere")
    try:
        import matplotlib  # noqa: F401  is it there?
    except ImportError as error:
        raise BadInput(
            f"--plot needs matplotlib, which cannot be imported ({error})", "pip install 'clusterrun[plot]'"
        ) from error


def draw(table: Table, title: str, caption: str, path: str) -> None:
    """Draw the rows that have a speed-up to ``path``. Raises ``BadInput``."""
    check(path)
    if not any(row.speed_up for row in table.rows):
        raise BadInput("there is nothing to draw: no configuration was measured")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.0), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    worlds = sorted({row.cell.world for row in table.rows})
    base = table.baseline.world if table.baseline else 1
    axes.plot(worlds, [world / base for world in worlds], color="0.6", linestyle=":", label="ideal")
    axes.set_xlabel("GPUs" if table.probed and table.probed.device not in ("", "cpu") else "ranks")
    axes.set_ylabel("speed-up")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9")
    if worlds[-1] >= MANY * worlds[0]:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
    else:
        axes.set_xlim(worlds[0] - 0.25, worlds[-1] + 0.25)
        axes.set_ylim(0)
    axes.set_xticks(worlds, [str(world) for world in worlds])
    _lines(axes, table)
    # Mark the worlds with more CPU ranks than cores.
    probed, worlds = table.probed, [row.cell.world for row in table.rows]
    if probed and probed.device == "cpu" and probed.cluster == "local" and max(worlds) > probed.cores:
        axes.axvspan(probed.cores, max(worlds) + 0.25, color="0.94", zorder=0)
        axes.text(
            max(worlds) + 0.2, 0.03, f"more ranks than the {probed.cores} cores", ha="right", fontsize=8,
            transform=axes.get_xaxis_transform(), color="0.35",
        )  # fmt: skip
    axes.set_title(title, fontsize=11, loc="left")
    figure.supxlabel(caption, fontsize=7, color="0.35", wrap=True)
    axes.legend(fontsize=8, frameon=False, loc="upper left")
    figure.savefig(path, metadata={"Date": None} if path.lower().endswith(".svg") else None)


def _lines(axes: Any, table: Table) -> None:
    """One line per strategy, beginning at the baseline; bars reach from the slowest run to the fastest."""
    good = [row for row in table.rows if row.speed_up]
    names = list(dict.fromkeys(row.cell.strategy for row in good))
    for number, name in enumerate(names):
        own = [row for row in good if row.cell.strategy == name]
        rows = _with_baseline(own, good, table)
        # A line leads to no world that it would only have passed through.
        failed = [row for row in table.rows if row.failed and row.cell.strategy == name]
        rows = sorted([*rows, *failed], key=lambda row: row.cell.world)
        # Side by side, or one strategy's bars would hide another's.
        worlds = [row.cell.world * (1 + APART * (number - (len(names) - 1) / 2)) for row in rows]
        # The baseline's own bar is drawn once, where it is measured.
        low = [max(0.0, row.speed_up - row.slowest) if row in own else 0.0 for row in rows]
        high = [max(0.0, row.fastest - row.speed_up) if row in own else 0.0 for row in rows]
        axes.errorbar(
            worlds,
            [row.speed_up or math.nan for row in rows],
            yerr=(low, high),
            color=f"C{number}",
            marker="o",
            markersize=4 if len(rows) > 1 else 7,
            linewidth=1.6,
            elinewidth=1,
            capsize=2.5,
            label=name or "measured",
        )
        if failed:
            axes.plot(
                [row.cell.world for row in failed], [0.0] * len(failed), "x", color=f"C{number}",
                label=f"{name}, failed" if name else "failed", transform=axes.get_xaxis_transform(),
                clip_on=False, zorder=5,
            )  # fmt: skip
    # The predictions are dashed. Strategies that send as much share a line.
    drawn: set[tuple[float, ...]] = set()
    for number, name in enumerate(dict.fromkeys(row.cell.strategy for row in good)):
        own = [row for row in good if row.cell.strategy == name]
        rows = [row for row in _with_baseline(own, good, table) if row.predicted]
        line = tuple(round(row.predicted, 2) for row in rows)
        if len(rows) < 2 or line in drawn:
            continue
        drawn.add(line)
        axes.plot(
            [row.cell.world for row in rows],
            [row.predicted for row in rows],
            color=f"C{number}",
            linestyle="--",
            linewidth=1,
            label=f"{name}, predicted" if name else "predicted",
        )


def _with_baseline(rows: list[ResultRow], good: list[ResultRow], table: Table) -> list[ResultRow]:
    first = [row for row in good if row.cell == table.baseline and row not in rows]
    return first + rows if rows[0].cell.world > 1 else rows
