"""Into which groups nodes fall by the tests that went well, and which groups are partitioned; pure.

What passes between two nodes passes between all of a group: groups grow by tests that went well. Two groups
are partitioned where several links between them were tried and none went well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from clusterrun.preflight.search.blame import Blame
from clusterrun.preflight.search.node_groups import LEAST_ENDS, enough_failed, links_between, parts
from clusterrun.preflight.search.schedule import Pair

TIMES, TIMES_OF_MANY, MANY_GROUPS = 3, 2, 4
"""With each of several groups a suspect must have failed so often: one is its own, but for chance."""
MEETINGS = 3
"""A suspect meets so many others before it is blamed: they may be a group of their own. It meets them twice
where they are few, or more than a third, or the network is known to be partitioned."""
LEAST_BALANCE = 2
SMALL = 4
"""In a group of so many nodes that is a part, so many more tests passed than failed."""
MANY = 5
"""Of so many suspects two may have met one less."""


class NetworkPartition:
    """The groups of those ``there`` that one ledger shows, and its suspects, of which some are ``bad``.

    ``wary``: a small group counts as a part when more tests inside it passed than one.
    """

    def __init__(
        self, ledger: Blame, there: Collection[int], bad: Collection[int] = (), wary: bool = False
    ) -> None:
        self.ledger = ledger
        known = ledger.groups.of(node for node in there if node in ledger.cleared)
        self.groups = [one for one in known if len(one) >= LEAST_ENDS]
        self._place = {node: at for at, one in enumerate(self.groups) for node in one}
        self._failed = links_between(self._place, ledger.poor)
        self._loose = {one: ledger.balance(one) for one in self.groups[1:] if wary and len(one) <= SMALL}
        self._members = [frozenset(one) for one in self.groups]
        self._bad = bad
        self._alone = [node for node in ledger.suspects() if node in there]
        self.met: dict[int, Counter[int]] = {node: Counter() for node in self._alone}
        """By suspect, with which other suspects it failed, and how often."""
        self._against: dict[int, Counter[int]] = {node: Counter() for node in self._alone}
        for node in self._alone:
            for one in ledger.failures[node]:
                if one.partner in self._place:
                    self._against[node][self._place[one.partner]] += 1
                elif one.partner in self.met:
                    self.met[node][one.partner] += 1
        firm = (one for one in self.groups if self._loose.get(one, LEAST_BALANCE) >= LEAST_BALANCE)
        self.parts = parts(firm, ledger.poor, ledger.needed)
        """The largest first; () where the network is not partitioned, or not known to be."""
        count, others = len(self.groups), len(self._alone) - 1
        self._times_each = 1 if count < LEAST_ENDS else TIMES if count < MANY_GROUPS else TIMES_OF_MANY
        self.least = ledger.needed
        self.torn = any(self._parted(*places) for places in self._failed)
        self._hidden = 3 * len(self._alone) > len(there) or self.torn
        self._times = 2 if self._hidden or others < MEETINGS else 1
        self._wanted = min(self._times * others, MEETINGS * (1 + (self._times > 1)))
        self._behind = sum(sum(met.values()) < self._wanted for met in self.met.values())

    def loose(self) -> dict[tuple[int, ...], int]:
        """Small groups that failed with others, and how many more tests inside passed than failed.

        Nodes that are bad, but not always, may have passed together by luck.
        """
        failed = {at for ends in self._failed for at in ends}
        return {one: balance for one, balance in self._loose.items() if self._place[one[0]] in failed}

    def mates(self, node: int) -> frozenset[int]:
        at = self._place.get(node)
        return frozenset() if at is None else self._members[at]

    def together(self, link: Pair) -> bool:
        """Whether both its ends are in one group: else not the link may be cut, but the groups."""
        return self._place.get(link.a, -1) == self._place.get(link.b, -2)

    def apart(self, link: Pair) -> bool:
        """Whether its ends are known to be in groups that are partitioned."""
        return self._parted(*sorted(self._place.get(node, -1) for node in link))

    def _parted(self, a: int, b: int) -> bool:
        links = self._failed.get((a, b), ())
        return bool(links) and enough_failed(links, self.least, self.groups[a], self.groups[b])

    def unsettled(self, failed: bool) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
        """Each group, and those larger ones that it may be one with; ``failed``: where some link did."""
        failed = failed and not self.torn
        for at, one in enumerate(self.groups):
            places = (place for place in range(at) if not failed or (place, at) in self._failed)
            open_ones = [self.groups[place] for place in places if not self._parted(place, at)]
            if open_ones:
                yield one, open_ones

    def lacks(self, node: int, other: int) -> bool:
        """Whether a suspect must fail with the group of another node before it is blamed."""
        at = self._place.get(other)
        return at is not None and self._against.get(node, Counter())[at] < self._times_each

    def meetings(self, node: int) -> int:
        """How many tests with other suspects it still needs; 0 if there is nobody for them."""
        met, wanted = self.met.get(node, Counter()), self._wanted
        open_ones = [one for one in self._alone if one not in (node, *self._bad) and met[one] < self._times]
        done = sum(met.values())
        if not open_ones or (len(self._alone) >= MANY and self._behind <= LEAST_ENDS and done + 1 >= wanted):
            return 0
        return max(0, wanted - done)

    def answers_for_itself(self, node: int, at_least: int = TIMES) -> bool:
        """Whether it has failed with all groups, and with others that are suspect: it belongs to none."""
        if node not in self.met:
            return True
        least = min(at_least, self._times_each)
        if any(self._against[node][at] < least for at in range(len(self.groups))):
            return False
        return not self.meetings(node) or (at_least == 1 and not self._hidden and bool(self.met[node]))


def blamed(
    ledger: Blame, there: Collection[int], before: Iterable[int] = (), wary: bool = False
) -> list[int]:
    """Who is guilty and in no group, beside those of ``before``: one that is known may make others known."""
    known = dict.fromkeys(before)
    while open_ones := [node for node in ledger.suspects() if node in there and node not in known]:
        groups = NetworkPartition(ledger, there, known, wary)
        found = [node for node in open_ones if ledger.guilty(node) and groups.answers_for_itself(node)]
        if not found:
            break
        known.update(dict.fromkeys(found))
    return list(known)
