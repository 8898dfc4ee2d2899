"""Amounts of memory and disk are written and read."""

from __future__ import annotations

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.size import gibibytes, parse_size, sized


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (9.7 * 2**30, "9.7 GiB"),
        (99.4 * 2**30, "99.4 GiB"),
        (99.6 * 2**20, "100 MiB"),
        (503 * 2**30, "503 GiB"),
        (1000 * 2**30, "1.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_an_amount_has_the_unit_that_suits_it(count: float, message: str) -> None:
    assert sized(count) == message


def test_compared_amounts_have_the_same_unit() -> None:
    assert [gibibytes(count * 2**30) for count in (0.25, 960, 1024)] == ["0.2 GiB", "960.0 GiB", "1024.0 GiB"]


@pytest.mark.parametrize(
    ("text", "count"),
    [("1K", 1024), ("500M", 500 << 20), ("1.5g", 3 << 29), ("2TiB", 2 << 40), (" 10 GB ", 10 << 30)],
)
def test_a_size_is_read_in_units_of_1024(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "10", "G", "-1G", "1P", "1e3G", "1G2", "\u0661G"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="is not a size"):
        parse_size(text)
