"""The picture of a sweep: the result of every run over each of its values, the best one marked."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from clusterrun.bench.plot import check
from clusterrun.model.errors import BadInput
from clusterrun.operations.sweep_results import SweepResult, SweepResults, is_number

# An axis is logarithmic where its largest value is at least so many times its smallest.
WIDE = 50.0
MOST_PANELS = 6
# Characters of a value that are shown.
LONGEST = 16


def draw_sweep(found: SweepResults, title: str, path: str) -> None:
    """Draw the results that ``found`` is sorted by to ``path``. Raises ``BadInput``."""
    check(path)
    good = [one for one in found.results if _is_finite(_result(one, found.by))]
    if not good:
        raise BadInput(f"no run of {title} has reported a number", "clusterrun.training.report(loss=…)")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = _varied(good)[:MOST_PANELS]
    figure = Figure(figsize=(1.2 + 3.2 * len(names), 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names):
        _panel(axes, good, name, found.by)
    panels[0].set_ylabel(found.by)
    best = " ".join(f"{name}={_short(value)}" for name, value in good[0].point)
    figure.suptitle(f"{title}: {len(good)} of {len(found.results)} runs; best: {best}", fontsize=9, wrap=True)
    figure.savefig(path, metadata={"Date": None} if os.path.splitext(path)[1].lower() == ".svg" else None)


def _panel(axes: Any, results: Sequence[SweepResult], name: str, by: str) -> None:
    words = [dict(one.point)[name] for one in results]
    numbers = [_number(word) for word in words]
    found = [_result(one, by) for one in results]
    if any(math.isnan(number) for number in numbers):
        places = {word: place for place, word in enumerate(sorted(set(words)))}
        axes.set_xticks(range(len(places)), [word[:LONGEST] for word in places], fontsize=7, rotation=30)
        numbers = [float(places[word]) for word in words]
    elif _is_wide(numbers):
        axes.set_xscale("log")
    if _is_wide(found):
        axes.set_yscale("log")
    axes.plot(numbers, found, "o", color="C0", markersize=4, alpha=0.7)
    axes.plot(numbers[:1], found[:1], "o", color="C3", markersize=9, fillstyle="none")
    axes.set_xlabel(name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9")


def _varied(results: Sequence[SweepResult]) -> list[str]:
    """The names whose values differ; the first of them all where none does."""
    names = [name for name, _ in results[0].point]
    return [name for name in names if len({dict(one.point)[name] for one in results}) > 1] or names[:1]


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= WIDE


def _result(one: SweepResult, by: str) -> Any:
    return dict(one.reported).get(by)


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _short(word: str) -> str:
    return word[:LONGEST] if math.isnan(_number(word)) else f"{_number(word):.4g}"


def _number(word: str) -> float:
    try:
        return float(word) if math.isfinite(float(word)) else math.nan
    except ValueError:
        return math.nan
