"""The picture of a sweep: the result of every run over each of its values, the best one marked."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from clusterrun.bench.plot import check
from clusterrun.model.errors import BadInput
from clusterrun.operations.sweep_results import SweepResult, SweepResults, is_number

# An axis is logarithmic if its largest value is at least this many times its smallest.
WIDE = 50.0
MOST_PANELS = 6
# Characters of a value that are shown.
LONGEST = 16


def draw_sweep(results: SweepResults, title: str, path: str) -> None:
    """Draw the result that ``results`` are sorted by to ``path``. Raise ``BadInput``."""
    check(path)
    values = [(result, _result(result, results.by)) for result in results.results]
    good = [result for result, value in values if is_number(value) and math.isfinite(value)]
    if not good:
        raise BadInput(f"no run of {title} has reported a number", "clusterrun.training.report(loss=…)")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    all_names = [name for name, _ in good[0].point]
    varied = [name for name in all_names if len({dict(result.point)[name] for result in good}) > 1]
    names = (varied or all_names[:1])[:MOST_PANELS]
    figure = Figure(figsize=(1.2 + 3.2 * len(names), 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names):
        points = [dict(result.point)[name] for result in good]
        numbers = [_number(word) for word in points]
        measured = [_result(result, results.by) for result in good]
        if any(math.isnan(number) for number in numbers):
            places = {word: index for index, word in enumerate(sorted(set(points)))}
            axes.set_xticks(range(len(places)), [word[:LONGEST] for word in places], fontsize=7, rotation=30)
            numbers = [float(places[word]) for word in points]
        elif _is_wide(numbers):
            axes.set_xscale("log")
        if _is_wide(measured):
            axes.set_yscale("log")
        axes.plot(numbers, measured, "o", color="C0", markersize=4, alpha=0.7)
        axes.plot(numbers[:1], measured[:1], "o", color="C3", markersize=9, fillstyle="none")
        axes.set_xlabel(name)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9")
    panels[0].set_ylabel(results.by)
    point = [(name, value, _number(value)) for name, value in good[0].point]
    texts = [f"{name}={value[:LONGEST]}" if math.isnan(n) else f"{name}={n:.4g}" for name, value, n in point]
    best = " ".join(texts)
    figure.suptitle(
        f"{title}: {len(good)} of {len(results.results)} runs; best: {best}", fontsize=9, wrap=True
    )
    figure.savefig(path, metadata={"Date": None} if os.path.splitext(path)[1].lower() == ".svg" else None)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= WIDE


def _result(result: SweepResult, by: str) -> Any:
    return dict(result.reported).get(by)


def _number(word: str) -> float:
    try:
        return float(word) if math.isfinite(float(word)) else math.nan
    except ValueError:
        return math.nan
