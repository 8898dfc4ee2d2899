"""Compute how long a node may run ranks, from heartbeats and their acknowledgements. Pure."""

from __future__ import annotations

from clusterrun.protocol.messages import Ack, Beat


class Lease:
    """The lease of a node. All times are on the node's steady clock, in seconds.

    ``ends_at`` is None until the first ``welcome``. A lease that has ended is not extended, with one
    exception: a process that was suspended while it ended asks once more, with its ranks stopped. The answer
    to a beat sent *after* the suspension grants a new lease.
    """

    def __init__(self, length: float) -> None:
        self.ends_at: float | None = None
        self._length = length
        self._granted = False
        self._number = 0
        self._sent: dict[int, float] = {}
        self._woke_at: float | None = None

    def welcome(self, steady: float) -> float:
        """Grant a first lease on connection and return its end. Ranks may not start yet."""
        self.ends_at = steady + self._length
        return self.ends_at

    def beat(self, steady: float) -> Beat:
        beat = Beat(self._number)
        self._sent[self._number] = steady
        self._number += 1
        return beat

    def acknowledged(self, steady: float, ack: Ack) -> bool:
        """Record an acknowledgement, and return whether ``ends_at`` moved.

        The lease counts from when the beat was *sent*, because a delayed answer does not prove that the
        coordinator still considers this node alive.
        """
        sent = self._sent.pop(ack.beat, None)
        if sent is None or (self.over(steady) and (self._woke_at is None or sent < self._woke_at)):
            return False
        if self._woke_at is not None and sent >= self._woke_at:
            self._woke_at = None
        self._sent = {number: at for number, at in self._sent.items() if number > ack.beat}
        moved = self.ends_at is None or sent + self._length > self.ends_at
        self._granted = True
        if moved:
            self.ends_at = sent + self._length
        return moved

    def woke(self, steady: float | None) -> None:
        """Record that this process was suspended until now; None: it does not ask again."""
        self._woke_at = steady

    def over(self, steady: float) -> bool:
        return self.ends_at is not None and steady >= self.ends_at

    def grants_start(self, steady: float) -> bool:
        """Return whether ranks may start: a beat was acknowledged and the lease runs."""
        return self._granted and not self.over(steady)
