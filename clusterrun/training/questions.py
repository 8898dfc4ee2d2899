"""A question that every rank asks at the same calls, with the same answer for all; knows no source."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_CALLS = 16
"""Calls between two rounds, at most: a script that becomes slow is asked again soon enough."""
BETWEEN = 0.25
"""Seconds between two rounds that are aimed at; rarer calls make a round each."""


class AgreedQuestion:
    """Whether a thing was asked for, on any rank; ``asked`` tells what this one knows (0: no).

    A round is one collective. The time to the next is a number of calls that rank 0 proposes and the
    round itself carries: so all ranks make it at the same call, whatever their clocks say.
    """

    def __init__(
        self,
        asked: Callable[[], int],
        agree: Callable[[int, int], tuple[int, ...]],
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asked, self._agree, self._leads, self._clock = asked, agree, leads, clock
        self._calls = 0
        self._due = 1
        self._last: float | None = None

    def answer(self, every: int = 0) -> int:
        """The highest that any rank knows, 0 between two rounds.

        A round is made at every ``every``-th call; at 0 about four times a second.
        """
        self._calls += 1
        if self._calls < (every or self._due):
            return 0
        answer, self._due = self._agree(self._asked(), self._proposal())
        self._calls = 0
        return answer

    def _proposal(self) -> int:
        """Calls until the next round, of rank 0; the others leave it to that one."""
        now, last = self._clock(), self._last
        self._last = now
        if not self._leads() or last is None or now <= last:
            return 1
        return max(1, min(MOST_CALLS, round(self._calls * BETWEEN / (now - last))))
