"""Judge the networks that NCCL chose: sockets despite InfiniBand, no GPUDirect RDMA, nodes that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    networks = {node: _network(transport) for node, transport in test.transports if transport}
    ports = [expected_bandwidth.active_ports(state.nodes[node]) for node in test.nodes]
    sockets = [transport for _, transport in test.transports if transport.startswith("NET/Socket")]
    if sockets and all(ports):
        message = f"NCCL uses {sockets[0]}, though every node has active InfiniBand or RoCE ports"
        yield NodeFinding(None, Finding(NAME, Grade.WARN, message, _SOCKETS))
    by_name = {state.nodes[node].name: network for node, network in networks.items()}
    findings = list(outlier_findings(NAME, "NCCL's network", by_name, Grade.WARN, _DIFFER))
    for name, finding in findings:
        yield NodeFinding(state.numbers.get(name), finding)
    if not findings and any(network.endswith(INDIRECT) for network in networks.values()) and _can(state):
        message = "NCCL copies all messages through the memory of the hosts: GPUDirect RDMA is not used"
        yield NodeFinding(None, Finding(NAME, Grade.WARN, message, _NOT_DIRECT))


def _network(transport: str) -> str:
    """Return the network without its devices, whose names may differ between nodes: ``NET/IB GDRDMA``."""
    parts = transport.split(" ")
    return " ".join([parts[0], *(part for part in parts[1:] if part in (DIRECT, INDIRECT))])


def _can(state: SessionState) -> bool:
    """Return whether all GPUs can use GPUDirect RDMA."""
    workers = [node.torch_worker for node in state.nodes.values() if node.torch_worker is not None]
    versions: list[Mapping[str, str]] = [dict(worker.versions) for worker in workers]
    return not any(_WITHOUT_DIRECT in names.get("gpu", "").upper() for names in versions)
