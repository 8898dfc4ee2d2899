"""Explain tests of pairs: which node, link or cut makes tests fail, or makes them slow.

One engine answers two questions about a pair: does it work, and is it fast? `cover.py` explains the currency.

Nodes that passed together, directly or through others, form a *group*. Two kinds of failures remain:

- A node in no group is a *suspect*. It is faulty, or it belongs to a group and failed there by chance, or it
  belongs with other suspects to a group that no test has shown yet.
- A test between two nodes of groups failed because their link is bad, one of them is unsteady, one of their
  groups is cut off, or by chance.

A cause is blamed if chance lies ``log(1 / false_blame)`` nats behind. The price of a node contains
``log(nodes)``. So no order of tests makes any healthy node guilty more often than ``false_blame``, provided
that ``noise`` is not underrated.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, namedtuple
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from clusterrun.preflight.causes.components import Components
from clusterrun.preflight.causes.cover import Cover
from clusterrun.preflight.thresholds import MINORITY

Link = tuple[int, int]

# A cause must be more likely than any other cause by this factor per node, since any node may be lucky.
# A factor of 100 is enough for 20 nodes and more.
LIKELIER_PER_NODE, MOST_LIKELIER = 5, 100
# The share of tests that fail with a faulty node or link, and with an unsteady node.
FAULTY_RATE, UNSTEADY_RATE = 0.98, 0.8
# Price of a bad link or an unsteady node: one run in ninety has it. So two bad links are no cheap excuse.
RARE = math.log(90)
# Price of a cut, beyond that of a faulty node.
RARE_CUT = 1.0
# Price of a group that no test has shown yet: one run in 18 has it.
RARE_HIDDEN = math.log(18)
# The price of a node in a smaller set is that of this number of nodes.
FEWEST_NODES = 5
# If more tests than this fail by chance, no number of repeats helps.
MOST_NOISE = 0.25
# At least this many links must have failed and passed before their share is an estimate of chance.
FEWEST_LUCKY = 3
# A node is not tested for unsteadiness any more if chance is this many nats ahead.
SETTLED = -2.0


def link(a: int, b: int) -> Link:
    """Return the link between two nodes, with the smaller number first."""
    return (a, b) if a < b else (b, a)


class Answers:
    """The answers to one question about pairs."""

    def __init__(self, noise: float) -> None:
        self._expected_noise = noise
        self.good: Counter[Link] = Counter()  # passed tests by link
        self.poor: Counter[Link] = Counter()  # failed tests by link
        # Failed tests that no other test asked for. They drew the borders of the groups.
        self.planned: Counter[Link] = Counter()
        self.passes: Counter[int] = Counter()  # passed tests by node
        self.failed_with: dict[int, set[int]] = defaultdict(set)  # by node, its partners in failed tests
        self._components = Components()

    def note(self, answers: Iterable[tuple[Link, bool, bool]]) -> None:
        """Add answers: the link, whether it is good, and whether another test asked for it."""
        joined = []
        for ends, is_good, is_retest in answers:
            if is_good:
                self.good[ends] += 1
                self.passes.update(ends)
                joined.append(ends)
                continue
            a, b = ends
            self.poor[ends] += 1
            self.planned[ends] += not is_retest
            self.failed_with[a].add(b)
            self.failed_with[b].add(a)
        self._components.join(joined)

    def groups(self, nodes: Iterable[int]) -> list[tuple[int, ...]]:
        """Return the groups of the nodes that passed, the largest first."""
        return self._components.of([node for node in nodes if self.passes[node]])

    def noise(self) -> float:
        """Estimate the share of tests that fail by chance, from links that failed and passed.

        Each node counts once, so that an unsteady node is not taken for chance.
        """
        counted: set[int] = set()
        for ends in self.poor:
            if ends in self.good and counted.isdisjoint(ends):
                counted.update(ends)
        lucky = len(counted) // 2
        measured = (lucky + 1) / (lucky + 1 + sum(self.good.values())) if lucky >= FEWEST_LUCKY else 0.0
        return min(MOST_NOISE, max(self._expected_noise, measured))


# ``kind``: unsteady (a node), link or cut. ``members``: (node,); both ends; (number of the group,).
Cause = namedtuple("Cause", ["kind", "members"])
# Another explanation of a suspect's failures. ``lead``: the suspect's lead over it, in nats. ``partners``: a
# passed test with one of these nodes would prove it.
Rival = namedtuple("Rival", ["lead", "partners"])


class PairExplanation:
    """The causes that explain the answers to one question about these nodes.

    ``groups``: nodes that passed together. ``place``: the number of a node's group.
    ``faulty``: suspects that are blamed. ``undetermined``: the other suspects, with their ``rivals``.
    ``leads``: the causes between proven nodes. ``beats_chance``: whether each beats chance.
    ``blamed``: the causes that lead over all other explanations.
    """

    def __init__(self, answers: Answers, nodes: Sequence[int], sure: float) -> None:
        self.answers, self.nodes, self.sure = answers, nodes, sure
        self.noise = answers.noise()
        self.failure = math.log(FAULTY_RATE / self.noise)
        self.price_of_node = math.log(max(FEWEST_NODES, len(nodes)))
        self.price_of_link = max(RARE, self.price_of_node)
        self.price_of_border = min(self.failure, self.price_of_node)
        self.groups = answers.groups(nodes)
        self.place = {node: number for number, group in enumerate(self.groups) for node in group}
        # Tests between two proven nodes that failed, by link.
        self.open = {
            ends: times
            for ends, times in answers.poor.items()
            if ends[0] in self.place and ends[1] in self.place
        }
        self.between: dict[Link, list[Link]] = defaultdict(list)
        self.explains: dict[Cause, list[Link]] = defaultdict(list)
        for ends in self.open:
            self.between[link(self.place[ends[0]], self.place[ends[1]])].append(ends)
            for cause in self._causes_of(ends):
                self.explains[cause].append(ends)
        self.leads: dict[Cause, float] = {}
        self.beats_chance: dict[Cause, bool] = {}
        likelier = math.log(min(MOST_LIKELIER, LIKELIER_PER_NODE * max(1, len(self.nodes))))
        cover = Cover(self.explains, self._saving)
        for cause in cover.chosen:
            over_chance, over_causes = cover.leads(cause)
            self.beats_chance[cause] = over_chance >= self.sure
            if cause.kind == "cut":
                # The whole group may be faulty instead. Then its tests passed by luck.
                group = self.groups[cause.members[0]]
                luck = sum(self.answers.passes[node] for node in group) / 2 * self.failure
                all_faulty = len(group) * self.price_of_link + luck
                over_causes = min(over_causes, all_faulty - self.price_of_node - RARE_CUT)
            # Other causes need less distance than chance.
            self.leads[cause] = min(over_chance, over_causes + self.sure - likelier)
        self.blamed = {cause for cause, lead in self.leads.items() if lead >= sure}
        self.unsteady = [cause.members[0] for cause in self.blamed if cause.kind == "unsteady"]
        self.rivals: dict[int, list[Rival]] = {}
        suspects = [node for node in nodes if node in answers.failed_with and node not in self.place]
        self.faulty, self.undetermined = self._judge(suspects)

    # --- suspects: the lead over every rival in closed form ---

    def _judge(self, suspects: list[int]) -> tuple[list[int], list[int]]:
        """Divide suspects into faulty and undetermined. A faulty node belongs to no hidden group any more."""
        faulty: list[int] = []
        while True:
            doubted = set(suspects)
            pairs = sum(len(self.answers.failed_with[node] & doubted) for node in suspects) // 2
            for node in suspects:
                rivals = sorted(self._rivals(node, doubted, pairs), key=lambda rival: rival.lead)
                before = self.rivals.get(node)
                if before is None or rivals[0].lead >= before[0].lead:
                    self.rivals[node] = rivals
            newly = {node for node in suspects if self.rivals[node][0].lead >= self.sure}
            faulty += [node for node in suspects if node in newly]
            suspects = [node for node in suspects if node not in newly]
            if not newly:
                return faulty, suspects

    def _rivals(self, node: int, doubted: set[int], pairs: int) -> Iterator[Rival]:
        """Yield the other explanations of a node that never passed; ``pairs`` of suspects failed together."""
        if not self.groups:  # nothing passed, so nothing tells which end is to blame
            yield Rival(-math.inf, self.nodes)
        against: defaultdict[int, float] = defaultdict(float)  # nats, by group
        # For each suspect that it failed with: the chance of that if both were in one group.
        mates: list[float] = []
        for other in self.answers.failed_with[node]:
            times = self.answers.poor[link(node, other)]
            if other in doubted:
                mates.append(self.noise**times)
            elif other in self.place and other not in self.unsteady:
                against[self.place[other]] += min(times * self.failure, self.price_of_link)
        for number, group in enumerate(self.groups):
            if not set(group) <= set(self.unsteady):
                share = math.log(len(self.place) / len(group)) if len(self.groups) > 1 else 0.0
                yield Rival(against[number] + share - self.price_of_node, group)
        others = len(doubted) - 1
        if others:  # each other suspect belongs to the hidden group or not, and at least one does
            none = 0.5**others
            chance = (math.prod((1 + mate) / 2 for mate in mates) - none) / (1 - none)
            elsewhere = (pairs - len(mates)) * math.log(4 / (3 + self.noise))
            if MINORITY * len(doubted) > len(self.nodes):
                # They may be several small groups. Then failures of other suspects say nothing of this one.
                elsewhere = 0.0
            yield Rival(RARE_HIDDEN - math.log(max(chance, 1e-300)) + elsewhere, sorted(doubted))

    # --- failures between proven nodes: a greedy cover ---

    def _causes_of(self, ends: Link) -> Iterator[Cause]:
        """Yield every cause that explains a failed test of this link."""
        is_inside = self.place[ends[0]] == self.place[ends[1]]
        if not is_inside or len(self.groups[self.place[ends[0]]]) > 2:
            # Two nodes that only this link joins are no group if the link is bad.
            yield Cause("link", ends)
        for node in ends:
            yield Cause("unsteady", (node,))
        if not is_inside:
            for node in ends:
                if self.place[node]:  # the largest group is the one from which others are cut off
                    yield Cause("cut", (self.place[node],))

    def _saving(self, cause: Cause, explained: Counter[Link]) -> float:
        """Return the nats that a cause saves if the links in ``explained`` have another cause."""
        links = [ends for ends in self.explains[cause] if not explained[ends]]
        times = sum(self.open[ends] for ends in links)
        if cause.kind == "cut":
            # A planned test that failed is why the group ends there. It is no evidence for the cut.
            borders = sum(self.answers.planned[ends] for ends in links) * self.price_of_border
            return times * self.failure - borders - self.price_of_node - RARE_CUT
        if cause.kind == "link":
            passes, rates = self.answers.good[cause.members], [FAULTY_RATE]
        else:
            passes, rates = self.answers.passes[cause.members[0]], [FAULTY_RATE, UNSTEADY_RATE]
        savings = []
        for rate in rates:
            in_spite = passes * math.log((1 - self.noise) / (1 - rate))
            savings.append(times * math.log(rate / self.noise) - in_spite)
        return max(savings) - self.price_of_link

    # --- results ---

    def _failed_enough(self, a: int, b: int) -> bool:
        """Return whether two groups failed with each other too often to be one behind the same cut."""
        links = self.between.get((a, b), ())
        nats = sum(min(self.open[ends] * self.failure, self.price_of_link) for ends in links)
        borders = sum(self.answers.planned[ends] for ends in links) * self.price_of_border
        return nats - borders >= self.sure + math.log(len(self.groups) / 2)

    def are_apart(self, a: int, b: int, causes: Collection[Cause]) -> bool:
        """Return whether one of these causes separates two groups."""
        return self._failed_enough(a, b) and (Cause("cut", (a,)) in causes or Cause("cut", (b,)) in causes)

    def parts(self) -> list[tuple[int, ...]]:
        """Return the parts of the network: the groups, joined unless a blamed cut separates them."""
        joined, numbers = Components(), range(len(self.groups))
        joined.join([ends for ends in combinations(numbers, 2) if not self.are_apart(*ends, self.blamed)])
        parts = []
        for together in joined.of(numbers):
            nodes = [node for number in together for node in self.groups[number] if node not in self.unsteady]
            if nodes:
                parts.append(tuple(sorted(nodes)))
        return sorted(parts, key=lambda part: (-len(part), part))

    def bad_links(self) -> list[Link]:
        """Return the links that are blamed."""
        return [cause.members for cause in self.blamed if cause.kind == "link"]

    def explained(self) -> Counter[Link]:
        """Count for each failed link the blamed causes that explain it."""
        return Counter(ends for cause in self.blamed for ends in self.explains[cause])

    def undetermined_links(self) -> list[Link]:
        """Return the links between proven nodes that never passed and that no blamed cause explains."""
        explained = self.explained()
        return [ends for ends in self.open if not explained[ends] and ends not in self.answers.good]

    def maybe_unsteady(self) -> list[int]:
        """Return proven nodes that failed more than once and may be unsteady."""
        explained = self.explained()
        nodes = []
        for cause, links in self.explains.items():
            is_open = cause.kind == "unsteady" and cause not in self.blamed
            failed_often = sum(self.open[ends] for ends in links) > 1
            if is_open and failed_often and self._saving(cause, explained) > SETTLED:
                nodes.append(cause.members[0])
        return nodes
