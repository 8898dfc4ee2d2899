"""What hardware is expected to reach."""

from __future__ import annotations

import pytest

from clusterrun.preflight.search import bandwidth_table


@pytest.mark.parametrize(
    ("gpu", "gpus", "gigabits", "nodes", "floor"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 3200, 2, 440),
        ("NVIDIA H100 80GB HBM3", 8, 0, 1, 296),
        ("NVIDIA A100-SXM4-80GB", 8, 1600, 2, 185),
        ("NVIDIA H200", 4, 0, 1, 290),
        ("NVIDIA H100 80GB HBM3", 8, 400, 2, None),
        ("NVIDIA L40S", 4, 200, 2, None),
        ("NVIDIA L40S", 4, 0, 1, None),
        ("NVIDIA H100 80GB HBM3", 8, 0, 2, None),  # no port that is active: a network that is not known
        ("NVIDIA GH200 480GB", 8, 0, 1, None),
        ("NVIDIA B200", 8, 0, 1, 545),
        ("", 0, 100, 2, None),
    ],
)
def test_the_floor_is_that_of_the_hardware(gpu, gpus, gigabits, nodes, floor):
    found = bandwidth_table.row(gpu, gpus, gigabits, nodes)
    assert (found and found.floor) == floor


REACHED = [
    ("NVIDIA H100 80GB HBM3", 4, 366, "nccl-tests#309"),
    ("NVIDIA H200", 248, 300, "nccl-tests#283"),
    ("NVIDIA A100-SXM4-80GB", 3, 70, "nccl-tests#169"),
    ("NVIDIA A100-SXM4-80GB", 6, 40, "nccl-tests#169"),
]


@pytest.mark.parametrize(("gpu", "nodes", "rate", "source"), REACHED, ids=[one[3] for one in REACHED])
def test_no_set_of_more_than_two_nodes_that_somebody_measured_is_below_a_floor(gpu, nodes, rate, source):
    rows = [bandwidth_table.row(gpu, 8, gigabits, nodes) for gigabits in (0, 800, 1600, 3200, 6400)]
    assert [one for one in rows if one is not None and one.floor > rate] == []


def test_no_hardware_stands_twice_and_every_row_says_where_it_comes_from():
    keys = [(one.gpu, one.gpus, one.gigabits) for one in bandwidth_table.TABLE]
    assert len(set(keys)) == len(keys)
    assert all(one.source and one.floor > 0 for one in bandwidth_table.TABLE)
