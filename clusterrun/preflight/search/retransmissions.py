"""Which node or link loses packets, from what had to be sent again and what stalled; pure, knows no names."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen
from clusterrun.preflight.search.node_groups import Groups
from clusterrun.preflight.search.node_groups import parts as parts_of
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
    def share(self) -> float:
        return self.resent / self.sent if self.sent else 0.0


@frozen
class LossTrouble:
    """``nodes`` is (node,) or a link (a, b). ``side`` of a node: ``all``, ``out`` or ``in``.

    ``both``: of a link, both ways.
    """

    nodes: tuple[int, ...]
    ways: tuple[LossyWay, ...]
    side: str = ""
    both: bool = False

    @property
    def share(self) -> float:
        return sum(way.resent for way in self.ways) / max(1, sum(way.sent for way in self.ways))


class PacketLosses:
    """Everything that the examiners' messages showed."""

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
    usual = usual_share(ways)
    ill = {(way.a, way.b): way for way in ways if _lossy(way, least_share, usual)}
    ill.update({(one.a, one.b): one for way in ways if way.stalls for one in _stalled(way, ways)})
    echoes = {key for key, way in ill.items() if _echoes(way, ill.get((way.b, way.a)))}
    able = {node: found for node in _nodes(ways) if (found := _side(node, ways, ill, echoes)) is not None}
    guilty = [one for node, one in able.items() if _alone(node, one, able)]
    # Where words that something arrived get lost, the other end sends some of it again too.
    nodes = {node for one in guilty for node in one.nodes}
    left = [way for key, way in ill.items() if key not in echoes]
    return [*guilty, *_links([way for way in left if not {way.a, way.b} & nodes])]


def parts(ways: list[LossyWay], links: list[LossTrouble]) -> tuple[tuple[int, ...], ...]:
    """The groups of nodes between which every way loses packets and inside which none does; () for none."""
    ill = {frozenset(one.nodes) for one in links}
    groups = Groups()
    for way in ways:
        if way.sent >= LEAST_SENT and frozenset((way.a, way.b)) not in ill:
            groups.join(way.a, way.b)
    return parts_of(groups.of(_nodes(ways)), [(min(one), max(one)) for one in ill])


def _echoes(lossy: LossyWay, back: LossyWay | None) -> bool:
    """It may only look lossy: what confirms its packets goes the other way, where far more is lost."""
    return back is not None and back.resent >= LEAST_RESENT and back.share > LOPSIDED * lossy.share


def _stalled(lossy: LossyWay, ways: list[LossyWay]) -> list[LossyWay]:
    """Of a line with stalls the way that loses far more; where there is none, both: messages need them."""
    back = next((one for one in ways if (one.a, one.b) == (lossy.b, lossy.a)), lossy)
    worse, better = sorted((lossy, back), key=lambda one: -one.share)
    one_way = worse.resent >= LEAST_RESENT and worse.share > LOPSIDED * better.share
    return [worse] if one_way else [worse, better]


def usual_share(ways: list[LossyWay]) -> float:
    """What three quarters of the ways lose at least; of two nodes nothing is usual."""
    shares = sorted(way.share for way in ways if way.sent >= LEAST_SENT)
    return shares[len(shares) // 4] if shares and len(_nodes(ways)) > ENOUGH else 0.0


def _lossy(lossy: LossyWay, least_share: float, usual: float) -> bool:
    return lossy.resent >= LEAST_RESENT and lossy.share >= max(least_share, TIMES_USUAL * usual)


def _nodes(ways: list[LossyWay]) -> dict[int, None]:
    return dict.fromkeys(node for way in ways for node in (way.a, way.b))


def _side(
    node: int, ways: list[LossyWay], ill: dict[tuple[int, int], LossyWay], echoes: set[tuple[int, int]]
) -> LossTrouble | None:
    """The side of a node that is ill as a whole: both, what it sends or gets, or one way of each line."""
    out, into = [way for way in ways if way.a == node], [way for way in ways if way.b == node]
    for side, own in (("all", out + into), ("out", out), ("in", into)):
        sure = [way for way in own if side == "all" or (way.a, way.b) not in echoes]
        others = {way.b if way.a == node else way.a for way in sure}
        alike = side != "all" or not any((way.a, way.b) in echoes for way in own)
        if len(others) >= ENOUGH and alike and all((way.a, way.b) in ill for way in own):
            return LossTrouble((node,), tuple(own), side)
    others = {way.b if way.a == node else way.a for way in out + into}
    seen = [way for way in out + into if (way.a, way.b) in ill]
    if len(others) >= ENOUGH and others == {way.b if way.a == node else way.a for way in seen}:
        return LossTrouble((node,), tuple(seen), "all")
    return None


def _alone(node: int, trouble: LossTrouble, able: dict[int, LossTrouble]) -> bool:
    """Whether it explains a way that no other node does."""
    others = {(way.a, way.b) for other, found in able.items() if other != node for way in found.ways}
    return any((way.a, way.b) not in others for way in trouble.ways)


def _links(ways: list[LossyWay]) -> list[LossTrouble]:
    pairs: dict[frozenset[int], list[LossyWay]] = {}
    for way in ways:
        pairs.setdefault(frozenset((way.a, way.b)), []).append(way)
    return [LossTrouble((own[0].a, own[0].b), tuple(own), both=len(own) > 1) for own in pairs.values()]
