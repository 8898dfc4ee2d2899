"""Explain lost packets: from segments that were sent again and messages that stalled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.cover import excess, sure
from clusterrun.preflight.causes.ways import UNEXPLAINED, Parts, Way, WayTest, find_causes
from clusterrun.preflight.observations import Log, NodeTraffic
from clusterrun.preflight.thresholds import MINORITY, Thresholds

# Loss that most ways have is this network's normal level. A way is lossy from five times that level on.
TIMES_USUAL = 5
# Segments of one message of the exchange. They often get lost together, as one packet of a virtual network or
# in one overflow of a queue, so that they are one observation.
BURST = 12


@frozen
class LossyWay:
    a: int  # sender
    b: int  # receiver
    sent: int  # data segments
    resent: int  # of these: sent again
    longest: float  # seconds that the slowest message and its answer took
    stalls: int  # messages that took long while the kernel sent again

    @property
    def ends(self) -> Way:
        return self.a, self.b

    @property
    def is_lossless_between_stalls(self) -> bool:
        """Return whether the kernel sent again during stalls only.

        A peer that gets no message answers none, so that one way alone shows that both were cut for a while.
        """
        return 0 < self.resent <= self.stalls * BURST

    def is_echo_of(self, back: LossyWay | None, thresholds: Thresholds) -> bool:
        """Return whether this way resends only for confirmations that the way back loses.

        Then the way back surely loses `TIMES_USUAL` times as much. One more resent segment is assumed.
        """
        if back is None or not back.sent or TIMES_USUAL * (self.resent + 1) >= self.sent:
            return False
        return loss_nats(back.sent, back.resent, TIMES_USUAL * (self.resent + 1) / self.sent) >= sure(
            thresholds
        )


def loss_nats(sent: int, resent: int, limit: float) -> float:
    """Return by how many nats loss from ``limit`` on explains the counts better than normal loss."""
    return excess(sent, resent, limit / TIMES_USUAL, limit) if sent and 0 < limit < 1 else 0.0


@frozen
class LossTrouble:
    nodes: tuple[int, ...]  # the node; both ends of a link, the sender first; () for a cut
    ways: tuple[LossyWay, ...]
    side: str = ""  # of a node: all, out or in
    both: bool = False  # of a link: both directions

    @property
    def share(self) -> float:
        sent, resent = _totals(self.ways)
        return resent / max(1, sent)

    @property
    def stalls(self) -> int:
        return sum(way.stalls for way in self.ways)


def _totals(ways: Sequence[LossyWay]) -> tuple[int, int]:
    """Return the segments that all ways sent, and those that they sent again."""
    return sum(way.sent for way in ways), sum(way.resent for way in ways)


def lossy_ways(log: Log, present: Iterable[int]) -> list[LossyWay]:
    """Return the counts of all ways between these nodes. They grow: a new answer replaces the old one."""
    nodes = set(present)
    answers = {traffic.node: traffic.answer for traffic in log.of(NodeTraffic) if traffic.node in nodes}
    ways: dict[Way, LossyWay] = {}
    for node, answer in answers.items():
        for traffic in answer.exchanged:
            if traffic.node not in nodes:
                continue
            before = ways.get((node, traffic.node), LossyWay(node, traffic.node, 0, 0, 0.0, 0))
            ways[node, traffic.node] = LossyWay(
                node,
                traffic.node,
                before.sent + traffic.sent,
                before.resent + traffic.resent,
                max(before.longest, traffic.longest),
                before.stalls + traffic.stalls,
            )
    return list(ways.values())


def usual_share(ways: Sequence[LossyWay], more: int = 0) -> float:
    """Return the share that all but a minority of the ways lose at least; 0 if there are only two nodes.

    ``more`` segments are added to the resent segments, since small numbers vary by chance.
    """
    shares = sorted((way.resent + more) / way.sent for way in ways if way.sent)
    nodes = {node for way in ways for node in way.ends}
    return shares[(len(shares) - 1) // MINORITY] if shares and len(nodes) > 2 else 0.0


def explain_losses(
    ways: Sequence[LossyWay], least_share: float, thresholds: Thresholds
) -> tuple[list[LossTrouble], Parts]:
    """Return the nodes, then the links that lose packets, and the parts between which all ways do.

    A cause is reported if it leads over chance at the normal level as far as blame requires, and as far over
    the same loss on all ways without a cause that is more certain.
    """
    limit = max(least_share, TIMES_USUAL * usual_share(ways, more=1))
    by_ends = {way.ends: way for way in ways}
    stalls: Counter[Way] = Counter()
    for way in ways:
        # A message needs both ways. Blame the one that loses far more.
        if way.stalls:
            reverse = by_ends.get(way.ends[::-1])
            if not way.is_echo_of(reverse, thresholds):
                stalls[way.ends] += way.stalls
            if reverse is not None and (
                way.is_lossless_between_stalls or not reverse.is_echo_of(way, thresholds)
            ):
                stalls[reverse.ends] += way.stalls

    def nats(ends: Sequence[Way]) -> float:
        sent, resent = _totals([by_ends[pair] for pair in ends])
        return loss_nats(sent, resent, limit) + UNEXPLAINED * sum(stalls[pair] for pair in ends)

    nats_of_way = {way.ends: nats([way.ends]) for way in ways}
    lossy = {ends for ends, value in nats_of_way.items() if value > 0}
    tests = []
    for way in ways:
        reverse = by_ends.get(way.ends[::-1])
        is_echo = way.ends in lossy and way.ends[::-1] in lossy and way.is_echo_of(reverse, thresholds)
        if not is_echo:
            # A way joins its ends to a group if normal loss is the better explanation.
            failed = frozenset({1} if way.ends in lossy else ())
            tests.append(WayTest(way.a, way.b, frozenset({1}), failed, nats_of_way[way.ends] < 0))
    causes, parts = find_causes(tests, nats)
    troubles = []
    for cause in causes:
        counts = tuple(by_ends[ends] for ends in cause.ways)
        if cause.lead < sure(thresholds):
            continue
        if cause.fault == "cut":
            troubles.append(LossTrouble((), counts))
        elif cause.fault in ("link", "way"):
            troubles.append(LossTrouble(cause.ways[0], counts, both=len(counts) > 1))
        else:
            troubles.append(LossTrouble(cause.nodes, counts, cause.fault))
    certain = [trouble for trouble in troubles if trouble.stalls]
    candidates = [trouble for trouble in troubles if not trouble.stalls and trouble.share >= limit]
    equal = [way for way in ways if not any(way in trouble.ways for trouble in certain)]
    while candidates:
        differences = [_difference(trouble.ways, equal) for trouble in candidates]
        if max(differences) < sure(thresholds):
            break
        certain.append(candidates.pop(differences.index(max(differences))))
        equal = [way for way in equal if way not in certain[-1].ways]
    return certain, parts


def _difference(ways: Sequence[LossyWay], equal: Sequence[LossyWay]) -> float:
    """Return by how many nats two levels of loss, of ``ways`` and of the others, beat one level for all.

    Two nodes alone have no usual level.
    """
    other_ways = [way for way in equal if way not in ways]

    def nats(counts: Sequence[LossyWay]) -> float:
        sent, resent = _totals(counts)
        parts = (part for part in (resent, sent - resent) if part > 0)
        return sum(part * math.log(part / sent) for part in parts) / BURST

    return nats(ways) + nats(other_ways) - nats([*ways, *other_ways]) if len(other_ways) > 1 else math.inf
