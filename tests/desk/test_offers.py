"""What no partition could ever give is refused before it waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.slurm.offers import check
from clusterrun.slurm.queries import Partition
from tests.desk.values import SPEC

BIG = Partition("big", "up", True, "infinite", 4, 64, 65536, 8)
CPU = Partition("cpu", "up", False, "1-00:00:00", 2, 64, 65536, 0)


@pytest.mark.parametrize(
    "asked, seen",
    [
        ({"gpus": 16}, "--gpus 16: a node has at most 8 GPUs"),
        ({"nodes": 5}, "--nodes 5: there are 4"),
        ({"nodes": 3, "partition": "cpu"}, "--nodes 3: there are 2"),
    ],
)
def test_too_much_is_refused_with_what_the_partition_offers(asked: dict[str, Any], seen: str) -> None:
    with pytest.raises(BadInput) as refused:
        check(replace(SPEC, **asked), (BIG, CPU))
    assert refused.value.seen == seen and refused.value.remedy.startswith("partition ")


@pytest.mark.parametrize(
    "asked",
    [
        {"gpus": 8, "nodes": 4},
        {"partition": "elsewhere", "nodes": 99},
        {"partition": "big,cpu", "nodes": 99},
        {"partition": "cpu", "gpus": 4},
    ],
)
def test_what_might_run_somewhere_is_left_to_slurm(asked: dict[str, Any]) -> None:
    check(replace(SPEC, **asked), (BIG, CPU))


def test_without_an_answer_nothing_is_refused() -> None:
    check(replace(SPEC, nodes=99), ())
