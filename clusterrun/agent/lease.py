"""Computes how long a node may run ranks, from heartbeats and their acknowledgements; knows no clock."""

from __future__ import annotations

from clusterrun.protocol.messages import Ack, Beat


class Lease:
    """Beats sent, beats answered, and the time that follows; times are the node's steady clock, in seconds.

    ``ends_at`` is None until the first ``welcome``. Once it has passed nothing lengthens it again, but for
    one case: a process that stood still while it passed asks once more, with its ranks stopped, and the
    answer to what it sent *after* that grants a new one.
    """

    def __init__(self, length: float) -> None:
        self.ends_at: float | None = None
        self._length = length
        self._granted = False
        self._number = 0
        self._sent: dict[int, float] = {}
        self._woke_at: float | None = None

    def welcome(self, steady: float) -> float:
        """Connected: the node may live for one lease, but may not start ranks yet. Returns its end."""
        self.ends_at = steady + self._length
        return self.ends_at

    def beat(self, steady: float) -> Beat:
        beat = Beat(self._number)
        self._sent[self._number] = steady
        self._number += 1
        return beat

    def acknowledged(self, steady: float, ack: Ack) -> bool:
        """Enter an acknowledgement; True if ``ends_at`` moved.

        The lease counts from when the beat was *sent*: a delayed answer says nothing about whether the
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
        """This process was suspended until now; None: it does not ask again."""
        self._woke_at = steady

    def over(self, steady: float) -> bool:
        return self.ends_at is not None and steady >= self.ends_at

    def grants_start(self, steady: float) -> bool:
        """A beat was acknowledged and the lease runs: only then ranks may start."""
        return self._granted and not self.over(steady)
