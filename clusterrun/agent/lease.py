"""How long a node may live: knows beats and their answers, no clock and nothing of ranks."""

from __future__ import annotations

from clusterrun.agent.messages import Beat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.agent.messages import Ack


class Lease:
    """Beats sent, beats answered, and the time that follows; times are the node's steady clock, in seconds.

    ``ends_at`` is None until the first ``welcome``. Once it has passed, nothing lengthens it again.
    """

    def __init__(self, length: float) -> None:
        self.ends_at: float | None = None
        self._length = length
        self._granted = False
        self._number = 0
        self._sent: dict[int, float] = {}

    def welcome(self, steady: float) -> float:
        """Connected: the node may live for one lease, but may not start ranks yet. Returns its end."""
        self.ends_at = steady + self._length
        return self.ends_at

    def beat(self, steady: float) -> Beat:
        """The next heartbeat, sent now."""
        beat = Beat(self._number)
        self._sent[self._number] = steady
        self._number += 1
        return beat

    def acknowledged(self, steady: float, ack: Ack) -> bool:
        """Take an answer in; True where ``ends_at`` moved.

        The lease counts from when the beat was *sent*: an answer that was long on its way says
        nothing about the coordinator's patience now.
        """
        sent = self._sent.pop(ack.beat, None)
        if sent is None or self.over(steady):
            return False
        self._sent = {number: at for number, at in self._sent.items() if number > ack.beat}
        moved = self.ends_at is None or sent + self._length > self.ends_at
        self._granted = True
        if moved:
            self.ends_at = sent + self._length
        return moved

    def over(self, steady: float) -> bool:
        """It has run out."""
        return self.ends_at is not None and steady >= self.ends_at

    def grants_start(self, steady: float) -> bool:
        """A beat was acknowledged and the lease runs: only then ranks may start."""
        return self._granted and not self.over(steady)
