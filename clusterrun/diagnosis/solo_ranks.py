"""Detect ranks that train each alone, from their pulses over time; pure.

A script that never makes one group of all ranks trains as many copies, and exits 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.diagnosis.evidence import Pulse
from clusterrun.diagnosis.verdict import Verdict, ranks_in_words

ALONE = Verdict.ALONE.value
SILENCE = "; --env CLUSTERRUN_INDEPENDENT=1 where ranks are meant to be independent"
# Sentences that begin alike differ only in their numbers.
KIND = 40
# Seconds. A script may prepare data before it makes the group.
NO_GROUP_SECONDS = 120.0
NO_GROUP_AT_END = 30.0
SILENT_SECONDS = 120.0
# Collectives of the setup: a barrier, a broadcast of parameters.
FEW_COLLECTIVES = 4
# Processors. A rank that uses less waits, and does not train.
WORKED = 0.25


class Together:
    """Watches the pulses of ``size`` ranks. ``warning`` is the most exact warning so far; '' without one."""

    def __init__(self, size: int, now: float) -> None:
        self._size = size
        self._began = now
        self._pulses: dict[int, Pulse] = {}
        self._largest = 0
        self._small: dict[int, int] = {}
        self._formed: float | None = None
        self._output = 0
        self._seconds = 0.0
        self.warning = ""
        self._left: set[int] = set()

    def heard(self, now: float, pulses: Iterable[Pulse]) -> str:
        """Take pulses. Return a new warning; '' if there is none."""
        for pulse in pulses:
            self._pulses[pulse.rank] = pulse
            self._largest = max(self._largest, pulse.size)
            self._left |= {pulse.rank} if pulse.alone else set()
            if pulse.size:
                self._small[pulse.rank] = self._small.get(pulse.rank, 0) + 1
        warning = self._small_groups() or self._no_group(now, NO_GROUP_SECONDS) or self._silent(now)
        return self._news(warning) if self._size > 1 else ""

    @property
    def together(self) -> bool:
        """Return whether all ranks have formed one group and use it, so that no earlier warning holds."""
        return self._size > 1 and self._largest >= self._size and self._used()

    def _used(self) -> bool:
        return any(pulse.begun > FEW_COLLECTIVES or pulse.begun < 0 for pulse in self._pulses.values())

    def over(self, now: float) -> str:
        """All ranks have ended with exit code 0. Return a new warning; '' if there is none."""
        warning = self._small_groups() or self.warning
        if not warning and self._left and self._largest < self._size:
            ranks = ranks_in_words(self._left)
            at_least = "" if len(self._left) == self._size else "at least "
            warning = f"{ALONE}: {at_least}{ranks} ended without joining the others{SILENCE}"
        if not warning and now - self._began >= NO_GROUP_AT_END:
            warning = self._no_group(now, NO_GROUP_AT_END)
        return self._news(warning) if self._size > 1 else ""

    def _small_groups(self) -> str:
        """Every rank has a default group, and none holds all ranks. Ranks make it in turn: look twice."""
        if self._largest >= self._size or len(self._small) < self._size or min(self._small.values()) < 2:
            return ""
        form = "each rank is in a group of its own" if self._largest == 1 else "the ranks form several groups"
        warning = f"{ALONE}: {form}, the largest has {self._largest} of {self._size} ranks: "
        return f"{warning}is init_process_group given another world_size? it needs none{SILENCE}"

    def _no_group(self, now: float, after: float) -> str:
        answering = [pulse for pulse in self._pulses.values() if pulse.answered and pulse.torch]
        if self._largest or len(answering) < self._size or now - self._began < after:
            return ""
        if any(pulse.seconds < WORKED * after for pulse in answering):
            return ""
        warning = f"{ALONE}: {self._size} ranks work, and none has called init_process_group: each trains "
        return f"{warning}a copy of its own (clusterrun help frameworks says what joins them){SILENCE}"

    def _silent(self, now: float) -> str:
        """All ranks are in one group that is never used, while they work and print."""
        if self._largest < self._size or self._used():
            self._formed = None
            return ""
        pulses = self._pulses.values()
        output, seconds = sum(pulse.output for pulse in pulses), min(pulse.seconds for pulse in pulses)
        if self._formed is None:
            self._formed, self._output, self._seconds = now, output, seconds
        worked = seconds - self._seconds >= WORKED * SILENT_SECONDS and output > self._output
        if now - self._formed < SILENT_SECONDS or not worked:
            return ""
        warning = f"{ALONE}: the group of {self._size} ranks exists, but they have exchanged nothing for "
        warning += f"{now - self._formed:.0f} s while they work"
        return f"{warning}: does the framework know its world size?{SILENCE}"

    def _news(self, warning: str) -> str:
        """Return ``warning`` if it differs from the last one in more than numbers."""
        if not warning or warning[:KIND] == self.warning[:KIND]:
            return ""
        self.warning = warning
        return warning
