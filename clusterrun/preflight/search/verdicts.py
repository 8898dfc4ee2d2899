"""From what the ledgers hold to verdicts with their evidence; asks for no test."""

from __future__ import annotations

from collections.abc import Iterator

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.search.bandwidth_blame import BandwidthBlame, LinkDistance
from clusterrun.preflight.search.blame import Blame, FailedTest
from clusterrun.preflight.search.partition import NetworkPartition, blamed
from clusterrun.preflight.search.schedule import Pair
from clusterrun.preflight.thresholds import Thresholds


@frozen
class Evidence:
    """Why a verdict stands. ``nodes`` is (node,) or (a, b); ``kind`` is ``broken``, ``slow``,
    ``undetermined`` or ``flaky`` (failed at times, passed at others: no verdict, but worth a line).

    ``tests`` that told something, ``failed`` of them (or were slow), ``wrong`` of these with a wrong sum;
    ``against`` are the partners it failed with, in order. ``rate``, ``limit`` and ``median`` are in GB/s
    (slow only): the best it reached, where slow begins, and the median over the nodes.
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
    ``median`` (GB/s) is that of what the nodes reach: compare it with the floor of the hardware.
    ``kinds`` are the kinds of links that were timed, by the switches between their ends.
    ``parts`` are groups of nodes that pass among themselves and never with each other, the largest first;
    ``slow_parts`` groups that are fast among themselves and slow with each other. () where there are none.
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
    kinds: tuple[LinkDistance, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    slow_parts: tuple[tuple[int, ...], ...] = ()


@frozen
class Standing:
    """All that verdicts are made of: the ledgers, the nodes that are there, and those to blame.

    ``doubtful`` nodes should have met others before a link of theirs is blamed.
    """

    works: Blame
    speed: BandwidthBlame
    there: tuple[int, ...]
    bad: tuple[int, ...]
    doubtful: frozenset[int]
    limits: Thresholds


def verdicts(at: Standing, rounds: int) -> SearchResult:
    """The result after so many rounds."""
    there, works, slow = set(at.there), at.works, at.speed.ledger
    groups = NetworkPartition(works, there, at.bad, wary=True)
    paces = [NetworkPartition(slow, {*one}) for one in groups.groups]
    doubted = [link for link in works.doubted_links() if {link.a, link.b} <= there]
    doubted = [link for link in doubted if not groups.apart(link)]
    sure = (link for link in doubted if works.guilty_link(link) and groups.together(link))
    bad_links = tuple(link for link in sure if not at.doubtful & {*link})
    undetermined = tuple(node for node in works.suspects() if node in there and node not in at.bad)
    unsure = tuple(link for link in doubted if link not in bad_links)
    fit = there & works.cleared
    found = {node for one in groups.groups for node in blamed(slow, {*one})}
    slow_nodes = tuple(node for node in at.there if node in found - at.speed.unsure)
    slow_links = tuple(_slow_links(at.speed, fit, paces))
    evidence = [
        *(_node(at, node, "broken", Grade.FAIL) for node in at.bad),
        *(_link(at, link, "broken", Grade.FAIL) for link in bad_links),
        *(_node(at, node, "undetermined", Grade.UNDETERMINED) for node in undetermined),
        *(_link(at, link, "undetermined", Grade.UNDETERMINED) for link in unsure),
        *(_slow_node(at, node) for node in slow_nodes),
        *(_slow_link(at, link) for link in slow_links),
        *_flaky(at, there),
    ]
    return SearchResult(
        bad=at.bad,
        bad_links=bad_links,
        slow=slow_nodes,
        slow_links=slow_links,
        undetermined=undetermined,
        undetermined_links=unsure,
        certified=tuple(node for node in at.there if node in works.cleared),
        rounds=rounds,
        median=at.speed.line.median if at.speed.line else None,
        evidence=tuple(evidence),
        kinds=tuple(at.speed.kinds.values()),
        parts=groups.parts(),
        slow_parts=tuple(part for one in paces for part in _attached(at, one.parts())),
    )


def _slow_links(speed: BandwidthBlame, fit: set[int], paces: list[NetworkPartition]) -> Iterator[Pair]:
    """Slow links inside a group that is fast otherwise; one that was fast enough once is not slow."""
    slow, limit = speed.ledger, speed.line.slow if speed.line is not None else 0.0
    for link in slow.doubted_links():
        if not (slow.guilty_link(link) and {*link} <= fit and max(speed.of_link[link]) < limit):
            continue
        if any(one.together(link) for one in paces):
            yield link


def _attached(at: Standing, parts: tuple[tuple[int, ...], ...]) -> Iterator[tuple[int, ...]]:
    """The parts, with those of whom it is not sure that they are fast, but who are not slow with a part."""
    place = {node: number for number, part in enumerate(parts) for node in part}
    slow = at.speed.line.slow if at.speed.line is not None and parts else 0.0
    rates = sorted(((max(rates), link) for link, rates in at.speed.of_link.items()), reverse=True)
    near = [link for rate, link in rates if parts and rate >= slow]
    while ends := next((ends for ends in near if (ends.a in place) != (ends.b in place)), None):
        place.setdefault(ends.a, place.get(ends.b, 0))
        place.setdefault(ends.b, place[ends.a])
    for number in range(len(parts)):
        yield tuple(sorted(node for node, where in place.items() if where == number))


def _node(at: Standing, node: int, kind: str, grade: Grade) -> Evidence:
    failures = at.works.counted(node) if kind == "broken" else at.works.failures.get(node, [])
    against = tuple(dict.fromkeys(one.partner for one in failures))
    tests = len(failures) + (at.works.passes_of(node) if kind == "broken" else 0)
    return Evidence((node,), kind, grade, tests, len(failures), _wrong(failures), against)


def _link(at: Standing, link: Pair, kind: str, grade: Grade) -> Evidence:
    failures = [one for one in at.works.failures.get(link.a, ()) if one.partner == link.b]
    return Evidence(
        (link.a, link.b), kind, grade, at.works.tries(link), at.works.poor.get(link, 0), _wrong(failures)
    )


def _wrong(failures: list[FailedTest]) -> int:
    return sum(one.wrong for one in failures)


def _flaky(at: Standing, there: set[int]) -> Iterator[Evidence]:
    for link in at.works.poor:
        if link in at.works.good and {link.a, link.b} <= there - set(at.bad):
            yield _link(at, link, "flaky", Grade.PASS)


def _slow_node(at: Standing, node: int) -> Evidence:
    counted = at.speed.ledger.counted(node)
    against = tuple(dict.fromkeys(one.partner for one in counted))
    rates = at.speed.of_node[node]
    return _slow(at, (node,), max(rates), len(rates), len(counted), against)


def _slow_link(at: Standing, link: Pair) -> Evidence:
    rates, factor = at.speed.of_link[link], at.speed.factor(link)
    return _slow(at, (link.a, link.b), max(rates), len(rates), at.speed.ledger.poor[link], (), factor)


def _slow(
    at: Standing,
    nodes: tuple[int, ...],
    rate: float,
    tests: int,
    slow: int,
    against: tuple[int, ...],
    factor: float = 1.0,
) -> Evidence:
    """``rate`` is comparable with that of all; ``factor`` makes a link's that of its own kind again."""
    drawn = at.speed.line
    if drawn is None:
        raise ValueError(f"{nodes} cannot be slow where nothing was timed")
    grade = Grade.FAIL if rate < drawn.median * (1 - at.limits.slow_fail) else Grade.WARN
    numbers = (rate / factor, drawn.slow / factor, drawn.median / factor)
    return Evidence(nodes, "slow", grade, tests, slow, 0, against, *numbers)
