"""The bandwidth that the whole set should reach on known hardware. It judges the set, never a node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import infiniband
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session.explanation import NodeFinding
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.state import SessionState

# The table holds rates of messages of 1 GiB and more. Smaller messages reach less: two healthy nodes with
# 8 H20 each reach 245 GB/s with 256 MiB and 343 GB/s with large messages (nccl#1244).
LARGE_MEGABYTES = 1074.0
# The message size of a set with GPUs that the table does not list.
SET_MEGABYTES = 256.0
_SLOW = "compare pairs and halves: clusterrun check --all-pairs; then look at the switches between the halves"
_SLOW_ALONE = (
    "nvidia-smi topo -m and nvidia-smi nvlink --status on the node: does NVLink connect its GPUs? "
    "is NCCL_P2P_DISABLE, NCCL_ALGO or NCCL_NVLS_ENABLE set?"
)
_OF_TWO = "ml-engineering: {} with it; four fifths of the lower"


@frozen
class KnownBandwidth:
    """The bus bandwidth of an all-reduce on one node or two nodes.

    The table lists no larger sets. Two nodes use trees, which reach more than the network does.
    """

    gpu: str  # a word of the device's name
    gpus: int  # per node
    gigabits: int  # line rate of all network ports of a node, in Gb/s; 0 for a single node
    floor: float  # GB/s; a lower rate is a warning
    source: str


# One row per kind of node and network.
TABLE = (
    KnownBandwidth("A100", 8, 0, 182, "Azure node health checks: 228 with 16 GiB; four fifths"),
    KnownBandwidth("H100", 8, 0, 296, _OF_TWO.format("370 without NVLink SHARP, 480")),
    KnownBandwidth("H200", 8, 0, 292, _OF_TWO.format("365.6 without NVLink SHARP, 473")),
    KnownBandwidth("H100", 4, 0, 290, "ml-engineering: 363; four fifths"),
    KnownBandwidth("H200", 4, 0, 290, "ml-engineering: 363; four fifths"),
    KnownBandwidth("B200", 8, 0, 545, _OF_TWO.format("682 without NVLink SHARP, 838")),
    KnownBandwidth("MI300X", 8, 0, 224, "ROCm blogs: 7 xGMI links with 48 GB/s each, 336; two thirds"),
    KnownBandwidth("A100", 8, 1600, 185, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("H100", 8, 3200, 309, "387 with 1 GiB on 16 GPUs (published); four fifths"),
    KnownBandwidth("H200", 8, 3200, 250, "GCP a3-ultra: floor of its start-up test; OCI's is 440"),
    KnownBandwidth("B200", 8, 3200, 250, "GCP a4: floor of its start-up test; OCI's is 440"),
    KnownBandwidth("B300", 8, 6400, 750, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("MI300X", 8, 3200, 350, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("H100", 8, 1600, 100, "GCP a3-mega: 126 seen; four fifths"),
    KnownBandwidth("H100", 8, 800, 60, "GCP a3-high: floor of its start-up test"),
)
# In names of GPUs without NVSwitch, which reach a tenth of the rates in the table.
_WITHOUT_NVSWITCH = {"PCIE", "NVL", "MIG"}


def row(gpu: str, gpus: int, gigabits: int, nodes: int) -> KnownBandwidth | None:
    """Return the row of this hardware. ``gpu`` is the device's whole name ("NVIDIA H100 80GB HBM3")."""
    name_parts = gpu.upper().replace("-", " ").split()
    if nodes > 2 or (nodes > 1) != (gigabits > 0) or _WITHOUT_NVSWITCH.intersection(name_parts):
        return None
    rows = (row for row in TABLE if (row.gpus, row.gigabits) == (gpus, gigabits) and row.gpu in name_parts)
    return next(rows, None)


def of_set(state: SessionState, test: GroupTest) -> Iterator[NodeFinding]:
    """Warn about a working set that is slower than its hardware."""
    floor, source = floor_of(state, test.nodes)
    if test.rate is not None and test.rate < floor:
        message = f"the whole set reaches {test.rate:.3g} GB/s (limit {floor:.3g}: {source})"
        remedy = _SLOW if len(test.nodes) > 1 else _SLOW_ALONE
        yield NodeFinding(None, Finding("set", Grade.WARN, message, remedy))


def megabytes(state: SessionState, nodes: Sequence[int]) -> float:
    """Return the message size for a set with GPUs: that of the table, if the table lists the set."""
    return LARGE_MEGABYTES if _row_of(state, nodes) else SET_MEGABYTES


def floor_of(state: SessionState, nodes: Sequence[int]) -> tuple[float, str]:
    """Return the floor of a set in GB/s, and its source. The user's number replaces the table's."""
    if state.thresholds.set_floor:
        return state.thresholds.set_floor, "set_floor"
    row = _row_of(state, nodes)
    return (row.floor, row.source) if row else (0.0, "")


def _row_of(state: SessionState, nodes: Sequence[int]) -> KnownBandwidth | None:
    """Return the row of this set; None if the table does not list it, or its GPUs differ."""
    workers = [node.torch_worker for node in state.nodes.values() if node.torch_worker is not None]
    models = {dict(worker.versions).get("gpu", "") for worker in workers}
    if state.backend != "nccl" or len(models) != 1:
        return None
    gigabits = int(min(sum(active_ports(state.nodes[node])) for node in nodes)) if len(nodes) > 1 else 0
    return row(models.pop(), state.orders.gpus_per_node, gigabits, len(nodes))


def active_ports(node: NodeState) -> list[float]:
    """Return the rate of every active port of a node, in Gb/s."""
    readings = node.local.readings if node.local is not None else ()
    values = [reading.value for reading in readings if reading.check == "infiniband" and reading.value]
    return infiniband.active(json.loads(values[-1]) if values else {})
