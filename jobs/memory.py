"""How much memory this rank may use, and what a piece of work took at most; knows no model."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path

SHARE = 0.8
"""Of the memory that is free, this much is given out: what else the machine does needs some too."""
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
PEAK_RESET = "5"
"""Written to clear_refs, it makes the kernel forget the highest resident size so far (proc(5))."""


def size(text: str) -> int:
    """Bytes from ``800M``, ``1.5G`` or a plain number; ValueError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise ValueError(f"{text!r} is no size: write it as 800M or 1.5G")
    return int(float(found[1]) * UNITS[found[2].upper()])


def limit(local_ranks: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may hold in all: what it holds now and its share of what is free."""
    free = [number(proc / "meminfo", "MemAvailable:") * 1024]
    for most, held in group_files(proc, cgroups):
        if most.exists() and (text := most.read_text().strip()) != "max":
            free.append(int(text) - int(held.read_text()))
    return resident(proc) + int(SHARE * min(free) / local_ranks)


def group_files(proc: Path, cgroups: Path) -> Iterator[tuple[Path, Path]]:
    """The files with the limit and the use of each control group that this process is in, innermost first.

    A limit may stand at any level, and Slurm uses the first version of control groups as well as
    the second.
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
    """Bytes that this process holds now."""
    return number(proc / "self/status", "VmRSS:") * 1024


def peak_of(work: Callable[[], None], proc: Path = Path("/proc")) -> int:
    """Bytes that this process held at most while the work was done."""
    trim()
    (proc / "self/clear_refs").write_text(PEAK_RESET)
    work()
    return number(proc / "self/status", "VmHWM:") * 1024


def trim() -> None:
    """Give back to the kernel what the C library keeps for later; glibc can, others need not."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back:
        give_back(0)


def number(file: Path, name: str) -> int:
    """The number behind a name, in a file of the kernel's."""
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise RuntimeError(f"{file} does not say {name}: give a --batch-size in numbers")
