"""A snapshot of all ranks of a run, and its text: who waits, where, how long; decides nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from clusterrun.diagnosis.evidence import Backlog, RankSeen, Record
from clusterrun.diagnosis.flight_records import Waiting
from clusterrun.diagnosis.stack_location import place
from clusterrun.diagnosis.verdict import Culprit, Stacks, folded, ranks_in_words
from clusterrun.model.frozen import frozen

PATIENCE = 5.0
"""Seconds without any movement before what looks like a wait is taken for a hang."""
WORK_PATIENCE = 10.0
"""The same where a rank is outside of collectives: one that evaluates or saves for all is no hang."""
BUSY_PATIENCE = 20.0
"""The same where all that are waited for compute."""
USUAL = 1.5
"""Times the longest pause that this run has made before."""
MOST_GROUPS = 16
RECENT = 64
"""Records of a rank that tell how it fares now; older ones only confirm."""
STOPPED = ("T", "t")


@frozen
class JobSnapshot:
    """All ranks there should be (``size``), those seen, nodes that did not answer and why.

    ``offsets`` are the nodes' clocks less ours, in seconds, by name. ``stalled``: nothing has moved
    for that many seconds, as watched from outside (0: nobody watched). ``since_begun`` is how many seconds
    ago a rank last began a collective or a send, joined a group or came nearer to that, as was watched
    (infinite: nobody watched). ``ras`` is NCCL's own report.
    """

    seen: tuple[RankSeen, ...]
    size: int
    mute: tuple[tuple[str, str], ...] = ()
    offsets: tuple[tuple[str, float], ...] = ()
    stalled: float = 0.0
    since_begun: float = math.inf
    ras: tuple[str, ...] = ()

    def of(self, rank: int) -> RankSeen:
        return next(one for one in self.seen if one.rank == rank)

    def culprits(self, whys: Mapping[int, str]) -> tuple[Culprit, ...]:
        return tuple(Culprit(rank, self.of(rank).node, why) for rank, why in whys.items())

    @property
    def long_still(self) -> bool:
        """Whether nothing has happened for longer than ever before in this run."""
        return self.still_for(max(PATIENCE, USUAL * self.longest_pause)) <= 0

    @property
    def newest(self) -> float:
        """When the newest collective was begun, on our clock; 0 without any."""
        offsets = dict(self.offsets)
        begun = (record.at - offsets.get(one.node, 0.0) for one in self.seen for record in one.records)
        return max(begun, default=0.0)

    def still_for(self, seconds: float) -> float:
        """How many of ``seconds`` without any movement have not passed yet; 0: all of them have."""
        if self.stalled:
            return 0.0
        if self.seen and all(one.problem for one in self.seen):
            return seconds  # they may be in collectives, and too busy to say in which
        ages = []
        for one in self.seen:
            newest = max((record.at for record in one.records), default=0.0)
            ages.append(max(0.0, one.clock - newest) if newest else min(one.quiet, self.since_begun))
        return max(0.0, seconds - min(ages, default=0.0))

    def blameless_for(self, seconds: float) -> float:
        """The same, where someone is to be blamed: what no record tells may have been begun since as well."""
        unknown = 0.0 if self.stalled else seconds - self.since_begun
        return max(self.still_for(seconds), unknown)

    def patience(self, waits: Sequence[Waiting], late: Sequence[RankSeen]) -> float:
        """Seconds that ``late``, which work, may let those in ``waits`` wait: they may do so often."""
        calls = {(one.record.group, one.record.operation) for one in waits}
        offsets = dict(self.offsets)
        begun: dict[tuple[str, int], dict[int, float]] = {}
        for one in self.seen:
            for record in one.records:
                if record.done and (record.group, record.operation) in calls:
                    at = record.at - offsets.get(one.node, 0.0)
                    begun.setdefault((record.group, record.sequence), {})[one.rank] = at
        ranks = {one.rank for one in late}
        spans = (sorted((at, rank) for rank, at in of_call.items()) for of_call in begun.values())
        before = [span[-1][0] - span[0][0] for span in spans if span[-1][1] in ranks]
        usual = sorted(before, reverse=True)[1:2]  # once is no custom: it may be a hang that was overcome
        least = BUSY_PATIENCE if all(one.works for one in late) else WORK_PATIENCE
        return max(least, USUAL * self.longest_pause, *(USUAL * one for one in usual))

    @property
    def longest_pause(self) -> float:
        """How long ranks pause between two collectives, in seconds; what happened but once or twice aside."""
        return max((_usual_gap(one.records[-RECENT:]) for one in self.seen), default=0.0)

    @property
    def owed(self) -> list[tuple[RankSeen, Backlog]]:
        """Ranks, and what peers of theirs do not acknowledge."""
        return [(one, debt) for one in self.seen for debt in one.backlog]

    def node_at(self, address: str) -> str:
        """The node whose ranks speak from ``address``; the address itself where nobody does."""
        return next((one.node for one in self.seen if address in one.addresses), address)

    def waited(self, waits: Sequence[Waiting]) -> tuple[str, ...]:
        """Who is in which collective and for how long, a line for each."""
        calls: dict[tuple[str, int, str], list[Waiting]] = {}
        for one in waits:
            calls.setdefault((one.record.group, one.record.sequence, one.record.operation), []).append(one)
        return tuple(self._waited(together) for _, together in sorted(calls.items()))

    def _waited(self, together: Sequence[Waiting]) -> str:
        record = together[0].record
        members = [one.rank for one in together]
        since = max(max(0.0, self.of(one.rank).clock - one.record.at) for one in together)
        has, waits = ("has", "waits") if len(members) == 1 else ("have", "wait")
        line = f"{ranks_in_words(members)} {f'{has} waited {since:.0f} s' if record.at else waits} in "
        line += f"{called(record)}{self.line(*members)}"
        missing = {rank for one in together for rank in one.missing}
        return line + (f", for {ranks_in_words(missing)}" if missing else "")

    def line(self, *ranks: int) -> str:
        """`` at train.py:33`` where all of ``ranks`` stand in one line of the user's."""
        lines = {place(self.of(rank).stack).line for rank in ranks} - {""}
        return f" at {min(lines)}" if len(lines) == 1 else ""

    def circumstances(self) -> Iterator[str]:
        """What does not decide, but should be known."""
        for node, why in self.mute:
            yield f"nothing was heard from {node}: {why}"
        for one, debt in self.owed[:MOST_GROUPS]:
            sent = f"rank {one.rank} on {one.node} sent {debt.waiting} bytes to {self.node_at(debt.peer)}"
            yield f"{sent} ({debt.peer}) {debt.retries} times over: no answer"
        living = [one for one in self.seen if one.state and one.state not in STOPPED]
        silent = [one.rank for one in living if not one.answered]
        if silent:
            yield f"{ranks_in_words(silent)} said nothing about groups (no Python, no prelude, or too busy)"
        yield from (f"ncclras: {line}" for line in self.ras)
        beyond = [rank for ranks, _ in self._stacks()[MOST_GROUPS:] for rank in ranks]
        if beyond:
            yield f"{MOST_GROUPS} stacks are shown: that of {ranks_in_words(beyond)} is not"
        if self.stalled:
            yield f"nothing has moved for {self.stalled:.0f} s"

    def stacks(self) -> tuple[Stacks, ...]:
        """Ranks whose stacks are equal, the smallest group first: the few are the suspects."""
        return tuple(Stacks(folded(ranks), stack) for ranks, stack in self._stacks()[:MOST_GROUPS])

    def _stacks(self) -> list[tuple[list[int], tuple[str, ...]]]:
        found: dict[tuple[str, ...], list[int]] = {}
        for one in self.seen:
            found.setdefault(one.stack, []).append(one.rank)
        return sorted(((ranks, stack) for stack, ranks in found.items()), key=lambda it: (len(it[0]), it[0]))


def _usual_gap(records: Sequence[Record]) -> float:
    """The third longest gap: a checkpoint, or a hang that was overcome, is not what is usual."""
    ordered = sorted(record.at for record in records)
    gaps = sorted((after - before for before, after in zip(ordered, ordered[1:])), reverse=True)
    return gaps[min(2, len(gaps) - 1)] if gaps else 0.0


def called(record: Record) -> str:
    """``all_reduce (12 of group 0)``; a send or receive has no number."""
    group = record.group if len(record.group) <= 12 else record.group[:9] + "…"
    return record.operation + (f" ({record.sequence} of group {group})" if record.sequence else "")
