"""A control group with a limit on memory, of version 1 or 2: what the kernel really ends a process for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


def _home() -> tuple[Path, dict[str, str]]:
    """Return this process's group and the file of each limit. Skip the test without such groups."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        home = ROOT / "memory" / path.lstrip("/")
        if controllers == "memory" and home.is_dir():
            return home, {"memory.limit_in_bytes": "{}", "memory.memsw.limit_in_bytes": "{}"}
        home = ROOT / path.lstrip("/")
        handed_down = home / "cgroup.subtree_control"
        if not controllers and handed_down.exists() and "memory" in handed_down.read_text():
            return home, {"memory.max": "{}", "memory.swap.max": "0"}
    pytest.skip("no control groups for memory here")


@contextmanager
def limited(name: str, size: int) -> Iterator[Path]:
    """Make a group with ``size`` bytes for its processes. A process enters by its id in ``cgroup.procs``."""
    home, files = _home()
    group = home / f"clusterrun-test-{os.getpid()}-{name}"
    try:
        group.mkdir()
        for file, value in files.items():
            if (group / file).exists():
                (group / file).write_text(value.format(size))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        yield group
    finally:
        for word in (group / "cgroup.procs").read_text().split():
            (home / "cgroup.procs").write_text(word)
        group.rmdir()
