"""The check reaches its goals in one of eight simulated worlds of each kind."""

from __future__ import annotations

import json

import pytest

from benchmarks.bench_preflight_search import GOALS, SAMPLE, Figures, Row, rows


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: row.name)
def test_the_goals_of_a_kind_of_world_are_reached(row: Row) -> None:
    figures, (_, goal) = Figures.of(row.run(SAMPLE)), json.loads(GOALS.read_text(encoding="utf-8"))[row.name]
    assert figures.missed(goal) == [], (figures, goal)
