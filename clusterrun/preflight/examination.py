"""The pre-flight check of a run as one machine: answers in, questions and at last an outcome out."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterrun.model.orders import Orders
    from clusterrun.model.report import Report


@frozen
class Examinee:
    """A node whose agent has joined: its number in the allocation, name and address."""

    node: int
    name: str
    address: str


@frozen
class Ask:
    """Give ``body`` to the examiner of ``node``; its answer comes back with ``number``."""

    node: int
    number: int
    body: str


@frozen
class Outcome:
    """How it ended. ``world``: the allocation's numbers in rank order, complete where ``fit``.

    ``environment`` is for ranks where their user set nothing; ``excluded`` are names of nodes that
    another try should leave out.
    """

    fit: bool
    report: Report
    world: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]
    excluded: tuple[str, ...]


class Examination:
    """The machine; times are on the steady clock but ``wall``, seconds."""

    progress: str
    outcome: Outcome | None

    def __init__(
        self,
        orders: Orders,
        examinees: Sequence[Examinee],
        absent: Sequence[tuple[int, str]],
        now: float,
        wall: float,
        run_dir: str = "",
        nonce: str = "",
    ) -> None:
        raise NotImplementedError

    def begin(self) -> list[Ask]:
        raise NotImplementedError

    def answered(self, now: float, node: int, number: int, body: str) -> list[Ask]:
        raise NotImplementedError

    def lost(self, now: float, node: int, why: str) -> list[Ask]:
        raise NotImplementedError

    def tick(self, now: float) -> list[Ask]:
        raise NotImplementedError

    def wakes_at(self) -> float | None:
        raise NotImplementedError
