"""The folders of a run: there, answering, writable where ranks write, and with room."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.probes import disk_space
from clusterrun.preflight.probes.process_context import variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterrun.preflight.tasks import Asked, Findings, Readings

LIMIT = 10.0
_HANGS = "the file system hangs on this node: dmesg, mount; then remount it or reboot the node"


@frozen
class FolderCheck:
    """One folder: which one, what it is called, whether a file is written there, what a full one means.

    With ``odd_alone`` it is a fault only on some nodes: nobody may have made it anywhere.
    """

    NAME: str
    what: str
    of: Callable[[Asked], str]
    writes: bool
    full: Grade
    remedy: str = _HANGS
    odd_alone: bool = False
    LIMIT: float = LIMIT

    @property
    def LATE(self) -> Finding:  # noqa: N802
        """What a folder that does not answer means."""
        slow = f"writing and reading a small file in {self.what} took more than {LIMIT:g} s"
        mute = f"{self.what} did not answer within {LIMIT:g} s"
        return Finding(self.NAME, Grade.FAIL, slow if self.writes else mute, self.remedy)

    def probe(self, request: Asked) -> object:
        """What came of writing there, or how much room it has."""
        path = self.of(request)
        if self.writes:
            return disk_space.written(path)
        return disk_space.room(path) if path else None

    def judge(self, request: Asked, readings: Readings) -> Findings:
        """Fail where it cannot be used; a full one is as bad as ``full`` says."""
        there = any(isinstance(reading, dict) and "error" not in reading for reading in readings.values())
        for node, finding in disk_space.judged(request, readings, self.NAME, self.what, self.full):
            if there or not self.odd_alone or finding.verdict != Grade.FAIL:
                yield node, finding


RUN_DIRECTORY = FolderCheck(
    "run-directory", "the run directory", lambda asked: asked.run_dir, True, Grade.WARN
)
"""The ranks' output goes there."""
WORKING_DIRECTORY = FolderCheck(
    "working-directory", "the working directory", lambda asked: asked.cwd, False, Grade.PASS
)
"""Ranks start in it."""
TEMPORARY = FolderCheck(
    "temporary",
    "the temporary directory",
    lambda asked: variables().get("TMPDIR") or "/tmp",
    True,
    Grade.WARN,
    "the disk hangs on this node: dmesg; then reboot the node",
)
"""Compilers and data loaders need room there."""
HOME = FolderCheck("home", "the home directory", lambda asked: asked.home, False, Grade.WARN, odd_alone=True)
"""torch and others keep their caches in it."""
