"""Lists the limits that users can set, with name, default and meaning."""

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
    Limit("slow_warn", 0.10, "share", "slower than the median by this much is a warning"),
    Limit("slow_fail", 0.50, "share", "slower than the median by this much is unfit"),
    Limit("slow_few", 0.30, "share", "instead of slow_warn where there are fewer values than `few`"),
    Limit("slow_gloo", 0.75, "share", "instead of both where nodes without GPUs are compared by gloo"),
    Limit("z", 4.0, "deviations", "and this many robust standard deviations away from the median"),
    Limit("few", 5, "values", "with fewer values than this the spread says nothing"),
    Limit("pair_floor", 0.0, "GB/s", "no pair may be slower, nor all of them together; 0: no floor"),
    Limit("set_floor", 0.0, "GB/s", "the whole set may not be slower; 0: as the table of hardware says"),
    Limit("noise", 0.02, "share", "tests that may fail by chance"),
    Limit("false_blame", 0.001, "chance", "accepted that something healthy is blamed by such chance"),
    Limit("loss_warn", 0.01, "share", "of the TCP segments one way must be sent again: a warning"),
    Limit("loss_fail", 0.03, "share", "of the TCP segments one way must be sent again: unfit"),
    Limit("clock_warn", 1, "seconds", "a clock away from the others': log lines stand in a wrong order"),
    Limit("clock_fail", 30, "seconds", "a clock away from the others': too far for synchronized clocks"),
    Limit("gpu_memory_warn", 0.02, "share", "of a GPU's memory in use before the job begins: a warning"),
    Limit("gpu_memory_fail", 0.30, "share", "of a GPU's memory in use before the job begins: unfit"),
    Limit("gpu_corrected", 10000, "errors", "corrected memory errors of a GPU since its driver was loaded"),
    Limit("xid_hours", 24, "hours", "for how long an Xid that asks for a reset makes a node unfit"),
    Limit("link_errors", 100, "errors", "of an InfiniBand or RoCE port beyond the median of all ports"),
    Limit("shm_per_rank", 64, "MiB", "free in /dev/shm for each rank of a node"),
    Limit("memlock", 16, "GiB", "that a rank may lock where there is InfiniBand or RoCE"),
    Limit("open_files", 4096, "files", "that a rank may have open"),
    Limit("disk_free", 1, "GiB", "free in the temporary, home and run directories"),
    Limit("inodes_free", 10000, "files", "that can still be made in these directories"),
    Limit("memory_free", 0.50, "share", "of a node's memory must be free, and of what others have free"),
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
        numbers[name] = number
    return numbers
