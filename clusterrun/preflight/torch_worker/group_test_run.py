"""One test on this node: its children, what they said, and when they must be gone; knows no torch.

Every word of a child counts when it comes, so that nothing depends on how the child ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.document import BadDocument
from clusterrun.model.frozen import replace
from clusterrun.preflight.tasks import GroupResult, GroupTask
from clusterrun.preflight.torch_worker import error_text, rank_report
from clusterrun.preflight.torch_worker.forked_rank import ForkedRank
from clusterrun.preflight.torch_worker.rank_report import RankWord

_OTHERS_SECONDS = 1.0
"""After the first rank failed: the others' own words, if they come, say more than their silence."""
_LEAVE_SECONDS = 3.0
"""After the result: until the peers have what they need."""


class RankPart:
    """One child of a test and its last word."""

    def __init__(self, child: ForkedRank) -> None:
        self.child = child
        self.word = RankWord()

    def listen(self) -> None:
        """Take in what it said; one that ended without a last word gets one from what it printed."""
        for line in self.child.lines():
            try:
                word = rank_report.read(line)
            except (BadDocument, ValueError):
                self.end("the test's process said what cannot be read")
                continue
            if not self.word.ended:
                self.word = replace(word, stage=word.stage or self.word.stage)
        if self.child.closed and not self.word.ended:
            told = error_text.of_end(self.child.printed())
            self.end(f"the test's process died{': ' + told if told else ''}")

    def end(self, why: str) -> None:
        """Count a rank that has not said its end as failed."""
        if not self.word.ended:
            self.word = RankWord(stage=self.word.stage, ended=True, why=why)


class GroupTestRun:
    """A test from its start to its result, and on until its children are gone. Times are monotonic."""

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
            # Between a child's last word and its end is a moment of which nothing tells.
            return self._answered_at + (_LEAVE_SECONDS if self.pipes else 0.0)
        limit = self._began + self._task.limit
        return limit if self._failed_at is None else min(limit, self._failed_at + _OTHERS_SECONDS)

    def look(self, now: float) -> GroupResult | None:
        """Take in what came; the result, once: when all ranks said their end, or time is over."""
        for part in self._parts:
            part.listen()
        if self._answered_at is not None:
            return None
        if self._failed_at is None and any(part.word.ended and part.word.why for part in self._parts):
            self._failed_at = now
        over = now >= self.wakes_at()
        if not over and not all(part.word.ended for part in self._parts):
            return None
        self._answered_at = now
        return self._result(now, over)

    def _result(self, now: float, over: bool) -> GroupResult:
        late = over and self._failed_at is None and not all(part.word.ended for part in self._parts)
        told = error_text.most_telling(part.word.why for part in self._parts)
        loading = any(
            not part.word.ended and part.word.stage == "group" and error_text.loads(part.child.printed())
            for part in self._parts
        )
        for rank, part in enumerate(self._parts):
            who = f"local rank {rank}: " if len(self._parts) > 1 else ""
            part.end(f"{who}killed after {now - self._began:.1f} s without an end")
        transport = next(filter(None, (error_text.chosen(part.child.printed()) for part in self._parts)), "")
        said = [part.word for part in self._parts]
        result = rank_report.joined(self._task.test, round(now - self._began, 4), said, transport)
        if loading:
            told = f"killed after {now - self._began:.1f} s, while NCCL loaded its kernels"
        return replace(result, late=late, why=told or result.why, loading=loading)

    @property
    def leaving(self) -> bool:
        return self._answered_at is not None and not all(part.child.gone() for part in self._parts)

    def over(self, now: float) -> bool:
        """Whether all is gone; what still lives some time after the result is killed."""
        if self._answered_at is None:
            return False
        gone = [part.child.gone() for part in self._parts]
        if all(gone) or self._failed_at is not None or not self.pipes or now >= self.wakes_at():
            self.kill()
        return all(gone)

    def kill(self) -> None:
        for part in self._parts:
            part.child.end()
