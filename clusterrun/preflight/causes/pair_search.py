"""Choose which pairs to test next, and report what the tests say.

The ring comes first: training will use its links. Then each round holds the tests on which a cause and its
strongest rival disagree. The search ends when nothing is left to decide, or when its rounds are spent.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.causes.pairs import Answers, Cause, Link, PairExplanation
from clusterrun.preflight.causes.rates import Distance, LinkDistance, PairRates, TimedPair, same_distance
from clusterrun.preflight.observations import GroupTest, Pair, pair
from clusterrun.preflight.thresholds import FEW_NODES, Thresholds

Nodes = tuple[int, ...]

# The limit of rounds beyond the plan, as a multiple of `confirm`.
ROUNDS_PER_CONFIRM = 4
# In a set of at most this size, rounds without any pass are repeated twice as often: one pair may be sound.
SMALL_SET = 4
# A pair is not tested more often: its repeats decide nothing then.
MOST_TRIES = 9
# Two groups that may be a single group are compared by this many tests in a round.
TESTS_ACROSS = 4
# A pair in a group that may be cut off is tested until it passed this often: then not all nodes are faulty.
PASSES_INSIDE = 2
# A spare that takes a node's place has been tested with as many others as that node.
TESTS_OF_A_SPARE = 2
# A node that never met a fast partner is tested this often before its rate counts.
TESTS_OF_A_LAGGARD = 4


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
    kinds: tuple[LinkDistance, ...] = ()  # of links that were timed
    parts: tuple[Nodes, ...] = ()  # of a partitioned network, the largest first; () if it is not
    slow_parts: tuple[Nodes, ...] = ()  # groups that are fast inside and slow with each other


class Round:
    """A round of disjoint tests as it grows; ``free``: the nodes without a partner in it."""

    def __init__(
        self, free: Iterable[int], tries: Counter[Link], tests: Counter[int], most: int = MOST_TRIES
    ) -> None:
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


class Search:
    """Asks for rounds of disjoint pairs and explains their outcomes; bounded in rounds.

    ``nodes``: in the order of the training ring. ``spares``: serve as partners, and are tested if that costs
    no round or if they may replace a node. ``confirm``: 3 is usual; evidence and rounds grow with it.
    ``distance``: of a link, the levels of switches that it crosses.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        spares: Sequence[int] = (),
        confirm: int = 3,
        all_pairs: bool = False,
        limits: Thresholds = Thresholds(),  # noqa: B008
        distance: Distance = same_distance,
    ) -> None:
        self._ring, self._spares = list(nodes), list(spares)
        members = self._ring + self._spares
        if len(set(members)) < len(members):
            raise ValueError("a node stands twice among those to be searched")
        self._all_pairs, self._limits, self._distance = all_pairs, limits, distance
        self._confirm = max(confirm, 1)
        noise = limits.noise if 0 < limits.noise < 1 else 0.02
        false_blame = limits.false_blame if 0 < limits.false_blame < 1 else 0.001
        self._sure = math.log(1 / false_blame) * self._confirm / 3
        self._present = dict.fromkeys(members)
        self._planned = deque(all_rounds(members) if all_pairs else ring_rounds(self._ring))
        self._works = Answers(noise)
        self._wrong: Counter[Link] = Counter()
        self._failures: list[Link] = []
        self._timed: list[TimedPair] = []
        self._tries: Counter[Link] = Counter()  # by both orders of two nodes
        self._tests: Counter[int] = Counter()
        self._answered: Counter[int] = Counter()
        self._mute: Counter[int] = Counter()
        self._pending: tuple[Pair, ...] | None = None
        self._plan_of_round: frozenset[Link] = frozenset()
        self._explained: PairExplanation | None = None
        self._speeds: tuple[PairRates, list[PairExplanation]] | None = None
        self._rounds = 0
        self._rounds_left = ROUNDS_PER_CONFIRM * self._confirm
        self._blind_left = self._confirm * (2 if len(members) <= SMALL_SET else 1)

    # --- observations ---

    def take(self, outcomes: Sequence[GroupTest]) -> None:
        """Append the outcomes of the round. A missing one is inconclusive, others are ignored."""
        pending, self._pending = self._pending or (), None
        self._rounds += bool(pending)
        by_pair = {tuple(sorted(outcome.nodes)): outcome for outcome in outcomes}
        answers: list[tuple[Link, bool, bool]] = []
        self._speeds = None
        for ends in pending:
            self._tries.update((ends, ends[::-1]))
            self._tests.update(ends)
            outcome = by_pair.get(ends)
            if outcome is None or outcome.passed is None:
                self._mute.update(ends)
                continue
            is_retest, is_good = ends not in self._plan_of_round, outcome.is_good
            self._answered.update(ends)
            answers.append((ends, is_good, is_retest))
            if not is_good:
                self._failures.append(ends)
                self._wrong[ends] += bool(outcome.wrong)
            elif outcome.rate is not None and math.isfinite(outcome.rate):
                self._timed.append(TimedPair(ends, outcome.rate, is_retest, outcome.starved))
            if not is_good or not self._all_pairs or not self._planned:
                self._explained = None
        self._works.note(answers)

    def drop(self, node: int) -> None:
        """Forget a node that is gone: it is in no later round and in no verdict."""
        self._present.pop(node, None)
        self._explained = self._speeds = None
        if self._pending:
            self._pending = tuple(ends for ends in self._pending if node not in ends)

    # --- explanations ---

    def _explain(self) -> PairExplanation:
        if self._explained is None:
            self._explained = PairExplanation(self._works, list(self._present), self._sure)
        return self._explained

    def _explain_speeds(self) -> tuple[PairRates, list[PairExplanation]]:
        """Explain which nodes and links are slow, within each part of the network."""
        if self._speeds is None:
            rates = PairRates(self._timed, self._limits, self._distance)
            parts = self._explain().parts() if rates.answers.poor else []
            self._speeds = rates, [PairExplanation(rates.answers, part, self._sure) for part in parts]
        return self._speeds

    # --- the next round ---

    def next_round(self) -> tuple[Pair, ...]:
        """Return the pairs to test at once, disjoint; () if the search has ended. Repeated calls agree."""
        if self._pending is None:
            self._pending = self._choose()
        return self._pending

    def _choose(self) -> tuple[Pair, ...]:
        works = self._explain()
        bad = {*works.faulty, *works.unsteady}
        free = [node for node in self._present if node not in bad and self._mute[node] < 2 * self._confirm]
        is_blind = not works.groups  # nothing passed yet: repeats of a pair tell little
        tests = Round(free, self._tries, self._tests, self._confirm if is_blind else MOST_TRIES)
        while self._planned:
            plan = self._planned.popleft()
            planned = [ends for ends in plan if tests.put(*ends)]
            self._plan_of_round = frozenset(planned)
            if planned:
                if not self._all_pairs:
                    self._fill(tests, works)
                return tuple(Pair(*ends) for ends in tests.links)
        self._plan_of_round = frozenset()
        if self._rounds_left and (self._blind_left or not is_blind):
            self._rounds_left -= 1
            self._blind_left -= is_blind
            self._ask(tests, works)
        return tuple(Pair(*ends) for ends in tests.links)

    def _fill(self, tests: Round, works: PairExplanation) -> None:
        """Use the free nodes of a ring round: test spares in the first two, and retest in the third."""
        if self._rounds < 2:
            for spare in self._spares:
                tests.meet(spare, self._spares)
        else:
            self._ask(tests, works)

    def _ask(self, tests: Round, works: PairExplanation) -> None:
        _ask(works, tests)
        silent = [
            node for node in self._ring if node not in works.place and not works.answers.failed_with.get(node)
        ]
        for node in silent if len(self._ring) > 1 else ():
            tests.meet(node, works.place or self._present)
        # Test the spares that may have to replace a node and were tested less than it was.
        bad = {*works.faulty, *works.unsteady}
        places = len(works.undetermined) + sum(node in bad for node in self._ring)
        spares = [spare for spare in self._spares if spare in self._present and spare not in bad]
        spares.sort(key=lambda spare: (spare not in works.place, spare in works.answers.failed_with))
        for spare in [spare for spare in spares[:places] if self._answered[spare] < TESTS_OF_A_SPARE]:
            tests.meet(spare, self._neighbours(works) + list(works.place) or list(self._present))
        if self._planned:
            return
        rates, speeds = self._explain_speeds()
        for speed in speeds:
            _ask(speed, tests)
        for part in works.parts() if rates.of_node else ():
            leaders = [node for node in rates.leaders() if node in part]
            for node in rates.behind():
                if node in part and self._answered[node] < TESTS_OF_A_LAGGARD:
                    tests.meet(node, leaders)

        if len(self._present) <= FEW_NODES and works.bad_links():
            # Test the ends of a bad link with all others: a second bad link would fail the next check.
            ends = dict.fromkeys(node for bad_link in works.bad_links() for node in bad_link)
            for node in (*ends, *tests.free) if ends else ():
                if node in works.place and (node in ends or tests.links):
                    group = works.groups[works.place[node]]
                    tests.meet(node, [other for other in group if not self._tries[node, other]])

    def _neighbours(self, works: PairExplanation) -> list[int]:
        """Return the proven neighbours of nodes that may be replaced. Their spares will talk to them."""
        leaving = {*works.faulty, *works.unsteady, *works.undetermined}
        neighbours = []
        for a, b in zip(self._ring, self._ring[1:] + self._ring[:1]):
            neighbours += [other for node, other in ((a, b), (b, a)) if node in leaving]
        return [node for node in dict.fromkeys(neighbours) if node in works.place]

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
            kinds=tuple(rates.kinds.values()),
            parts=parts if len(parts) > 1 else (),
            slow_parts=slow_parts,
        )

    def _of_node(self, node: int, kind: str, grade: Grade) -> Evidence:
        failures = [ends for ends in self._failures if node in ends]
        partners = [b if a == node else a for a, b in failures]
        if kind == "broken":  # failures with bad partners do not count
            proven = self._works.passes
            failures = [ends for ends, partner in zip(failures, partners) if proven[partner]]
            partners = [partner for partner in partners if proven[partner]]
        wrong = sum(self._wrong[ends] for ends in set(failures))
        tests = len(failures) + self._works.passes[node]
        return Evidence((node,), kind, grade, tests, len(failures), wrong, tuple(dict.fromkeys(partners)))

    def _of_link(self, ends: Link, kind: str, grade: Grade) -> Evidence:
        failed = self._works.poor[ends]
        tests = failed + self._works.good[ends]
        return Evidence(tuple(ends), kind, grade, tests, failed, self._wrong[ends])


def _slow(rates: PairRates, nodes: Sequence[int]) -> Evidence:
    """Describe a slow node or link. The rates of a link are those of its own kind again."""
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


def _ask(explanation: PairExplanation, tests: Round) -> None:
    """Fill a round with the tests on which causes and their strongest rivals disagree."""
    groups, place, sure = explanation.groups, explanation.place, explanation.sure
    beats_chance = explanation.beats_chance
    for cause, lead in explanation.leads.items():
        # Are the members of the group faulty instead?
        if cause.kind == "cut" and lead < sure and beats_chance[cause]:
            for ends in combinations(groups[cause.members[0]], 2):
                if explanation.answers.good[ends] < PASSES_INSIDE:
                    tests.put(*ends)
    no_chance = {cause for cause, is_no_chance in beats_chance.items() if is_no_chance}
    # Are two groups a single group?
    numbers = range(len(groups) if explanation.answers.poor else 0)
    for a, b in combinations(numbers, 2):
        if not explanation.are_apart(a, b, no_chance):
            missing_tests = TESTS_ACROSS
            for node in groups[b]:
                if missing_tests and tests.meet(node, groups[a]):
                    missing_tests -= 1
    suspects = sorted(
        explanation.undetermined, key=lambda node: (explanation.rivals[node][0].lead, tests.tests[node])
    )
    for node in suspects:
        for rival in explanation.rivals[node]:
            if rival.lead < sure and tests.meet(node, rival.partners):
                break
    for cause, lead in explanation.leads.items():
        if cause.kind == "unsteady" and lead < sure:
            tests.meet(cause.members[0], groups[place[cause.members[0]]])
    for ends in explanation.undetermined_links():
        # Is one of its ends unsteady instead?
        if beats_chance.get(Cause("link", ends)):
            for node in sorted(ends, key=tests.tests.__getitem__):
                tests.meet(node, [other for other in groups[place[node]] if other not in ends])
        elif place[ends[0]] == place[ends[1]]:
            tests.put(*ends)
    for node in explanation.maybe_unsteady():
        tests.meet(node, groups[place[node]])
