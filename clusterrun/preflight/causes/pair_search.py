"""Choose which pairs to test next, and report what the tests say.

The ring comes first: training will use its links. Then each round holds the tests on which a cause and its
strongest rival disagree. The search ends when nothing is left to decide, or when its rounds are spent.
"""

from __future__ import annotations

import math
from collections import Counter, deque, namedtuple
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.causes.pairs import Answers, Cause, Link, PairExplanation
from clusterrun.preflight.causes.rates import Distance, LinkDistance, PairRates, TimedPair, same_distance
from clusterrun.preflight.observations import GroupTest, Pair, pair
from clusterrun.preflight.thresholds import (
    DEFAULTS,
    FEW_NODES,
    MOST_ROUNDS,
    MOST_TRIES,
    WITNESSES,
    Thresholds,
)

Nodes = tuple[int, ...]

# The tests of a round that compare two groups, and the tests of a node before its rate counts.
TESTS_OF_A_DOUBT = 4


def ring_rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Return the links of the ring in the fewest rounds: 2 if it is even, 3 if odd, 1 for two nodes."""
    count = len(nodes)
    if count < 2:
        return ()
    links = [pair(nodes[at], nodes[(at + 1) % count]) for at in range(count if count > 2 else 1)]
    last = [links.pop()] if count % 2 and count > 2 else []
    rounds = (links[0::2], links[1::2], last)
    return tuple(tuple(links) for links in rounds if links)


def all_rounds(nodes: Sequence[int]) -> tuple[tuple[Pair, ...], ...]:
    """Return every pair once in N - 1 rounds, N if it is odd (the circle method; one node rests in each)."""
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _ in range(len(seats) - 1):
        across = zip(seats[:half], reversed(seats[half:]))
        rounds.append(tuple(pair(a, b) for a, b in across if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(pairs for pairs in rounds if pairs)


@frozen
class Evidence:
    """Why a verdict stands."""

    nodes: Nodes  # (node,) or (a, b)
    kind: str  # broken, slow, undetermined, or flaky (failed at times: no verdict, but worth a line)
    grade: Grade
    tests: int  # that gave an answer
    failed: int  # of these: failed, or were slow
    wrong: int = 0  # of these: had a wrong sum
    against: Nodes = ()  # partners of the failures, in order
    rate: float | None = None  # slow only: the best rate, in GB/s
    limit: float | None = None  # slow only: where slow begins
    median: float | None = None  # slow only: over the nodes


@frozen
class SearchResult:
    """The result so far. A node or link has at most one verdict. A node without a verdict was not tested."""

    bad: Nodes
    bad_links: tuple[Pair, ...]
    slow: Nodes  # these are certified: they work
    slow_links: tuple[Pair, ...]
    undetermined: Nodes
    undetermined_links: tuple[Pair, ...]
    certified: Nodes  # passed a test
    rounds: int
    median: float | None  # of what the nodes reach, in GB/s
    evidence: tuple[Evidence, ...]
    levels: tuple[LinkDistance, ...] = ()  # of links that were timed
    parts: tuple[Nodes, ...] = ()  # of a partitioned network, the largest first; () if it is not
    slow_parts: tuple[Nodes, ...] = ()  # groups that are fast inside and slow with each other


class Round:
    """A round of disjoint tests as it grows; ``free``: the nodes without a partner in it."""

    def __init__(self, free: Iterable[int], tries: Counter[Link], tests: Counter[int], most: int) -> None:
        self.free, self.tries, self.tests, self.most = dict.fromkeys(free), tries, tests, most
        self.links: list[Link] = []

    def put(self, a: int, b: int) -> bool:
        """Add the test if both nodes are free and it was not made too often."""
        if a == b or a not in self.free or b not in self.free or self.tries[a, b] >= self.most:
            return False
        del self.free[a], self.free[b]
        self.links.append((min(a, b), max(a, b)))
        return True

    def meet(self, node: int, partners: Collection[int]) -> bool:
        """Give a node the free partner that it met least.

        It waits for the next round if all partners that it never met are busy.
        """
        if node not in self.free:
            return False
        best, fewest, is_new_busy = node, self.most, False
        for other in partners:
            if other == node:
                continue
            tries = self.tries[node, other]
            if other not in self.free:
                is_new_busy = is_new_busy or not tries
            elif tries < fewest:
                best, fewest = other, tries
                if not tries:
                    break
        return not (fewest and is_new_busy) and self.put(node, best)


# ``link``: its ends, the smaller number first. ``is_retest``: another test asked for it.
AnsweredTest = namedtuple("AnsweredTest", ["outcome", "link", "is_good", "is_retest"])


class Search:
    """Asks for rounds of disjoint pairs and explains their outcomes; bounded in rounds.

    ``nodes``: in the order of the training ring. ``spares``: serve as partners, and are tested if that costs
    no round or if they may replace a node. ``distance``: of a link, the levels of switches that it crosses.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        spares: Sequence[int] = (),
        all_pairs: bool = False,
        limits: Thresholds = DEFAULTS,
        distance: Distance = same_distance,
        bad_links: Iterable[Link] = (),
    ) -> None:
        self._ring, self._spares = list(nodes), list(spares)
        members = self._ring + self._spares
        if len(set(members)) < len(members):
            raise ValueError("a node stands twice among those to be searched")
        self._all_pairs, self._limits, self._distance = all_pairs, limits, distance
        self._present = dict.fromkeys(members)
        self._planned = deque(all_rounds(members) if all_pairs else ring_rounds(self._ring))
        self._rounds, self._rounds_left, self._blind_rounds_left = 0, MOST_ROUNDS, MOST_TRIES
        # The tests of the round, with whether another test asked for each.
        self._pending: dict[Link, bool] | None = None
        self._log: list[AnsweredTest] = []
        # Views of the log that grow with it.
        self._works = Answers(limits.noise)
        self._tries: Counter[Link] = Counter()  # by both orders of two nodes
        self._unanswered: Counter[int] = Counter()
        # Explanations of the log as it is; None if it grew since.
        self._explained: PairExplanation | None = None
        self._speeds: tuple[PairRates, list[PairExplanation]] | None = None

    def avoid(self, bad_links: Iterable[Link]) -> None:
        """Do not test these broken links: a failure would count against their nodes."""
        for a, b in bad_links:
            self._tries[a, b] = self._tries[b, a] = MOST_ROUNDS

    # --- observations ---

    def take(self, outcomes: Sequence[GroupTest]) -> None:
        """Append the outcomes of the round. A missing one is inconclusive, others are ignored."""
        pending, self._pending = self._pending or {}, None
        self._rounds += bool(pending)
        by_pair = {tuple(sorted(outcome.nodes)): outcome for outcome in outcomes}
        answers: list[tuple[Link, bool, bool]] = []
        self._speeds = None
        for ends, is_retest in pending.items():
            self._tries.update((ends, ends[::-1]))
            outcome = by_pair.get(ends)
            if outcome is None or outcome.passed is None:
                self._unanswered.update(ends)
                continue
            is_good = outcome.is_good
            self._log.append(AnsweredTest(outcome, ends, is_good, is_retest))
            answers.append((ends, is_good, is_retest))
            if not is_good or not self._all_pairs or not self._planned:
                self._explained = None
        self._works.note(answers)

    def drop(self, node: int) -> None:
        """Forget a node that is gone: it is in no later round and in no verdict."""
        self._present.pop(node, None)
        self._explained = self._speeds = None
        if self._pending:
            self._pending = {ends: is_retest for ends, is_retest in self._pending.items() if node not in ends}

    # --- explanations ---

    def _explain(self) -> PairExplanation:
        if self._explained is None:
            self._explained = PairExplanation(self._works, list(self._present), self._limits)
        return self._explained

    def _explain_speeds(self) -> tuple[PairRates, list[PairExplanation]]:
        """Explain which nodes and links are slow, within each part of the network."""
        if self._speeds is None:
            timed = [
                TimedPair(test.link, test.outcome.rate, test.is_retest, test.outcome.starved)
                for test in self._log
                if test.is_good and test.outcome.rate is not None and math.isfinite(test.outcome.rate)
            ]
            rates = PairRates(timed, self._limits, self._distance)
            parts = self._explain().parts() if rates.answers.poor else []
            speeds = [PairExplanation(rates.answers, part, self._limits) for part in parts]
            self._speeds = rates, speeds
        return self._speeds

    # --- the next round ---

    def next_round(self) -> tuple[Pair, ...]:
        """Return the pairs to test at once, disjoint; () if the search has ended. Repeated calls agree."""
        if self._pending is None:
            self._pending = self._choose()
        return tuple(Pair(*ends) for ends in self._pending)

    def _choose(self) -> dict[Link, bool]:
        """Choose the tests of the next round, with whether another test asked for each."""
        works = self._explain()
        is_blind = not works.groups  # nothing passed yet: repeats of a pair tell little
        bad = {*works.faulty, *works.unsteady}
        free = [node for node in self._present if node not in bad and self._unanswered[node] < 2 * MOST_TRIES]
        tests = Round(free, self._tries, self._works.tests, MOST_TRIES if is_blind else MOST_ROUNDS)
        while self._planned:
            planned = [ends for ends in self._planned.popleft() if tests.put(*ends)]
            if not planned:
                continue
            # The free nodes of a ring round: test spares in the first two rounds, and retest in the third.
            if not self._all_pairs and self._rounds < 2:
                for spare in self._spares:
                    tests.meet(spare, self._spares)
            elif not self._all_pairs:
                self._ask(tests, works)
            return {ends: ends not in planned for ends in tests.links}
        if self._rounds_left and (self._blind_rounds_left or not is_blind):
            self._rounds_left -= 1
            self._blind_rounds_left -= is_blind
            self._ask(tests, works)
        return dict.fromkeys(tests.links, True)

    def _ask(self, tests: Round, works: PairExplanation) -> None:
        """Fill a round with the tests that decide something. Earlier questions get the free nodes first."""
        place, bad = works.place, {*works.faulty, *works.unsteady}
        # Which cause explains what failed?
        ask_rivals(works, tests)
        # Does a node work that never gave an answer?
        for node in self._ring if len(self._ring) > 1 else ():
            if node not in place and not works.answers.failed_with.get(node):
                tests.meet(node, place or self._present)
        # Does a spare work with the neighbours of the node that it may replace?
        leaving = {*bad, *works.undetermined}
        spares = [spare for spare in self._spares if spare in self._present and spare not in bad]
        spares.sort(key=lambda spare: (spare not in place, spare in works.answers.failed_with))
        needed = len(works.undetermined) + sum(node in bad for node in self._ring)
        neighbours = [
            other
            for a, b in zip(self._ring, self._ring[1:] + self._ring[:1])
            for node, other in ((a, b), (b, a))
            if node in leaving and other in place and other not in leaving
        ]
        for spare in spares[:needed]:
            if self._works.tests[spare] < WITNESSES:
                tests.meet(spare, [*dict.fromkeys(neighbours), *place] or list(self._present))
        if self._planned:
            return
        # Which cause explains what was slow? Is a node slow that never met a fast partner?
        rates, speeds = self._explain_speeds()
        for speed in speeds:
            ask_rivals(speed, tests)
        for part in works.parts() if rates.of_node else ():
            leaders = [node for node in rates.leaders() if node in part]
            for node in rates.behind():
                if node in part and self._works.tests[node] < TESTS_OF_A_DOUBT:
                    tests.meet(node, leaders)
        # Has an end of a bad link another bad link? It would fail the next check.
        bad_links = works.bad_links() if len(self._present) <= FEW_NODES else []
        ends = dict.fromkeys(node for bad_link in bad_links for node in bad_link)
        for node in (*ends, *tests.free) if ends else ():
            if node in place and (node in ends or tests.links):
                group = works.groups[place[node]]
                tests.meet(node, [other for other in group if not self._tries[node, other]])

    # --- the result ---

    def result(self) -> SearchResult:
        """Return what is known now. It may be called at any time."""
        works = self._explain()
        rates, speeds = self._explain_speeds()
        bad = (*works.faulty, *works.unsteady)
        certified = tuple(node for node in self._present if node in works.place and node not in bad)
        sound = set(certified)
        bad_links = tuple(Pair(*ends) for ends in works.bad_links() if sound.issuperset(ends))
        unsure_links = tuple(Pair(*ends) for ends in works.undetermined_links() if sound.issuperset(ends))
        answers = self._works
        flaky_links = [ends for ends in answers.poor if ends in answers.good and sound.issuperset(ends)]
        slow = {
            node for speed in speeds for node in (*speed.faulty, *speed.unsteady) if rates.is_slow((node,))
        }
        slow_nodes = tuple(node for node in certified if node in slow)
        slow_links = tuple(
            Pair(*ends)
            for speed in speeds
            for ends in speed.bad_links()
            if rates.is_slow(ends) and slow.isdisjoint(ends)
        )
        parts = tuple(works.parts())
        divided = [speed.parts() for speed in speeds]
        slow_parts = tuple(part for parts in divided if len(parts) > 1 for part in _attached(rates, parts))
        evidence = (
            *(self._of_node(node, "broken", Grade.FAIL) for node in bad),
            *(self._of_link(ends, "broken", Grade.FAIL) for ends in bad_links),
            *(self._of_node(node, "undetermined", Grade.UNDETERMINED) for node in works.undetermined),
            *(self._of_link(ends, "undetermined", Grade.UNDETERMINED) for ends in unsure_links),
            *(_slow(rates, (node,)) for node in slow_nodes),
            *(_slow(rates, ends) for ends in slow_links),
            *(self._of_link(ends, "flaky", Grade.PASS) for ends in flaky_links),
        )
        return SearchResult(
            bad=bad,
            bad_links=bad_links,
            slow=slow_nodes,
            slow_links=slow_links,
            undetermined=tuple(works.undetermined),
            undetermined_links=unsure_links,
            certified=certified,
            rounds=self._rounds,
            median=rates.line.median if rates.of_node else None,
            evidence=evidence,
            levels=tuple(rates.levels.values()),
            parts=parts if len(parts) > 1 else (),
            slow_parts=slow_parts,
        )

    def _of_node(self, node: int, kind: str, grade: Grade) -> Evidence:
        failed = [test for test in self._log if node in test.link and not test.is_good]
        if kind == "broken":  # failures with bad partners do not count
            failed = [test for test in failed if self._works.passes[_partner(test.link, node)]]
        partners = dict.fromkeys(_partner(test.link, node) for test in failed)
        wrong = sum(bool(test.outcome.wrong) for test in failed)
        tests = len(failed) + self._works.passes[node]
        return Evidence((node,), kind, grade, tests, len(failed), wrong, tuple(partners))

    def _of_link(self, ends: Link, kind: str, grade: Grade) -> Evidence:
        failed = self._works.poor[ends]
        tests = failed + self._works.good[ends]
        wrong = sum(bool(test.outcome.wrong) for test in self._log if test.link == ends)
        return Evidence(tuple(ends), kind, grade, tests, failed, wrong)


def _partner(ends: Link, node: int) -> int:
    return ends[ends[0] == node]


def _slow(rates: PairRates, nodes: Sequence[int]) -> Evidence:
    """Describe a slow node or link. The rates of a link are those of its own level again."""
    answers, factor = rates.answers, 1.0
    against: Nodes = ()
    if len(nodes) == 1:
        all_rates = rates.of_node[nodes[0]]
        against = tuple(answers.failed_with[nodes[0]])
        failed = sum(times for ends, times in answers.poor.items() if nodes[0] in ends)
    else:
        ends = (nodes[0], nodes[1])
        all_rates, factor, failed = rates.of_link[ends], rates.factor(ends), answers.poor[ends]
    best, drawn = max(all_rates), rates.line
    grade = Grade.FAIL if best < drawn.median * (1 - rates.limits.slow_fail) else Grade.WARN
    numbers = (best / factor, drawn.slow / factor, drawn.median / factor)
    return Evidence(tuple(nodes), "slow", grade, len(all_rates), failed, 0, against, *numbers)


def _attached(rates: PairRates, parts: Sequence[Nodes]) -> Iterator[Nodes]:
    """Add to each part the nodes that are not surely fast, but not slow with it either."""
    place = {node: number for number, part in enumerate(parts) for node in part}
    by_rate = sorted(((max(of_link), ends) for ends, of_link in rates.of_link.items()), reverse=True)
    near = [ends for rate, ends in by_rate if rate >= rates.line.slow]
    while ends := next(((a, b) for a, b in near if (a in place) != (b in place)), None):
        a, b = ends
        place.setdefault(a, place.get(b, 0))
        place.setdefault(b, place[a])
    for number in range(len(parts)):
        yield tuple(sorted(node for node, at in place.items() if at == number))


def ask_rivals(explanation: PairExplanation, tests: Round) -> None:
    """Add to a round the tests on which causes and their strongest rivals disagree.

    ``docs/locating.md`` has the table of doubts, rivals and tests. The loops below follow its rows.
    """
    groups, place, margins = explanation.groups, explanation.place, explanation.margins
    for cause, margin in margins.items():
        if cause.kind == "cut" and margin < 0 and cause in explanation.beats_chance:
            for ends in combinations(groups[cause.members[0]], 2):
                if explanation.answers.good[ends] < WITNESSES:
                    tests.put(*ends)
    for a, b in combinations(range(len(groups) if explanation.answers.poor else 0), 2):
        if not explanation.are_apart(a, b, explanation.beats_chance):
            missing_tests = TESTS_OF_A_DOUBT
            for node in groups[b]:
                if missing_tests and tests.meet(node, groups[a]):
                    missing_tests -= 1
    suspects = sorted(
        explanation.undetermined, key=lambda node: (explanation.rivals[node][0].lead, tests.tests[node])
    )
    for node in suspects:
        for rival in explanation.rivals[node]:
            if rival.lead < explanation.sure and tests.meet(node, rival.partners):
                break
    for cause, margin in margins.items():
        if cause.kind == "unsteady" and margin < 0:
            tests.meet(cause.members[0], groups[place[cause.members[0]]])
    for ends in explanation.undetermined_links():
        if Cause("link", ends) in explanation.beats_chance:
            for node in sorted(ends, key=tests.tests.__getitem__):
                tests.meet(node, [other for other in groups[place[node]] if other not in ends])
        elif place[ends[0]] == place[ends[1]]:
            tests.put(*ends)
    for node in explanation.maybe_unsteady():
        tests.meet(node, groups[place[node]])
