"""Find nodes that make only larger groups fail: one threshold per node.

**Observations.** For each group of nodes, how many of its tests passed and failed. All pairs passed before.

**Model.** A node makes groups of ``k`` nodes and more fail. Its threshold ``k`` is unknown, and mostly larger
than the set. ``P(k) ~ 1 / k ** 2``, so the chance of a threshold above ``w`` and up to ``s`` is in proportion
to ``1 / w - 1 / s``. A group of ``w`` nodes that passed shows that the thresholds of its members are larger.
So the *suspects* of a group that failed are its members that never passed in a group of this size.

**Likelihood.** A failure without a guilty member has the chance ``noise``: it costs ``log(1 / noise)`` nats.
`cover.py` explains the currency.

**Next test.** The one that fails with a chance nearest to one half, since it tells most.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.cover import sure
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import FEW_NODES, MOST_ROUNDS, SMALLEST_GROUP, WITNESSES, Thresholds

Group = frozenset[int]


@frozen
class GroupsResult:
    bad: tuple[int, ...]  # fail in groups of `size` and more, and all others pass together
    apart: tuple[int, ...]  # the same, but all from one size on: perhaps what connects them is at fault
    least: tuple[int, ...]  # the smallest group that failed
    size: int
    passed: int  # size of the largest group that passed
    common: tuple[int, ...]  # members of all groups that failed
    rounds: int


class GroupExplanation:
    """The nodes that explain which groups failed.

    ``failed``, ``passed``: tests by group. ``largest_pass``: the largest group that passed with a node.
    ``guilty``: nodes that fail whoever is with them. ``rest``: the other nodes.
    ``failing``: groups of other nodes that failed and never passed.
    """

    def __init__(
        self, nodes: Group, failed: Counter[Group], passed: Counter[Group], thresholds: Thresholds
    ) -> None:
        self.nodes, self.failed, self.passed = nodes, failed, passed
        self.nats_of_failure, self.sure = math.log(1 / thresholds.noise), sure(thresholds)
        self.largest_pass = dict.fromkeys(nodes, SMALLEST_GROUP)
        for group in passed:
            for node in group:
                self.largest_pass[node] = max(self.largest_pass[node], len(group))
        self.guilty: set[int] = set()
        self.rest = nodes  # without the guilty nodes
        self.failing = [group for group in failed if group not in passed]
        while (guilty := self._newly_guilty()) is not None:
            self.guilty.add(guilty)
            self.rest = nodes - self.guilty
            self.failing = [group for group in self.failing if guilty not in group]

    def suspects(self, group: Group) -> list[int]:
        """Return the members that never passed in a group of this size, the weakest first."""
        suspects = [node for node in group if self.largest_pass[node] < len(group)]
        return sorted(suspects, key=lambda node: (self.largest_pass[node], node))

    def exceeds_chance(self, failures: int) -> bool:
        """Return whether chance is too unlikely a cause of ``failures`` for any of the nodes."""
        return self.nats_of_failure * failures >= self.sure + math.log(max(SMALLEST_GROUP, len(self.nodes)))

    def culprit(self, groups: Sequence[Group]) -> int | None:
        """Return the only node that explains these failures, if they are too many for chance; else None.

        Any other node leaves the failures of groups without it to chance.
        """
        failures = sum(self.failed[group] for group in groups)
        if not self.exceeds_chance(failures):
            return None
        explained = Counter(node for group in groups for node in group for _ in range(self.failed[group]))
        (node, count), (_, next_count) = [*explained.most_common(2), (-1, 0)][:2]
        is_sole = self.nats_of_failure * (failures - next_count) >= self.sure
        return node if count == failures and is_sole else None

    def _newly_guilty(self) -> int | None:
        """Return a node that fails whoever is with it: all others pass, or it is the only suspect."""
        culprit = self.culprit(self.failing)
        if culprit is not None and self.rest - {culprit} in self.passed:
            return culprit
        alone: defaultdict[int, list[Group]] = defaultdict(list)
        for group in self.failing:
            suspects = self.suspects(group)
            if len(suspects) == 1:
                alone[suspects[0]].append(group)
        return next((node for node, groups in sorted(alone.items()) if self.culprit(groups) == node), None)

    def chance(self, node: int, size: int) -> float:
        """Return the prior chance that a node fails in groups of this size, but in none that passed."""
        return max(0.0, 1 / self.largest_pass[node] - 1 / size)

    def threshold(self, node: int) -> int:
        """Return the smallest size up to which a guilty node failed twice as the only suspect."""
        others = self.guilty - {node}
        sizes = []
        for group, times in self.failed.items():
            is_clear = node in group and group.isdisjoint(others) and group not in self.passed
            if is_clear and all(self.largest_pass[other] >= len(group) for other in group - {node}):
                sizes += [len(group)] * times
        return sorted(sizes)[1] if len(sizes) > 1 else len(self.nodes)

    def thresholds_differ(self) -> bool:
        """Return whether guilty nodes fail from different sizes on. One bad switch gives equal thresholds."""
        mixed = (len(group) for group in self.passed if group & self.guilty and group - self.guilty)
        largest = max(mixed, default=0)
        return any(self.threshold(node) <= largest for node in self.guilty)

    def explaining_pairs(self) -> list[Group]:
        """Return the pairs of nodes that have a member in every group that failed, if no node alone has."""
        pairs: set[Group] = set()
        for node in min(self.failing, key=len):
            without = [group for group in self.failing if node not in group]
            pairs.update(frozenset((node, other)) for other in frozenset.intersection(*without))
        return sorted(pairs, key=sorted)


class GroupSearch:
    """Asks for rounds of disjoint groups. Use it if all nodes failed together and no pair does."""

    def __init__(self, nodes: Sequence[int], thresholds: Thresholds) -> None:
        self._order, self._thresholds = tuple(nodes), thresholds
        # The log: tests by group.
        self._failed: Counter[Group] = Counter({frozenset(nodes): 1})
        self._passed: Counter[Group] = Counter()
        self._explanation = self._explain_groups()
        self._pending: tuple[tuple[int, ...], ...] | None = None
        self._rounds = self._fruitless_rounds = 0

    def _explain_groups(self) -> GroupExplanation:
        return GroupExplanation(frozenset(self._order), self._failed, self._passed, self._thresholds)

    def add_outcomes(self, outcomes: Iterable[GroupTest]) -> None:
        """Append the outcomes of the round. A missing one is inconclusive, others are ignored."""
        pending, self._pending = self._pending or (), None
        self._rounds += bool(pending)
        before = self._explanation
        for outcome in outcomes:
            if outcome.nodes in pending and outcome.passed is not None:
                (self._passed if outcome.is_good else self._failed)[frozenset(outcome.nodes)] += 1
        after = self._explanation = self._explain_groups()
        has_news = (after.largest_pass, after.guilty) != (before.largest_pass, before.guilty)
        self._fruitless_rounds = 0 if has_news else self._fruitless_rounds + 1

    def result(self) -> GroupsResult:
        """Return the current result. Nodes are blamed only if all others pass together."""
        explanation = self._explanation
        named = explanation.guilty if explanation.rest in self._passed else set()
        is_own = len(named) == 1 or explanation.thresholds_differ()
        failing = [group for group in self._failed if group not in self._passed]
        least = self._in_order(min(failing, key=len, default=()))
        return GroupsResult(
            bad=self._in_order(named if is_own else ()),
            apart=self._in_order(() if is_own else named),
            least=least,
            size=max(map(explanation.threshold, named), default=len(least)),
            passed=max(map(len, self._passed), default=0),
            common=self._in_order(frozenset.intersection(*failing) if failing else ()),
            rounds=self._rounds,
        )

    def _in_order(self, nodes: Collection[int]) -> tuple[int, ...]:
        return tuple(node for node in self._order if node in nodes)

    # --- the next round ---

    def next_round(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups to test at once, disjoint; () if the search has ended. Repeated calls agree."""
        if self._pending is None:
            is_over = self._fruitless_rounds > MOST_ROUNDS
            self._pending = () if is_over else tuple(map(self._in_order, self._choose()))
        return self._pending

    def _choose(self) -> list[Group]:
        """Return the disjoint groups of the next round; [] if the search is over.

        The remaining nodes are tested together if no failed group is left. The group without the likeliest
        culprit, or without a pair that explains all failures, is tested if that decides. Else each failed
        group gets the test that fails with a chance nearest to one half.
        """
        explanation, failed = self._explanation, self._failed
        rest, failing = explanation.rest, explanation.failing
        if len(rest) <= SMALLEST_GROUP:
            return []
        if not failing:
            return list(self._compare_guilty()) if rest in self._passed else [rest]
        if any(
            explanation.exceeds_chance(failed[group]) and not explanation.suspects(group) for group in failing
        ):
            return []  # each member passed in a group of this size: they fail only together
        culprit = explanation.culprit(failing)
        if culprit is not None and not explanation.exceeds_chance(failed[rest - {culprit}] + 1):
            return [rest - {culprit}]  # if the others pass together, it is guilty
        # At least two nodes are at fault if none is in all groups that failed.
        if self._fruitless_rounds > WITNESSES and not frozenset.intersection(*failing):
            pairs = explanation.explaining_pairs()
            if not pairs:
                return []  # no two nodes explain all failures: the set is at fault
            without = self._without_two(pairs)
            if without:
                return [without]
        groups: list[Group] = []
        free = set(rest)
        for group in sorted(failing, key=lambda group: (len(explanation.suspects(group)), len(group))):
            if not groups or group <= free:
                test = self._best_test(group, free)
                if test:
                    groups.append(test)
                    free -= test | set(explanation.suspects(group))
        idle = [node for node in min(failing, key=len) if node not in frozenset().union(*groups)]
        weakest = min((explanation.largest_pass[node] for node in idle), default=0)
        if len(idle) > max(SMALLEST_GROUP, weakest) and len(groups) == 1:
            groups.append(frozenset(idle))
        return groups

    def _uses(self) -> Counter[int]:
        """Count for each node the tests of groups with it that the search asked for."""
        uses = Counter(dict.fromkeys(self._order, -1))  # the first failure was before the search
        for tests in (self._failed, self._passed):
            for group, times in tests.items():
                for node in group:
                    uses[node] += times
        return uses

    def _best_test(self, group: Group, free: Collection[int]) -> Group | None:
        """Return the new test that fails with a chance nearest to one half; a repeat if there is none."""
        suspects = self._explanation.suspects(group)
        weakest = min(self._explanation.largest_pass[node] for node in group)
        is_maybe_chance = self._failed[group] == 1 and weakest > SMALLEST_GROUP and 2 * weakest >= len(group)
        if is_maybe_chance or not any(node in free for node in suspects):
            return group if group <= set(free) else None
        if len(suspects) == 1:
            # The only suspect meets others that work in such groups, new ones first. The group is as large as
            # the number of these others allows a choice, and at least one above the largest that passed with
            # the suspect.
            (node,) = suspects
            largest_pass, uses = self._explanation.largest_pass, self._uses()
            for size in range(len(group), largest_pass[node], -1):
                able = [other for other in free if largest_pass[other] >= size and other != node]
                if len(able) >= 2 * (size - 1) or (size == largest_pass[node] + 1 and len(able) >= size - 1):
                    together: Counter[int] = Counter()
                    for failed_group, times in self._failed.items():
                        if node in failed_group:
                            together.update(dict.fromkeys(failed_group, times))
                    able.sort(key=lambda other: (together[other], uses[other], other))
                    return frozenset([node, *able[: size - 1]])
            return None
        for test in self._tests_by_balance(group, free):
            if test not in self._passed and test not in self._failed:
                return test
        repeats = [
            other for other in self._explanation.failing if len(other) <= len(group) and other <= set(free)
        ]
        return min(repeats, key=lambda other: (self._failed[other], -len(other)), default=None)

    def _tests_by_balance(self, group: Group, free: Collection[int]) -> Iterator[Group]:
        """Yield tests of free nodes: first those that fail with a chance nearest to one half.

        A test of ``size`` nodes fails with the sum of the shares of its members whose threshold is at most
        ``size``. It holds ``count`` of the likeliest nodes, and the unlikeliest of the others.
        """
        explanation, uses = self._explanation, self._uses()
        # A node is guilty with the likelihood ``P(threshold) * noise ** misses``, where it misses the
        # failures of groups without it.
        one_explains = bool(frozenset.intersection(*explanation.failing))
        likelihood = {}
        for node in free:
            if explanation.largest_pass[node] >= len(group):
                likelihood[node] = 0.0
            elif one_explains or node in group:
                misses = sum(self._failed[other] for other in explanation.failing if node not in other)
                by_chance = math.exp(-explanation.nats_of_failure * misses)
                likelihood[node] = explanation.chance(node, len(group)) * by_chance
        likeliest = sorted(likelihood, key=lambda node: (-likelihood[node], node))
        total = sum(likelihood.values())
        tests = []
        for size in _sizes(len(group)):
            at_size = {}
            for node, value in likelihood.items():
                if value:
                    value *= explanation.chance(node, size) / explanation.chance(node, len(group))
                at_size[node] = value
            able = (n for n in free if n not in likelihood and explanation.largest_pass[n] >= size)
            pool = sorted([*likelihood, *able], key=lambda node: (at_size.get(node, 0.0), uses[node], node))
            sums_of_likeliest = [0.0, *accumulate(at_size[node] for node in likeliest)]
            sums_of_pool = [0.0, *accumulate(at_size.get(node, 0.0) for node in pool)]
            for count in range(1, min(size, len(likeliest)) + 1) if len(pool) >= size else ():
                chance = (sums_of_likeliest[count] + sums_of_pool[size - count]) / total
                imbalance = abs(2 * chance - 1)
                if imbalance < 1:
                    tests.append((round(imbalance, 9), -size, count, pool))
        for _, negative_size, count, pool in sorted(tests, key=lambda test: test[:3]):
            chosen = frozenset(likeliest[:count])
            others = [node for node in pool if node not in chosen]
            yield chosen.union(others[: -negative_size - count])

    def _without_two(self, pairs: Sequence[Group]) -> Group | None:
        """Return the new test that leaves out the most of these pairs."""
        rest = self._explanation.rest
        spare = len(rest) - min(map(len, self._explanation.failing))
        if spare < 2:
            return None
        out = set(pairs[0])
        while len(out) < spare:
            degree = Counter(node for ends in pairs if ends & out for node in ends - out)
            out.add(min(rest - out, key=lambda node: (-degree[node], node)))
        test = rest - out
        is_new = test not in self._failed and test not in self._passed
        return test if len(test) > SMALLEST_GROUP and is_new else None

    def _compare_guilty(self) -> Iterator[Group]:
        """Yield smaller groups with one guilty node each, until their thresholds differ."""
        explanation, largest_pass, uses = self._explanation, self._explanation.largest_pass, self._uses()
        if len(explanation.guilty) < 2 or explanation.thresholds_differ():
            return
        free = set(explanation.rest)
        for node in sorted(explanation.guilty):
            low, high = largest_pass[node], explanation.threshold(node)
            if high > low + 1:
                size = (low + high) // 2
                able = [other for other in free if largest_pass[other] >= size]
                able.sort(key=lambda other: (uses[other], other))
                if len(able) >= size - 1:
                    yield frozenset([node, *able[: size - 1]])
                    free -= set(able[: size - 1])


def _sizes(largest: int) -> list[int]:
    """Return the sizes that a test may have, the largest first: every one up to twice `FEW_NODES`."""
    sizes = []
    size = largest
    while size > SMALLEST_GROUP:
        sizes.append(size)
        size -= max(1, size // FEW_NODES)
    return sizes
