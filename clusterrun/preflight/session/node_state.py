"""The newest answers of one node to the requests of a check."""

from __future__ import annotations

from clusterrun.model.overloads import Overloads
from clusterrun.preflight import tasks
from clusterrun.preflight.checks import names

# Replaces the answer of a node that did not report its ports.
NOT_HEARD = tasks.ListenAnswer((), (), 0, 0.0)


class NodeState:
    """A node of the allocation. ``node`` is its number in the allocation."""

    def __init__(self, node: int, name: str, address: str) -> None:
        self.node, self.name, self.address = node, name, address
        self.gone = ""  # why it gets no more requests; '' while it gets them
        self.is_excused = False  # an overload explains that its agent was lost
        self.absent = ""  # why its agent never joined; '' if it joined
        self.overloads = Overloads()
        self.late_until: float | None = None  # end of the wait for its first late answer; steady clock
        self.local: tasks.LocalAnswer | None = None
        self.listening = NOT_HEARD
        # Bounds of how far its clock is ahead of the coordinator's; seconds.
        self.earliest, self.latest = float("-inf"), float("inf")
        self.resolved: dict[str, str] = {}  # by name, its addresses with spaces between; '' if unknown
        self.torch_worker: tasks.TorchStarted | None = None
        self.first_torch_worker: tasks.TorchStarted | None = None
        self.ports: list[int] = []  # free ports on which it can lead a group test
        self.product: tasks.GroupResult | None = None  # its best matrix product
        self.burn: tasks.GroupResult | None = None  # its matrix products under long load
        self.ends: list[str] = []  # how its torch workers ended before their time

    @property
    def listens(self) -> bool:
        return self.listening is not NOT_HEARD

    @property
    def has_torch(self) -> bool:
        return self.torch_worker is not None and self.torch_worker.up

    @property
    def load_seconds(self) -> float:
        """Return how long its torch and GPU driver took to load in the local round; 0 if unknown."""
        return self.first_torch_worker.seconds if self.first_torch_worker is not None else 0.0

    @property
    def interface(self) -> tasks.Interface | None:
        """Return the interface of the connection to the coordinator. The ranks use it too."""
        for interface in self.listening.interfaces:
            if interface.address == self.address:
                return interface
        return None

    @property
    def offset(self) -> float:
        """Return how far its clock is ahead of the coordinator's: the middle of the bounds, in seconds."""
        return (self.earliest + self.latest) / 2

    def target(self, ports: tuple[int, ...], address: str = "") -> tasks.Target:
        """Return the node as a target on these ports. ``address`` replaces the address of its agent."""
        return tasks.Target(self.node, self.name, address or self.address, ports, self.listening.udp_port)

    def bound_clock(self, wall: float, earliest: float, latest: float) -> None:
        """Narrow the bounds of its clock. It read ``wall`` between these times of the coordinator's clock."""
        self.earliest, self.latest = max(self.earliest, wall - latest), min(self.latest, wall - earliest)

    def record_readings(self, answer: tasks.LocalAnswer) -> None:
        """Record the readings of checks. A new reading of a check replaces the old one."""
        readings = {reading.check: reading for reading in (self.local.readings if self.local else ())}
        readings.update((reading.check, reading) for reading in answer.readings)
        self.local = tasks.LocalAnswer(tuple(readings.values()))
        if names.NAME in readings:
            self.resolved.update(names.resolved(readings[names.NAME]))

    def record_torch_worker(self, answer: tasks.TorchStarted) -> None:
        self.torch_worker = answer
        self.first_torch_worker = self.first_torch_worker or answer
        self.ports = list(answer.ports)

    def record_matmul(self, result: tasks.GroupResult) -> None:
        """Record its fastest matrix product. A wrong one replaces all others, and any replaces a late one."""
        best = None if self.product is not None and self.product.late else self.product
        speeds = [dict(product.rates).get("product", 0.0) for product in (result, best or result)]
        if best is None or (best.passed and (not result.passed or speeds[0] > speeds[1])):
            self.product = result
