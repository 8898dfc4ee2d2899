"""A job that was given some number of nodes: who trains, who idles, and what the jobs after it ask for."""

from __future__ import annotations

import pytest

from clusterrun.coordinator.job_size import orders_for
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders, Preflight, Survival
from clusterrun.model.record import Attempt, RunState
from clusterrun.model.states import Phase, State

AGAIN = ("sbatch", "--nodes=2-5", "--dependency=", "{dependency}", "/r/script.sh")
ORDERS = Orders(
    run_id="r",
    run_name="train",
    nodes=4,
    min_nodes=1,
    spares=1,
    ranks_per_node=2,
    gpus_per_node=0,
    cpus_per_rank=1,
    command=("python", "train.py"),
    cwd="/",
    launch=("srun", "--nodes=5", "--ntasks=5", "--ntasks-per-node=1", "python", "--nodes"),
    preflight=Preflight(resubmit=("sbatch", "/r/script.sh")),
    survival=Survival(requeue="chain", resubmit=AGAIN),
)


def began_on(*worlds: tuple[int, bool]) -> RunState:
    """Return the state after attempts, each given by its number of nodes and whether all ranks ran."""
    attempts = tuple(
        Attempt(number, "", tuple(f"n{node}" for node in range(nodes)), 1.0, ranks_at=2.0 if ran else None)
        for number, (nodes, ran) in enumerate(worlds)
    )
    return RunState("r", 0, State.PENDING, Phase.QUEUED, "", "n0", 1, 3.0, attempts)


@pytest.mark.parametrize("provided, train, idle", [(5, 4, 1), (3, 2, 1), (2, 1, 1)])
def test_all_nodes_but_the_spares_train(provided: int, train: int, idle: int) -> None:
    result = orders_for(ORDERS, provided, None)
    assert (result.nodes, result.spares, result.allocated) == (train, idle, provided)
    counted = (
        "srun",
        f"--nodes={provided}",
        f"--ntasks={provided}",
        "--ntasks-per-node=1",
        "python",
        "--nodes",
    )
    assert result.launch == counted


def test_the_next_job_has_as_many_nodes_as_the_first_unless_the_run_is_elastic() -> None:
    fixed, elastic = (
        orders_for(ORDERS, 3, None),
        orders_for(replace(ORDERS, elastic=True), 3, began_on((4, True))),
    )
    assert fixed.survival.resubmit == (*AGAIN[:-1], "--nodes=3", AGAIN[-1])
    assert fixed.preflight == ORDERS.preflight  # no rank has run: another choice is as good
    assert (elastic.nodes, elastic.survival, elastic.preflight) == (2, ORDERS.survival, ORDERS.preflight)


def test_the_size_of_a_started_world_stays_and_extra_nodes_idle() -> None:
    result = orders_for(ORDERS, 5, began_on((4, False), (2, True), (3, True)))
    assert (result.nodes, result.spares) == (2, 3)
    assert result.preflight.resubmit == ("sbatch", "--nodes=3", "/r/script.sh")


def test_a_smaller_world_than_the_run_began_in_is_refused_with_the_way_out() -> None:
    with pytest.raises(
        ClusterrunError, match=r"has 3 nodes, and the ranks of the run began on 4.*\n.*--elastic"
    ):
        orders_for(ORDERS, 3, began_on((4, True)))


def test_a_fixed_number_of_nodes_and_a_run_without_a_scheduler_do_not_change() -> None:
    for orders in (replace(ORDERS, min_nodes=0), replace(ORDERS, launch=())):
        assert orders_for(orders, 2, began_on((4, True))) == orders
