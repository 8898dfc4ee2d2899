"""When a run is expected to start: the calendar, what earlier runs waited, how far forecasts were off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunRecord, RunState
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context
from clusterrun.operations.queue_forecast import Waits, forecasts
from clusterrun.runtime.run_files import write_state
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm.queries import NodeRow, PartitionOffer, QueueRow, ReservationRow
from clusterrun.system import RealClock

NOW = 1_800_000_000.0
OFFER = PartitionOffer("big", "up", True, "1:00:00", 4, 16, 1, 0)
SPEC = JobSpec(("train.py",), "/", nodes=4, time=600, cluster=Cluster.SLURM)


class Clock(RealClock):
    """It stands."""

    at = NOW

    def now(self) -> float:
        return self.at


class Client(SlurmClient):
    """Four nodes; a job has two of them for 20 minutes."""

    def why_not(self) -> str:
        return ""

    def cluster_name(self) -> str:
        return "test"

    def identity(self) -> str:
        return ""

    def partitions(self) -> tuple[PartitionOffer, ...]:
        return (OFFER,)

    def nodes(self) -> tuple[NodeRow, ...]:
        return tuple(
            NodeRow(f"n{number}", "big", "allocated" if number < 3 else "idle", 0) for number in range(1, 5)
        )

    def queue(self) -> tuple[QueueRow, ...]:
        return (QueueRow("RUNNING", "big", "n[1-2]", "", NOW - 10, NOW + 1200),)

    def reservations(self) -> tuple[ReservationRow, ...]:
        return ()


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context({**os.environ, "CLUSTERRUN_HOME": str(tmp_path)}, clock=Clock(), client=Client({}))


def ran(context: Context, number: int, spec: JobSpec, submitted: float, waited: float) -> None:
    """Add an earlier run."""
    name = f"20260102-03040{number}-k3f9-train"
    context.store.claim(name)
    cluster = "local" if spec.cluster is Cluster.LOCAL else "slurm"
    context.store.save(RunRecord(name, "train", cluster, f"t{number}", spec, submitted, f"4{number}"))
    at = submitted + waited
    state = RunState(name, 0, State.COMPLETED, Phase.ENDED, "", "n1", 1, at + 9, started_at=at, exit_code=0)
    write_state(context.store.paths(name), state)


def test_the_size_and_smaller_ones_each_have_their_start(context: Context) -> None:
    results = forecasts(SPEC, context)
    starts = [
        (forecast.shape, forecast.starts_at, forecast.nodes_then, forecast.seconds) for forecast in results
    ]
    assert starts == [("4", NOW + 1200, 4, 600), ("2", NOW, 2, 600), ("1", NOW, 1, 600)]
    ranged = replace(SPEC, min_nodes=1, time_min=60)
    assert [
        (forecast.shape, forecast.starts_at, forecast.nodes_then) for forecast in forecasts(ranged, context)
    ] == [("1-4", NOW, 2)]
    too_large = forecasts(replace(SPEC, nodes=8, time=0), context)[0]
    assert (too_large.shape, too_large.starts_at, too_large.seconds) == ("8", None, 3600)


def test_the_forecast_shows_waits_of_runs_of_similar_size(context: Context) -> None:
    for number, (nodes, waited) in enumerate([(4, 30.0), (8, 90.0), (2, 60.0), (1, 5000.0), (9, 5000.0)]):
        ran(context, number, replace(SPEC, nodes=nodes), NOW - 9000, waited)
    ran(context, 7, replace(SPEC, partition="other"), NOW - 9000, 5000.0)
    ran(context, 8, replace(SPEC, cluster=Cluster.LOCAL), NOW - 9000, 5000.0)
    first = forecasts(SPEC, context)[0]
    assert first.waited == Waits(3, 60.0, 90.0)
    assert first.off is None


def test_a_run_that_followed_a_forecast_tells_how_far_that_was_off(context: Context) -> None:
    forecasts(SPEC, context)  # it says NOW + 1200 for 4 nodes
    ran(context, 1, SPEC, NOW + 60, 1500.0)  # starts at NOW + 1560
    ran(context, 2, replace(SPEC, nodes=2), NOW + 60, 10.0)  # was to start at once, and did 10 s later
    ran(context, 3, replace(SPEC, nodes=2, time=60), NOW + 60, 999.0)  # nobody forecast that
    ran(context, 4, SPEC, NOW + 2000, 999.0)  # too late after it
    off = {forecast.shape: forecast.off for forecast in forecasts(SPEC, context)}
    assert off == {"4": Waits(2, 185.0, 360.0), "2": Waits(2, 185.0, 360.0), "1": Waits(1, 10.0, 10.0)}


def test_unreadable_or_unwritable_forecasts_are_ignored(context: Context, tmp_path: Path) -> None:
    forecasts(SPEC, context)
    (forecast_file,) = (tmp_path / "cache").glob("forecasts-*")
    forecast_file.write_text("not json\n")
    assert forecasts(SPEC, context)[0].off is None
    assert len(forecast_file.read_text().splitlines()) == 3


def test_there_is_no_forecast_without_a_queue(context: Context) -> None:
    with pytest.raises(BadInput, match="starts at once"):
        forecasts(replace(SPEC, cluster=Cluster.LOCAL), context)
    with pytest.raises(BadInput, match="its partition is not known"):
        forecasts(replace(SPEC, partition="a,b"), context)
