"""What hardware reaches, as data: bus bandwidth of large all-reduces; measures nothing and judges nothing."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

LARGE_MEGABYTES = 1074.0
"""What the table is about, 1 GiB and more. Smaller messages reach less: two sound nodes with 8 H20 each reach
245 GB/s with 256 MiB and 343 with large ones (nccl#1244)."""


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
    KnownBandwidth(
        "H100", 8, 0, 296, "ml-engineering: 370 without NVLink SHARP, 480 with it; four fifths of the lower"
    ),
    KnownBandwidth(
        "H200", 8, 0, 292, "ml-engineering: 365.6 without NVLink SHARP, 473 with it; four fifths of the lower"
    ),
    KnownBandwidth("H100", 4, 0, 290, "ml-engineering: 363; four fifths"),
    KnownBandwidth("H200", 4, 0, 290, "ml-engineering: 363; four fifths"),
    KnownBandwidth(
        "B200", 8, 0, 545, "ml-engineering: 682 without NVLink SHARP, 838 with it; four fifths of the lower"
    ),
    KnownBandwidth("A100", 8, 1600, 185, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("H100", 8, 3200, 440, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("H200", 8, 3200, 440, "OCI ncclscout: floor for two nodes"),
    KnownBandwidth("B200", 8, 3200, 440, "OCI ncclscout: floor for two nodes"),
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
    fitting = (one for one in TABLE if (one.gpus, one.gigabits) == (gpus, gigabits) and one.gpu in words)
    return next(fitting, None)
