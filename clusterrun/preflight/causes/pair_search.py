"""Choose which pairs to test next, and report what the tests say.

The ring comes first: training will use its links. Then each round holds the tests on which a cause and its
strongest rival disagree. The search ends when nothing is left to decide, or when its rounds are spent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.causes.pairs import (
    Answers,
    Cause,
    Link,
    PairExplanation,
    PairTest,
    explain_pairs,
    link,
)
from clusterrun.preflight.causes.rates import Distance, LinkDistance, PairRates, same_distance
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.thresholds import FEW_NODES, MOST_ROUNDS, MOST_TRIES, WITNESSES, Thresholds

Nodes = tuple[int, ...]
PairRound = tuple[Link, ...]


def ring_rounds(nodes: Sequence[int]) -> tuple[PairRound, ...]:
    """Return the links of the ring in the fewest rounds: 2 if it is even, 3 if odd, 1 for two nodes."""
    count = len(nodes)
    if count < 2:
        return ()
    links = [link(nodes[index], nodes[(index + 1) % count]) for index in range(count if count > 2 else 1)]
    last = [links.pop()] if count % 2 and count > 2 else []
    rounds = (links[0::2], links[1::2], last)
    return tuple(tuple(links) for links in rounds if links)


def all_rounds(nodes: Sequence[int]) -> tuple[PairRound, ...]:
    """Return every pair once in N - 1 rounds, N if it is odd (the circle method; one node rests in each)."""
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _ in range(len(seats) - 1):
        across = zip(seats[:half], reversed(seats[half:]))
        rounds.append(tuple(link(a, b) for a, b in across if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(pairs for pairs in rounds if pairs)


@frozen
class Evidence:
    """A finding about a node or link, with its reasons."""

    nodes: Nodes  # (node,), or both ends of a link
    # broken, slow or undetermined. No fault: unproven, a slow node whose tests waited for processors or were
    # too few; flaky, a link that failed at times.
    finding_kind: str
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
    """The result so far. A node without evidence that is not certified was not tested."""

    evidence: tuple[Evidence, ...]  # at most one entry for each node or link
    certified: Nodes  # they work; slow nodes are among them
    rounds: int
    median: float | None  # of what the nodes reach, in GB/s
    levels: tuple[LinkDistance, ...]  # of links that were timed
    parts: tuple[Nodes, ...]  # of a partitioned network, the largest first; () if it is not
    slow_parts: tuple[Nodes, ...]  # groups that are fast inside and slow with each other

    def nodes(self, finding_kind: str) -> Nodes:
        """Return the nodes with findings of this kind."""
        evidence = (entry for entry in self.evidence if entry.finding_kind == finding_kind)
        return tuple(entry.nodes[0] for entry in evidence if len(entry.nodes) == 1)

    def links(self, finding_kind: str) -> tuple[Nodes, ...]:
        """Return the links with findings of this kind."""
        evidence = (entry for entry in self.evidence if entry.finding_kind == finding_kind)
        return tuple(entry.nodes for entry in evidence if len(entry.nodes) == 2)


class Round:
    """A round of disjoint tests. ``free``: nodes without a partner yet. ``most``: limit of tests per pair."""

    def __init__(self, free: Iterable[int], tries: Counter[Link], tests: Counter[int], most: int) -> None:
        self.free, self.tries, self.tests, self.most = dict.fromkeys(free), tries, tests, most
        self.links: list[Link] = []

    def put(self, a: int, b: int) -> bool:
        """Add the test if both nodes are free and it was not made too often."""
        if a == b or a not in self.free or b not in self.free or self.tries[a, b] >= self.most:
            return False
        del self.free[a], self.free[b]
        self.links.append((a, b) if a < b else (b, a))
        return True

    def meet(self, node: int, partners: Collection[int]) -> bool:
        """Pair a node with the free partner that it met least.

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
    no round or if they may replace a node. ``distance``: of a link, the levels of switches that it crosses.
    ``avoided``: broken links. They are not tested: a failure would count against their nodes.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        thresholds: Thresholds,
        spares: Sequence[int] = (),
        all_pairs: bool = False,
        distance: Distance = same_distance,
        avoided: Iterable[Link] = (),
    ) -> None:
        self._ring, self._spares = list(nodes), list(spares)
        members = self._ring + self._spares
        if len(set(members)) < len(members):
            raise ValueError("a node is listed twice")
        self._all_pairs, self._thresholds, self._distance = all_pairs, thresholds, distance
        self._present = dict.fromkeys(members)
        self._planned = deque(all_rounds(members) if all_pairs else ring_rounds(self._ring))
        self._rounds, self._rounds_left, self._blind_rounds_left = 0, MOST_ROUNDS, MOST_TRIES
        # The tests of the running round: by link, whether the test is a retest.
        self._pending: dict[Link, bool] | None = None
        self._log: list[PairTest] = []
        # Views of the log that grow with it.
        self._works = Answers(thresholds.noise)
        self._tries: Counter[Link] = Counter()  # by both orders of two nodes
        for a, b in avoided:
            self._tries[a, b] = self._tries[b, a] = MOST_ROUNDS
        self._unanswered: Counter[int] = Counter()
        # Explanations of the log as it is; None if it grew since.
        self._explained: PairExplanation | None = None
        self._speeds: tuple[PairRates, list[PairExplanation]] | None = None

    # --- observations ---

    def add_outcomes(self, outcomes: Sequence[GroupTest]) -> None:
        """Append the outcomes of the round. A missing one is inconclusive, others are ignored."""
        pending, self._pending = self._pending or {}, None
        self._rounds += bool(pending)
        self._explained = self._speeds = None
        by_link = {tuple(sorted(outcome.nodes)): outcome for outcome in outcomes}
        answers: list[tuple[Link, bool, bool]] = []
        for ends, is_retest in pending.items():
            self._tries.update((ends, ends[::-1]))
            outcome = by_link.get(ends)
            if outcome is None or outcome.passed is None:
                self._unanswered.update(ends)
            else:
                is_good = outcome.is_good
                self._log.append(PairTest(ends, outcome, is_good, is_retest))
                answers.append((ends, is_good, is_retest))
        self._works.note(answers)

    def drop(self, node: int) -> None:
        """Forget a node that is gone: it is in no later round and in no finding."""
        self._present.pop(node, None)
        self._explained = self._speeds = None
        if self._pending:
            self._pending = {ends: is_retest for ends, is_retest in self._pending.items() if node not in ends}

    # --- explanations ---

    def _explain_failures(self) -> PairExplanation:
        if self._explained is None:
            self._explained = explain_pairs(self._works, list(self._present), self._thresholds)
        return self._explained

    def _explain_speeds(self) -> tuple[PairRates, list[PairExplanation]]:
        """Explain which nodes and links are slow, within each part of the network."""
        if self._speeds is None:
            rates = PairRates(self._log, self._thresholds, self._distance)
            parts = self._explain_failures().parts() if rates.answers.poor else []
            self._speeds = rates, [explain_pairs(rates.answers, part, self._thresholds) for part in parts]
        return self._speeds

    # --- the next round ---

    def next_round(self) -> PairRound:
        """Return the pairs to test at once, disjoint; () if the search has ended. Repeated calls agree."""
        if self._pending is None:
            self._pending = self._choose()
        return tuple(self._pending)

    def _choose(self) -> dict[Link, bool]:
        """Choose the tests of the next round: by link, whether the test is a retest."""
        works = self._explain_failures()
        is_blind = not works.model.groups  # nothing passed yet: repeats of a pair tell little
        bad = {*works.faulty, *works.unsteady}
        # Give up a node after this many tests without an answer: its partners may have caused some.
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
                self._fill(tests, works)
            return {ends: ends not in planned for ends in tests.links}
        if self._rounds_left and (self._blind_rounds_left or not is_blind):
            self._rounds_left -= 1
            self._blind_rounds_left -= is_blind
            self._fill(tests, works)
        return dict.fromkeys(tests.links, True)

    def _fill(self, tests: Round, works: PairExplanation) -> None:
        """Fill a round with the tests that decide something. Earlier doubts get the free nodes first."""
        group_of, bad = works.model.group_of, {*works.faulty, *works.unsteady}
        # Which cause explains what failed?
        ask_rivals(works, tests)
        # Does a node work whose tests were all inconclusive?
        for node in self._ring if len(self._ring) > 1 else ():
            if node not in group_of and not works.model.answers.failed_with.get(node):
                tests.meet(node, group_of or self._present)
        # Does a spare work with the neighbours of the node that it may replace?
        leaving = {*bad, *works.undetermined}
        spares = [spare for spare in self._spares if spare in self._present and spare not in bad]
        spares.sort(key=lambda spare: (spare not in group_of, spare in works.model.answers.failed_with))
        needed = len(works.undetermined) + sum(node in bad for node in self._ring)
        neighbours = [
            other
            for a, b in zip(self._ring, self._ring[1:] + self._ring[:1])
            for node, other in ((a, b), (b, a))
            if node in leaving and other in group_of and other not in leaving
        ]
        for spare in spares[:needed]:
            if self._works.tests[spare] < WITNESSES:
                tests.meet(spare, [*dict.fromkeys(neighbours), *group_of] or list(self._present))
        # Which cause explains what was slow? Is a node slow that never met a fast partner?
        rates, speeds = self._explain_speeds()
        for speed in speeds:
            ask_rivals(speed, tests)
        for part in works.parts() if rates.of_node else ():
            leaders = [node for node in rates.leaders() if node in part]
            for node in rates.behind():
                # Two tests of the ring, and two with leaders.
                if node in part and self._works.tests[node] < 2 * WITNESSES:
                    tests.meet(node, leaders)
        # Is there a second bad link? It would fail the next check. The ends of a bad link meet all of their
        # group, and in these rounds the other free nodes test new pairs too.
        bad_links = works.bad_links() if len(self._present) <= FEW_NODES else []
        ends = dict.fromkeys(node for bad_link in bad_links for node in bad_link)
        for node in (*ends, *tests.free) if ends else ():
            if node in group_of and (node in ends or tests.links):
                group = works.model.groups[group_of[node]]
                tests.meet(node, [other for other in group if not self._tries[node, other]])

    # --- the result ---

    def result(self) -> SearchResult:
        """Return what the tests show so far. It may be called at any time."""
        works = self._explain_failures()
        rates, speeds = self._explain_speeds()
        unfit = (*works.faulty, *works.unsteady)
        certified = tuple(
            node for node in self._present if node in works.model.group_of and node not in unfit
        )
        evidence = [self._of_node(node, "broken", Grade.FAIL) for node in unfit]
        evidence += self._of_links(works.bad_links(), "broken", Grade.FAIL, certified)
        evidence += [self._of_node(node, "undetermined", Grade.UNDETERMINED) for node in works.undetermined]
        evidence += self._of_links(works.undetermined_links(), "undetermined", Grade.UNDETERMINED, certified)
        slow = {
            node for speed in speeds for node in (*speed.faulty, *speed.unsteady) if rates.is_slow((node,))
        }
        slow_links = [ends for speed in speeds for ends in speed.bad_links() if slow.isdisjoint(ends)]
        evidence += [_slow(rates, (node,)) for node in certified if node in slow]
        evidence += [_slow(rates, ends) for ends in slow_links if rates.is_slow(ends)]
        unproven = [node for node in certified if node in rates.of_node and rates.is_slow((node,))]
        evidence += [
            replace(_slow(rates, (node,)), finding_kind="unproven") for node in unproven if node not in slow
        ]
        flaky = [ends for ends in self._works.poor if ends in self._works.good]
        evidence += self._of_links(flaky, "flaky", Grade.PASS, certified)
        parts, divided = works.parts(), [speed.parts() for speed in speeds]
        return SearchResult(
            evidence=tuple(evidence),
            certified=certified,
            rounds=self._rounds,
            median=rates.line.median if rates.of_node else None,
            levels=tuple(rates.levels.values()),
            parts=tuple(parts) if len(parts) > 1 else (),
            slow_parts=tuple(part for parts in divided if len(parts) > 1 for part in _attached(rates, parts)),
        )

    def _of_node(self, node: int, finding_kind: str, grade: Grade) -> Evidence:
        failed = [test for test in self._log if node in test.link and not test.is_good]
        if finding_kind == "broken":  # failures with bad partners do not count
            failed = [test for test in failed if self._works.passes[_partner(test.link, node)]]
        partners = dict.fromkeys(_partner(test.link, node) for test in failed)
        wrong = sum(bool(test.outcome.wrong) for test in failed)
        tests = len(failed) + self._works.passes[node]
        return Evidence((node,), finding_kind, grade, tests, len(failed), wrong, tuple(partners))

    def _of_links(
        self, links: Iterable[Link], finding_kind: str, grade: Grade, certified: Nodes
    ) -> Iterator[Evidence]:
        """Yield the evidence of these links, unless an end of it explains its failures."""
        sound = set(certified)
        for ends in links:
            if sound.issuperset(ends):
                failed, passed = self._works.poor[ends], self._works.good[ends]
                wrong = sum(bool(test.outcome.wrong) for test in self._log if test.link == ends)
                yield Evidence(ends, finding_kind, grade, failed + passed, failed, wrong)


def _partner(ends: Link, node: int) -> int:
    return ends[ends[0] == node]


def _slow(rates: PairRates, nodes: Sequence[int]) -> Evidence:
    """Describe a slow node or link. The rates of a link are given without the factor of its level."""
    answers, factor = rates.answers, 1.0
    against: Nodes = ()
    if len(nodes) == 1:
        all_rates = rates.of_node[nodes[0]]
        against = tuple(answers.failed_with[nodes[0]])
        failed = sum(times for ends, times in answers.poor.items() if nodes[0] in ends)
    else:
        ends = (nodes[0], nodes[1])
        all_rates, factor, failed = rates.of_link[ends], rates.factor(ends), answers.poor[ends]
    best, line = max(all_rates), rates.line
    grade = Grade.FAIL if best < line.median * (1 - rates.thresholds.slow_fail) else Grade.WARN
    numbers = (best / factor, line.slow / factor, line.median / factor)
    return Evidence(tuple(nodes), "slow", grade, len(all_rates), failed, 0, against, *numbers)


def _attached(rates: PairRates, parts: Sequence[Nodes]) -> Iterator[Nodes]:
    """Add to each part the nodes that are neither clearly fast nor slow with it."""
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    by_rate = sorted(((max(of_link), ends) for ends, of_link in rates.of_link.items()), reverse=True)
    fast_links = [ends for rate, ends in by_rate if rate >= rates.line.slow]
    while ends := next(((a, b) for a, b in fast_links if (a in part_of) != (b in part_of)), None):
        a, b = ends
        part_of.setdefault(a, part_of.get(b, 0))
        part_of.setdefault(b, part_of[a])
    for number in range(len(parts)):
        yield tuple(sorted(node for node, at in part_of.items() if at == number))


def ask_rivals(explanation: PairExplanation, tests: Round) -> None:
    """Add to a round the tests on which causes and their strongest rivals disagree."""
    model = explanation.model
    groups, group_of = model.groups, model.group_of
    undecided = [cause for cause in explanation.chosen if cause not in explanation.blamed]
    # Is a group cut off, or are all its nodes faulty? Then its passes were luck: repeat them.
    for cause in undecided:
        if cause.fault == "cut" and cause in explanation.probable:
            for ends in combinations(groups[cause.members[0]], 2):
                if model.answers.good[ends] < WITNESSES:
                    tests.put(*ends)
    # Are two groups one? Test several pairs across them.
    for a, b in combinations(range(len(groups) if model.answers.poor else 0), 2):
        if not explanation.are_apart(a, b, explanation.probable):
            missing_tests = 2 * WITNESSES
            for node in groups[b]:
                if missing_tests and tests.meet(node, groups[a]):
                    missing_tests -= 1
    # Is a node that never passed faulty, or one of a group? It meets the group of its strongest rival.
    suspects = sorted(
        explanation.undetermined, key=lambda node: (explanation.rivals[node][0].lead, tests.tests[node])
    )
    for node in suspects:
        for rival in explanation.rivals[node]:
            if rival.lead < model.sure and tests.meet(node, rival.partners):
                break
    # Is a node unsteady? It meets all of its group.
    for cause in undecided:
        if cause.fault == "unsteady":
            tests.meet(cause.members[0], groups[group_of[cause.members[0]]])
    # Is a link bad, or an end of it unsteady? The ends meet others. Was it chance? Repeat the pair.
    for ends in explanation.undetermined_links():
        if Cause("link", ends) in explanation.probable:
            for node in sorted(ends, key=tests.tests.__getitem__):
                tests.meet(node, [other for other in groups[group_of[node]] if other not in ends])
        elif group_of[ends[0]] == group_of[ends[1]]:
            tests.put(*ends)
    # Do chance or an unsteady node explain failures of several links?
    for node in explanation.maybe_unsteady():
        tests.meet(node, groups[group_of[node]])
