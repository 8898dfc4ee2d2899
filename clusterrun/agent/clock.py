"""What clocks tell: the coordinator's time, estimated by an agent, and that a process stood still; pure."""

from __future__ import annotations

_SAMPLES = 8
_UNKNOWN_ROUND_TRIP = 10.0


class RemoteClock:
    """Of the last samples the one with the shortest way to and fro counts: it bounds the error best."""

    def __init__(self, wall: float, steady: float) -> None:
        self._samples = [(_UNKNOWN_ROUND_TRIP, wall - steady)]
        self._sent: dict[int, float] = {}

    def asked(self, beat: int, steady: float) -> None:
        """Heartbeat ``beat`` was sent."""
        self._sent[beat] = steady

    def answered(self, beat: int, wall: float, steady: float) -> None:
        """It was acknowledged, when the coordinator's clock said ``wall``."""
        sent = self._sent.pop(beat, None)
        if sent is None:
            return
        for older in [number for number in self._sent if number < beat]:
            del self._sent[older]
        round_trip = steady - sent
        self._samples.append((round_trip, wall + round_trip / 2 - steady))
        del self._samples[:-_SAMPLES]

    def wall(self, steady: float) -> float:
        """What the coordinator's clock says now, in seconds since the epoch."""
        return steady + min(self._samples)[1]


OVERSLEPT_SECONDS = 1.0
"""An event that much later than something was due says that the process stood still."""


class Standstill:
    """Finds out that a process did nothing for a while: it was stopped, or its machine slept.

    ``due`` is when something must be shown to it (steady clock), None where nothing needs to be.
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self._seen: float | None = None

    def seconds(self, now: float) -> float:
        """Something is shown to it now: for how long it stood still before, 0 where it did not."""
        seen, self._seen = self._seen, now
        if seen is None or self.due is None or now - max(self.due, seen) <= OVERSLEPT_SECONDS:
            return 0.0
        return now - seen
