"""The working directory that ranks start in: it must be there on every node."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import disk_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "working-directory"
LIMIT = 10.0
LATE = Finding(
    NAME,
    Grade.FAIL,
    f"the working directory did not answer within {LIMIT:g} s",
    "the file system hangs on this node: dmesg, mount; then remount it or reboot the node",
)


def probe(asked: Asked) -> object:
    """How much room it has; nothing is written there."""
    return disk_space.room(asked.cwd) if asked.cwd else None


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail where ranks could not start in it; a full one is only noted."""
    yield from disk_space.judged(asked, readings, NAME, "the working directory", Grade.PASS)
