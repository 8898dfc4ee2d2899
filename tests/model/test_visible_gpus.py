"""Lists of GPUs in variables, and the one instance of a divided GPU that each rank gets."""

from __future__ import annotations

import pytest

from clusterrun.model.visible_gpus import instance_of, instances, named

MIG = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
OLD = "MIG-GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5/1/0"
GPU = "GPU-b8ea3855-276c-c9cb-b366-c6fa655957c5"


@pytest.mark.parametrize(
    ("value", "devices", "divided"),
    [
        ("", [], []),
        ("NoDevFiles", [], []),
        ("-1", [], []),
        ("0,1", ["0", "1"], []),
        (f"{GPU}, 3", [GPU, "3"], []),
        (f"{MIG},{OLD}", [MIG, OLD], [MIG, OLD]),
    ],
)
def test_a_list_names_its_devices_and_which_are_instances(value, devices, divided) -> None:
    assert (named(value), instances(value)) == (devices, divided)


@pytest.mark.parametrize(
    ("value", "ranks", "local", "provided"),
    [
        (f"{MIG},{OLD}", 2, 0, {"CUDA_VISIBLE_DEVICES": MIG, "LOCAL_RANK": "0"}),
        (f"{MIG},{OLD}", 2, 1, {"CUDA_VISIBLE_DEVICES": OLD, "LOCAL_RANK": "0"}),
        (f"{MIG},{OLD}", 3, 1, {}),  # ranks that share instances choose by themselves
        (f"{MIG},{OLD}", 1, 0, {}),
        (f"{GPU},GPU-1", 2, 1, {}),  # CUDA opens whole GPUs all, and a rank takes that of its number
        ("0,1", 2, 1, {}),
    ],
)
def test_each_rank_of_a_node_gets_an_instance_and_whole_gpus_do_not_change(
    value, ranks, local, provided
) -> None:
    assert instance_of(value, ranks, str(local)) == provided
