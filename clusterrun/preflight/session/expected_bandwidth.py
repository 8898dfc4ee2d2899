"""What the whole set should reach on this hardware, and by which way; judges the set, never a node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.checks import infiniband
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session.state import NodeFinding, NodeState, SessionState

LARGE_MEGABYTES = 1074.0
"""What the table is about, 1 GiB and more. Smaller messages reach less: two sound nodes with 8 H20 each reach
245 GB/s with 256 MiB and 343 with large ones (nccl#1244)."""
SET_MEGABYTES = 256.0
"""Messages of the whole set where there are GPUs, but where the table knows what larger ones reach."""
_SLOW = "compare pairs and halves: clusterrun check --all-pairs; then look at the switches between the halves"
_SLOW_ALONE = (
    "nvidia-smi topo -m and nvidia-smi nvlink --status on the node: do its GPUs meet over NVLink? "
    "is NCCL_P2P_DISABLE, NCCL_ALGO or NCCL_NVLS_ENABLE set?"
)
_SOCKETS = (
    "see NCCL_DEBUG=INFO: is NCCL_IB_DISABLE set, NCCL_IB_HCA wrong, or libibverbs missing in the container?"
)
_OF_TWO = "ml-engineering: {} with it; four fifths of the lower"


@frozen
class KnownBandwidth:
    """All-reduce of 8 (or ``gpus``) such GPUs a node, in GB/s of bus bandwidth.

    ``gigabits`` is the line rate of all network ports of each of two nodes; 0: inside one node. Nothing is
    known of more than two: two use trees, which reach more than their network does. ``floor``: less than
    this is worth a look.
    """

    gpu: str
    gpus: int
    gigabits: int
    floor: float
    source: str


TABLE = (
    KnownBandwidth("A100", 8, 0, 182, "Azure node health checks: 228 with 16 GiB; four fifths"),
    KnownBandwidth("H100", 8, 0, 296, _OF_TWO.format("370 without NVLink SHARP, 480")),
    KnownBandwidth("H200", 8, 0, 292, _OF_TWO.format("365.6 without NVLink SHARP, 473")),
    KnownBandwidth("H100", 4, 0, 290, "ml-engineering: 363; four fifths"),
    KnownBandwidth("H200", 4, 0, 290, "ml-engineering: 363; four fifths"),
    KnownBandwidth("B200", 8, 0, 545, _OF_TWO.format("682 without NVLink SHARP, 838")),
    KnownBandwidth("A100", 8, 1600, 185, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("H100", 8, 3200, 309, "387 with 1 GiB on 16 GPUs (published); four fifths"),
    KnownBandwidth("H200", 8, 3200, 250, "GCP a3-ultra: floor of its start-up test; OCI's is 440"),
    KnownBandwidth("B200", 8, 3200, 250, "GCP a4: floor of its start-up test; OCI's is 440"),
    KnownBandwidth("B300", 8, 6400, 750, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("MI300X", 8, 3200, 350, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("H100", 8, 1600, 100, "GCP a3-mega: 126 seen; four fifths"),
    KnownBandwidth("H100", 8, 800, 60, "GCP a3-high: floor of its start-up test"),
)
"""One row per kind of node and network."""
_BESIDE_NVSWITCH = {"PCIE", "NVL", "MIG"}
"""In names of GPUs of the same kind on a card of their own, which reach a tenth of what the table says."""


def row(gpu: str, gpus: int, gigabits: int, nodes: int) -> KnownBandwidth | None:
    """The row of this hardware; ``gpu`` is the device's whole name ("NVIDIA H100 80GB HBM3")."""
    words = gpu.upper().replace("-", " ").split()
    if nodes > 2 or (nodes > 1) != (gigabits > 0) or _BESIDE_NVSWITCH.intersection(words):
        return None
    known = (one for one in TABLE if (one.gpus, one.gigabits) == (gpus, gigabits) and one.gpu in words)
    return next(known, None)


def of_set(state: SessionState, trial: GroupTest) -> Iterator[NodeFinding]:
    """Warnings about a set that works: slower than its hardware, or over sockets where InfiniBand is."""
    ports = [_active(state.subjects[node]) for node in trial.nodes]
    floor, source = floor_of(state, trial.nodes)
    if trial.rate is not None and trial.rate < floor:
        said = f"the whole set reaches {trial.rate:.3g} GB/s (limit {floor:.3g}: {source})"
        remedy = _SLOW if len(trial.nodes) > 1 else _SLOW_ALONE
        yield NodeFinding(None, Finding("set", Grade.WARN, said, remedy))
    sockets = [one for one in trial.transports if one.startswith("NET/Socket")]
    if sockets and all(ports):
        said = f"NCCL uses {sockets[0]}, though every node has active InfiniBand or RoCE ports"
        yield NodeFinding(None, Finding("transport", Grade.WARN, said, _SOCKETS))


def megabytes(state: SessionState, nodes: Sequence[int]) -> float:
    """The size of messages for a set with GPUs: that of which the table speaks, where it does."""
    return LARGE_MEGABYTES if _known(state, nodes) else SET_MEGABYTES


def floor_of(state: SessionState, nodes: Sequence[int]) -> tuple[float, str]:
    """What these should reach together, in GB/s, and whose number it is; the user's before the table's."""
    if state.limits.set_floor:
        return state.limits.set_floor, "set_floor"
    known = _known(state, nodes)
    return (known.floor, known.source) if known else (0.0, "")


def _known(state: SessionState, nodes: Sequence[int]) -> KnownBandwidth | None:
    warm = [one.warm for one in state.subjects.values() if one.warm is not None]
    models = {dict(one.versions).get("gpu", "") for one in warm}
    if state.backend != "nccl" or len(models) != 1:
        return None
    gigabits = int(min(sum(_active(state.subjects[node])) for node in nodes)) if len(nodes) > 1 else 0
    return row(models.pop(), state.orders.gpus_per_node, gigabits, len(nodes))


def _active(node: NodeState) -> list[float]:
    """Gigabits per second of every port that the node's own check found active."""
    found = node.local.readings if node.local is not None else ()
    values = [one.value for one in found if one.check == "infiniband" and one.value]
    return infiniband.active(json.loads(values[-1]) if values else {})
