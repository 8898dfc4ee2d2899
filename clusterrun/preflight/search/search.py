"""Finds bad and slow nodes and links from tests of pairs; pure: no clock, no process, no names."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import combinations

from clusterrun.preflight.search.bandwidth_blame import BandwidthBlame, Distance, TimedPair, same
from clusterrun.preflight.search.blame import Blame, Flakiness, failures_needed
from clusterrun.preflight.search.partition import LEAST_BALANCE, NetworkPartition, blamed
from clusterrun.preflight.search.schedule import GroupTest, MatchingRound, Pair, all_rounds, pair, ring_rounds
from clusterrun.preflight.search.verdicts import Evidence, SearchResult, verdicts
from clusterrun.preflight.thresholds import Thresholds

__all__ = ["Evidence", "GroupTest", "Pair", "Search", "SearchResult"]

TESTS_OF_A_SPARE = 2
"""A spare that takes a node's place has been tested with as many others as that node."""
TESTS_OF_A_LAGGARD = 4
"""So often a node that has met no fast partner is tested before it counts as it is."""
WORTH_A_LOOK = 1.5
"""So many times the rates that were looked at last."""
SMALL_SET = 4
"""So few have one sound pair, maybe: where nothing passed, it is worth to try each of them once more."""
MORE_FOR_SLOW = 1
"""Rates vary more than tests fail by chance, and nothing waits for a slow node to be named."""
FEW = 16
"""Among so few, chance is seldom: where a link is bad, whoever is free meets somebody new meanwhile."""
FREE_RETESTS_FROM = 2
"""From the third round of a ring on, all but one link has been tested: who is free is tested again."""


class Search:
    """Asks for rounds of disjoint pairs and says who is at fault; bounded in rounds, whatever it is told.

    ``nodes`` are in ring order. ``spares`` are tested where it costs nothing, and serve as partners.
    ``confirm``: failures against certified partners, of which two are distinct, before a node is blamed, and
    failures before a link is; more where there are so many nodes that chance alone would reach it
    (``limits.noise``, ``limits.false_blame``). ``distance`` of a link says of which kind it is.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        spares: Sequence[int] = (),
        confirm: int = 3,
        all_pairs: bool = False,
        limits: Thresholds = Thresholds(),  # noqa: B008
        distance: Distance = same,
    ) -> None:
        self._ring, self._spares = list(nodes), list(spares)
        members = self._ring + self._spares
        if len(set(members)) < len(members):
            raise ValueError("a node stands twice among those to be searched")
        self._all_pairs, self._limits, self._distance = all_pairs, limits, distance
        self._confirm = max(confirm, 1)
        self._there = dict.fromkeys(members)
        self._bad: dict[int, None] = {}
        rounds = all_rounds(members) if all_pairs else ring_rounds(self._ring)
        self._planned = deque(enumerate(rounds))
        self._links = [link for one in rounds for link in one]
        self._node_limit = failures_needed(self._confirm, len(members), limits)
        self._link_limit = failures_needed(self._confirm, len(self._links), limits)
        self._works = self._ledger()
        self._steady = Flakiness(self._confirm, len(members), limits)
        self._timed: list[TimedPair] = []
        self._known: BandwidthBlame | None = None
        self._rates_known = 0
        self._tries: dict[Pair, int] = {}
        self._told: Counter[int] = Counter()
        self._mute: Counter[int] = Counter()
        self._part: NetworkPartition | None = None
        self._asked: tuple[Pair, ...] | None = None
        self._scheduled: frozenset[Pair] = frozenset()
        self._rounds = 0
        self._retests_left = 4 * self._confirm
        self._blind_left = self._confirm * (2 if len(members) <= SMALL_SET else 1)

    def next_round(self) -> tuple[Pair, ...]:
        """The pairs to be tested at once, disjoint; () when it is finished. Asked twice, it says the same."""
        if self._asked is None:
            self._asked = self._make_up()
        return self._asked

    def take(self, outcomes: Sequence[GroupTest]) -> None:
        """What became of the pairs asked for last; one that is missing told nothing, others are ignored."""
        asked, self._asked = self._asked or (), None
        self._rounds += bool(asked)
        found = {pair(*one.nodes): one for one in outcomes}
        for link in asked:
            self._tries[link] = self._tries.get(link, 0) + 1
            outcome = found.get(link)
            if outcome is None or outcome.passed is None:
                self._mute.update(link)
                continue
            again, passed = link not in self._scheduled, outcome.passed and not outcome.wrong
            self._told.update(link)
            self._works.note(link, passed, again, bool(outcome.wrong))
            self._steady.note(link, passed)
            if passed and outcome.rate is not None and math.isfinite(outcome.rate):
                self._timed.append(TimedPair(link, outcome.rate, again, outcome.starved))
        self._works.allow_for_chance(self._limits, max(len(self._links), len(self._there)))
        self._part = None
        self._bad = dict.fromkeys(blamed(self._works, self._there, self._bad, wary=True))
        self._discredit_shaky()
        self._part = None

    def _discredit_shaky(self) -> None:
        """That it passed at times does not clear a node; who passed with it stays cleared."""
        works = self._works
        for one, balance in self._parting().loose().items():
            if balance < -1:
                works.cleared.difference_update(one)
        for node in [node for node in works.failures if node in works.cleared and node in self._there]:
            mates = self._parting().mates(node)
            shaky = self._steady.shaky(node, mates, works.more, last=True)
            if shaky and (self._steady.shaky(node, mates, works.more, last=False) or not self._meets(node)):
                self._bad[node] = None
                works.cleared.discard(node)

    def drop(self, node: int) -> None:
        """The node is gone: it is in no later round, and in no verdict."""
        self._there.pop(node, None)
        self._bad.pop(node, None)
        if self._asked:
            self._asked = tuple(link for link in self._asked if node not in link)

    def result(self) -> SearchResult:
        known, works = self._parting(), self._works
        suspects = (node for node in works.suspects() if node in self._there and node not in self._bad)
        guilty = (node for node in suspects if works.guilty(node) and known.answers_for_itself(node, 1))
        bad = (*self._bad, *guilty)
        return verdicts(works, self._speed(), tuple(self._there), bad, self._doubtful(), self._rounds)

    def _parting(self) -> NetworkPartition:
        if self._part is None:
            self._part = NetworkPartition(self._works, self._there, self._bad, wary=True)
        return self._part

    def _make_up(self) -> tuple[Pair, ...]:
        while self._planned:
            pairs = self._planned_round(*self._planned.popleft())
            if pairs:
                return pairs
        if not self._retests_left:
            return ()
        self._retests_left -= 1
        made = self._empty_round()
        self._scheduled = frozenset()
        self._retest(made)
        return tuple(made.pairs)

    def _planned_round(self, number: int, links: Iterable[Pair]) -> tuple[Pair, ...]:
        made = self._empty_round()
        filling = not self._all_pairs and number >= FREE_RETESTS_FROM
        suspects = set(self._suspects()) if filling else set()
        put = [link for link in links if not suspects.issuperset(link) and made.put(link)]
        self._scheduled = frozenset(link for link in put if suspects.isdisjoint(link))
        if filling:
            self._retest(made)
        elif not self._all_pairs:
            spares = self._in_question(self._spares)
            made.assign(spares, self._ring)
            made.among(spares, again=False)
        return tuple(made.pairs)

    def _retest(self, made: MatchingRound) -> None:
        """Fill a round with what most needs to be found out, the nodes that may not work first."""
        suspects, speed = self._suspects(), self._speed()
        works, known = self._works, self._parting()
        doubted = [
            link for link in works.doubted_links() if not (works.guilty_link(link) or known.apart(link))
        ]  # and planned links that told nothing, between nodes that work
        doubted += [link for link in self._links if not works.tries(link) and works.cleared.issuperset(link)]
        busy = {node for link in doubted for node in link}
        fast_last = sorted(works.cleared, key=lambda node: (node in busy, node in speed.ledger.failures))
        self._meet(made, known, suspects, fast_last)
        doubtful = self._doubtful()
        for group in known.groups:
            steady = [node for node in fast_last if node in known.mates(group[0]) and node not in doubtful]
            made.assign([node for node in doubtful if node in group], steady)
        loose = [one for one, balance in known.loose().items() if balance < LEAST_BALANCE]
        made.repeat(pair(*ends) for one in loose for ends in combinations(one, 2))
        self._compare(made, known, fast_last, failed=True)
        made.repeat(doubted)
        if made.pairs:
            self._compare(made, known, fast_last, failed=False)
        made.assign(self._wanted_spares(suspects), self._neighbours(suspects) + fast_last)
        blind = works.cleared.isdisjoint(self._there)  # then suspects meet each other a few times and no more
        if self._blind_left or not blind:
            self._blind_left -= blind
            made.among(suspects + (self._in_question(self._spares) if blind else []), again=blind)
        self._retest_slow(made, speed, known)
        if made.pairs:  # who failed once and passed when repeated is looked at more closely where it is free
            odd = [node for node in works.failures if self._steady.odd(node, known.mates(node))]
            odd = [node for node in odd if node in works.cleared and self._meets(node)]
            made.assign(odd, [node for node in fast_last if node not in odd])
        if len(self._there) <= FEW:
            self._look_around(made, known)

    def _look_around(self, made: MatchingRound, partition: NetworkPartition) -> None:
        """Where a link is bad, test its ends with all others, and meanwhile who is free with each other."""
        bad = self._guilty_links()
        ends = [node for node in dict.fromkeys(end for link in bad for end in link) if self._meets(node)]
        for node in ends:
            made.assign([node], sorted(partition.mates(node) - {*ends}) or sorted(partition.mates(node)))
        for group in partition.groups if made.pairs and bad else ():
            made.among(group, again=False)

    def _meet(
        self, made: MatchingRound, partition: NetworkPartition, suspects: list[int], partners: list[int]
    ) -> None:
        """Test suspects with each other, for they may be a group of their own, and with every group."""
        ledger = partition.ledger
        known_well = {node for node in suspects if len(ledger.counted(node)) >= self._confirm}
        among = (node for node in suspects if node in known_well or not partition.met.get(node))
        made.among(filter(partition.meetings, among), again=True)
        # Those of whom least is known may be healthy, and partners for the others.
        waiting = sorted(suspects, key=lambda node: len(ledger.counted(node)))
        if len(partition.groups) < 2:
            made.assign(waiting, partners)
            return
        for node in waiting:
            lacking = [one for one in partners if partition.lacks(node, one)]
            new = [one for one in lacking if pair(node, one) not in self._tries]
            made.assign([node], new or (partition.torn and lacking) or partners)

    def _compare(
        self, made: MatchingRound, partition: NetworkPartition, nodes: Sequence[int], failed: bool
    ) -> None:
        """Test links between groups that may be one: any that passes shows it."""
        place = {node: at for at, node in enumerate(nodes)}
        for _ in range(partition.least):
            for group, others in partition.unsettled(failed):
                mine = sorted((one for one in group if one in made.free), key=lambda one: place.get(one, -1))
                for other in others if mine else ():
                    theirs = sorted(made.free.keys() & set(other), key=lambda one: place.get(one, -1))
                    links = (pair(a, b) for a in mine for b in theirs)
                    if any(link not in self._tries and made.put(link) for link in links):
                        break

    def _retest_slow(self, made: MatchingRound, speed: BandwidthBlame, partition: NetworkPartition) -> None:
        slow, leaders = speed.ledger, speed.leaders()
        behind = [node for node in speed.behind() if self._told[node] < TESTS_OF_A_LAGGARD]
        for mates in map(frozenset, partition.groups):
            found = blamed(slow, mates)
            paces = NetworkPartition(slow, mates, found)
            suspects = [node for node in slow.suspects() if node in mates and node not in found]
            fast = sorted(mates & slow.cleared)
            self._meet(made, paces, suspects, fast)
            self._compare(made, paces, fast, failed=not suspects)
            doubted = (link for link in slow.doubted_links() if mates.issuperset(link))
            made.repeat(one for one in doubted if not (slow.guilty_link(one) or paces.apart(one)))
            made.assign(filter(mates.__contains__, behind), list(filter(mates.__contains__, leaders)))

    def _doubtful(self) -> list[int]:
        """Nodes that passed, though not as it should be, and can meet somebody new."""
        steady, mates = self._steady, self._parting().mates
        found = [node for link in self._guilty_links() for node in link if not steady.known(node)]
        found += [node for node in self._works.failures if steady.doubtful(node, mates(node))]
        return [node for node in dict.fromkeys(found) if node in self._there and self._meets(node)]

    def _guilty_links(self) -> list[Pair]:
        works, together = self._works, self._parting().together
        return [link for link in works.doubted_links() if works.guilty_link(link) and together(link)]

    def _meets(self, node: int) -> bool:
        """Whether there is anybody of its group who works and whom it has not met."""
        others = (other for other in self._parting().mates(node) if other != node)
        return any(pair(node, other) not in self._tries for other in others)

    def _suspects(self) -> list[int]:
        """Nodes that no test has cleared, nor enough of them blamed."""
        ring = self._ring if len(self._ring) > 1 else []
        rest = self._spares if ring else self._ring + self._spares
        return self._in_question(ring + [node for node in rest if node in self._works.failures])

    def _in_question(self, nodes: Iterable[int]) -> list[int]:
        unknown = (node for node in nodes if node not in self._works.cleared and node not in self._bad)
        return [node for node in unknown if node in self._there and self._mute[node] < 2 * self._confirm]

    def _wanted_spares(self, suspects: list[int]) -> list[int]:
        """Spares that may take the place of a bad node, and have been tested less than it was."""
        places = len(suspects) + sum(node in self._ring for node in self._bad)
        able = [node for node in self._spares if node in self._there and node not in self._bad]
        able.sort(key=lambda node: (node not in self._works.cleared, node in self._works.failures))
        return [node for node in able[:places] if self._told[node] < TESTS_OF_A_SPARE]

    def _neighbours(self, suspects: list[int]) -> list[int]:
        """Certified nodes beside one that may be replaced: its spare will talk to them."""
        leaving = {*suspects, *self._bad}
        beside = zip(self._ring, self._ring[1:] + self._ring[:1])
        near = [other for a, b in beside for one, other in ((a, b), (b, a)) if one in leaving]
        return [node for node in dict.fromkeys(near) if node in self._works.cleared]

    def _empty_round(self) -> MatchingRound:
        free = [node for node in self._there if node not in self._bad]
        return MatchingRound(free, self._tries, self._confirm, self._link_limit + 2 * self._confirm)

    def _ledger(self, more: int = 0) -> Blame:
        return Blame(self._confirm + more, self._node_limit + more, self._link_limit + more)

    def _speed(self) -> BandwidthBlame:
        """What the rates say; while all pairs are gone through, some rates late: it looks at all of them."""
        count, known = len(self._timed), self._rates_known
        if self._known is None or count > (known * WORTH_A_LOOK if self._planned else known):
            ledger = self._ledger(MORE_FOR_SLOW)
            self._known = BandwidthBlame(self._timed, self._limits, ledger, self._distance)
            self._rates_known = count
        return self._known
