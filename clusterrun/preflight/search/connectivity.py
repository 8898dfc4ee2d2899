"""Which node, link or port keeps others from talking, from who dialled whom; pure, knows no names."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen
from clusterrun.preflight.search.node_groups import parts_by_links
from clusterrun.preflight.tasks import DialAnswer, DialTask

ENOUGH = 2
"""So many others must have found the same before it is a node's and not a link's."""


class DialledWay:
    """All that ``a`` met when it dialled ``b``: what answered once is good."""

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b
        self.tried: set[int] = set()
        self.good: set[int] = set()
        self.refused: set[int] = set()
        self.large = True
        self.rounds = 0
        self.missed = False
        self.why = ""
        self.dropped = False
        """The machine that dialled dropped what it sent."""

    @property
    def bad(self) -> frozenset[int]:
        return frozenset(self.tried - self.good)

    @property
    def dead(self) -> bool:
        return bool(self.tried) and not self.good

    @property
    def answered(self) -> bool:
        """The machine that was dialled lives: it took a connection, or refused one."""
        return bool(self.good or self.refused)

    @property
    def well(self) -> bool:
        return not self.bad and self.large


@frozen
class ConnectTrouble:
    """What is wrong: ``kind`` is ``dead``, ``ports`` or ``large``.

    ``nodes`` is (node,) or, for a link, (a, b) with what cannot pass from a to b; ``both``: nor back.
    ``side`` of a node: ``in`` (nobody reaches it), ``out`` (it reaches nobody) or ``all``.
    ``others`` are those who met it, ``rounds`` how often it was tried.
    """

    kind: str
    nodes: tuple[int, ...]
    rounds: int
    ports: tuple[int, ...] = ()
    side: str = ""
    both: bool = False
    others: tuple[int, ...] = ()
    why: str = ""


class Connectivity:
    def __init__(self) -> None:
        self.ways: dict[tuple[int, int], DialledWay] = {}
        self.heard: dict[int, set[int]] = {}

    def take(self, task: DialTask, answer: DialAnswer) -> None:
        tried = {target.node: target.ports for target in task.targets}
        self.heard.setdefault(task.node, set()).update(answer.heard)
        for one in answer.dialled:
            if one.node not in tried:
                continue
            way = self.ways.setdefault((task.node, one.node), DialledWay(task.node, one.node))
            way.large = one.large or (way.large and way.rounds > 0)
            way.rounds += 1
            way.missed = way.missed or bool(one.silent)
            way.tried.update(tried[one.node])
            way.refused.update(one.refused)
            way.good.update(set(tried[one.node]) - set(one.silent) - set(one.refused))
            way.why = one.why
            way.dropped = one.dropped

    def into(self, node: int) -> list[DialledWay]:
        return [way for (_, to), way in self.ways.items() if to == node]

    def ill(self) -> list[DialledWay]:
        return [way for way in self.ways.values() if not way.well]

    def between(self, a: int, b: int) -> ConnectTrouble | None:
        """What is wrong with the link between two nodes; None if all is well, or nothing was tried."""
        ways = [self.ways[way] for way in ((a, b), (b, a)) if way in self.ways]
        ill = [way for way in ways if not way.well]
        return self._link(ill) if ill else None

    def parts(self, present: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """The parts of a partitioned network; () where it is not: all is well inside, nothing between."""
        there = set(present)
        ways = [way for way in self.ways.values() if way.a in there and way.b in there]
        ill = {frozenset((way.a, way.b)) for way in ways if not way.well}
        return parts_by_links(there, [(way.a, way.b) for way in ways], ill)

    def troubles(self, present: Iterable[int]) -> tuple[ConnectTrouble, ...]:
        """What is wrong with the nodes ``present`` and between them: nodes first, then links."""
        there = set(present)
        place = {node: at for at, part in enumerate(self.parts(there)) for node in part}
        ways = [way for way in self.ways.values() if way.a in there and way.b in there]
        ways = [way for way in ways if place.get(way.a, -1) == place.get(way.b, -1)]
        found = _Blame(ways).nodes()
        explained = {one.nodes[0]: one for one in found}
        everywhere = _everywhere(ways) & explained.keys()
        pairs: dict[frozenset[int], list[DialledWay]] = {}
        for way in ways:
            if not (way.well or _explained(way, explained) or {way.a, way.b} & everywhere):
                pairs.setdefault(frozenset((way.a, way.b)), []).append(way)
        return (*found, *map(self._link, pairs.values()))

    def _link(self, ways: list[DialledWay]) -> ConnectTrouble:
        way = max(ways, key=lambda one: (one.dead, bool(one.bad)))
        kind = "dead" if way.dead else "ports" if way.bad else "large"
        a, b = way.a, way.b
        both = len(ways) == 2 or kind == "large"
        if len(ways) == 2 and all(one.dead for one in ways):
            there, back = self._passed(a, b), self._passed(b, a)
            if there and not back:
                a, b = b, a
            both = there == back
            if there and back and any(self.heard.values()):
                way.why = "datagrams pass: a firewall drops TCP"
        rounds = max(one.rounds for one in ways)
        return ConnectTrouble(kind, (a, b), rounds, tuple(sorted(way.bad)), both=both, why=way.why)

    def _passed(self, a: int, b: int) -> bool:
        """Datagrams of ``a`` came to ``b``, or nobody's to anybody, which tells nothing of this link."""
        return a in self.heard.get(b, ()) or not any(self.heard.values())


class _Blame:
    """Finds what is a node's own: met by all who tried, of whom each gets on with others."""

    def __init__(self, ways: list[DialledWay]) -> None:
        self._works = {node for way in ways if way.good for node in (way.a, way.b)}
        self._into: dict[int, list[DialledWay]] = {}
        self._out: dict[int, list[DialledWay]] = {}
        for way in ways:
            self._into.setdefault(way.b, []).append(way)
            self._out.setdefault(way.a, []).append(way)

    def _of(self, node: int) -> list[DialledWay]:
        return self._into.get(node, []) + self._out.get(node, [])

    def nodes(self) -> list[ConnectTrouble]:
        """Those that nothing reaches or leaves, though ``ENOUGH`` others work; then those ill in part."""
        everyone = dict.fromkeys([*self._out, *self._into])
        found, cut = [], set()
        for node in [node for node in everyone if node not in self._works]:
            able = tuple(sorted(self._works.intersection(_others(self._of(node), node))))
            if len(able) >= ENOUGH:
                cut.add(node)
                found.append(self._trouble("dead", node, "all", able))
        return found + [one for node in everyone if node not in cut for one in self._partly(node, cut)]

    def _partly(self, node: int, known: set[int]) -> list[ConnectTrouble]:
        into = [way for way in self._into.get(node, []) if way.a not in known]
        out = [way for way in self._out.get(node, []) if way.b not in known]
        for side, ways in (("in", into), ("out", out)):
            if len(ways) >= ENOUGH and all(way.dead for way in ways):
                return [self._trouble("dead", node, side, _others(ways, node))]
        ports = _closed(into)
        if ports:
            who = _others([way for way in into if way.bad.intersection(ports)], node)
            return [self._trouble("ports", node, "in", who, ports)]
        if len(into) >= ENOUGH and not any(way.large for way in into):
            return [self._trouble("large", node, "all", _others(into, node))]
        return []

    def _trouble(
        self, kind: str, node: int, side: str, others: tuple[int, ...], ports: tuple[int, ...] = ()
    ) -> ConnectTrouble:
        own = [way for way in self._of(node) if not way.well]
        rounds = max((way.rounds for way in own), default=0)
        why = next((way.why for way in own if way.why), "")
        return ConnectTrouble(kind, (node,), rounds, ports, side, others=others, why=why)


def _others(ways: list[DialledWay], node: int) -> tuple[int, ...]:
    return tuple(sorted({way.a if way.b == node else way.b for way in ways}))


def _closed(into: list[DialledWay]) -> tuple[int, ...]:
    """The ports that nobody of ``ENOUGH`` who tried got an answer from, on ways that live otherwise.

    Where a range is blocked, answers get lost too: a way may be dead by that, and is one more that tried.
    """
    found = []
    for port in sorted({port for way in into if not way.dead for port in way.bad}):
        tried = [way for way in into if port in way.tried]
        enough = sum(not way.dead for way in tried) >= ENOUGH or len(tried) > ENOUGH
        if enough and all(port in way.bad for way in tried):
            found.append(port)
    return tuple(found)


def _everywhere(ways: list[DialledWay]) -> set[int]:
    """The nodes that have trouble with everybody they met, and met ``ENOUGH``."""
    met: dict[int, set[int]] = {}
    worse: dict[int, set[int]] = {}
    for way in ways:
        for node, other in ((way.a, way.b), (way.b, way.a)):
            met.setdefault(node, set()).add(other)
            if not way.well:
                worse.setdefault(node, set()).add(other)
    return {node for node, others in worse.items() if others == met[node] and len(others) >= ENOUGH}


def _explained(way: DialledWay, nodes: dict[int, ConnectTrouble]) -> bool:
    """Whether what is wrong on this way is that of a node at one of its ends."""
    for node, side in ((way.a, "out"), (way.b, "in")):
        one = nodes.get(node)
        if one is None:
            continue
        if one.kind == "large" or (one.kind == "dead" and one.side in ("all", side)):
            return True
        if one.kind == "ports" and side == "in" and way.bad <= {*one.ports} and way.large:
            return True
    return False
