"""The home directory: there, answering, and with room for the caches that torch and others keep in it."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import disk_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "home"
LIMIT = 10.0
LATE = Finding(
    NAME,
    Grade.FAIL,
    f"the home directory did not answer within {LIMIT:g} s",
    "the file system hangs on this node: dmesg, mount; then remount it or reboot the node",
)


def probe(asked: Asked) -> object:
    """How much room it has; nothing is written there."""
    return disk_space.room(asked.home) if asked.home else None


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail where it is not there although other nodes have it, warn where it is about to be full."""
    there = any(isinstance(reading, dict) and "error" not in reading for reading in readings.values())
    for node, finding in disk_space.judged(asked, readings, NAME, "the home directory", Grade.WARN):
        if there or finding.verdict != Grade.FAIL:
            yield node, finding
