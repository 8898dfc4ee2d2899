"""Judge the networks that NCCL chose: sockets despite InfiniBand, no GPUDirect RDMA, nodes that differ."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import outlier_findings
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session import expected_bandwidth
from clusterrun.preflight.session.explanation import NodeFinding
from clusterrun.preflight.session.state import SessionState

NAME = "transport"
DIRECT, INDIRECT = "GDRDMA", "without-GDRDMA"
_SOCKETS = (
    "see NCCL_DEBUG=INFO: is NCCL_IB_DISABLE set, NCCL_IB_HCA wrong, or libibverbs missing in the container? "
    "On AWS: is aws-ofi-nccl installed, and its folder in LD_LIBRARY_PATH?"
)
_NOT_DIRECT = (
    "load nvidia_peermem (modprobe nvidia_peermem; lsmod | grep peermem) or use a kernel with DMA-BUF; "
    "nvidia-smi topo -m shows whether GPU and port share a PCIe switch (PIX, PXB); see NCCL_NET_GDR_LEVEL"
)
_DIFFER = "compare drivers, nvidia_peermem, NCCL variables and containers of these nodes: NCCL_DEBUG=INFO"
# GeForce cards cannot use it.
_WITHOUT_DIRECT = "GEFORCE"


def of_set(state: SessionState, test: GroupTest) -> Iterator[NodeFinding]:
    """Warn about the networks of a working set of several nodes."""
    if len(test.nodes) < 2:
        return
    # The networks without their devices, whose names may differ between nodes: ``NET/IB GDRDMA``.
    networks: dict[str, str] = {}
    for node, transport in test.transports:
        if transport:
            network, *details = transport.split(" ")
            direct = [detail for detail in details if detail in (DIRECT, INDIRECT)]
            networks[state.nodes[node].name] = " ".join([network, *direct])
    ports = [expected_bandwidth.active_ports(state.nodes[node]) for node in test.nodes]
    sockets = [transport for _, transport in test.transports if transport.startswith("NET/Socket")]
    if sockets and all(ports):
        message = f"NCCL uses {sockets[0]}, though every node has active InfiniBand or RoCE ports"
        yield NodeFinding(None, Finding(NAME, Grade.WARN, message, _SOCKETS))
    findings = list(outlier_findings(NAME, "NCCL's network", networks, Grade.WARN, _DIFFER))
    for name, finding in findings:
        yield NodeFinding(state.numbers.get(name), finding)
    is_indirect = any(network.endswith(INDIRECT) for network in networks.values())
    workers = [node.torch_worker for node in state.nodes.values() if node.torch_worker is not None]
    can_be_direct = not any(
        _WITHOUT_DIRECT in dict(worker.versions).get("gpu", "").upper() for worker in workers
    )
    if not findings and is_indirect and can_be_direct:
        message = "NCCL copies all messages through the memory of the hosts: GPUDirect RDMA is not used"
        yield NodeFinding(None, Finding(NAME, Grade.WARN, message, _NOT_DIRECT))
