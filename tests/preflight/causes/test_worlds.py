"""The check reaches its goals in one of eight simulated worlds of each kind."""

from __future__ import annotations

import pytest

from benchmarks.bench_preflight_search import Row, rows


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row.name)
def test_the_goals_of_a_kind_of_world_are_reached(row: Row) -> None:
    line, missed = row.run(step=8)
    assert missed == [], line
