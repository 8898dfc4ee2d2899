"""Notice the end that a client requests: the file of `cancel`, or the deletion of the run directory."""

from __future__ import annotations

from clusterrun.coordinator.events import CancelAsked
from clusterrun.coordinator.io.run_directory import ReportFiles, StateWriter
from clusterrun.runtime.event_loop import steady

# A file server that comes back may report for a while that the directory does not exist.
_GONE_SECONDS = 60.0


class CancelWatch:
    """The file of `cancel` and the run directory, as they were at the last look."""

    def __init__(self, reports: ReportFiles, state_writer: StateWriter) -> None:
        self._reports, self._state_writer = reports, state_writer
        self._mark: tuple[int, int] | None = None  # of the file of `cancel`
        self._gone_since: float | None = None  # since when the run directory is missing
        self._has_reported = False

    def look(self) -> CancelAsked | None:
        """Return a new request to end the run. The deletion of the run directory is reported once."""
        before, mark = self._mark, self._reports.cancel_mark()
        self._mark = mark or before
        if mark is not None and mark != before:
            return CancelAsked(self._reports.cancel_kill_wait())
        if self._mark or self._has_reported:
            return None
        missing = not self._state_writer.has_a_place()
        self._gone_since = (self._gone_since or steady()) if missing else None
        self._has_reported = self.is_run_deleted
        return CancelAsked() if self._has_reported else None

    @property
    def is_run_deleted(self) -> bool:
        """Return whether the run directory has been missing for so long that it will not come back."""
        return self._gone_since is not None and steady() - self._gone_since >= _GONE_SECONDS
