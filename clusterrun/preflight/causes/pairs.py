"""Explain tests of pairs: which node, link or cut makes tests fail, or makes them slow.

The same model answers two questions about a pair: does it work, and is it fast? A slow test is a failed
answer to the second one. `cover.py` explains the currency, the nat.

**Observations.** For each link, how many of its tests passed and how many failed.

**Likelihood.** A test fails with chance ``e`` (the noise) if nothing is wrong, and with chance ``1 - e`` if a
faulty node, a bad link or a cut is in its way. So a failure that has a cause saves ``log((1 - e) / e)`` nats,
and a pass in spite of the cause costs the same: `PairModel.failure`.

**Groups.** Nodes that passed together, directly or through others, form a group. A node in no group is a
*suspect*: it never passed. The failures of suspects and those between groups are explained one after the
other, since nothing that is proven depends on a suspect.

**Decision.** A cause is blamed if it leads over chance by `cover.sure` nats, and over every other cause by
`Prices.rival` nats. The price of a node contains ``log(nodes)``. So no order of tests makes any
healthy node guilty more often than ``false_blame``, provided that the noise is not underestimated.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict, namedtuple
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.components import Components
from clusterrun.preflight.causes.cover import Cover, Prices, sure
from clusterrun.preflight.thresholds import WITNESSES, Thresholds

Link = tuple[int, int]
# A test of a link, with its outcome (a `GroupTest`). ``is_retest``: an earlier outcome asked for it.
PairTest = namedtuple("PairTest", ["link", "outcome", "is_good", "is_retest"])

# An unsteady node fails four tests of five. A node that fails half of its tests is rather bad luck.
UNSTEADY_RATE = 0.8
# One suspect in twenty belongs to a group of suspects that work with each other.
RARE_HIDDEN = math.log(20)


def link(a: int, b: int) -> Link:
    """Return the link between two nodes, with the smaller number first."""
    return (a, b) if a < b else (b, a)


class Answers:
    """The answers to one question about pairs, counted by link and by node."""

    def __init__(self, noise: float) -> None:
        self._expected_noise = noise
        self.good: Counter[Link] = Counter()  # passed tests by link
        self.poor: Counter[Link] = Counter()  # failed tests by link
        # Failed tests of the plan, by link. They drew the borders of the groups; retests did not.
        self.planned: Counter[Link] = Counter()
        self.tests: Counter[int] = Counter()  # tests by node
        self.passes: Counter[int] = Counter()  # passed tests by node
        self.failed_with: dict[int, set[int]] = defaultdict(set)  # by node, its partners in failed tests
        self._components = Components()

    def note(self, answers: Iterable[tuple[Link, bool, bool]]) -> None:
        """Add answers: the link, whether the answer is good, and whether the test is a retest."""
        joined = []
        for ends, is_good, is_retest in answers:
            self.tests.update(ends)
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
        """Estimate the chance ``e`` that a test fails though nothing is wrong.

        Links that failed and passed show it: ``chance_failures`` among these and all passed tests. Each node
        counts once, so that an unsteady node is not taken for chance. One more failure is assumed: the share
        is ``(1 + chance_failures) / (1 + tests)``. It counts if it exceeds the expected noise and more than
        `WITNESSES` links show it.
        """
        counted: set[int] = set()
        for ends in self.poor:
            if ends in self.good and counted.isdisjoint(ends):
                counted.update(ends)
        chance_failures = len(counted) // 2
        tests = chance_failures + sum(self.good.values())
        measured = (1 + chance_failures) / (1 + tests) if chance_failures > WITNESSES else 0.0
        return max(self._expected_noise, measured)


# ``fault``: unsteady (a node), link or cut. ``members``: (node,); both ends; (number of the group,).
Cause = namedtuple("Cause", ["fault", "members"])
# Another explanation of a suspect's failures. ``lead``: the suspect's lead over it, in nats. ``partners``: a
# passed test with one of these nodes would prove it.
Rival = namedtuple("Rival", ["lead", "partners"])


class PairModel:
    """The possible causes behind the answers to one question about these nodes.

    ``failure``: nats that a cause saves for each failure that it explains, and loses for each pass.
    ``groups``: nodes that passed together. ``group_of``: the number of a node's group.
    ``failed``: failed tests between proven nodes by link. ``between``: their links, by two groups.
    ``explains``: the links that a cause may explain.
    """

    def __init__(self, answers: Answers, nodes: Sequence[int], thresholds: Thresholds) -> None:
        self.answers, self.nodes = answers, nodes
        self.prices, self.sure, self.noise = Prices(len(nodes)), sure(thresholds), answers.noise()
        self.failure = math.log((1 - self.noise) / self.noise)
        self.groups = answers.groups(nodes)
        self.group_of = {node: number for number, group in enumerate(self.groups) for node in group}
        self.failed = {
            ends: times
            for ends, times in answers.poor.items()
            if ends[0] in self.group_of and ends[1] in self.group_of
        }
        self.explains: dict[Cause, list[Link]] = defaultdict(list)
        self.between: dict[Link, list[Link]] = defaultdict(list)
        for ends in self.failed:
            self.between[link(self.group_of[ends[0]], self.group_of[ends[1]])].append(ends)
            for cause in self.causes_of(ends):
                self.explains[cause].append(ends)

    def causes_of(self, ends: Link) -> Iterator[Cause]:
        """Yield every cause that explains a failed test of this link."""
        is_inside = self.group_of[ends[0]] == self.group_of[ends[1]]
        if not is_inside or len(self.groups[self.group_of[ends[0]]]) > 2:
            # A group of two nodes exists only because their link passed, so that link is not bad.
            yield Cause("link", ends)
        for node in ends:
            yield Cause("unsteady", (node,))
        if not is_inside:
            for node in ends:
                if self.group_of[node]:  # the largest group is the one from which others are cut off
                    yield Cause("cut", (self.group_of[node],))

    def saving(self, cause: Cause, explained: Counter[Link]) -> float:
        """Return the nats that a cause saves if the links in ``explained`` have another cause.

        It is the log likelihood ratio of its failures and passes, less its price.
        """
        links = [ends for ends in self.explains[cause] if not explained[ends]]
        failures = sum(self.failed[ends] for ends in links)
        if cause.fault == "cut":  # nothing passed through a cut, or it would be no border of a group
            return failures * self.failure - self.borders(links) - self.prices.node
        if cause.fault == "link":
            return (failures - self.answers.good[cause.members]) * self.failure - self.prices.link
        passes = self.answers.passes[cause.members[0]]
        of_failure = math.log(UNSTEADY_RATE / self.noise)
        of_pass = math.log((1 - self.noise) / (1 - UNSTEADY_RATE))
        if_faulty = (failures - passes) * self.failure
        return max(if_faulty, failures * of_failure - passes * of_pass) - self.prices.link

    def borders(self, links: Iterable[Link]) -> float:
        """Return the nats that these failures are worth less because they drew the border of a group.

        A planned test that failed is why a group ends there. The border may lie at any node, so such a test
        counts ``log(nodes)`` nats less, and not less than nothing.
        """
        planned = sum(self.answers.planned[ends] for ends in links)
        return planned * min(self.failure, self.prices.node)

    def rivals(self, node: int, doubted: set[int], pairs: int, unsteady: Collection[int]) -> Iterator[Rival]:
        """Yield the other explanations of a node that never passed, with its lead over each.

        ``doubted``: all suspects. ``pairs``: how many pairs of suspects failed a test with each other.
        ``unsteady``: nodes that are blamed as unsteady.

        *It belongs to a known group.* Then each failure with a member of the group is chance or a bad link,
        whichever is cheaper. A cut explains its failures with other groups. A node belongs to a group with a
        chance in proportion to the size of the group. If it is faulty instead, that costs its price.

        *It belongs to a hidden group* of suspects that no test has shown, at a price of `RARE_HIDDEN`. Each
        of the ``n`` other suspects is in that group with a chance of one half, and at least one is. A suspect
        that failed ``t`` tests with this one failed by chance (``e ** t``) if it is in the group, and surely
        if not. So the likelihood of these failures is
        ``(product of (1 + e ** t) / 2 - 2 ** -n) / (1 - 2 ** -n)``, and 1 if the node is faulty. Two other
        suspects that failed with each other are both in the group with a chance of ``1 / 2 ** 2``: each such
        pair has the likelihood ``1 - (1 - e) / 2 ** 2``.
        """
        answers, prices = self.answers, self.prices
        if not self.groups:  # nothing passed, so nothing tells which end is to blame
            yield Rival(-math.inf, self.nodes)
        failures_by_group: defaultdict[int, float] = defaultdict(float)  # nats
        likelihood, pairs_with_it = 1.0, 0
        for other in answers.failed_with[node]:
            times = answers.poor[link(node, other)]
            if other in doubted:
                likelihood *= (1 + self.noise**times) / 2
                pairs_with_it += 1
            elif other in self.group_of and other not in unsteady:
                failures_by_group[self.group_of[other]] += min(times * self.failure, prices.link)
        for number, group in enumerate(self.groups):
            if not set(group) <= set(unsteady):
                membership = math.log(len(self.group_of) / len(group))
                yield Rival(failures_by_group[number] + membership - prices.node, group)
        others = len(doubted) - 1
        if others:
            none = 2.0**-others
            likelihood = max((likelihood - none) / (1 - none), sys.float_info.min)
            elsewhere = -(pairs - pairs_with_it) * math.log(1 - (1 - self.noise) / 2**2)
            yield Rival(RARE_HIDDEN - math.log(likelihood) + elsewhere, sorted(doubted))


@frozen
class PairExplanation:
    """The causes that explain the answers to one question."""

    model: PairModel
    chosen: tuple[Cause, ...]  # the causes of the cheapest explanation
    probable: frozenset[Cause]  # causes of ``chosen`` that lead over chance
    blamed: tuple[Cause, ...]  # causes of ``probable`` that also lead over every other cause
    unsteady: tuple[int, ...]  # nodes that are blamed as unsteady
    faulty: tuple[int, ...]  # suspects that are blamed
    undetermined: tuple[int, ...]  # the other suspects
    rivals: dict[int, list[Rival]]  # the other explanations of each suspect, the strongest first

    @property
    def explained(self) -> Counter[Link]:
        """Count for each failed link the blamed causes that explain it."""
        return Counter(ends for cause in self.blamed for ends in self.model.explains[cause])

    def are_apart(self, a: int, b: int, causes: Collection[Cause]) -> bool:
        """Return whether one of these causes separates two groups.

        If the groups were one behind the same cut, chance or bad links would explain each failure between
        them. This must be as improbable as for a cause. Any of ``G`` groups may look apart from another one.
        """
        if Cause("cut", (a,)) not in causes and Cause("cut", (b,)) not in causes:
            return False
        links = self.model.between.get((a, b), ())
        nats = sum(
            min(self.model.failed[ends] * self.model.failure, self.model.prices.link) for ends in links
        )
        return nats - self.model.borders(links) >= self.model.sure + math.log(len(self.model.groups) / 2)

    def parts(self) -> list[tuple[int, ...]]:
        """Return the parts of the network: the groups, joined unless a blamed cut separates them."""
        joined, numbers, blamed = Components(), range(len(self.model.groups)), set(self.blamed)
        joined.join([ends for ends in combinations(numbers, 2) if not self.are_apart(*ends, blamed)])
        parts = []
        for together in joined.of(numbers):
            nodes = [
                node for number in together for node in self.model.groups[number] if node not in self.unsteady
            ]
            if nodes:
                parts.append(tuple(sorted(nodes)))
        return sorted(parts, key=lambda part: (-len(part), part))

    def bad_links(self) -> list[Link]:
        """Return the links that are blamed."""
        return [cause.members for cause in self.blamed if cause.fault == "link"]

    def undetermined_links(self) -> list[Link]:
        """Return the links between proven nodes that never passed and that no blamed cause explains."""
        good, explained = self.model.answers.good, self.explained
        return [ends for ends in self.model.failed if not explained[ends] and ends not in good]

    def maybe_unsteady(self) -> list[int]:
        """Return proven nodes that failed more than once, and whose unsteadiness costs less than chance."""
        nodes, explained = [], self.explained
        for cause, links in self.model.explains.items():
            is_open = cause.fault == "unsteady" and cause not in self.blamed
            failed_often = sum(self.model.failed[ends] for ends in links) > 1
            if is_open and failed_often and self.model.saving(cause, explained) > 0:
                nodes.append(cause.members[0])
        return nodes


def explain_pairs(answers: Answers, nodes: Sequence[int], thresholds: Thresholds) -> PairExplanation:
    """Explain failures between proven nodes, then suspects. No proven cause depends on a suspect."""
    model = PairModel(answers, nodes, thresholds)
    # A greedy cover of failures between proven nodes by links, unsteady nodes and cuts.
    cover = Cover(model.explains, model.saving)
    probable, blamed = set(), []
    for cause in cover.chosen:
        over_chance, over_rivals = cover.leads(cause)
        if over_chance < model.sure:
            continue
        probable.add(cause)
        if cause.fault == "cut":
            # All nodes of the group may be faulty instead. Then the tests in it passed by luck.
            group = model.groups[cause.members[0]]
            chance_passes = sum(answers.passes[node] for node in group) / 2
            all_faulty = len(group) * model.prices.link + chance_passes * model.failure
            over_rivals = min(over_rivals, all_faulty - model.prices.node)
        if over_rivals >= model.prices.rival:
            blamed.append(cause)
    unsteady = tuple(cause.members[0] for cause in blamed if cause.fault == "unsteady")
    # Divide suspects into faulty and undetermined. A faulty node belongs to no hidden group any more.
    rivals_of: dict[int, list[Rival]] = {}
    faulty: list[int] = []
    undetermined = [node for node in nodes if node in answers.failed_with and node not in model.group_of]
    newly_faulty = None
    while newly_faulty is None or newly_faulty:
        doubted = set(undetermined)
        pairs = sum(len(answers.failed_with[node] & doubted) for node in doubted) // 2
        for node in undetermined:
            rivals = sorted(model.rivals(node, doubted, pairs, unsteady), key=lambda rival: rival.lead)
            # A lead does not fall when fewer suspects remain.
            if node not in rivals_of or rivals[0].lead >= rivals_of[node][0].lead:
                rivals_of[node] = rivals
        newly_faulty = [node for node in undetermined if rivals_of[node][0].lead >= model.sure]
        faulty += newly_faulty
        undetermined = [node for node in undetermined if node not in newly_faulty]
    return PairExplanation(
        model=model,
        chosen=tuple(cover.chosen),
        probable=frozenset(probable),
        blamed=tuple(blamed),
        unsteady=unsteady,
        faulty=tuple(faulty),
        undetermined=tuple(undetermined),
        rivals=rivals_of,
    )
