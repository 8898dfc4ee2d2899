"""List the limits that users can set, with name, default and meaning."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen


@frozen
class Limit:
    """One limit of the pre-flight check."""

    name: str
    default: float
    unit: str  # unit of ``default``; a ``share`` is a fraction (0.1 is 10 %)
    meaning: str


LIMITS = (
    Limit("slow_warn", 0.10, "share", "slower than the median by this share: warning"),
    Limit("slow_fail", 0.50, "share", "slower than the median by this share: unfit"),
    Limit("slow_few", 0.30, "share", "replaces slow_warn if there are fewer values than `few`"),
    Limit("slow_gloo", 0.75, "share", "replaces both if gloo compares nodes without GPUs"),
    Limit("z", 4.0, "deviations", "a slow value is also this many robust deviations below the median"),
    Limit("few", 5, "values", "fewer values than this have no usable deviation"),
    Limit("pair_floor", 0.0, "GB/s", "a pair below it is slow; a lower median, or one below 0.02: warning"),
    Limit("set_floor", 0.0, "GB/s", "a lower rate of the whole set: warning; 0: from the table of hardware"),
    Limit("noise", 0.02, "chance", "chance that a test fails though nothing is wrong"),
    Limit("false_blame", 0.001, "chance", "accepted chance that a healthy node or link is blamed"),
    Limit("loss_warn", 0.01, "share", "TCP segments in one direction that were sent again: warning"),
    Limit("loss_fail", 0.03, "share", "TCP segments in one direction that were sent again: unfit"),
    Limit("clock_warn", 1, "seconds", "difference of a clock from the others: log lines get out of order"),
    Limit("clock_fail", 30, "seconds", "difference of a clock from the others: clocks are not synchronized"),
    Limit("gpu_memory_warn", 0.02, "share", "GPU memory in use before the job starts: warning"),
    Limit("gpu_memory_fail", 0.30, "share", "GPU memory in use before the job starts: unfit"),
    Limit("gpu_corrected", 10000, "errors", "corrected memory errors of a GPU since its driver was loaded"),
    Limit("xid_hours", 24, "hours", "time for which an Xid that requires a reset makes a node unfit"),
    Limit("link_errors", 100, "errors", "errors of an InfiniBand or RoCE port above the median of all ports"),
    Limit("shm_per_rank", 64, "MiB", "free space in /dev/shm per rank"),
    Limit("memlock", 16, "GiB", "memory that a rank can lock, if there is InfiniBand or RoCE"),
    Limit("open_files", 4096, "files", "files that a rank can open"),
    Limit("disk_free", 1, "GiB", "free space in the temporary, home and run directories"),
    Limit("inodes_free", 10000, "files", "free inodes in these directories"),
    Limit(
        "memory_free", 0.50, "share", "free memory of a node, of its own total and of the median of all nodes"
    ),
)

BY_NAME = {limit.name: limit for limit in LIMITS}


def chosen(overrides: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return every limit by name: the user's number if it is set, else the default. Raises ``ValueError``."""
    numbers = {limit.name: limit.default for limit in LIMITS}
    for name, number in overrides:
        if name not in numbers:
            raise ValueError(f"no limit is named {name}; there are: {', '.join(numbers)}")
        if not 0 <= number < float("inf"):
            raise ValueError(f"limit {name} must be a number from 0 on, not {number}")
        if BY_NAME[name].unit == "chance" and not 0 < number < 1:
            raise ValueError(f"limit {name} is a chance: it must lie between 0 and 1, not {number}")
        numbers[name] = number
    return numbers
