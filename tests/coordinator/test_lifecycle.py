"""The lifecycle table: simulated runs use every transition in it, and no other."""

from __future__ import annotations

import pytest

from benchmarks.simulator.world import World
from clusterrun.coordinator import lifecycle
from clusterrun.coordinator.lifecycle import NEXT, RunStage

# Worlds in which the run is over while rank 0's node looks for a port.
RARE = (10098, 10617)


class RecordedRow(dict[type, RunStage]):
    """A row of the table that records which outcomes occur."""

    def __init__(self, row: dict[type, RunStage]) -> None:
        super().__init__(row)
        self.used: set[type] = set()

    def __getitem__(self, outcome: type) -> RunStage:
        self.used.add(outcome)
        return super().__getitem__(outcome)


def test_runs_make_exactly_the_transitions_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {stage: RecordedRow(row) for stage, row in NEXT.items()}
    monkeypatch.setattr(lifecycle, "NEXT", recorded)
    for seed in (*range(300), *RARE):
        World(seed).run()
    assert {stage: row.used for stage, row in recorded.items()} == {
        stage: set(row) for stage, row in NEXT.items()
    }
