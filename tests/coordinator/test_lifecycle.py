"""The table of the lifecycle against what happens: simulated runs go every way in it, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.simulator.world import World
from clusterrun.coordinator.lifecycle import NEXT, Lifecycle, RunStage

RARE = (10098, 10617)
"""Worlds in which the run is over while rank 0's node looks for a port."""


def test_runs_go_every_way_of_the_table_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: set[tuple[RunStage, type]] = set()
    end_stage = Lifecycle._end_stage

    def noted(lifecycle: Lifecycle, outcome: Any) -> None:
        ended.add((lifecycle.stage, type(outcome)))
        end_stage(lifecycle, outcome)

    monkeypatch.setattr(Lifecycle, "_end_stage", noted)
    for seed in (*range(300), *RARE):
        World(seed).run()
    assert ended == {(stage, outcome) for stage, ways in NEXT.items() for outcome in ways}
