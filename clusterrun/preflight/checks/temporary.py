"""The temporary directory ($TMPDIR or /tmp): writable, with room for compilers and data loaders."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import disk_space
from clusterrun.preflight.probes.process_context import variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from clusterrun.preflight.tasks import Asked

NAME = "temporary"
LIMIT = 10.0
LATE = Finding(
    NAME,
    Grade.FAIL,
    f"writing and reading a small file in the temporary directory took more than {LIMIT:g} s",
    "the disk hangs on this node: dmesg; then reboot the node",
)


def probe(asked: Asked) -> object:
    """What came of writing there."""
    return disk_space.written(variables().get("TMPDIR") or "/tmp")


def judge(asked: Asked, readings: Mapping[str, Any]) -> Iterator[tuple[str, Finding]]:
    """Fail where it cannot be written, warn where it is about to be full."""
    yield from disk_space.judged(asked, readings, NAME, "the temporary directory", Grade.WARN)
