"""What hardware reaches, as data: bus bandwidth of large all-reduces; measures nothing and judges nothing."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

LARGE_MEGABYTES = 256.0
"""Smaller messages reach less on any hardware: then only the others are a measure."""
RULE_OF_THUMB = 0.5
"""Of the line rate, where no row of the table fits: sound machines of the table reach 60 % and more."""
GIGABITS_IN_A_GIGABYTE = 8


@frozen
class Reached:
    """All-reduce of 8 (or ``gpus``) such GPUs a node, in GB/s of bus bandwidth.

    ``gigabits`` is the line rate of all network ports of a node together; 0: inside one node.
    ``floor``: less than this is worth a look.
    """

    gpu: str
    gpus: int
    gigabits: int
    floor: float
    source: str


TABLE = (
    Reached("A100", 8, 0, 228, "Azure node health checks: floor"),
    Reached(
        "H100", 8, 0, 296, "ml-engineering: 370 without NVLink SHARP, 480 with it; four fifths of the lower"
    ),
    Reached(
        "H200", 8, 0, 292, "ml-engineering: 365.6 without NVLink SHARP, 473 with it; four fifths of the lower"
    ),
    Reached("H100", 4, 0, 290, "ml-engineering: 363; four fifths"),
    Reached("H200", 4, 0, 290, "ml-engineering: 363; four fifths"),
    Reached(
        "B200", 8, 0, 545, "ml-engineering: 682 without NVLink SHARP, 838 with it; four fifths of the lower"
    ),
    Reached("A100", 8, 1600, 185, "OCI ncclscout: floor for two nodes"),
    Reached("H100", 8, 3200, 440, "OCI ncclscout: floor for two nodes"),
    Reached("H200", 8, 3200, 440, "OCI ncclscout: floor for two nodes"),
    Reached("B200", 8, 3200, 440, "OCI ncclscout: floor for two nodes"),
    Reached("B300", 8, 6400, 750, "OCI ncclscout: floor for two nodes"),
    Reached("MI300X", 8, 3200, 350, "OCI ncclscout: floor for two nodes"),
    Reached("H100", 8, 1600, 100, "GCP a3-mega: 126 seen; four fifths"),
    Reached("H100", 8, 800, 60, "GCP a3-high: floor of its start-up test"),
)
"""One row per kind of node and network."""


def row(gpu: str, gpus: int, gigabits: int) -> Reached | None:
    """The row of this hardware; ``gpu`` is the device's whole name ("NVIDIA H100 80GB HBM3")."""
    words = gpu.upper().replace("-", " ").split()
    fitting = (one for one in TABLE if (one.gpus, one.gigabits) == (gpus, gigabits) and one.gpu in words)
    return next(fitting, None)


def floor(gpu: str, gpus: int, gigabits: int, megabytes: float) -> float:
    """GB/s that an all-reduce of this size should reach at least; 0 where nothing is expected.

    ``gigabits`` as in ``Reached``. Hardware that is not in the table: half of the line rate, where there
    are GPUs and a network.
    """
    if megabytes < LARGE_MEGABYTES:
        return 0.0
    known = row(gpu, gpus, gigabits)
    if known is not None:
        return known.floor
    return RULE_OF_THUMB * gigabits / GIGABITS_IN_A_GIGABYTE if gpus else 0.0
