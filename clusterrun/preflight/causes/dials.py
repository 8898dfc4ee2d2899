"""Explain connections between nodes that failed: dead ways, closed ports, lost large packets."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen
from clusterrun.preflight.causes.ways import Parts, Way, WayCause, WayTest, find_causes
from clusterrun.preflight.tasks import DialAnswer, DialTask
from clusterrun.preflight.thresholds import SLOW_ANSWER_SECONDS

# The item of a way test that stands for large packets. The other items are TCP ports.
LARGE = 0


class DialledWay:
    """The outcomes of all dials from ``a`` to ``b``. A port that answered once is good.

    ``tried``, ``good``, ``refused``: ports. ``large``: large packets arrive. ``rounds``: the number of dials.
    ``missed``: a port was silent at least once. ``slow``: a connection needed a second attempt.
    ``why``: the reason of the last dial's failure. ``dropped``: the dialling machine dropped its own packets.
    """

    def __init__(self, a: int, b: int) -> None:
        self.a, self.b = a, b
        self.tried: set[int] = set()
        self.good: set[int] = set()
        self.refused: set[int] = set()
        self.large = True
        self.rounds = 0
        self.missed = self.slow = self.dropped = False
        self.why = ""

    @property
    def bad(self) -> frozenset[int]:
        return frozenset(self.tried - self.good)

    @property
    def is_dead(self) -> bool:
        return bool(self.tried) and not self.good

    @property
    def is_answered(self) -> bool:
        """The dialled machine accepted or refused a connection, so it runs."""
        return bool(self.good or self.refused)

    @property
    def is_refused(self) -> bool:
        return bool(self.bad) and self.bad <= self.refused

    @property
    def works(self) -> bool:
        return not self.bad and self.large

    def test(self) -> WayTest:
        """Large packets were tried only if a connection was made."""
        large = {LARGE} if self.good or not self.tried else set()
        failed_large = set() if self.large else large
        return WayTest(self.a, self.b, frozenset(self.tried | large), self.bad | failed_large)


@frozen
class ConnectTrouble:
    symptom: str  # dead, ports or large
    nodes: tuple[int, ...]  # the node; of a link (a, b): packets from a do not reach b
    rounds: int  # how often it was tried
    ports: tuple[int, ...] = ()  # ports that do not answer; of a node (): others on every way
    side: str = ""  # of a node: in (nobody reaches it), out (it reaches nobody) or all
    both: bool = False  # of a link: neither direction works
    others: tuple[int, ...] = ()  # of a node: the nodes that met the trouble
    why: str = ""
    is_refused: bool = False  # each port refuses connections, so packets arrive both ways
    is_one_sided: bool = False  # of a link: connections from b to a work, so packets arrive both ways


class Dials:
    """All dials of a check."""

    def __init__(self) -> None:
        self.ways: dict[Way, DialledWay] = {}
        self.heard: dict[int, set[int]] = {}  # the nodes whose datagrams reached this node
        self.unsent: dict[int, dict[int, str]] = {}  # by node: why it could not dial other nodes

    def take(self, task: DialTask, answer: DialAnswer) -> None:
        ports_of = {target.node: target.ports for target in task.targets}
        self.heard.setdefault(task.node, set()).update(answer.heard)
        for dialled in answer.dialled:
            if dialled.node not in ports_of:
                continue
            ports = set(ports_of[dialled.node]) - {*dialled.unsent}
            if dialled.unsent:
                self.unsent.setdefault(task.node, {})[dialled.node] = dialled.why
            way = self.ways.setdefault((task.node, dialled.node), DialledWay(task.node, dialled.node))
            way.large = dialled.large or (way.large and way.rounds > 0)
            way.rounds += 1
            way.missed = way.missed or bool(dialled.silent)
            way.slow = way.slow or dialled.slowest >= SLOW_ANSWER_SECONDS
            way.tried |= ports
            way.refused.update(dialled.refused)
            way.good |= ports - {*dialled.silent, *dialled.refused}
            way.why = dialled.why
            way.dropped = dialled.dropped

    def into(self, node: int) -> list[DialledWay]:
        return [way for (_, to), way in self.ways.items() if to == node]

    def failing(self) -> list[DialledWay]:
        return [way for way in self.ways.values() if not way.works]

    def between(self, a: int, b: int) -> ConnectTrouble | None:
        """Return the trouble of the link between two nodes; None if it works or was not tried."""
        ways = [self.ways[ends] for ends in ((a, b), (b, a)) if ends in self.ways]
        failing = [way for way in ways if not way.works]
        return self._link(failing) if failing else None

    def troubles_among(self, present: Iterable[int]) -> tuple[tuple[ConnectTrouble, ...], Parts]:
        """Return the troubles of these nodes, nodes before links, and the parts of a partitioned network."""
        nodes = set(present)
        ways = [way for way in self.ways.values() if way.a in nodes and way.b in nodes]
        causes, parts = find_causes([way.test() for way in ways])
        part_of = {node: number for number, part in enumerate(parts) for node in part}
        troubles = [self._node(cause) for cause in causes if cause.fault in ("all", "in", "out")]
        for cause in causes:
            a, b = cause.nodes[0], cause.nodes[-1]
            # A link between two parts is explained by the partition.
            if cause.fault in ("link", "way") and (a not in part_of or part_of[a] == part_of.get(b)):
                troubles.append(self._link([self.ways[ends] for ends in cause.ways]))
        return tuple(troubles), parts

    def _node(self, cause: WayCause) -> ConnectTrouble:
        (node,) = cause.nodes
        ways = [self.ways[ends] for ends in cause.ways]
        others = tuple(sorted({way.a if way.b == node else way.b for way in ways}))
        symptom, ports = "ports", tuple(sorted(cause.items - {LARGE}))
        if not any(way.good for way in ways):
            symptom, ports = "dead", ()
        elif cause.items == {LARGE}:
            symptom = "large"
        side = "in" if symptom == "ports" else cause.fault
        rounds = max(way.rounds for way in ways)
        why = next((way.why for way in ways if way.why), "")
        is_refused = all(way.is_refused for way in ways)
        return ConnectTrouble(
            symptom, (node,), rounds, ports, side, others=others, why=why, is_refused=is_refused
        )

    def _link(self, ways: list[DialledWay]) -> ConnectTrouble:
        way = max(ways, key=lambda way: (way.is_dead, bool(way.bad)))
        symptom = "dead" if way.is_dead else "ports" if way.bad else "large"
        a, b, why = way.a, way.b, way.why
        both = len(ways) == 2 or symptom == "large"
        if len(ways) == 2 and all(way.is_dead for way in ways):
            # TCP needs both directions. Datagrams tell which of them is cut.
            passes_forth, passes_back = self._datagrams_pass(a, b), self._datagrams_pass(b, a)
            if passes_forth and not passes_back:
                a, b = b, a
            both = passes_forth == passes_back
            if passes_forth and passes_back and any(self.heard.values()):
                why = "datagrams pass: a firewall drops TCP"
        rounds, bad = max(way.rounds for way in ways), tuple(sorted(way.bad))
        is_refused = all(way.is_refused for way in ways)
        reverse = self.ways.get((b, a))
        is_one_sided = way.is_dead and len(ways) == 1 and reverse is not None and bool(reverse.good)
        return ConnectTrouble(symptom, (a, b), rounds, bad, "", both, (), why, is_refused, is_one_sided)

    def _datagrams_pass(self, a: int, b: int) -> bool:
        """Return whether b heard a. If no node heard any, nothing is known: return True."""
        return a in self.heard.get(b, ()) or not any(self.heard.values())
