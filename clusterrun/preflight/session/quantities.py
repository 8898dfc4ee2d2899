"""Keep the best value of everything that tests measure, for the report, and name slow rails."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.preflight_report import Quantity, TableRow
from clusterrun.preflight.tasks import BURN, BUS_SHARES, DEVICE, PAIR, PRODUCT, TIME, GroupResult, GroupTask

# The name in the report and the unit of each rate.
_OF_GPU = {
    "product": ("matrix product", "TFLOP/s"),
    "memory": ("memory", "GB/s"),
    "from host": ("from host", "GB/s"),
    "to host": ("to host", "GB/s"),
    "clock": ("clock", "MHz"),
    "power": ("power", "W"),
    "temperature": ("temperature", "°C"),
}
_OF_RAIL = {"send": ("send", "GB/s"), "receive": ("receive", "GB/s")}
_UNDER_LOAD = " under load"
# The lowest of several values counts.
_LOWEST = ("clock",)


class Quantities:
    """All measured numbers of a check."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str, str], float] = {}
        self._microseconds: dict[tuple[str, int], float] = {}
        self._world = 0
        # GB/s of each rail: (sending node, receiving node, local rank).
        self.rails: dict[tuple[int, int, int], float] = {}

    def add(self, task: GroupTask, node: int, result: GroupResult) -> None:
        """Add the result of ``node``. A test that failed may have measured nothing."""
        names = {member.node: member.name for member in task.members}
        has_parts = any(":" in rate for rate, _ in result.rates)
        for rate, value in result.rates:
            if rate.startswith(TIME):
                _, operation, size = rate.split(" ")
                key = (operation, int(size))
                self._microseconds[key] = max(value, self._microseconds.get(key, 0.0))
                self._world = len(task.members) * task.ranks
            elif rate.startswith("peer "):
                _, source, target = rate.split(" ")
                self._keep(names[node], f"GPU {source} -> GPU {target}", "copy", "GB/s", value)
            elif (":" in rate) == has_parts:
                # The only GPU or rail of a node has no number: ``memory`` instead of ``memory:3``.
                quantity, _, local = rate.partition(":")
                if quantity in _OF_GPU and task.kind in (PRODUCT, BURN, DEVICE):
                    name, unit = _OF_GPU[quantity]
                    name += _UNDER_LOAD if task.kind == BURN else ""
                    # Without GPUs, one product uses all processors of a node.
                    part = f"GPU {local or 0}" if task.backend == "nccl" else "processors"
                    self._keep(names[node], part, name, unit, value, quantity in _LOWEST)
                elif quantity in _OF_RAIL and task.kind == PAIR and task.backend == "nccl":
                    name, unit = _OF_RAIL[quantity]
                    self._keep(names[node], f"rail {local or 0}", name, unit, value)
                    for member in task.members:
                        if member.node != node:
                            way = (node, member.node) if quantity == "send" else (member.node, node)
                            rail = (*way, int(local or 0))
                            self.rails[rail] = max(value, self.rails.get(rail, 0.0))

    def _keep(
        self, node: str, part: str, name: str, unit: str, value: float, is_lowest: bool = False
    ) -> None:
        key = (node, part, name, unit)
        best = min if is_lowest else max
        self._values[key] = best(value, self._values.get(key, value))

    def report(self, names: Sequence[str]) -> tuple[Quantity, ...]:
        """Return all numbers in the order of ``names`` of nodes."""
        place = {name: number for number, name in enumerate(names)}
        in_order = sorted(self._values.items(), key=lambda item: place.get(item[0][0], len(place)))
        return tuple(Quantity(*key[:3], value, key[3]) for key, value in in_order)

    def table(self) -> tuple[TableRow, ...]:
        rows: list[TableRow] = []
        for (operation, size), microseconds in self._microseconds.items():
            rate = size / 1e3 / microseconds if microseconds else 0.0
            bus = rate * BUS_SHARES[operation](self._world)
            rows.append(TableRow(operation, size, microseconds, round(rate, 4), round(bus, 4)))
        return tuple(rows)
