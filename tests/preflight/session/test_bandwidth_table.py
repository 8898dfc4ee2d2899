"""The expected bandwidth of hardware."""

from __future__ import annotations

import pytest

from clusterrun.preflight.session import expected_bandwidth


@pytest.mark.parametrize(
    ("gpu", "gpus", "gigabits", "nodes", "floor"),
    [
        ("NVIDIA H100 80GB HBM3", 8, 3200, 2, 309),
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
def test_the_floor_is_that_of_the_hardware(gpu, gpus, gigabits, nodes, floor) -> None:
    result = expected_bandwidth.row(gpu, gpus, gigabits, nodes)
    assert (result and result.floor) == floor


REACHED = [
    ("NVIDIA H100 80GB HBM3", 4, 366, "nccl-tests#309"),
    ("NVIDIA H200", 248, 300, "nccl-tests#283"),
    ("NVIDIA A100-SXM4-80GB", 3, 70, "nccl-tests#169"),
    ("NVIDIA A100-SXM4-80GB", 6, 40, "nccl-tests#169"),
]

MACHINES = [
    # name, GPUs of a node, gigabits of its network (0: one node), nodes, GB/s of bus bandwidth, by whom
    ("NVIDIA A100-SXM4-80GB", 8, 0, 1, 200, "nccl-tests#149: HPE Apollo 6500, 1 GiB"),
    ("NVIDIA A100-SXM4-80GB", 2, 0, 1, 208, "nccl-tests#178: a pair on NV12"),
    ("NVIDIA A100-SXM4-80GB", 3, 0, 1, 20, "nccl-tests#178: three GPUs, of which two are on NV12"),
    ("NVIDIA H100 80GB HBM3", 8, 0, 1, 476, "nccl-tests#290: with NVLink SHARP"),
    ("NVIDIA H100 80GB HBM3", 8, 0, 1, 370, "nccl-tests#212: a maintainer, with NCCL_ALGO=RING"),
    ("NVIDIA H100 PCIe", 2, 0, 1, 116, "nccl#1161: an NVLink bridge, 4 GiB"),
    ("NVIDIA H800", 8, 0, 1, 215, "nccl#1374"),
    ("NVIDIA GeForce RTX 5090", 8, 0, 1, 28, "nccl#1639: PCIe"),
    ("NVIDIA GeForce RTX 5090", 4, 0, 1, 35, "nccl#1639: PCIe"),
    ("NVIDIA H200 NVL", 8, 1600, 2, 35, "kubernetes.recipes: 4 ConnectX-7 a node, RoCE"),
    ("NVIDIA H100 80GB HBM3", 8, 3200, 4, 320, "nccl#1221: 8 x 400 Gb/s RoCE"),
    ("Tesla V100-SXM2-16GB", 8, 400, 4, 6, "nccl-tests#29: 4 EDR a node, one in use"),
    ("NVIDIA H20", 8, 3200, 2, 343, "nccl#1244: large messages"),
    ("NVIDIA H200", 8, 3200, 2, 250, "GCP a3-ultra: floor of its start-up test"),
    ("NVIDIA B200", 8, 3200, 2, 250, "GCP a4: floor of its start-up test"),
]
"""Published measurements of sound machines, or values that are called normal."""


@pytest.mark.parametrize(
    ("gpu", "gpus", "gigabits", "nodes", "rate", "source"), MACHINES, ids=[machine[5] for machine in MACHINES]
)
def test_no_machine_that_somebody_measured_is_below_the_floor_of_its_kind(
    gpu, gpus, gigabits, nodes, rate, source
) -> None:
    expectation = expected_bandwidth.row(gpu, gpus, gigabits, nodes)
    assert expectation is None or expectation.floor <= rate, (expectation, source)


@pytest.mark.parametrize("gpu", ["NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"])
def test_a_card_for_pcie_has_not_the_floor_of_its_kind_on_nvswitch(gpu) -> None:
    """Eight A100 80GB PCIe are a machine that people build (nccl#841)."""
    assert [expected_bandwidth.row(gpu, gpus, 0, 1) for gpus in (4, 8)] == [None, None]
    assert expected_bandwidth.row(f"{gpu.split()[1].split('-')[0]} SXM MIG 1g.10gb", 8, 0, 1) is None


@pytest.mark.parametrize(("gpu", "nodes", "rate", "source"), REACHED, ids=[row[3] for row in REACHED])
def test_no_set_of_more_than_two_nodes_that_somebody_measured_is_below_a_floor(
    gpu, nodes, rate, source
) -> None:
    rows = [expected_bandwidth.row(gpu, 8, gigabits, nodes) for gigabits in (0, 800, 1600, 3200, 6400)]
    assert [row for row in rows if row is not None and row.floor > rate] == []


def test_each_hardware_has_one_row_with_its_source() -> None:
    keys = [(entry.gpu, entry.gpus, entry.gigabits) for entry in expected_bandwidth.TABLE]
    assert len(set(keys)) == len(keys)
    assert all(entry.source and entry.floor > 0 for entry in expected_bandwidth.TABLE)
