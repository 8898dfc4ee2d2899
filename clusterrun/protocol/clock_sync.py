"""Estimate the coordinator's time from an agent's heartbeats; pure."""

from __future__ import annotations

_SAMPLES = 8
_UNKNOWN_ROUND_TRIP = 10.0


class RemoteClock:
    """Uses the recent sample with the shortest round trip, which bounds the error best."""

    def __init__(self, wall: float, steady: float) -> None:
        self._samples = [(_UNKNOWN_ROUND_TRIP, wall - steady)]
        self._sent: dict[int, float] = {}

    def asked(self, beat: int, steady: float) -> None:
        self._sent[beat] = steady

    def answered(self, beat: int, wall: float, steady: float) -> None:
        sent = self._sent.pop(beat, None)
        if sent is None:
            return
        for older in [number for number in self._sent if number < beat]:
            del self._sent[older]
        round_trip = steady - sent
        self._samples.append((round_trip, wall + round_trip / 2 - steady))
        del self._samples[:-_SAMPLES]

    def wall(self, steady: float) -> float:
        """Return the coordinator's time now, in seconds since the epoch."""
        return steady + min(self._samples)[1]
