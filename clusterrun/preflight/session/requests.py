"""The questions that are open: who was asked what, until when; knows no meaning of any answer."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from clusterrun.model.frozen import frozen, replace
from clusterrun.preflight import tasks
from clusterrun.preflight.tasks import Task


@frozen
class AskWorker:
    """Give ``body`` to the examiner of ``node``; its answer comes back with ``number``."""

    node: int
    number: int
    body: str


@frozen
class Request:
    """An open one; ``asked`` and ``until`` are on the steady clock, ``seconds`` is what was allowed."""

    number: int
    node: int
    task: Task
    asked: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.asked


class Requests:
    """Numbers are used once; the order of closing is that of answers, limits and losses."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._counts: Counter[type] = Counter()
        self._batches: Counter[type] = Counter()
        self._times: list[tuple[float, int]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, now: float, node: int, task: Task, seconds: float, body: str = "") -> AskWorker:
        """Open one; ``body`` is the task's text where it is known already."""
        self._last += 1
        self._put(Request(self._last, node, task, now, now + seconds))
        kind = type(task)
        self._batches[kind] = self._batches[kind] + 1 if self._counts[kind] else 1
        self._counts[kind] += 1
        return AskWorker(node, self._last, body or tasks.message_text(task))

    def waits_for(self, kinds: Iterable[type]) -> bool:
        return any(map(self.count, kinds))

    def count(self, kind: type) -> int:
        return self._counts[kind]

    def batch(self, kind: type) -> int:
        """How many of a kind were asked since none of it was open."""
        return self._batches[kind]

    def of_kind(self, kind: type) -> list[Request]:
        return [question for question in self._open.values() if isinstance(question.task, kind)]

    def close(self, node: int, number: int) -> Request | None:
        question = self._open.get(number)
        return self._close(question) if question is not None and question.node == node else None

    def close_all_of(self, node: int) -> list[Request]:
        return [self._close(one) for one in list(self._open.values()) if one.node == node]

    def close_overdue(self, now: float) -> list[Request]:
        found = []
        while self.due_at() is not None and self._times[0][0] <= now:
            found.append(self._close(self._open[heapq.heappop(self._times)[1]]))
        return found

    def prolong(self, question: Request, until: float) -> None:
        self._put(replace(question, until=until))
        self._counts[type(question.task)] += 1

    def hurry(self, question: Request, until: float) -> None:
        if until < question.until:
            self._put(replace(question, until=until))

    def _put(self, question: Request) -> None:
        self._open[question.number] = question
        heapq.heappush(self._times, (question.until, question.number))

    def _close(self, question: Request) -> Request:
        self._counts[type(question.task)] -= 1
        return self._open.pop(question.number)

    def due_at(self) -> float | None:
        while self._times:
            until, number = self._times[0]
            if number in self._open and self._open[number].until == until:
                return until
            heapq.heappop(self._times)
        return None
