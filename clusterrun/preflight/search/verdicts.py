"""From what the ledgers hold to verdicts with their evidence; asks for no test."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.search.bandwidth_blame import BandwidthBlame, LinkDistance
from clusterrun.preflight.search.blame import Blame, FailedTest
from clusterrun.preflight.search.partition import NetworkPartition, blamed
from clusterrun.preflight.search.schedule import Pair

Nodes = tuple[int, ...]


@frozen
class Evidence:
    """Why a verdict stands. ``nodes`` is (node,) or (a, b); ``kind`` is ``broken``, ``slow``,
    ``undetermined`` or ``flaky`` (failed at times, passed at others: no verdict, but worth a line).

    ``tests`` that told something, ``failed`` of them (or were slow), ``wrong`` of these with a wrong sum;
    ``against`` are the partners it failed with, in order. ``rate``, ``limit`` and ``median`` are in GB/s
    (slow only): the best it reached, where slow begins, and the median over the nodes.
    """

    nodes: Nodes
    kind: str
    grade: Grade
    tests: int
    failed: int
    wrong: int = 0
    against: Nodes = ()
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

    bad: Nodes
    bad_links: tuple[Pair, ...]
    slow: Nodes
    slow_links: tuple[Pair, ...]
    undetermined: Nodes
    undetermined_links: tuple[Pair, ...]
    certified: Nodes
    rounds: int
    median: float | None
    evidence: tuple[Evidence, ...]
    kinds: tuple[LinkDistance, ...] = ()
    parts: tuple[Nodes, ...] = ()
    slow_parts: tuple[Nodes, ...] = ()


def verdicts(
    works: Blame, speed: BandwidthBlame, nodes: Nodes, bad: Nodes, doubtful: Collection[int], rounds: int
) -> SearchResult:
    """What is said of ``nodes``; ``doubtful`` ones should meet others before a link of theirs is blamed."""
    there, slow = set(nodes), speed.ledger
    groups = NetworkPartition(works, there, bad, wary=True)
    paces = [NetworkPartition(slow, {*one}) for one in groups.groups]
    doubted = [link for link in works.doubted_links() if {*link} <= there and not groups.apart(link)]
    sure = (link for link in doubted if works.guilty_link(link) and groups.together(link))
    bad_links = tuple(link for link in sure if not {*doubtful} & {*link})
    undetermined = tuple(node for node in works.suspects() if node in there and node not in bad)
    unsure = tuple(link for link in doubted if link not in bad_links)
    found = {node for one in groups.groups for node in blamed(slow, {*one})} - speed.unsure
    slow_nodes = tuple(node for node in nodes if node in found)
    slow_links = tuple(_slow_links(speed, there & works.cleared, paces))
    flaky = (link for link in works.poor if link in works.good and {*link} <= there - {*bad})
    evidence = (
        *(_node(works, node, "broken", Grade.FAIL) for node in bad),
        *(_link(works, link, "broken", Grade.FAIL) for link in bad_links),
        *(_node(works, node, "undetermined", Grade.UNDETERMINED) for node in undetermined),
        *(_link(works, link, "undetermined", Grade.UNDETERMINED) for link in unsure),
        *(_slow(speed, (node,), speed.of_node[node], slow.counted(node)) for node in slow_nodes),
        *(_slow(speed, link, speed.of_link[link], slow.failures_on(link)) for link in slow_links),
        *(_link(works, link, "flaky", Grade.PASS) for link in flaky),
    )
    certified = tuple(node for node in nodes if node in works.cleared)
    median = speed.line.median if speed.of_node else None
    slow_parts = tuple(part for one in paces for part in _attached(speed, one.parts))
    judged = (bad, bad_links, slow_nodes, slow_links, undetermined, unsure, certified)
    kinds = tuple(speed.kinds.values())
    return SearchResult(*judged, rounds, median, evidence, kinds, groups.parts, slow_parts)


def _slow_links(speed: BandwidthBlame, fit: set[int], paces: list[NetworkPartition]) -> Iterator[Pair]:
    """Slow links inside a group that is fast otherwise; one that was fast enough once is not slow."""
    for link in speed.ledger.doubted_links():
        slow = speed.ledger.guilty_link(link) and max(speed.of_link[link]) < speed.line.slow
        if slow and {*link} <= fit and any(one.together(link) for one in paces):
            yield link


def _attached(speed: BandwidthBlame, parts: tuple[Nodes, ...]) -> Iterator[Nodes]:
    """The parts, with those of whom it is not sure that they are fast, but who are not slow with a part."""
    place = {node: number for number, part in enumerate(parts) for node in part}
    rates = sorted(((max(rates), link) for link, rates in speed.of_link.items()), reverse=True)
    near = [link for rate, link in rates if parts and rate >= speed.line.slow]
    while ends := next((ends for ends in near if (ends.a in place) != (ends.b in place)), None):
        place.setdefault(ends.a, place.get(ends.b, 0))
        place.setdefault(ends.b, place[ends.a])
    for number in range(len(parts)):
        yield tuple(sorted(node for node, where in place.items() if where == number))


def _node(works: Blame, node: int, kind: str, grade: Grade) -> Evidence:
    failures = works.counted(node) if kind == "broken" else works.failures.get(node, [])
    passes = sum(times for link, times in works.good.items() if node in link) if kind == "broken" else 0
    return Evidence((node,), kind, grade, len(failures) + passes, len(failures), *_seen(failures))


def _link(works: Blame, link: Pair, kind: str, grade: Grade) -> Evidence:
    wrong, _ = _seen(works.failures_on(link))
    return Evidence(tuple(link), kind, grade, works.tries(link), works.poor.get(link, 0), wrong)


def _seen(failures: Sequence[FailedTest]) -> tuple[int, Nodes]:
    """How many sums were wrong, and the partners in order."""
    return sum(one.wrong for one in failures), tuple(dict.fromkeys(one.partner for one in failures))


def _slow(
    speed: BandwidthBlame, nodes: Nodes, rates: Sequence[float], failures: Sequence[FailedTest]
) -> Evidence:
    """Rates are comparable with those of all: for a link they are made those of its own kind again."""
    drawn, best = speed.line, max(rates)
    factor, against = 1.0, _seen(failures)[1]
    if len(nodes) == 2:
        factor, against = speed.factor(Pair(*nodes)), ()
    grade = Grade.FAIL if best < drawn.median * (1 - speed.limits.slow_fail) else Grade.WARN
    numbers = (best / factor, drawn.slow / factor, drawn.median / factor)
    return Evidence(tuple(nodes), "slow", grade, len(rates), len(failures), 0, against, *numbers)
