"""Find values that are too far below the median."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.limits import chosen
from clusterrun.model.preflight_report import Grade

Key = TypeVar("Key")

# --- numbers with the same meaning in several files ---

# One other node may be at fault itself. Two others decide.
WITNESSES = 2
# Each node that differs needs two others that agree. If more than one in three differs, neither side is the
# usual one.
MINORITY = WITNESSES + 1
# In a set of at most this size every node meets all others: 120 pairs, in 15 rounds. In a larger set, extra
# tests are made of at most this many nodes.
FEW_NODES = 16
# A collective of one node does not test the network.
SMALLEST_GROUP = 2
# Three failures of a bad link are no chance: at a noise of 2 % they cost 3 * 3.9 nats, more than the price of
# the link and the lead that blame requires (4.6 + 6.9). More repeats of the same test tell little.
MOST_TRIES = 3
# The limit of rounds of a search beyond its plan, or in a row without news. In the simulated worlds, 99 of
# 100 searches of pairs need 9.
MOST_ROUNDS = 12
# The whole set, and a late answer, get this share of the budget.
BUDGET_SHARE = 0.25
# The kernel repeats the lost first packet of a connection after 1 and 3 seconds. A closed port refuses at
# once.
DIAL_SECONDS = 5.0
# A slower answer needed a second attempt, since the kernel and resolvers repeat after one second or later.
SLOW_ANSWER_SECONDS = 0.9
# An answer may arrive this long after the limit of its task. Then the node is silent. It is also the usual
# limit of a group test, which takes less than a second.
ANSWER_SECONDS = 10.0
# The longest wait for the first late answer of a node, and for the first test with NCCL, which loads kernels.
LONGEST_SECONDS = 30.0
# A node may take this many times as long as others took.
PATIENCE = 4.0
# The limit for the start of a process on a node: a file system may be slow.
START_SECONDS = 20.0

# --- outliers ---

# The median absolute deviation times this is the standard deviation of normal values.
NORMAL = 1.4826


@frozen
class Thresholds:
    """Numbers of comparisons. ``model/limits.py`` has their defaults, and explains names and units."""

    slow_warn: float
    slow_fail: float
    slow_few: float
    slow_gloo: float
    z: float
    few: int
    pair_floor: float
    set_floor: float
    noise: float
    false_blame: float

    @staticmethod
    def of_user(limits: Iterable[tuple[str, float]]) -> Thresholds:
        """Return the thresholds with the user's limits. Raise ``ValueError`` as ``chosen`` does."""
        numbers = chosen(limits)
        names = Thresholds.__annotations__
        return Thresholds(**{name: numbers[name] for name in names})  # type: ignore[arg-type]


DEFAULTS = Thresholds.of_user(())


def for_backend(thresholds: Thresholds, backend: str) -> Thresholds:
    """Return the thresholds for rates of ``backend``. Rates of gloo vary more: it shares processors."""
    if backend != "gloo":
        return thresholds
    wide = thresholds.slow_gloo
    return replace(thresholds, slow_warn=wide, slow_few=wide, slow_fail=max(wide, thresholds.slow_fail))


@frozen
class SlowLine:
    """The border between slow and normal values."""

    median: float  # of the values that define the line
    slow: float  # lower values are slow
    clear: float  # this value and higher ones are not slow


def median_of(values: Iterable[float]) -> float:
    """Return the median of at least one value. (``statistics`` is slow to load.)"""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def line(
    values: Iterable[float], thresholds: Thresholds, floor: float = 0.0, noise: float = 0.0
) -> SlowLine | None:
    """Return the line that ``values`` define (higher is better), or None without values.

    ``floor`` applies only if the median is above it. No node is at fault if all values are slow.
    ``noise`` is the standard deviation of one measurement, if it exceeds the spread of ``values``.
    """
    numbers = list(values)
    if not numbers:
        return None
    median = median_of(numbers)
    few = len(numbers) < thresholds.few
    # The robust standard deviation. The median deviation of few normal values may be too small by chance.
    spread = (
        NORMAL * median_of(abs(value - median) for value in numbers) * (1 + thresholds.few / len(numbers))
    )
    deviation = 0.0 if few else max(noise, spread)
    gap = max(median * (thresholds.slow_few if few else thresholds.slow_warn), thresholds.z * deviation)
    # Among few nodes an outlier inflates the deviation that it is compared with.
    widest = thresholds.slow_few if len(numbers) <= FEW_NODES else thresholds.slow_fail
    gap = min(gap, median * max(widest, thresholds.slow_warn))
    slow = max(median - gap, floor if median >= floor else 0.0)
    return SlowLine(median, slow, max(slow, median - gap / 2))


@frozen
class Outlier:
    """A value below the line."""

    value: float
    median: float
    limit: float
    share: float  # of the median
    grade: Grade


def outliers(values: Mapping[Key, float], thresholds: Thresholds) -> dict[Key, Outlier]:
    """Return the values below the line that all values define."""
    limits = line(values.values(), thresholds)
    result: dict[Key, Outlier] = {}
    for key, value in values.items():
        if limits is not None and value < limits.slow:
            share = value / limits.median if limits.median else 0.0
            grade = Grade.FAIL if 1 - share > thresholds.slow_fail else Grade.WARN
            result[key] = Outlier(value, limits.median, limits.slow, share, grade)
    return result
