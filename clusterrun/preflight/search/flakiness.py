"""Whether a node that passes now and then can be trusted, by its first tests with others; asks for none."""

from __future__ import annotations

import math
from collections.abc import Collection

from clusterrun.preflight.search.schedule import Pair
from clusterrun.preflight.thresholds import Thresholds

ENOUGH_PASSES = 2
"""With so many partners both ends of a link must have passed before the link alone is blamed."""


class Flakiness:
    """Repeats on one link tell of that link; how a node does with ever new partners tells of the node.

    A pass with anybody shows that a node can work, not that it always does: one that fails with most
    of those it meets is bad, however often it was lucky.
    """

    def __init__(self, confirm: int, count: int, limits: Thresholds) -> None:
        self._confirm, self._count, self._limits = confirm, count, limits
        self._met: set[Pair] = set()
        self._failed: dict[int, list[int]] = {}
        self._passed: dict[int, int] = {}

    def note(self, link: Pair, good: bool) -> None:
        """Enter one test; only the first of each link counts."""
        if link in self._met:
            return
        self._met.add(link)
        for node, other in ((link.a, link.b), (link.b, link.a)):
            if good:
                self._passed[node] = self._passed.get(node, 0) + 1
            else:
                self._failed.setdefault(node, []).append(other)

    def tests(self, node: int, sound: Collection[int]) -> tuple[int, int]:
        """With how many ``sound`` partners it failed at first, and with how many it passed.

        Whom it passed with worked then; what is counted is few, for all pairs of 1,250 nodes are many.
        """
        failed = sum(other in sound for other in self._failed.get(node, ()))
        return failed, self._passed.get(node, 0)

    def shaky(self, node: int, sound: Collection[int], more: int, last: bool) -> bool:
        """It passed, but failed with most, and so often that chance does not explain it.

        ``more`` are failures asked for beyond that, where more tests fail by chance than expected.
        One more is asked for as well, since it did pass, but of a node that has met all there are: ``last``.
        """
        failed, passed = self.tests(node, sound)
        least = self._confirm + more + (not last)
        return failed > passed > 0 and failed >= least and self._beyond_chance(failed, passed, more)

    def doubtful(self, node: int, sound: Collection[int]) -> bool:
        """It failed with several, and has not passed with more: its next partners will tell."""
        failed, passed = self.tests(node, sound)
        return failed > 1 and 0 < passed <= failed

    def odd(self, node: int, sound: Collection[int]) -> bool:
        """It failed once, and has not met so many that this is no matter."""
        failed, passed = self.tests(node, sound)
        return failed > 0 and passed < ENOUGH_PASSES * 2

    def known(self, node: int, sound: Collection[int]) -> bool:
        """It passed with enough for a link of its to be blamed alone."""
        return self.tests(node, sound)[1] >= ENOUGH_PASSES

    def _beyond_chance(self, failed: int, passed: int, more: int) -> bool:
        """So many failures are not expected of any of ``count`` healthy nodes."""
        noise, accepted = self._limits.noise, self._limits.false_blame
        if not (0 < noise < 1 and 0 < accepted < 1):
            return True
        ways = math.comb(failed + passed, failed)
        return ways * noise ** (failed - more) * self._count <= accepted * (1 + 1e-9)
