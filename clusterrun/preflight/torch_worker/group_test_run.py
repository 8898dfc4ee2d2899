"""Supervise one test on this node: its children, their reports, and their end.

Each report of a child counts on arrival, so that the result does not depend on how the child ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.document import BadDocument
from clusterrun.model.frozen import replace
from clusterrun.model.overloads import is_excused
from clusterrun.preflight.tasks import GROUP, STORE, GroupResult, GroupTask
from clusterrun.preflight.torch_worker import error_text, rank_report
from clusterrun.preflight.torch_worker.forked_rank import ForkedRank
from clusterrun.preflight.torch_worker.rank_report import RankReport

# Wait after the first failure, for the reasons of other ranks.
_OTHERS_SECONDS = 1.0
# Wait after the result, until the peers have the data that they need.
_LEAVE_SECONDS = 3.0


class RankPart:
    """One child of a test and its last report."""

    def __init__(self, child: ForkedRank) -> None:
        self.child = child
        self.report = RankReport()
        self.connected_at: float | None = None  # when its group was formed

    def listen(self) -> None:
        """Read its reports. A child that ended without a final report gets one from its output."""
        for line in self.child.lines():
            try:
                report = rank_report.read(line)
            except (BadDocument, ValueError):
                self.end("the test's process wrote an unreadable report")
                continue
            if not self.report.ended:
                self.report = replace(report, stage=report.stage or self.report.stage)
                if report.late:
                    self._explain_wait()
        if self.child.closed and not self.report.ended:
            reason = error_text.of_end(self.child.printed())
            self.end(f"the test's process died: {reason}" if reason else "the test's process died")

    def end(self, why: str, late: bool = False) -> None:
        """Mark a rank without a final report as failed."""
        if not self.report.ended:
            self.report = RankReport(stage=self.report.stage, ended=True, why=why, late=late)
            if late:
                self._explain_wait()

    def _explain_wait(self) -> None:
        """Replace the reason of a rank that waited in vain by an asynchronous error of its NCCL, if any.

        NCCL reports such an error to torch's watchdog. The call that waits for the GPU never learns it.
        """
        reason = error_text.async_error(self.child.printed())
        if reason:
            self.report = replace(self.report, why=reason, late=False)


class GroupTestRun:
    """A test from its start until its children end. Times are monotonic."""

    def __init__(self, task: GroupTask, children: Sequence[ForkedRank], now: float) -> None:
        self._task, self._began = task, now
        self._parts = [RankPart(child) for child in children]
        self._failed_at: float | None = None
        self._answered_at: float | None = None

    @property
    def pipes(self) -> list[int]:
        return [part.child.output for part in self._parts if not part.child.closed]

    def wakes_at(self) -> float:
        if self._answered_at is not None:
            # No event announces the end of a child after its last report.
            return self._answered_at + (_LEAVE_SECONDS if self.pipes else 0.0)
        limit = self._began + self._task.limit
        return limit if self._failed_at is None else min(limit, self._failed_at + _OTHERS_SECONDS)

    def poll(self, now: float) -> GroupResult | None:
        """Read the reports. Return the result once: after all final reports, or at the limit."""
        for part in self._parts:
            part.listen()
            if part.connected_at is None and part.report.stage not in ("", STORE, GROUP):
                part.connected_at = now
        if self._answered_at is not None:
            return None
        if self._failed_at is None and any(part.report.ended and part.report.why for part in self._parts):
            self._failed_at = now
        if now < self.wakes_at() and not all(part.report.ended for part in self._parts):
            return None
        self._answered_at = now
        return self._result(now)

    def _result(self, now: float) -> GroupResult:
        loading = any(map(self._lacked_time, self._parts))
        seconds = now - self._began
        for rank, part in enumerate(self._parts):
            prefix = f"local rank {rank}: " if len(self._parts) > 1 else ""
            part.end(f"{prefix}killed after {seconds:.1f} s without an end", late=True)
        transports = [error_text.chosen(part.child.printed()) for part in self._parts]
        # One rank of a node may have no port near its GPU.
        transport = max(filter(None, transports), key=lambda text: text.endswith(" GDRDMA"), default="")
        reports = [part.report for part in self._parts]
        result = rank_report.joined(self._task.test, round(seconds, 4), reports, transport)
        if loading:
            result = replace(result, why=f"killed after {seconds:.1f} s, while NCCL loaded its kernels")
        starved = False
        if not result.passed and not result.wrong:
            waits = (part.child.seconds_without_processor() for part in self._parts)
            starved = is_excused(max(waits, default=0.0), seconds)
        return replace(result, loading=loading, starved=starved)

    def _lacked_time(self, part: RankPart) -> bool:
        """Return whether NCCL loaded its kernels during the whole test, or during most of it."""
        printed, connected_at = part.child.printed(), part.connected_at
        if not part.report.ended:
            return part.report.stage == GROUP and error_text.loads(printed)
        is_late = connected_at is not None and connected_at - self._began > self._task.limit / 2
        return part.report.late and is_late and "NCCL INFO" in printed

    @property
    def leaving(self) -> bool:
        return self._answered_at is not None and not all(part.child.gone() for part in self._parts)

    def over(self, now: float) -> bool:
        """Return whether all children ended. Kill the rest some time after the result."""
        if self._answered_at is None:
            return False
        ended = [part.child.gone() for part in self._parts]
        if all(ended) or self._failed_at is not None or not self.pipes or now >= self.wakes_at():
            self.kill()
        return all(ended)

    def kill(self) -> None:
        for part in self._parts:
            part.child.end()
