"""Find the memory limit of this rank, and measure the peak of some work."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path

# Share of the free memory that ranks may use. Other programs need the rest.
SHARE = 0.8
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Resets the peak resident size if it is written to clear_refs (proc(5)).
PEAK_RESET = "5"


def size(text: str) -> int:
    """Return the bytes of ``800M``, ``1.5G`` or a plain number. Raise ValueError for other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size: write it as 800M or 1.5G")
    return int(float(match[1]) * UNITS[match[2].upper()])


def limit(local_ranks: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process may use: its present use and its share of the free memory."""
    free = [number(proc / "meminfo", "MemAvailable:") * 1024]
    for most, held in group_files(proc, cgroups):
        if most.exists() and (text := most.read_text().strip()) != "max":
            free.append(int(text) - int(held.read_text()))
    return resident(proc) + int(SHARE * min(free) / local_ranks)


def group_files(proc: Path, cgroups: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the files with limit and use of each control group of this process, innermost first.

    Any level may have a limit. Slurm uses both versions of control groups.
    """
    for line in (proc / "self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(root):
                yield folder / names[0], folder / names[1]


def resident(proc: Path = Path("/proc")) -> int:
    """Return the bytes that this process uses now."""
    return number(proc / "self/status", "VmRSS:") * 1024


def peak_of(work: Callable[[], None], proc: Path = Path("/proc")) -> int:
    """Run ``work``. Return the peak memory of this process in bytes."""
    trim()
    (proc / "self/clear_refs").write_text(PEAK_RESET)
    work()
    return number(proc / "self/status", "VmHWM:") * 1024


def trim() -> None:
    """Return unused memory of the C library to the kernel, if it is glibc."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back:
        give_back(0)


def number(file: Path, name: str) -> int:
    """Return the number after ``name`` in a file of the kernel."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise RuntimeError(f"{file} has no line {name}: give a --batch-size in numbers")
