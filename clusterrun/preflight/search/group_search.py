"""Finds nodes with which only larger groups fail, by tests of groups; pure: no clock, no process, no names.

Of a group that passed every member works in groups of that size. So of a group that failed only those are
suspect that passed in none as large: half of them are tested again, filled up to the same size with nodes
that did pass. Where no group as large has passed yet, tests are chosen that are likely to change that.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.preflight.search.schedule import GroupTest

Group = frozenset[int]
Nodes = tuple[int, ...]
Groups = tuple[Nodes, ...]

SMALLEST = 3
"""Groups of two were tested before this search begins."""
CONFIRM = 3
"""So many failures with it as the only suspect make a node guilty."""
WITHOUT = 2
"""So many of them must have been without each other node: one may have failed by chance."""
BLIND = 4
"""Rounds of groups drawn anew where no single node explains what failed: two nodes may."""
PAIRS = 24
"""Rounds of groups chosen to leave out two nodes that explain all failures, and the most nodes for which
all such pairs are weighed: of more nodes groups that are drawn leave out any two soon enough."""
BALANCE = 0.5
"""The chance of failing that makes a test tell most."""


LEAST_COLLECTIVE = 2
"""A collective of one node says nothing of the network."""


@frozen
class GroupsSaid:
    """What is known. ``bad`` nodes fail in groups of ``size`` and more, whichever nodes are with them, and
    all others pass together.

    ``apart`` are such nodes too, two and more that each fail from the same size on: they may be guilty, or
    what connects them to the others. ``least`` is the smallest group that failed, ``passed`` the size of the
    largest that passed, ``common`` who was in all that failed.
    """

    bad: tuple[int, ...]
    apart: tuple[int, ...]
    least: tuple[int, ...]
    size: int
    passed: int
    common: tuple[int, ...]
    rounds: int


class GroupSearch:
    """Asks for rounds of disjoint groups; bounded in rounds, whatever it is told.

    Begin it after all of ``nodes`` failed together, though no two of them do.
    """

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = tuple(nodes)
        self._failed: Counter[Group] = Counter({frozenset(nodes): 1})
        self._passed: dict[Group, None] = {}
        self._works = dict.fromkeys(nodes, SMALLEST - 1)
        """By node, the size of the largest group that passed with it."""
        self._guilty: dict[int, None] = {}
        self._uses: Counter[int] = Counter()
        self._blind = 0
        self._asked: Groups | None = None
        self._rounds = 0
        self._most = most_rounds(len(self._nodes))

    def next_round(self) -> Groups:
        """The groups to be tested at once, disjoint; () when it is finished."""
        if self._asked is None:
            groups = self._make_up() if self._rounds < self._most else ()
            self._asked = tuple(map(self._in_order, groups))
        return self._asked

    def take(self, outcomes: Iterable[GroupTest]) -> None:
        """What became of the groups asked for last; one that is missing told nothing."""
        asked, self._asked = self._asked or (), None
        self._rounds += bool(asked)
        for one in outcomes:
            if one.nodes not in asked or one.passed is None:
                continue
            group = frozenset(one.nodes)
            self._uses.update(group)
            if one.passed and not one.wrong:
                self._passed[group] = None
                for node in group:
                    self._works[node] = max(self._works[node], len(group))
            else:
                self._failed[group] += 1
        while guilty := self._newly_guilty():
            self._guilty.update(dict.fromkeys(guilty))

    def result(self) -> GroupsSaid:
        """What is known now; ask any time."""
        named = self._guilty.keys() if self._rest() in self._passed else ()
        own = len(named) == 1 or self._differ()
        failing = self._failing(frozenset(self._nodes))
        least = self._in_order(min(failing, key=len, default=()))
        common = self._in_order(frozenset.intersection(*failing) if failing else ())
        bad, apart = self._in_order(named if own else ()), self._in_order(() if own else named)
        size = max(map(self._fails_from, named), default=len(least))
        passed = max(map(len, self._passed), default=0)
        return GroupsSaid(bad, apart, least, size, passed, common, self._rounds)

    def _in_order(self, nodes: Collection[int]) -> tuple[int, ...]:
        return tuple(node for node in self._nodes if node in nodes)

    # --- what is known ---

    def _rest(self) -> Group:
        return frozenset(node for node in self._nodes if node not in self._guilty)

    def _failing(self, among: Group) -> list[Group]:
        """What failed and never passed, of these nodes alone."""
        return [group for group in self._failed if group <= among and group not in self._passed]

    def _suspects(self, group: Group) -> list[int]:
        """Those in a group that failed who passed in none as large."""
        return sorted((one for one in group if self._works[one] < len(group)), key=self._works.__getitem__)

    def _fails_from(self, node: int) -> int:
        """The size of groups in which a guilty node was seen to fail, twice at least."""
        alone = self._sole(self._failing(frozenset(self._nodes)))
        sizes = sorted(len(group) for group in alone.get(node, ()) for _ in range(self._failed[group]))
        return sizes[WITHOUT - 1] if len(sizes) >= WITHOUT else len(self._nodes)

    def _differ(self) -> bool:
        """Whether guilty nodes fail from different sizes on: what connects them to others fails alike."""
        mixed = [one for one in self._passed if one & self._guilty.keys() and one - self._guilty.keys()]
        largest = max(map(len, mixed), default=0)
        return any(self._fails_from(node) <= largest for node in self._guilty)

    # --- what to ask ---

    def _make_up(self) -> list[Group]:
        rest = self._rest()
        failing = self._failing(rest)
        # A group that fails, though each of its nodes passed in one as large: several of them do it.
        mixed = any(self._failed[group] >= CONFIRM and not self._suspects(group) for group in failing)
        if len(rest) < SMALLEST or mixed:
            return []
        if not failing:
            return self._compared(rest) if rest in self._passed else [rest]
        return list(self._halved(rest, failing)) or self._tried(rest, failing)

    def _compared(self, rest: Group) -> list[Group]:
        """Of several guilty nodes each in a smaller group, until they differ or it is known from which on."""
        found: list[Group] = []
        used: set[int] = set()
        if len(self._guilty) < 2 or self._differ():
            return []
        for node in self._guilty:
            works, fails = self._works[node], self._fails_from(node)
            if fails > works + 1:
                size = min(max(works + 1, round(2 * works * fails / (works + fails))), fails - 1)
                made = self._filled([node], rest - used, size)
                used |= made
                found += [made] if made else []
        return found

    def _sole(self, failing: Iterable[Group]) -> dict[int, list[Group]]:
        """By node, the groups that failed with it as the only suspect."""
        found: dict[int, list[Group]] = {}
        for group in failing:
            suspects = self._suspects(group)
            if len(suspects) == 1:
                found.setdefault(suspects[0], []).append(group)
        return found

    def _newly_guilty(self) -> list[int]:
        alone = self._sole(self._failing(self._rest()))
        times = {node: sum(self._failed[group] for group in groups) for node, groups in alone.items()}
        often = [node for node in alone if times[node] >= CONFIRM]
        return [node for node in often if not self._shared(node, alone[node])]

    def _shared(self, node: int, groups: Collection[Group]) -> Group:
        """Who else may be the cause of its failures: too few were without them."""
        times = Counter(one for group in groups for one in group for _ in range(self._failed[group]))
        most = sum(self._failed[group] for group in groups) - WITHOUT
        return frozenset(one for one, count in times.items() if count > most and one != node)

    def _halved(self, rest: Group, failing: list[Group]) -> Iterator[Group]:
        """Of each group that failed half of the suspects, with others that passed in groups as large."""
        used: set[int] = set()
        alone = self._sole(failing)
        whole = len(rest)
        doubted = frozenset(one for group in failing if len(group) < whole for one in self._suspects(group))
        for group in sorted(failing, key=lambda one: (len(self._suspects(one)), len(one))):
            suspects = self._suspects(group)
            if used & group:
                continue
            if not suspects:  # it failed by chance, or is mixed
                used |= group
                yield group
                continue
            pool = rest - used - {*suspects}
            if len(suspects) == 1:
                made = self._alone(suspects[0], alone[suspects[0]], pool, doubted)
            else:
                made = self._filled(suspects[: len(suspects) // 2], pool, len(group))
            if made:
                used |= made | {*suspects}
                yield made

    def _alone(self, node: int, groups: Collection[Group], pool: Group, doubted: Group) -> Group:
        """A group with the suspect that leaves out who may be the cause instead, smaller if that must be."""
        shared, size, works = self._shared(node, groups), min(map(len, groups)), self._works[node]
        if sum(self._works[one] >= size for one in pool - shared) < size - 1:
            unknown = sorted(one for one in pool - doubted if self._works[one] < size)
            made = self._filled(unknown[:size], pool - {*unknown}, size) if unknown else None
            if made and made not in self._failed:
                return made
            smaller = max(works + 1, round(2 * works * size / (works + size)))
            size = smaller if smaller < size else size
        return self._filled([node], pool, size, shared)

    def _filled(self, nodes: Collection[int], pool: Group, size: int, last: Collection[int] = ()) -> Group:
        """These with as many others that work in such groups; empty if they are too few."""
        able = [one for one in pool if self._works[one] >= size]
        able.sort(key=lambda one: (one in last, self._uses[one], one))
        made = frozenset((*nodes, *able[: size - len(nodes)]))
        return made if len(made) == size else frozenset()

    def _tried(self, rest: Group, failing: list[Group]) -> list[Group]:
        """No group has passed that is as large as the smallest that failed: what may change that."""
        size = min(map(len, failing))
        halves = self._halves(failing)
        if halves:
            return halves
        suspects = [one for one in frozenset.intersection(*failing) if self._works[one] < size]
        suspects.sort(key=lambda one: (self._works[one], one))
        made = self._likely(rest, suspects, size) if len(suspects) != 1 else rest - {*suspects}
        if not made or made in self._failed:
            return self._anew(rest, failing, size)
        return [made]

    def _anew(self, rest: Group, failing: list[Group], size: int) -> list[Group]:
        """What may have failed by chance once more, then groups drawn anew."""
        few = len(rest) <= PAIRS and 2 * size > len(rest)
        if self._blind >= (PAIRS if few else BLIND) or max(map(self._works.__getitem__, rest)) >= size:
            return []
        self._blind += 1
        for group in reversed(failing):
            others = [one for one in failing if one not in (group, rest)]
            if self._failed[group] == 1 and (not others or (others[1:] and frozenset.intersection(*others))):
                return [group]
        if few:
            return self._without_two(rest, failing, size)
        order = sorted(rest)
        random.Random(self._rounds).shuffle(order)
        groups = (frozenset(order[at : at + size]) for at in range(0, len(order) - size + 1, size))
        return [group for group in groups if group not in self._failed]

    def _without_two(self, rest: Group, failing: list[Group], size: int) -> list[Group]:
        """The group that leaves out as many as it can of the pairs of nodes that explain all failures."""
        pairs = [frozenset(ends) for ends in itertools.combinations(sorted(rest), 2)]
        pairs = [pair for pair in pairs if all(group & pair for group in failing)]
        if not pairs or len(rest) - size < len(pairs[0]):
            return []
        out = pairs[0]
        while len(out) < len(rest) - size:
            degree = Counter(one for pair in pairs if pair & out for one in pair - out)
            out |= {min(rest - out, key=lambda one: (-degree[one], one))}
        made = rest - out
        return [made] if made not in self._failed else []

    def _halves(self, failing: list[Group]) -> list[Group]:
        """Both halves of groups that failed, of which no half was tested yet."""
        found: list[Group] = []
        for group in sorted(failing, key=len):
            order = self._in_order(group)
            halves = [frozenset(order[at::2]) for at in range(2)]
            tested = max(self._works[node] for node in order) >= len(order) // 2
            tested = tested or any(group & one for one in found) or any(one in self._failed for one in halves)
            if len(order) >= 2 * SMALLEST and not tested:
                found += halves
        return found

    def _likely(self, rest: Group, suspects: list[int], size: int) -> Group:
        """The group whose failing is as likely as its passing, were one of the suspects guilty; or none.

        That a node fails from ``n`` nodes on is taken to be as likely as 1/n².
        """
        others = sorted(rest - {*suspects}, key=lambda one: (-self._works[one], self._uses[one], one))
        total = sum(1 / self._works[one] - 1 / size for one in suspects)
        best: tuple[float, int, int] | None = None
        for wanted in range(SMALLEST, size + 1):
            chance = 0.0
            for count in range(1, min(wanted, len(suspects)) + 1):
                chance += max(0.0, 1 / self._works[suspects[count - 1]] - 1 / wanted) / total
                if wanted - count <= len(others) and 1e-9 < chance < 1 - 1e-9:
                    best = min(filter(None, (best, (abs(chance - BALANCE), wanted, count))))
        if best is None:
            return frozenset()
        _, wanted, count = best
        return frozenset(suspects[:count] + others[: wanted - count])


def most_rounds(count: int) -> int:
    """No more rounds than that are asked for where so many nodes failed together."""
    return 5 * math.ceil(math.log2(max(count, 2))) + 12 + (PAIRS if count <= PAIRS else 0)


# --- the parts of a set that works, but slowly ---


def slow_parts(nodes: Nodes, floor: float) -> Generator[Groups, list[GroupTest], Groups]:
    """Halve what is slower than ``floor`` (GB/s), as all of ``nodes`` were; at most ceil(log2 N) rounds.

    It yields the groups to be tested at once, disjoint, and is sent their outcomes: one that is missing told
    nothing. It returns the smallest slow groups, each tested once more in a last round, so that none is named
    by chance; () where no half is slow: it is the set, and no node, that is at fault.
    """
    smallest: list[Nodes] = []
    asked = dict.fromkeys(_halves(nodes), nodes)
    while asked:
        known = _judged((yield tuple(asked)), floor)
        unsure = {of for half, of in asked.items() if known.get(half) is not True}
        smallest += [parent for parent in dict.fromkeys(asked.values()) if parent not in unsure]
        slow = [group for group in asked if known.get(group) is False]
        smallest += [group for group in slow if len(group) <= LEAST_COLLECTIVE]
        asked = {half: group for group in slow for half in _halves(group)}
    if nodes in smallest or not smallest:
        return ()
    known = _judged((yield tuple(smallest)), floor)
    return tuple(group for group in smallest if known.get(group) is False)


def _judged(outcomes: list[GroupTest], floor: float) -> dict[Nodes, bool]:
    """By group whether all is well with it, where its test told anything."""
    told = [one for one in outcomes if one.passed is not None]
    fast = (one.rate is None or one.rate >= floor for one in told)
    return {one.nodes: bool(one.passed) and not one.wrong and quick for one, quick in zip(told, fast)}


def _halves(group: Nodes) -> tuple[Nodes, ...]:
    """Both halves of a group, of which none is smaller than a collective needs; () if there are none."""
    if len(group) <= LEAST_COLLECTIVE:
        return ()
    middle = (len(group) + 1) // 2
    return tuple(half for half in (group[:middle], group[middle:]) if len(half) >= LEAST_COLLECTIVE)
