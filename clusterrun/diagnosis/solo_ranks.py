"""Do the ranks train together, or each alone? From their pulses, over time; pure.

A script that never makes one group of all ranks trains as many copies, exits 0, and nobody is told.
"""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.diagnosis.evidence import Pulse
from clusterrun.diagnosis.verdict import Verdict, ranks_in_words

ALONE = Verdict.ALONE.value
SILENCE = "; --env CLUSTERRUN_INDEPENDENT=1 where ranks are meant to be independent"
KIND = 40
"""Characters that tell one sentence from another."""
NO_GROUP_SECONDS = 120.0
"""Preparing data before the group is made takes time as well: only after this much is its absence told."""
NO_GROUP_AT_END = 30.0
SILENT_SECONDS = 120.0
FEW_COLLECTIVES = 4
"""What setting up takes: a barrier, a broadcast of parameters."""
WORKED = 0.25
"""Of the time, in processors: less is waiting, not training."""


class Together:
    """The pulses of ``size`` ranks since ``now``; one sentence stands at a time, the most exact one."""

    def __init__(self, size: int, now: float) -> None:
        self._size = size
        self._began = now
        self._pulses: dict[int, Pulse] = {}
        self._largest = 0
        self._small: dict[int, int] = {}
        self._formed: float | None = None
        self._output = 0
        self._seconds = 0.0
        self.told = ""
        self._left: set[int] = set()

    def heard(self, now: float, pulses: Iterable[Pulse]) -> str:
        """What is to be said now, '' for nothing new."""
        for pulse in pulses:
            self._pulses[pulse.rank] = pulse
            self._largest = max(self._largest, pulse.size)
            self._left |= {pulse.rank} if pulse.alone else set()
            if pulse.size:
                self._small[pulse.rank] = self._small.get(pulse.rank, 0) + 1
        said = self._small_groups() or self._no_group(now, NO_GROUP_SECONDS) or self._silent(now)
        return self._news(said) if self._size > 1 else ""

    @property
    def together(self) -> bool:
        """Whether one group of all ranks was formed, and is used: what was told before holds no more."""
        return self._size > 1 and self._largest >= self._size and self._used()

    def _used(self) -> bool:
        return any(one.begun > FEW_COLLECTIVES or one.begun < 0 for one in self._pulses.values())

    def over(self, now: float) -> str:
        """All ranks have ended well."""
        said = self._small_groups() or self.told
        if not said and self._left and self._largest < self._size:
            ranks = ranks_in_words(self._left)
            some = "" if len(self._left) == self._size else "at least "
            said = f"{ALONE}: {some}{ranks} ended without ever having joined the others{SILENCE}"
        if not said and now - self._began >= NO_GROUP_AT_END:
            said = self._no_group(now, NO_GROUP_AT_END)
        return self._news(said) if self._size > 1 else ""

    def _small_groups(self) -> str:
        """Every rank has a default group, and none is the whole world; seen twice: they are made in turn."""
        if self._largest >= self._size or len(self._small) < self._size or min(self._small.values()) < 2:
            return ""
        form = "each rank is in a group of its own" if self._largest == 1 else "the ranks form several groups"
        said = f"{ALONE}: {form}, the largest has {self._largest} of {self._size} ranks: "
        return f"{said}is init_process_group given another world_size? it needs none{SILENCE}"

    def _no_group(self, now: float, after: float) -> str:
        known = [pulse for pulse in self._pulses.values() if pulse.answered and pulse.torch]
        if self._largest or len(known) < self._size or now - self._began < after:
            return ""
        if any(pulse.seconds < WORKED * after for pulse in known):
            return ""
        said = f"{ALONE}: {self._size} ranks work, and none has called init_process_group: each trains "
        return f"{said}a copy of its own (clusterrun help frameworks says what joins them){SILENCE}"

    def _silent(self, now: float) -> str:
        """One group of all, which is never used, while all work and print."""
        if self._largest < self._size or self._used():
            self._formed = None
            return ""
        pulses = self._pulses.values()
        output, seconds = sum(one.output for one in pulses), min(one.seconds for one in pulses)
        if self._formed is None:
            self._formed, self._output, self._seconds = now, output, seconds
        worked = seconds - self._seconds >= WORKED * SILENT_SECONDS and output > self._output
        if now - self._formed < SILENT_SECONDS or not worked:
            return ""
        said = f"{ALONE}: the group of {self._size} ranks exists, but they have exchanged nothing for "
        said += f"{now - self._formed:.0f} s while they work"
        return f"{said}: does the framework know its world size?{SILENCE}"

    def _news(self, said: str) -> str:
        """``said`` where it is another sentence than the one that stands, its numbers aside."""
        if not said or said[:KIND] == self.told[:KIND]:
            return ""
        self.told = said
        return said
