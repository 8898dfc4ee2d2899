"""Reports the pulses of this node's ranks, often at first, then every few seconds; judges nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

from clusterrun import proc
from clusterrun.diagnosis.evidence import Digest, Pulse
from clusterrun.model.document import encode
from clusterrun.model.frozen import Any
from clusterrun.model.paths import AttemptPaths
from clusterrun.monitor.collector import begun, found, output, used
from clusterrun.monitor.oom import killed
from clusterrun.monitor.rank_channels import facts, groups

LEAST_PERIOD = 1.0
PERIODS_PER_TIMEOUT = 8
"""A hang is called at half a group's time-out: until then some digests must have told that nothing moves."""
EAGER = (2.0, 5.0)
"""Seconds after the start of the ranks: a short run is to be seen as well."""


class Digests:
    """A part of the observer: says how the ranks fare without being asked."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._pids: Mapping[int, int] = {}
        self._paths: AttemptPaths | None = None
        self._times: list[float] = []
        self._number = 0
        self._killed = killed()

    def started(self, now: float, paths: AttemptPaths, pids: Mapping[int, int]) -> None:
        self._paths, self._pids = paths, pids
        first = sorted({*EAGER, self._period})
        self._times = [now + seconds for seconds in first if seconds <= self._period]

    def wakes_at(self) -> float | None:
        return self._times[0] if self._times else None

    def run(self, now: float) -> list[str]:
        found = self.digest()
        timeouts = [pulse.timeout / PERIODS_PER_TIMEOUT for pulse in found.ranks if pulse.timeout]
        period = min(self._period, max(LEAST_PERIOD, min(timeouts, default=self._period)))
        self._times = self._times[1:] or [now + period]
        return [json.dumps({"digest": encode(found)})]

    def ended(self, now: float) -> list[str]:
        """A rank has just ended: nobody is asked, for ranks that end as well would not answer in time."""
        return [json.dumps({"digest": encode(self.digest(asks=False))})]

    def digest(self, asks: bool = True) -> Digest:
        if self._paths is None:
            return Digest(())
        self._number += 1
        ranks = found(self._pids)
        moments = {rank: proc.look(pid) for rank, (pid, _) in ranks.items()}
        run = [rank for rank, moment in moments.items() if moment and not moment.stopped]
        channels = [channel for rank in run if (channel := ranks[rank][1])]
        said = facts(channels, self._number, 0) if asks else {}
        pulses = (
            _pulse(self._paths, rank, pid, moments[rank], said.get(pid, {}))
            for rank, (pid, _) in ranks.items()
        )
        return Digest(tuple(pulses), max(0, killed() - self._killed))


def _pulse(
    paths: AttemptPaths, rank: int, pid: int, moment: proc.Process | None, said: Mapping[str, Any]
) -> Pulse:
    """``said``: what its thread answered; empty for nothing."""
    known = bool(said) and "problem" not in said
    known_groups = groups(said)
    counts = begun(said)
    left = proc.content(paths.beside(f"{rank:05d}.farewell.json")) if moment is None else b""
    return Pulse(
        rank,
        pid,
        moment.state if moment else "",
        round(used(pid), 2),
        output(paths, rank),
        known,
        bool(said.get("torch")),
        next((group.size for group in known_groups if group.default), 0),
        sum(counts) if known and all(count >= 0 for count in counts) else -1,
        b'"alone": true' in left,
        min((group.timeout for group in known_groups if group.timeout and group.size > 1), default=0.0),
    )
