"""What hardware is expected to reach."""

from __future__ import annotations

import pytest

from clusterrun.preflight import bandwidths


@pytest.mark.parametrize(
    ("gpu", "gpus", "gigabits", "megabytes", "gigabytes_per_second"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 3200, 1024.0, 440),
        ("NVIDIA H100 80GB HBM3", 8, 0, 1024.0, 296),
        ("NVIDIA A100-SXM4-80GB", 8, 1600, 256.0, 185),
        ("NVIDIA H200", 4, 0, 512.0, 290),
        ("NVIDIA H100 80GB HBM3", 8, 400, 1024.0, 25.0),  # no row: half of the line rate
        ("NVIDIA L40S", 4, 200, 1024.0, 12.5),
        ("NVIDIA H100 80GB HBM3", 8, 3200, 4.0, 0.0),  # a small message is no measure
        ("", 0, 100, 1024.0, 0.0),
        ("NVIDIA L40S", 4, 0, 1024.0, 0.0),
    ],
)
def test_the_floor_is_that_of_the_hardware(gpu, gpus, gigabits, megabytes, gigabytes_per_second):
    assert bandwidths.floor(gpu, gpus, gigabits, megabytes) == gigabytes_per_second


def test_a_model_is_not_taken_for_another_whose_name_begins_alike():
    assert bandwidths.row("NVIDIA GH200 480GB", 8, 0) is None
    assert bandwidths.row("NVIDIA B200", 8, 0) is not None


def test_no_hardware_stands_twice_and_every_row_says_where_it_comes_from():
    keys = [(one.gpu, one.gpus, one.gigabits) for one in bandwidths.TABLE]
    assert len(set(keys)) == len(keys)
    assert all(one.source and one.floor > 0 for one in bandwidths.TABLE)
