"""A check for tests of the tower: one question a node, one round; simple on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterrun.model.frozen import frozen
from clusterrun.model.orders import Orders
from clusterrun.model.preflight_report import Finding, Grade, NodeReport, Report, worst
from clusterrun.preflight.session.session import SessionNode, ShortCheck
from clusterrun.runtime.machine_events import Now

LIMIT = 30.0
WELL, ILL = "well", "ill"


@frozen
class Ask:
    """A question to a node."""

    node: int
    number: int
    body: str


@frozen
class Outcome:
    """The fields of an outcome that the coordinator reads."""

    fit: bool
    report: Report
    world: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]
    excluded: tuple[str, ...]


class Simple:
    """Every node is asked once; whoever answers ``well`` within 30 s is fit, the first of them train.

    Before a later attempt the suspects alone are asked, and everybody fit keeps his place.
    """

    def __init__(
        self,
        orders: Orders,
        nodes: Sequence[SessionNode],
        now: Now,
        short: ShortCheck | None = None,
    ) -> None:
        self.outcome: Outcome | None = None
        self.progress = ""
        self._orders = orders
        self._until = now.steady + LIMIT
        self._names = {entry.node: entry.name for entry in nodes}
        self._faults = {entry.node: entry.absent for entry in nodes if entry.absent is not None}
        self._places: list[int] = []
        requested = [entry.node for entry in nodes if entry.absent is None]
        if short is not None and short.after is not None:
            numbers = {name: node for node, name in self._names.items()}
            self._places = [numbers[name] for name in short.after.world]
            requested = [node for node in requested if node in short.suspects]
        self._waiting = dict.fromkeys(requested, True)

    def begin(self) -> list[Ask]:
        asks = [Ask(node, 1, f"node {node}, are you well?") for node in self._waiting]
        self._look()
        return asks

    def answered(self, now: float, node: int, number: int, body: str, wall: float | None = None) -> list[Ask]:
        if self._waiting.pop(node, None) and body != WELL:
            self._faults[node] = body
        self._look()
        return []

    def lost(self, now: float, node: int, why: str, is_excused: bool = False) -> list[Ask]:
        self._waiting.pop(node, None)
        self._faults[node] = why
        self._look()
        return []

    def overloaded(self, now: float, node: int | None, seconds: float) -> None:
        """Do nothing: this session has no limits that an overload excuses."""

    def tick(self, now: float) -> list[Ask]:
        if now >= self._until:
            for node in list(self._waiting):
                self.lost(now, node, "it did not answer")
        return []

    def wakes_at(self) -> float | None:
        return None if self.outcome else self._until

    def _look(self) -> None:
        self.progress = f"{len(self._waiting)} nodes are still asked"
        if not self._waiting and self.outcome is None:
            fit = [node for node in sorted(self._names) if node not in self._faults]
            is_complete = len(self._places) == self._orders.nodes
            world = self._kept(fit) if is_complete else tuple(fit[: self._orders.nodes])
            nodes = tuple(self._report_of(node, world) for node in sorted(self._names))
            enough = len(world) == self._orders.nodes
            excluded = tuple(self._names[node] for node in sorted(self._faults))
            report = self._report(nodes, excluded, world)
            self.outcome = Outcome(enough, report, world if enough else (), (("CHOSEN", "eth7"),), excluded)

    def _kept(self, fit: list[int]) -> tuple[int, ...]:
        idle = iter([node for node in fit if node not in self._places])
        world = [node if node in fit else next(idle, -1) for node in self._places]
        return tuple(node for node in world if node >= 0)

    def _report_of(self, node: int, world: tuple[int, ...]) -> NodeReport:
        name = self._names[node]
        if node in self._faults:
            finding = Finding("health", Grade.FAIL, self._faults[node], "replace it")
            return NodeReport(name, Grade.FAIL, "excluded", (finding,))
        return NodeReport(name, Grade.PASS, "rank" if node in world else "spare")

    def _report(self, nodes: tuple[NodeReport, ...], excluded: tuple[str, ...], world: Any) -> Report:
        return Report(
            run_id=self._orders.run_id,
            cluster="",
            level="full",
            verdict=worst(tuple(node.verdict for node in nodes)),
            at=0.0,
            seconds=0.0,
            budget=60.0,
            rounds=1,
            backend="",
            world=tuple(self._names[node] for node in world),
            spares=(),
            excluded=excluded,
            nodes=nodes,
        )
