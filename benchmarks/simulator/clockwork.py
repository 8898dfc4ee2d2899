"""Virtual time, named randomness and a fingerprint of all that happened; knows nothing of clusterrun."""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from typing import Any


class Clockwork:
    """One heap of (time, number, what): the same seed makes the same history, whatever the machine does."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self.history: list[str] | None = None

    def random(self, name: str) -> random.Random:
        """Return a stream of its own for ``name``. A new fault does not shift the others' draws."""
        return random.Random(f"{self.seed}:{name}")

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Do ``what`` at virtual time ``when`` (not before now)."""
        self._number += 1
        heapq.heappush(self._heap, (max(when, self.now), self._number, what, args))

    def after(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """Do ``what`` in ``seconds``."""
        self.at(self.now + seconds, what, *args)

    def run(self, until: float) -> None:
        """Let everything happen that is due by ``until``."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, what, args = heapq.heappop(heap)
            self.steps += 1
            what(*args)
        self.now = until

    def log(self, line: str) -> None:
        """Add an event to the fingerprint."""
        text = f"{self.now:.6f} {line}\n"
        self._hash.update(text.encode())
        if self.history is not None:
            self.history.append(text)

    def fingerprint(self) -> str:
        """Return the hash of all logged lines."""
        return self._hash.hexdigest()
