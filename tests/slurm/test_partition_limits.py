"""A request that no partition can ever satisfy is refused before it is queued."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.slurm.partition_limits import check, cpus_per_gpu, forgotten_gpus, target_partition
from clusterrun.slurm.queries import PartitionOffer
from tests.operations.values import SPEC

BIG = PartitionOffer("big", "up", True, "infinite", 4, 64, 65536, 8)
CPU = PartitionOffer("cpu", "up", False, "1-00:00:00", 2, 64, 65536, 0)


@pytest.mark.parametrize(
    "requested, observed",
    [
        ({"gpus": 16}, "--gpus 16: a node has at most 8 GPUs"),
        ({"nodes": 5}, "--nodes 5: the partition has 4"),
        ({"nodes": 3, "partition": "cpu"}, "--nodes 3: the partition has 2"),
        ({"cpus_per_rank": 99, "gpus": 0}, "--cpus-per-rank 99: a node has at most 64 CPUs"),
        ({"cpus_per_rank": 9, "gpus": 8}, "--cpus-per-rank 9 for 8 ranks a node: a node has at most 64 CPUs"),
        ({"gpus": 0, "ranks_per_node": 65}, "one CPU each for 65 ranks a node: a node has at most 64 CPUs"),
    ],
)
def test_too_large_a_request_is_refused_with_the_partitions_offer(
    requested: dict[str, Any], observed: str
) -> None:
    with pytest.raises(BadInput) as refused:
        check(replace(SPEC, **requested), (BIG, CPU))
    assert refused.value.seen == observed and refused.value.remedy.startswith("partition ")


@pytest.mark.parametrize(
    "requested",
    [
        {"gpus": 8, "nodes": 4},
        {"partition": "elsewhere", "nodes": 99},
        {"partition": "big,cpu", "nodes": 99},
        {"partition": "cpu", "gpus": 4},
        {"gpus": 16, "gpus_from": "node"},
        {"cpus_per_rank": 8, "gpus": 8},
        {"cpus_per_rank": 99, "sbatch": ("cpus-per-task=4",)},
    ],
)
def test_a_request_that_may_fit_is_left_to_slurm(requested: dict[str, Any]) -> None:
    check(replace(SPEC, **requested), (BIG, CPU))


def test_no_request_is_refused_without_an_answer() -> None:
    check(replace(SPEC, nodes=99), ())


MIXED = replace(BIG, gpus=8, cpus=128, kinds=((0, 128), (8, 64), (4, 48)))


@pytest.mark.parametrize(
    "requested, share",
    [
        ({"gpus": 8}, 8),
        ({"gpus": 2}, 8),  # of the kind with the fewest CPUs for a GPU: it may get any
        ({"gpus": 0}, 0),
        ({"gpus": 16}, 0),
        ({"gpus": 4, "partition": "elsewhere"}, 0),
    ],
)
def test_every_node_can_give_the_gpus_share_of_cpus(requested: dict[str, Any], share: int) -> None:
    assert cpus_per_gpu(replace(SPEC, ranks_per_node=0, **requested), (MIXED, CPU)) == share


def test_larger_cpu_shares_of_other_nodes_do_not_count() -> None:
    wider = replace(MIXED, kinds=((8, 64), (4, 128)))
    assert [cpus_per_gpu(replace(SPEC, gpus=gpus), (wider,)) for gpus in (2, 8)] == [8, 8]
    assert cpus_per_gpu(replace(SPEC, gpus=8), (replace(MIXED, kinds=((8, 128), (1, 2))),)) == 16


def test_unrequested_gpus_are_named_once() -> None:
    (notice,) = forgotten_gpus(replace(SPEC, gpus=0), (BIG, CPU))
    assert notice.startswith("nodes of partition big have up to 8 GPUs, and this run asks for none")
    (notice,) = forgotten_gpus(replace(SPEC, gpus=0, sbatch=("gres=gpu:8",)), (BIG, CPU))
    assert "one rank on each node gets all of them" in notice


@pytest.mark.parametrize(
    "requested",
    [
        {"gpus": 1},
        {"gpus": 0, "ranks_per_node": 1},
        {"gpus": 0, "partition": "cpu"},
        {"gpus": 0, "sbatch": ("partition=cpu",)},
        {"gpus": 0, "partition": "big,cpu"},
        {"gpus": 0, "sbatch": ("gres=gpu:8",), "per_node": True},
    ],
)
def test_requests_with_gpus_or_for_cpu_ranks_get_no_notice(requested: dict[str, Any]) -> None:
    assert forgotten_gpus(replace(SPEC, **requested), (BIG, CPU)) == ()


def test_a_partition_in_sbatch_options_has_priority() -> None:
    requested = replace(SPEC, partition="big", sbatch=("partition=cpu",))
    assert target_partition(requested, (BIG, CPU)) == CPU
