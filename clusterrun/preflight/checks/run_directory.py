"""The run directory: a file is written, forced to the disk, read back and removed; and it has room."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import disk_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "run-directory"
LIMIT = 10.0
LATE = Finding(
    NAME,
    Grade.FAIL,
    f"writing and reading a small file in the run directory took more than {LIMIT:g} s",
    "the file system hangs on this node: dmesg, mount; then remount it or reboot the node",
)


def probe(asked: Asked) -> object:
    """What came of writing there."""
    return disk_space.written(asked.run_dir)


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail where it cannot be written or is about to be full: the ranks' output goes there."""
    yield from disk_space.judged(asked, readings, NAME, "the run directory", Grade.WARN)
