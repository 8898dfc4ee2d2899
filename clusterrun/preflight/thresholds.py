"""Which values lie too far from the others: the median first, then fixed numbers; knows no check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from clusterrun.model import limits as table
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.preflight_report import Grade

Key = TypeVar("Key")

NORMAL = 1.4826
"""The median absolute deviation times this is the standard deviation, were the values normal."""

SMALL = 6
"""Of n normal values the median deviation comes out too small now and then: 1 + 6/n times holds for most."""
MANY_TIMES_FEW = 4
"""With fewer values than so many times ``few``, one that lies far off widens the spread it is judged by."""


@frozen
class Thresholds:
    """The limits that compare; names, units and meanings as in ``model/limits.py``."""

    slow_warn: float = 0.10
    slow_fail: float = 0.50
    slow_few: float = 0.30
    slow_gloo: float = 0.75
    z: float = 4.0
    few: int = 5
    pair_floor: float = 0.0
    set_floor: float = 0.0
    noise: float = 0.02
    false_blame: float = 0.001


def limits_of(given: Iterable[tuple[str, float]]) -> Thresholds:
    """The limits with the user's numbers in place; ``ValueError`` as from ``model.limits.chosen``."""
    numbers = table.chosen(given)
    names = Thresholds.__annotations__
    return Thresholds(**{name: numbers[name] for name in names})  # type: ignore[arg-type]


def limit(given: Iterable[tuple[str, float]], name: str) -> float:
    """One limit by name: the user's number, or the table's default."""
    return table.chosen(given)[name]


def for_backend(limits: Thresholds, backend: str) -> Thresholds:
    """The limits for rates by ``backend``: gloo shares processors with all else and varies by a factor."""
    if backend != "gloo":
        return limits
    wide = limits.slow_gloo
    return replace(limits, slow_warn=wide, slow_few=wide, slow_fail=max(wide, limits.slow_fail))


@frozen
class SlowLine:
    """Where slow begins: below ``slow`` is slow, from ``clear`` on is not; ``median``: of what drew it."""

    median: float
    slow: float
    clear: float


def median_of(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two; there must be one. (``statistics`` is slow to load.)"""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def line(
    values: Iterable[float], limits: Thresholds, floor: float = 0.0, noise: float = 0.0
) -> SlowLine | None:
    """The line drawn by ``values``, higher is better; None without values.

    ``floor`` holds where the median itself is above it: else all are slow, which is no one's fault.
    ``noise`` is the standard deviation of one measurement, where that is known to be more than ``values``,
    made of many of them, differ.
    """
    numbers = list(values)
    if not numbers:
        return None
    median = median_of(numbers)
    few = len(numbers) < limits.few
    # The robust standard deviation; larger where few values could have agreed by chance.
    spread = NORMAL * median_of(abs(one - median) for one in numbers) * (1 + SMALL / len(numbers))
    deviation = 0.0 if few else max(noise, spread)
    gap = max(median * (limits.slow_few if few else limits.slow_warn), limits.z * deviation)
    widest = limits.slow_few if len(numbers) < MANY_TIMES_FEW * limits.few else limits.slow_fail
    gap = min(gap, median * max(widest, limits.slow_warn))
    slow = max(median - gap, floor if median >= floor else 0.0)
    return SlowLine(median, slow, max(slow, median - gap / 2))


@frozen
class Outlier:
    """One value below the line, ``share`` of the median."""

    value: float
    median: float
    limit: float
    share: float
    grade: Grade


def outliers(values: Mapping[Key, float], limits: Thresholds) -> dict[Key, Outlier]:
    """Return the values below the line that all values draw."""
    drawn = line(values.values(), limits)
    found: dict[Key, Outlier] = {}
    for key, value in values.items():
        if drawn is not None and value < drawn.slow:
            share = value / drawn.median if drawn.median else 0.0
            grade = Grade.FAIL if 1 - share > limits.slow_fail else Grade.WARN
            found[key] = Outlier(value, drawn.median, drawn.slow, share, grade)
    return found
