"""Find nodes that make only larger groups fail: one threshold per node.

Every node fails in groups of ``k`` nodes and more. ``k`` is unknown: its chance falls with ``1 / k ** 2``.
Mostly it is larger than the set. A group that passed shows that the thresholds of its members are larger. The
suspects of a group that failed are its members that never passed in a group of this size.

The next test of a group is the one that fails with a chance nearest to one half, if one of its suspects is
guilty. `cover.py` explains the currency.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, combinations

from clusterrun.model.frozen import frozen
from clusterrun.preflight.observations import GroupTest

Group = frozenset[int]

# All pairs of nodes were tested before this search begins.
PAIR = 2
# The search ends after this many rounds without news: larger groups never pass, or nodes fail together.
MOST_BARREN = 12
# In a set of at most this size, every pair of nodes that may explain all failures is weighed.
FEW_NODES = 64
# After this many rounds without news, at least two nodes are at fault.
NEWS_EXPECTED = 2
# The same failure three times is no chance.
REPEATS = 3


def _sizes(largest: int) -> list[int]:
    """Return the sizes that a test may have, the largest first; above 64 nodes in steps of an eighth."""
    sizes = []
    size = largest
    while size > PAIR:
        sizes.append(size)
        size -= max(1, size // 8 if largest > FEW_NODES else 1)
    return sizes


@frozen
class GroupsResult:
    bad: tuple[int, ...]  # fail in groups of `size` and more, and all others pass together
    apart: tuple[int, ...]  # the same, but all from one size on: perhaps what connects them is at fault
    least: tuple[int, ...]  # the smallest group that failed
    size: int
    passed: int  # size of the largest group that passed
    common: tuple[int, ...]  # members of all groups that failed
    rounds: int


def most_rounds(count: int) -> int:
    """Return the limit of the rounds for a set of this size."""
    return 5 * math.ceil(math.log2(max(count, 2))) + 12 + (24 if count <= 24 else 0)


class GroupSearch:
    """Asks for rounds of disjoint groups. Begin it after all ``nodes`` failed together though no pair does.

    ``failed``, ``passed``: the log, by group. ``works``: the largest group that passed with a node.
    ``guilty``: nodes that fail whoever is with them.
    """

    def __init__(self, nodes: Sequence[int], noise: float = 0.02, false_blame: float = 0.001) -> None:
        self._order = tuple(nodes)
        self._nodes = frozenset(nodes)
        self._failure = math.log(1 / noise)
        self._sure = math.log(1 / false_blame)
        self.failed: Counter[Group] = Counter({self._nodes: 1})
        self.passed: Counter[Group] = Counter()
        self.works = dict.fromkeys(nodes, PAIR)
        self.guilty: dict[int, None] = {}
        self._uses: Counter[int] = Counter()
        self._barren = 0
        self._pending: tuple[tuple[int, ...], ...] | None = None
        self._rounds = 0

    # --- observations ---

    def take(self, outcomes: Iterable[GroupTest]) -> None:
        """Append the outcomes of the round. A missing one is inconclusive, others are ignored."""
        pending, self._pending = self._pending or (), None
        self._rounds += bool(pending)
        before = self._progress()
        for outcome in outcomes:
            if outcome.nodes not in pending or outcome.passed is None:
                continue
            group = frozenset(outcome.nodes)
            self._uses.update(group)
            if outcome.is_good:
                self.passed[group] += 1
                for node in group:
                    self.works[node] = max(self.works[node], len(group))
            else:
                self.failed[group] += 1
        while (guilty := self._newly_guilty()) is not None:
            self.guilty[guilty] = None
        self._barren = self._barren + 1 if self._progress() == before else 0

    def _progress(self) -> tuple[int, int]:
        """Return numbers that grow as long as tests bring news."""
        return sum(self.works.values()), len(self.guilty)

    # --- what is known ---

    def _rest(self) -> Group:
        return self._nodes - frozenset(self.guilty)

    def _failing(self) -> list[Group]:
        """Return the groups without guilty nodes that failed and never passed."""
        return [group for group in self.failed if group not in self.passed and group.isdisjoint(self.guilty)]

    def _suspects(self, group: Group) -> list[int]:
        """Return the members that never passed in a group of this size, the weakest first."""
        suspects = [node for node in group if self.works[node] < len(group)]
        return sorted(suspects, key=lambda node: (self.works[node], node))

    def _culprit(self, groups: Sequence[Group]) -> int | None:
        """Return the only node that explains these failures, if they are too many for chance; else None."""
        times = sum(self.failed[group] for group in groups)
        if self._failure * times < self._sure + math.log(len(self._nodes)):
            return None
        shared = Counter(node for group in groups for node in group for _ in range(self.failed[group]))
        (node, count), (_, next_count) = [*shared.most_common(2), (-1, 0)][:2]
        is_sole = count == times and self._failure * (times - next_count) >= self._sure
        return node if is_sole else None

    def _newly_guilty(self) -> int | None:
        """Return a node that fails whoever is with it: all others pass, or it is the only suspect."""
        failing, rest = self._failing(), self._rest()
        culprit = self._culprit(failing)
        if culprit is not None and rest - {culprit} in self.passed:
            return culprit
        alone: dict[int, list[Group]] = {}
        for group in failing:
            suspects = self._suspects(group)
            if len(suspects) == 1:
                alone.setdefault(suspects[0], []).append(group)
        return next((node for node, groups in sorted(alone.items()) if self._culprit(groups) == node), None)

    def _chance(self, node: int, size: int) -> float:
        """Return the prior chance that a node fails in groups of this size, but in none that passed."""
        return max(0.0, 1 / self.works[node] - 1 / size)

    def _threshold(self, node: int) -> int:
        """Return the smallest size in which a guilty node failed twice as the only suspect."""
        others = self.guilty.keys() - {node}
        sizes = []
        for group, times in self.failed.items():
            is_clear = node in group and group.isdisjoint(others) and group not in self.passed
            if is_clear and all(self.works[other] >= len(group) for other in group - {node}):
                sizes += [len(group)] * times
        return sorted(sizes)[1] if len(sizes) > 1 else len(self._nodes)

    def _differ(self) -> bool:
        """Return whether guilty nodes fail from different sizes on. One bad switch gives equal thresholds."""
        guilty = self.guilty.keys()
        largest = max((len(group) for group in self.passed if group & guilty and group - guilty), default=0)
        return any(self._threshold(node) <= largest for node in guilty)

    def _in_order(self, nodes: Collection[int]) -> tuple[int, ...]:
        return tuple(node for node in self._order if node in nodes)

    def result(self) -> GroupsResult:
        """Return the current result. Nodes are blamed only if all others pass together."""
        named = tuple(self.guilty) if self._rest() in self.passed else ()
        is_own = len(named) == 1 or self._differ()
        failing = [group for group in self.failed if group not in self.passed]
        least = self._in_order(min(failing, key=len, default=()))
        return GroupsResult(
            bad=self._in_order(named if is_own else ()),
            apart=self._in_order(() if is_own else named),
            least=least,
            size=max(map(self._threshold, named), default=len(least)),
            passed=max(map(len, self.passed), default=0),
            common=self._in_order(frozenset.intersection(*failing) if failing else ()),
            rounds=self._rounds,
        )

    # --- the next round ---

    def next_round(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups to test at once, disjoint; () if the search has ended. Repeated calls agree."""
        if self._pending is None:
            is_over = self._rounds >= most_rounds(len(self._nodes)) or self._barren > MOST_BARREN
            groups = [] if is_over else self._choose()
            self._pending = tuple(self._in_order(group) for group in groups)
        return self._pending

    def _choose(self) -> list[Group]:
        rest, failing = self._rest(), self._failing()
        if len(rest) <= PAIR:
            return []
        if not failing:
            return [rest] if rest not in self.passed else list(self._compare_guilty(rest))
        if any(self.failed[group] >= REPEATS and not self._suspects(group) for group in failing):
            return []  # each member passed in a group of this size: several of them do it together
        culprit = self._culprit(failing)
        if culprit is not None and self.failed[rest - {culprit}] < REPEATS - 1:
            return [rest - {culprit}]  # if the others pass together, it is guilty
        is_sole = bool(frozenset.intersection(*failing))
        if self._barren > NEWS_EXPECTED and not is_sole and len(rest) <= FEW_NODES:
            pairs = self._explaining_pairs(rest, failing)
            if not pairs:
                return []  # no two nodes explain all failures: the set is at fault
            without = self._without_two(rest, failing, pairs)
            if without:
                return [without]
        groups: list[Group] = []
        free = set(rest)
        for group in sorted(failing, key=lambda group: (len(self._suspects(group)), len(group))):
            if not groups or group <= free:
                test = self._best_test(group, free)
                if test:
                    groups.append(test)
                    free -= test | set(self._suspects(group))
        idle = [node for node in min(failing, key=len) if node not in frozenset().union(*groups)]
        if len(idle) > PAIR and len(groups) == 1 and len(idle) > min(self.works[node] for node in idle):
            groups.append(frozenset(idle))
        return groups

    def _best_test(self, group: Group, free: Collection[int]) -> Group | None:
        """Return the new test that fails with a chance nearest to one half; a repeat if there is none."""
        suspects = [node for node in self._suspects(group) if node in free]
        is_maybe_chance = self.failed[group] == 1 and min(self.works[node] for node in group) >= max(
            PAIR + 1, len(group) / 2
        )
        if not suspects or is_maybe_chance:
            return group if group <= set(free) else None
        if len(self._suspects(group)) == 1:
            return self._confirm(suspects[0], group, free)
        failing = self._failing()
        one_explains = bool(frozenset.intersection(*failing))
        likelihood = {}
        for node in free:
            if self.works[node] >= len(group):
                likelihood[node] = 0.0
            elif one_explains or node in group:
                misses = sum(self.failed[other] for other in failing if node not in other)
                likelihood[node] = self._chance(node, len(group)) * math.exp(-self._failure * misses)
        order = sorted(likelihood, key=lambda node: (-likelihood[node], node))
        total = sum(likelihood.values())
        candidates = []
        for size in _sizes(len(group)):
            at_size = {}
            for node, value in likelihood.items():
                share = self._chance(node, size) / self._chance(node, len(group)) if value else 0.0
                at_size[node] = value * share
            able = (node for node in free if node not in likelihood and self.works[node] >= size)
            pool = sorted(
                [*likelihood, *able], key=lambda node: (at_size.get(node, 0.0), self._uses[node], node)
            )
            likely = [0.0, *accumulate(at_size[node] for node in order)]
            unlikely = [0.0, *accumulate(at_size.get(node, 0.0) for node in pool)]
            if len(pool) >= size:
                for count in range(1, min(size, len(order)) + 1):
                    chance = (likely[count] + unlikely[size - count]) / total
                    candidates.append((round(abs(chance - 0.5), 9), -size, count, pool))
        for distance, negative_size, count, pool in sorted(candidates, key=lambda candidate: candidate[:3]):
            chosen = frozenset(order[:count])
            test = chosen.union([node for node in pool if node not in chosen][: -negative_size - count])
            if distance < 0.5 and test not in self.passed and test not in self.failed:
                return test
        repeats = [other for other in failing if len(other) <= len(group) and other <= set(free)]
        return min(repeats, key=lambda other: (self.failed[other], -len(other)), default=None)

    def _confirm(self, node: int, group: Group, free: Collection[int]) -> Group | None:
        """Return a group in which the only suspect meets others that work in such groups, new ones first."""
        for size in range(len(group), self.works[node], -1):
            able = [other for other in free if self.works[other] >= size and other != node]
            if len(able) >= 2 * (size - 1) or (size == self.works[node] + 1 and len(able) >= size - 1):
                together = Counter(
                    other
                    for group, times in self.failed.items()
                    if node in group
                    for other in group
                    for _ in range(times)
                )
                able.sort(key=lambda other: (together[other], self._uses[other], other))
                return frozenset([node, *able[: size - 1]])
        return None

    def _explaining_pairs(self, rest: Group, failing: Sequence[Group]) -> list[Group]:
        """Return the pairs of nodes that have a member in every failed group."""
        return [
            frozenset(ends)
            for ends in combinations(sorted(rest), 2)
            if all(not group.isdisjoint(ends) for group in failing)
        ]

    def _without_two(self, rest: Group, failing: Sequence[Group], pairs: Sequence[Group]) -> Group | None:
        """Return the test that leaves out the most of these pairs."""
        spare = len(rest) - min(map(len, failing))
        if spare < 2:
            return None
        out = set(pairs[0])
        while len(out) < spare:
            degree = Counter(node for ends in pairs if ends & out for node in ends - out)
            out.add(min(rest - out, key=lambda node: (-degree[node], node)))
        test = rest - out
        return test if len(test) > PAIR and test not in self.failed and test not in self.passed else None

    def _compare_guilty(self, rest: Group) -> Iterator[Group]:
        """Yield smaller groups with one guilty node each, until their thresholds differ."""
        if len(self.guilty) < 2 or self._differ():
            return
        free = set(rest)
        for node in self.guilty:
            low, high = self.works[node], self._threshold(node)
            if high > low + 1:
                size = (low + high) // 2
                able = sorted(
                    (other for other in free if self.works[other] >= size),
                    key=lambda other: (self._uses[other], other),
                )
                if len(able) >= size - 1:
                    yield frozenset([node, *able[: size - 1]])
                    free -= set(able[: size - 1])
