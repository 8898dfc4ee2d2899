"""Which node or link loses packets, from what had to be sent again and what stalled; pure, knows no names."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen
from clusterrun.preflight.search.node_groups import parts_by_links
from clusterrun.preflight.tasks import ExchangeAnswer

LEAST_RESENT = 8
"""With fewer segments sent again the share says nothing."""
LEAST_SENT = 50
TIMES_USUAL = 5
"""So much more than elsewhere: what is alike everywhere is the network's way to be."""
LOPSIDED = 3
"""Where so much more is lost one way, what is sent again the other way may be for lost confirmations only."""
ENOUGH = 2
"""So many other nodes must see it before it is a node's and not a link's."""


@frozen
class LossyWay:
    """What went from ``a`` to ``b``: data segments, those sent again, and messages that stalled."""

    a: int
    b: int
    sent: int
    resent: int
    longest: float
    stalls: int

    @property
    def ends(self) -> tuple[int, int]:
        return self.a, self.b

    @property
    def share(self) -> float:
        return self.resent / self.sent if self.sent else 0.0

    def is_echo(self, back: LossyWay | None) -> bool:
        """It may only look lossy: what confirms its packets goes the other way, where far more is lost."""
        return back is not None and back.resent >= LEAST_RESENT and back.share > LOPSIDED * self.share


@frozen
class LossTrouble:
    """Of (node,), with its ``side``: ``all``, ``out`` or ``in``; or a link (a, b), one or ``both`` ways."""

    nodes: tuple[int, ...]
    ways: tuple[LossyWay, ...]
    side: str = ""
    both: bool = False

    @property
    def share(self) -> float:
        return sum(way.resent for way in self.ways) / max(1, sum(way.sent for way in self.ways))

    @property
    def stalls(self) -> int:
        return sum(way.stalls for way in self.ways)


class PacketLosses:
    def __init__(self) -> None:
        self._watched: dict[tuple[int, int], LossyWay] = {}

    def take(self, node: int, answer: ExchangeAnswer) -> None:
        """What one node saw until now: it takes the place of what it had seen before."""
        self._watched = {way: seen for way, seen in self._watched.items() if way[0] != node}
        for one in answer.exchanged:
            was = self._watched.get((node, one.node), LossyWay(node, one.node, 0, 0, 0.0, 0))
            sums = (was.sent + one.sent, was.resent + one.resent)
            longest = max(was.longest, one.longest)
            self._watched[node, one.node] = LossyWay(node, one.node, *sums, longest, was.stalls + one.stalls)

    def ways(self, present: Iterable[int]) -> list[LossyWay]:
        there = set(present)
        return [way for way in self._watched.values() if {way.a, way.b} <= there]


def troubles(ways: list[LossyWay], least_share: float) -> list[LossTrouble]:
    """Nodes first, then links: who explains the ways on which packets get lost.

    A node is to blame where all its ways of a side are ill, with ``ENOUGH`` others, and one of these ways
    is explained by no other such node.
    """
    usual = max(least_share, TIMES_USUAL * usual_share(ways))
    ill = {way.ends: way for way in ways if way.resent >= LEAST_RESENT and way.share >= usual}
    ill.update({one.ends: one for way in ways if way.stalls for one in _stalled(way, ways)})
    echoes = {ends for ends, way in ill.items() if way.is_echo(ill.get(ends[::-1]))}
    able = {node: found for node in _nodes(ways) if (found := _side(node, ways, ill, echoes)) is not None}
    guilty: list[LossTrouble] = []
    for node, one in able.items():
        others = {way.ends for other, found in able.items() if other != node for way in found.ways}
        if any(way.ends not in others for way in one.ways):
            guilty.append(one)
    # Where words that something arrived get lost, the other end sends some of it again too.
    blamed = {node for one in guilty for node in one.nodes}
    pairs: dict[frozenset[int], list[LossyWay]] = {}
    for ends, way in ill.items():
        if ends not in echoes and blamed.isdisjoint(ends):
            pairs.setdefault(frozenset(ends), []).append(way)
    return [*guilty, *(LossTrouble(own[0].ends, tuple(own), both=len(own) > 1) for own in pairs.values())]


def parts(ways: list[LossyWay], links: list[LossTrouble]) -> tuple[tuple[int, ...], ...]:
    """The groups of nodes between which every way loses packets and inside which none does; () for none."""
    tried = [way.ends for way in ways if way.sent >= LEAST_SENT]
    return parts_by_links(_nodes(ways), tried, {frozenset(one.nodes) for one in links})


def _stalled(lossy: LossyWay, ways: list[LossyWay]) -> list[LossyWay]:
    """Of a line with stalls the way that loses far more; where there is none, both: messages need them."""
    back = next((one for one in ways if one.ends == lossy.ends[::-1]), lossy)
    worse, better = sorted((lossy, back), key=lambda one: -one.share)
    return [worse] if better.is_echo(worse) else [worse, better]


def usual_share(ways: list[LossyWay]) -> float:
    """What three quarters of the ways lose at least; of two nodes nothing is usual."""
    shares = sorted(way.share for way in ways if way.sent >= LEAST_SENT)
    return shares[len(shares) // 4] if shares and len(_nodes(ways)) > ENOUGH else 0.0


def _nodes(ways: list[LossyWay]) -> dict[int, None]:
    return dict.fromkeys(node for way in ways for node in (way.a, way.b))


def _side(
    node: int, ways: list[LossyWay], ill: dict[tuple[int, int], LossyWay], echoes: set[tuple[int, int]]
) -> LossTrouble | None:
    """The side of a node that is ill as a whole: both, what it sends or gets, or one way of each line."""
    out, into = [way for way in ways if way.a == node], [way for way in ways if way.b == node]
    for side, own in (("all", out + into), ("out", out), ("in", into)):
        sure = [way for way in own if way.ends not in echoes]
        enough = len(_others(node, sure)) >= ENOUGH and (side != "all" or len(sure) == len(own))
        if enough and all(way.ends in ill for way in own):
            return LossTrouble((node,), tuple(own), side)
    seen = [way for way in out + into if way.ends in ill]
    if len(_others(node, seen)) >= ENOUGH and _others(node, seen) == _others(node, out + into):
        return LossTrouble((node,), tuple(seen), "all")
    return None


def _others(node: int, ways: list[LossyWay]) -> set[int]:
    return {way.b if way.a == node else way.a for way in ways}
