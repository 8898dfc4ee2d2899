"""Tracks one collection from all nodes: who was asked, who has answered, until when; decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping

from clusterrun.diagnosis.evidence import Collected, LookOptions
from clusterrun.diagnosis.job_snapshot import JobSnapshot
from clusterrun.model.document import encode
from clusterrun.monitor.actions import AskObserver

ANSWER_SECONDS = 10.0
"""Beyond the look itself: what a node may take to answer."""
FIRST_LOOK = 1.0
LONG_LOOK = 5.5
MANY_RANKS = 256
FEW_RECORDS = 16
FEW_RANKS = 64
MANY_RECORDS = 256
"""A step may begin many collectives, and several steps are wanted."""


class Collection:
    """A look of ``seconds`` at all of ``nodes`` (allocation number to name)."""

    def __init__(
        self, number: int, nodes: Mapping[int, str], size: int, now: float, wall: float, seconds: float
    ) -> None:
        self.number = number
        self.seconds = seconds
        self.overdue_at = now + seconds + ANSWER_SECONDS
        self._nodes = dict(nodes)
        self._size = size
        self._wall = wall
        self._answers: dict[int, Collected] = {}
        self._mute: dict[int, str] = {}

    def asks(self) -> list[AskObserver]:
        records = MANY_RECORDS if self._size <= FEW_RANKS else LookOptions().records
        wanted = LookOptions(self.seconds, FEW_RECORDS if self._size > MANY_RANKS else records)
        body = json.dumps({"collect": encode(wanted)})
        return [AskObserver(node, self.number, body) for node in self._nodes]

    def answered(self, node: int, collected: Collected) -> None:
        self._answers[node] = collected

    def mute(self, node: int, why: str) -> None:
        if node in self._nodes and node not in self._answers:
            self._mute[node] = why

    @property
    def complete(self) -> bool:
        return len(self._answers) + len(self._mute) >= len(self._nodes)

    def case(self, stalled: float, since_begun: float) -> JobSnapshot:
        """What there is to be judged; ``since_begun``: seconds since a rank was seen to begin a call."""
        silent = f"no answer within {self.seconds + ANSWER_SECONDS:g} s"
        missing = {node: self._mute.get(node, silent) for node in self._nodes if node not in self._answers}
        seen = sorted((s for one in self._answers.values() for s in one.ranks), key=lambda one: one.rank)
        return JobSnapshot(
            seen=tuple(seen),
            size=self._size,
            mute=tuple((self._nodes[node], why) for node, why in missing.items()),
            offsets=tuple((one.node, one.clock - self._wall) for one in self._answers.values()),
            stalled=stalled,
            since_begun=since_begun,
            ras=next((one.ras for one in self._answers.values() if one.ras), ()),
        )
