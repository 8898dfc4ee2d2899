"""Findings about the networks that NCCL chose: sockets, no GPUDirect RDMA, and nodes that differ."""

from __future__ import annotations

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session import transport_findings
from clusterrun.preflight.session.group_tests import SET
from tests.preflight.session.test_expected_bandwidth import case

DIRECT, INDIRECT, SOCKET = "NET/IB mlx5_0 GDRDMA", "NET/IB mlx5_0 without-GDRDMA", "NET/Socket eth0"
NDR = "400 Gb/sec (4X NDR)"


def said(state, *transports: str) -> list[tuple[int | None, str]]:
    test = GroupTest(tuple(state.nodes), True, 300.0, kind=SET, transports=tuple(enumerate(transports)))
    findings = list(transport_findings.of_set(state, test))
    assert all(node_finding.finding.verdict is Grade.WARN for node_finding in findings)
    return [(node_finding.node, node_finding.finding.message) for node_finding in findings]


def test_sockets_are_a_warning_only_where_every_node_has_infiniband() -> None:
    ((node, message),) = said(case(2, NDR), SOCKET, SOCKET)
    assert message == "NCCL uses NET/Socket eth0, though every node has active InfiniBand or RoCE ports"
    assert node is None
    assert said(case(2), SOCKET, SOCKET) == []


@pytest.mark.parametrize("nodes", [2, 4])
def test_infiniband_without_gpudirect_rdma_on_all_nodes_is_one_warning(nodes) -> None:
    ((node, message),) = said(case(nodes, NDR), *[INDIRECT] * nodes)
    assert (node, "GPUDirect RDMA is not used" in message) == (None, True)


def test_a_node_without_gpudirect_rdma_is_named() -> None:
    ((node, message),) = said(case(4, NDR), DIRECT, DIRECT, INDIRECT, DIRECT)
    assert (node, message) == (
        2,
        "NCCL's network is NET/IB without-GDRDMA; it is NET/IB GDRDMA on 3 of 4 nodes",
    )


def test_a_node_with_sockets_beside_infiniband_is_named() -> None:
    messages = said(case(4, NDR), DIRECT, SOCKET, DIRECT, DIRECT)
    assert (1, "NCCL's network is NET/Socket; it is NET/IB GDRDMA on 3 of 4 nodes") in messages


@pytest.mark.parametrize("transport", [DIRECT, "NET/IB mlx5_0", "NET/AWS Libfabric", ""])
def test_other_networks_are_not_judged(transport) -> None:
    assert said(case(2, NDR), transport, transport) == []


def test_different_device_names_are_no_difference() -> None:
    assert said(case(3, NDR), DIRECT, "NET/IB mlx5_1 mlx5_2 GDRDMA", DIRECT) == []


def test_geforce_cards_cannot_use_gpudirect_rdma() -> None:
    state = case(2, NDR)
    for node in state.nodes.values():
        versions = (("gpu", "NVIDIA GeForce RTX 4090"),)
        node.torch_worker = replace(node.torch_worker, versions=versions)
    assert said(state, INDIRECT, INDIRECT) == []


def test_a_single_node_uses_no_network() -> None:
    assert said(case(1, NDR), INDIRECT) == []
