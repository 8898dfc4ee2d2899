"""Track the open requests to nodes and their limits."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Mapping

from clusterrun.model.frozen import frozen, replace
from clusterrun.preflight.tasks import Task

# A phase of a check. It opens requests, and yields the types of tasks whose answers it waits for.
Waits = Generator[tuple[type, ...], None, None]


@frozen
class AskExaminer:
    """Give ``body`` to the examiner of ``node``; its answer comes back with ``number``."""

    node: int
    number: int
    body: str


@frozen
class Request:
    """An open request. ``seconds`` is its limit."""

    number: int
    node: int
    task: Task
    asked_at: float  # steady clock
    until: float  # steady clock

    @property
    def seconds(self) -> float:
        return self.until - self.asked_at


class Batch:
    """The requests of one type since the time when none was open."""

    def __init__(self) -> None:
        self.size = 0  # without those of lost nodes
        self.open = 0
        self.is_half_answered = False  # as far as `Requests.half_answered` returned it


class Requests:
    """All open requests. Each number is used once."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._batches: dict[type, Batch] = {}
        self._times: list[tuple[float, int]] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def ask(
        self, now: float, text_by_node: Mapping[int, str], task: Task, seconds: float
    ) -> list[AskExaminer]:
        """Open a request to each node, with its own text of ``task``."""
        asks = []
        batch = self.batch(type(task))
        if not batch.open:
            batch = self._batches[type(task)] = Batch()
        for node, text in text_by_node.items():
            self._last += 1
            self._put(Request(self._last, node, task, now, now + seconds))
            batch.size += 1
            batch.open += 1
            asks.append(AskExaminer(node, self._last, text))
        return asks

    def waits_for(self, task_types: Iterable[type]) -> bool:
        return any(self.batch(task_type).open for task_type in task_types)

    def half_answered(self, task_types: Iterable[type]) -> list[type]:
        """Return the types with open requests whose first half was answered. Each batch is returned once."""
        types = []
        for task_type in task_types:
            batch = self.batch(task_type)
            if not batch.is_half_answered and 0 < 2 * batch.open <= batch.size:
                batch.is_half_answered = True
                types.append(task_type)
        return types

    def batch(self, task_type: type) -> Batch:
        return self._batches.get(task_type) or Batch()

    def of_type(self, task_type: type) -> list[Request]:
        return [request for request in self._open.values() if type(request.task) is task_type]

    def close(self, node: int, number: int) -> Request | None:
        request = self._open.get(number)
        return self._close(request) if request is not None and request.node == node else None

    def drop_all_of(self, node: int) -> list[Request]:
        """Close the requests to a lost node. They count as if they had not been opened."""
        dropped = [self._close(request) for request in list(self._open.values()) if request.node == node]
        for request in dropped:
            self.batch(type(request.task)).size -= 1
        return dropped

    def close_overdue(self, now: float) -> list[Request]:
        closed = []
        while self.due_at() is not None and self._times[0][0] <= now:
            closed.append(self._close(self._open[heapq.heappop(self._times)[1]]))
        return closed

    def prolong(self, request: Request, until: float) -> None:
        """Open an overdue request again."""
        self._put(replace(request, until=until))
        self.batch(type(request.task)).open += 1

    def hurry(self, request: Request, until: float) -> None:
        if until < request.until:
            self._put(replace(request, until=until))

    def _put(self, request: Request) -> None:
        self._open[request.number] = request
        heapq.heappush(self._times, (request.until, request.number))

    def _close(self, request: Request) -> Request:
        self.batch(type(request.task)).open -= 1
        return self._open.pop(request.number)

    def due_at(self) -> float | None:
        while self._times:
            until, number = self._times[0]
            if number in self._open and self._open[number].until == until:
                return until
            heapq.heappop(self._times)
        return None
