"""Every limit a user can set, by name, with its default and meaning; judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen


@frozen
class Limit:
    """One limit: ``unit`` is that of ``default``; a ``share`` is a part of one (0.1 is 10 %)."""

    name: str
    default: float
    unit: str
    meaning: str


LIMITS = (
    Limit("slow_warn", 0.10, "share", "slower than the median by this much is a warning"),
    Limit("slow_fail", 0.50, "share", "slower than the median by this much is unfit"),
    Limit("slow_few", 0.30, "share", "instead of slow_warn where there are fewer values than `few`"),
    Limit("z", 4.0, "deviations", "and this many robust standard deviations away from the median"),
    Limit("few", 5, "values", "with fewer values than this the spread says nothing"),
    Limit("pair_floor", 0.0, "GB/s", "no pair may be slower; 0: as the table of hardware says"),
    Limit("set_floor", 0.0, "GB/s", "the whole set may not be slower; 0: as the table of hardware says"),
    Limit("noise", 0.02, "share", "tests that may fail by chance"),
    Limit("false_blame", 0.001, "chance", "accepted that something healthy is blamed by such chance"),
)
"""One row per limit."""

BY_NAME = {limit.name: limit for limit in LIMITS}


def chosen(given: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Every limit by name: the user's number where one is given, the default elsewhere.

    Raises ``ValueError`` for a name that is not in the table or a number below zero.
    """
    numbers = {limit.name: limit.default for limit in LIMITS}
    for name, number in given:
        if name not in numbers:
            raise ValueError(f"no limit is named {name}; there are: {', '.join(numbers)}")
        if not 0 <= number < float("inf"):
            raise ValueError(f"limit {name} cannot be {number}")
        numbers[name] = number
    return numbers
