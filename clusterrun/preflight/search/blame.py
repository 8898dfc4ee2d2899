"""Decides which nodes and links are to blame, from all failed and passed tests together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from itertools import combinations

from clusterrun.model.frozen import frozen, replace
from clusterrun.preflight.search.node_groups import Groups
from clusterrun.preflight.search.schedule import Pair
from clusterrun.preflight.thresholds import Thresholds

LEAST_PARTNERS = 2
"""With one partner only, the link between the two is as suspect as the node; where there are fewer than
are asked for, this many must have seen it fail, each twice: one of the links may be bad as well."""

ENOUGH_BY_CHANCE = 3
"""Failures by chance from which on their share is an estimate."""
MOST_BY_CHANCE = 0.25
"""Where more tests than that fail by chance, no number of repeats helps: that is a finding of its own."""
ENOUGH_PASSES = 2
"""With so many partners both ends of a link must have passed before the link alone is blamed."""


def failures_needed(confirm: int, count: int, limits: Thresholds) -> int:
    """Failures that one of ``count`` healthy things is not expected to reach by chance.

    ``confirm``, or as many as keep the chance that any of them does below ``limits.false_blame``
    while each test fails by chance with ``limits.noise``.
    """
    if not (0 < limits.noise < 1 and 0 < limits.false_blame < 1 and count > 0):
        return confirm
    return max(confirm, math.ceil(math.log(limits.false_blame / count) / math.log(limits.noise) - 1e-9))


@frozen
class FailedTest:
    """A test that went wrong, as one of its two nodes sees it; ``again``: made to find out about it."""

    partner: int
    again: bool
    wrong: bool


class Blame:
    """One question (does it work? is it fast?) over all nodes and links, and every answer so far.

    A test that went well clears both its nodes and its link. A node that no test cleared answers for
    those that went wrong with a partner that another test cleared; a link for those between two
    nodes that were both cleared elsewhere.
    """

    def __init__(self, confirm: int, node_limit: int, link_limit: int) -> None:
        self._confirm, self._node_limit, self._link_limit = confirm, node_limit, link_limit
        self._passes = 0
        self.more = 0
        """Failures asked for beyond the usual, for what was seen to fail by chance."""
        self.cleared: set[int] = set()
        self.groups = Groups()
        self.failures: dict[int, list[FailedTest]] = {}
        self.good: Counter[Pair] = Counter()
        self.poor: Counter[Pair] = Counter()

    def note(self, link: Pair, good: bool, again: bool = False, wrong: bool = False) -> None:
        """Enter one test; one that told nothing has no place here."""
        if good:
            self.cleared.update(link)
            self.groups.join(link.a, link.b)
            self.good[link] += 1
            self._passes += 1
            return
        self.poor[link] += 1
        for node, partner in (link, link[::-1]):
            self.failures.setdefault(node, []).append(FailedTest(partner, again, wrong))

    def allow_for_chance(self, limits: Thresholds, count: int) -> None:
        """Ask for more failures where links that work were seen to fail by chance more often than expected.

        ``count`` is the number of healthy things of which none should be blamed.
        """
        by_chance = sum(times for link, times in self.poor.items() if link in self.good)
        seen = by_chance / (by_chance + self._passes) if by_chance >= ENOUGH_BY_CHANCE else 0.0
        if seen > limits.noise:
            usual = failures_needed(self._confirm, count, limits)
            needed = failures_needed(self._confirm, count, replace(limits, noise=min(seen, MOST_BY_CHANCE)))
            self.more = max(self.more, needed - usual)

    def counted(self, node: int) -> list[FailedTest]:
        """The failures that speak against ``node``: those with a partner that was cleared."""
        return [one for one in self.failures.get(node, ()) if one.partner in self.cleared]

    def failures_on(self, link: Pair) -> list[FailedTest]:
        return [one for one in self.failures.get(link.a, ()) if one.partner == link.b]

    @property
    def needed(self) -> int:
        """Failures that none of so many healthy things is expected to reach by chance."""
        return self._node_limit + self.more

    def guilty(self, node: int) -> bool:
        counted = self.counted(node) if node not in self.cleared else []
        by_partner = Counter(one.partner for one in counted)
        few = len(by_partner) < max(self._confirm, LEAST_PARTNERS)
        if few and sum(times > 1 for times in by_partner.values()) < LEAST_PARTNERS:
            return False
        return len(counted) >= self.needed or sum(one.again for one in counted) >= self._confirm + self.more

    def suspects(self) -> list[int]:
        """Nodes with failures that nothing cleared, the guilty among them."""
        return [node for node in self.failures if node not in self.cleared]

    def doubted_links(self) -> Iterable[Pair]:
        """Links that never went well, between two nodes that did elsewhere; the guilty among them."""
        return (link for link in self.poor if link not in self.good and self.cleared.issuperset(link))

    def guilty_link(self, link: Pair) -> bool:
        return self.poor[link] >= self._link_limit + self.more

    def balance(self, nodes: Iterable[int]) -> int:
        """How many more tests between these nodes went well than went wrong."""
        links = [Pair(*ends) for ends in combinations(sorted(nodes), 2)]
        return sum(self.good[link] - self.poor[link] for link in links)

    def tries(self, link: Pair) -> int:
        return self.good[link] + self.poor[link]


class Flakiness:
    """Repeats on one link tell of that link; how a node does with ever new partners tells of the node.

    A pass with anybody shows that a node can work, not that it always does: one that fails with most
    of those it meets is bad, however often it was lucky.
    """

    def __init__(self, confirm: int, count: int, limits: Thresholds) -> None:
        self._confirm, self._count, self._limits = confirm, count, limits
        self._met: set[Pair] = set()
        self._failed: dict[int, list[int]] = {}
        self._passed: Counter[int] = Counter()

    def note(self, link: Pair, good: bool) -> None:
        """Enter one test; only the first of each link counts."""
        if link in self._met:
            return
        self._met.add(link)
        if good:
            self._passed.update(link)
            return
        for node, other in (link, link[::-1]):
            self._failed.setdefault(node, []).append(other)

    def tests(self, node: int, sound: Collection[int]) -> tuple[int, int]:
        """With how many ``sound`` partners it failed at first, and with how many it passed.

        Whom it passed with worked then; what is counted is few, for all pairs of 1,250 nodes are many.
        """
        return sum(other in sound for other in self._failed.get(node, ())), self._passed[node]

    def shaky(self, node: int, sound: Collection[int], more: int, last: bool) -> bool:
        """It passed, but failed with most, and so often that chance does not explain it.

        ``more`` are failures asked for beyond that, where more tests fail by chance than expected.
        One more is asked for as well, since it did pass, but of a node that has met all there are: ``last``.
        """
        failed, passed = self.tests(node, sound)
        if not (failed > passed > 0 and failed >= self._confirm + more + (not last)):
            return False
        noise, accepted = self._limits.noise, self._limits.false_blame
        if not (0 < noise < 1 and 0 < accepted < 1):
            return True
        ways = math.comb(failed + passed, failed)
        return ways * noise ** (failed - more) * self._count <= accepted * (1 + 1e-9)

    def doubtful(self, node: int, sound: Collection[int]) -> bool:
        """It failed with several, and has not passed with more: its next partners will tell."""
        failed, passed = self.tests(node, sound)
        return failed > 1 and 0 < passed <= failed

    def odd(self, node: int, sound: Collection[int]) -> bool:
        """It failed once, and has not met so many that this is no matter."""
        failed, passed = self.tests(node, sound)
        return failed > 0 and passed < ENOUGH_PASSES * 2

    def known(self, node: int) -> bool:
        """It passed with enough for a link of its to be blamed alone."""
        return self._passed[node] >= ENOUGH_PASSES
