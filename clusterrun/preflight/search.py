"""Finds bad and slow nodes and links from tests of pairs; pure: no clock, no process, no names."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.report import Grade
from clusterrun.preflight.limits import Limits
from clusterrun.preflight.pairing import Pair

__all__ = ["Evidence", "Pair", "PairOutcome", "Search", "SearchResult"]


@frozen
class PairOutcome:
    """How the test of a pair went. ``passed`` is None where it told nothing (a member was lost).

    ``rate`` is bus bandwidth in GB/s, of a test that passed. ``wrong``: a sum differed (it then failed).
    """

    a: int
    b: int
    passed: bool | None
    rate: float | None = None
    wrong: bool = False


@frozen
class Evidence:
    """Why a verdict stands. ``nodes`` is (node,) or (a, b); ``kind`` is ``broken``, ``slow``,
    ``undetermined`` or ``flaky`` (failed at times, passed at others: no verdict, but worth a line).

    ``tests`` that told something, ``failed`` of them (or were slow), ``wrong`` of these with a wrong sum;
    ``against`` are the partners it failed with, in order. ``rate``, ``limit`` and ``median`` are in GB/s
    (slow only): the best it reached, where slow begins, and the median over the nodes' best.
    """

    nodes: tuple[int, ...]
    kind: str
    grade: Grade
    tests: int
    failed: int
    wrong: int = 0
    against: tuple[int, ...] = ()
    rate: float | None = None
    limit: float | None = None
    median: float | None = None


@frozen
class SearchResult:
    """What is known. Each node and link stands in one of the verdicts at most, with its evidence.

    ``certified`` passed a test; a node in no list was not tested. ``slow`` ones are certified: they work.
    ``median`` (GB/s) is that of the nodes' best rates: compare it with the floor of the hardware.
    """

    bad: tuple[int, ...]
    bad_links: tuple[Pair, ...]
    slow: tuple[int, ...]
    slow_links: tuple[Pair, ...]
    undetermined: tuple[int, ...]
    undetermined_links: tuple[Pair, ...]
    certified: tuple[int, ...]
    rounds: int
    median: float | None
    evidence: tuple[Evidence, ...]


class Search:
    """Asks for rounds of disjoint pairs and says who is at fault; bounded in rounds, whatever it is told.

    ``nodes`` are in ring order. ``spares`` are tested where it costs nothing, and serve as partners.
    ``confirm``: failures against distinct certified partners before a node is blamed, and repeats
    before a link is. ``suspects`` are known to be bad: never tested, never partners.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        spares: Sequence[int] = (),
        confirm: int = 3,
        all_pairs: bool = False,
        limits: Limits = Limits(),  # noqa: B008
        suspects: Sequence[int] = (),
    ) -> None:
        raise NotImplementedError

    def next_round(self) -> tuple[Pair, ...]:
        """The pairs to be tested at once, disjoint; () when it is finished. Asked twice, it says the same."""
        raise NotImplementedError

    def take(self, outcomes: Sequence[PairOutcome]) -> None:
        """What became of the pairs asked for last; a pair that is missing told nothing."""
        raise NotImplementedError

    def drop(self, node: int) -> None:
        """The node is gone: it is in no later round, and in no verdict."""
        raise NotImplementedError

    def result(self) -> SearchResult:
        """What is known now; ask any time, also before the end (the time is up)."""
        raise NotImplementedError
