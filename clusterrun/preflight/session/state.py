"""The state of a check: its nodes, requests, findings and budget. The rounds read and write it."""

from __future__ import annotations

from collections.abc import Iterable

from clusterrun.model.frozen import frozen
from clusterrun.model.limits import BY_NAME
from clusterrun.model.orders import Orders
from clusterrun.model.preflight_report import Finding, Grade, LinkReport, Measurement, worst
from clusterrun.preflight import tasks
from clusterrun.preflight.causes.dials import Dials
from clusterrun.preflight.causes.losses import Losses
from clusterrun.preflight.causes.rates import switches
from clusterrun.preflight.session.node_selection import Choice, choose
from clusterrun.preflight.session.precedence import (
    EXPLAINS_LINKS,
    EXPLAINS_PAIRS,
    OF_PAIRS,
    PARTS_PRECEDENCE,
    PRECEDENCE,
)
from clusterrun.preflight.session.quantities import Quantities
from clusterrun.preflight.session.requests import AskWorker, Requests
from clusterrun.preflight.thresholds import limits_of

# Replaces the answer of a node that did not report its ports.
NOT_HEARD = tasks.ListenAnswer((), (), 0, 0.0)


@frozen
class NodeFinding:
    node: int | None
    finding: Finding


class NodeState:
    """The answers of a node and the findings about it. ``node`` is its number in the allocation."""

    def __init__(self, node: int, name: str, address: str) -> None:
        self.node, self.name, self.address = node, name, address
        self.gone = ""  # why it gets no more requests; '' while it gets them
        self.absent = ""  # why its agent never joined; '' if it joined
        self.excused = False  # True if another node or the network may be at fault
        self.lost_at: float | None = None  # when it fell silent; steady clock
        self.late_until: float | None = None  # end of the wait for its first late answer; steady clock
        self.local: tasks.LocalAnswer | None = None
        self.listening = NOT_HEARD
        # Bounds of how far its clock is ahead of the coordinator's; seconds.
        self.earliest, self.latest = float("-inf"), float("inf")
        self.resolved: dict[str, str] = {}  # by name, its addresses with spaces between; '' if unknown
        self.resolve_seconds = 0.0  # the slowest look-up of a name
        self.torch_worker: tasks.TorchStarted | None = None
        self.first_torch_worker: tasks.TorchStarted | None = None
        self.ports: list[int] = []  # free ports on which it can lead a group test
        self.product: tasks.GroupResult | None = None  # its best matrix product
        self.burn: tasks.GroupResult | None = None  # its matrix products under long load
        self.ends: list[str] = []  # how its torch workers ended before their time
        self._findings: dict[str, tuple[Finding, ...]] = {}  # by phase

    @property
    def findings(self) -> tuple[Finding, ...]:
        in_order = (self._findings[phase] for phase in PRECEDENCE if phase in self._findings)
        return tuple(finding for findings in in_order for finding in findings)

    @property
    def verdict(self) -> Grade:
        return worst(tuple(finding.verdict for finding in self.findings))

    @property
    def unfit(self) -> bool:
        return bool(self.gone) or self.verdict is Grade.FAIL

    def failed_in(self, phase: str) -> bool:
        return any(finding.verdict is Grade.FAIL for finding in self._findings.get(phase, ()))

    @property
    def listens(self) -> bool:
        return self.listening is not NOT_HEARD

    @property
    def torch_ready(self) -> bool:
        return self.torch_worker is not None and self.torch_worker.up and not self.unfit

    @property
    def load_seconds(self) -> float:
        """Return how long its torch and GPU driver took to load in the local round; 0 if unknown."""
        return self.first_torch_worker.seconds if self.first_torch_worker is not None else 0.0

    @property
    def interface(self) -> tasks.Interface | None:
        """Return the interface of the connection to the coordinator. The ranks use it too."""
        used = (interface for interface in self.listening.interfaces if interface.address == self.address)
        return next(used, None)

    @property
    def switches(self) -> tuple[str, ...]:
        return switches(self.listening.topology)

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

    def record_torch_worker(self, answer: tasks.TorchStarted) -> None:
        self.torch_worker = answer
        self.first_torch_worker = self.first_torch_worker or answer
        self.ports = list(answer.ports)
        if not answer.up and self.first_torch_worker.up:
            why = f"its torch worker cannot be started again: {answer.why}"
            self.mark_gone("torch", why, "see the examiner's log")

    def record_matmul(self, result: tasks.GroupResult) -> None:
        """Record its fastest matrix product. A wrong one replaces all others, and any replaces a late one."""
        best = None if self.product is not None and self.product.late else self.product
        speeds = [dict(product.rates).get("product", 0.0) for product in (result, best or result)]
        if best is None or (best.passed and (not result.passed or speeds[0] > speeds[1])):
            self.product = result

    def write(self, phase: str, findings: Iterable[Finding]) -> None:
        """Replace the findings of a phase about this node."""
        _require_precedence(phase)
        self._findings.pop(phase, None)
        if new := tuple(findings):
            self._findings[phase] = new

    def exclude_as_known_unfit(self, findings: Iterable[Finding]) -> None:
        findings = tuple(findings)
        failed = [finding.said for finding in findings if finding.verdict is Grade.FAIL]
        self.absent, self.excused = "", bool(findings) and not failed
        self.gone = failed[0] if failed else "it was found unfit before"
        self.write("gone", findings)

    def explain_gone(self, grade: Grade, message: str, remedy: str) -> None:
        """Replace the finding that says why its agent is missing."""
        self.write("gone", [Finding("agent", grade, message, remedy)])

    def mark_gone(self, check: str, why: str, remedy: str) -> None:
        """Mark it as lost or silent. It gets no more requests."""
        if not self.gone:
            self.gone = why
            self.write("gone", [Finding(check, Grade.FAIL, why, remedy)])


def _require_precedence(phase: str) -> None:
    if phase not in PRECEDENCE:
        raise ValueError(f"no precedence is declared for findings of {phase!r}")


class SessionState:
    """The state of a check."""

    def __init__(
        self, orders: Orders, nodes: list[NodeState], now: float, wall: float, run_dir: str, nonce: str = ""
    ) -> None:
        self.orders = orders
        self.nonce = nonce  # only the examiners of this check know it
        self.nodes = {node.node: node for node in nodes}
        self.numbers = {node.name: node.node for node in nodes}
        self.now = self.began = now  # the last and the first event; steady clock
        self.wall = wall  # wall clock at ``began``
        self.end_at = now + orders.preflight.budget  # steady clock
        self.requests = Requests()
        self.asks: list[AskWorker] = []
        self.dials = Dials()
        self.losses = Losses()
        self.watched: list[int] = []
        self.swept_after = -1
        self.swept: dict[tuple[int, int], frozenset[int]] = {}
        self.tests: list[Measurement] = []
        self.quantities = Quantities()
        self.notices: list[str] = []
        self.label = "local round"
        self.rounds = 0
        self.backend = ""
        self.set_passed = False
        self.should_test_set = True
        # Limits that this version does not know are ignored.
        requested = orders.preflight.limits
        valid = tuple(
            (name, limit) for name, limit in requested if name in BY_NAME and 0 <= limit < float("inf")
        )
        self.limits = limits_of(valid)
        self.needs = _needs(orders, run_dir, valid)
        # The groups of nodes between which the network is partitioned, by the phase that found them.
        self.parts: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._links: dict[str, tuple[LinkReport, ...]] = {}
        self._together: dict[str, tuple[Finding, ...]] = {}

    # --- requests ---

    def ask(self, node: int, task: tasks.Task, seconds: float, body: str = "") -> None:
        self.asks.append(self.requests.ask(self.now, node, task, seconds, body))

    @property
    def torch_task(self) -> tasks.StartTorch:
        orders = self.orders
        contained = orders.container.is_prefix
        return tasks.StartTorch(orders.preflight.python, orders.cwd, not orders.hide_gpus, contained)

    @property
    def ranks(self) -> int:
        """Return the ranks per node in a group test. A custom launcher may start more ranks than GPUs."""
        ranks, gpus = self.orders.ranks_per_node, self.orders.gpus_per_node
        return min(ranks, gpus) if self.backend == "nccl" and gpus else ranks

    @property
    def has_gpus(self) -> bool:
        return bool(self.orders.gpus_per_node) or self.backend == "nccl"

    @property
    def seconds_left(self) -> float:
        """Return the seconds that remain of the budget."""
        return max(0.0, self.end_at - self.now)

    def wall_at(self, steady: float) -> float:
        return self.wall + steady - self.began

    def notice(self, message: str) -> None:
        """Add a line to the report that blames no node. A repeated line is added once."""
        if message not in self.notices:
            self.notices.append(message)

    # --- answers and findings ---

    def present(self) -> list[NodeState]:
        return [node for node in self.nodes.values() if not node.gone]

    def listeners(self) -> list[NodeState]:
        """Return the present nodes that reported their ports."""
        return [node for node in self.present() if node.listens]

    def addresses_of(self, name: str) -> list[str]:
        """Return the first address of a name on each present node that resolves it."""
        resolved = (node.resolved.get(name, "").split() for node in self.present())
        return [addresses[0] for addresses in resolved if addresses]

    def names(self, nodes: Iterable[int]) -> str:
        return ", ".join(self.nodes[node].name for node in nodes)

    def write(self, phase: str, findings: Iterable[NodeFinding], links: Iterable[LinkReport] = ()) -> None:
        """Replace the findings of a phase."""
        _require_precedence(phase)
        by_node: dict[int | None, list[Finding]] = {}
        for node_finding in findings:
            by_node.setdefault(node_finding.node, []).append(node_finding.finding)
        self._together[phase] = tuple(by_node.get(None, ()))
        self._links[phase] = tuple(links)
        for number, node in self.nodes.items():
            node.write(phase, by_node.get(number, ()))

    def write_of_all(self, phase: str, check: str, grade: Grade, message: str, remedy: str = "") -> None:
        """Replace the findings of a phase by a single finding about all nodes together."""
        self.write(phase, [NodeFinding(None, Finding(check, grade, message, remedy))])

    @property
    def together(self) -> tuple[Finding, ...]:
        in_order = (self._together.get(phase, ()) for phase in PRECEDENCE)
        return tuple(finding for findings in in_order for finding in findings)

    @property
    def links(self) -> tuple[LinkReport, ...]:
        """Return the links with findings, each once. A node that is unfit may explain those of its links."""
        explaining = {node.name for node in self.nodes.values() if any(map(node.failed_in, EXPLAINS_LINKS))}
        lossy = {node.name for node in self.nodes.values() if node.failed_in(EXPLAINS_PAIRS)}
        by_ends: dict[frozenset[str], LinkReport] = {}
        for phase in PRECEDENCE:
            explained = explaining | lossy if phase in OF_PAIRS else explaining
            for link in self._links.get(phase, ()):
                if link.a not in explained and link.b not in explained:
                    by_ends.setdefault(frozenset((link.a, link.b)), link)
        return tuple(by_ends.values())

    def is_cut(self, a: int, b: int) -> bool:
        """Return whether the control round found the link between two nodes broken."""
        ends = {self.nodes[a].name, self.nodes[b].name}
        return any({link.a, link.b} == ends for link in self._links.get("control", ()))

    def largest_fit_partition(self) -> tuple[int, ...]:
        """Return the part with most fit nodes of a partitioned network; () if it is not partitioned."""
        parts = next((self.parts[phase] for phase in PARTS_PRECEDENCE if self.parts.get(phase)), ())
        fit = (tuple(node for node in part if not self.nodes[node].unfit) for part in parts)
        return max(fit, key=lambda part: (len(part), -min(part, default=0)), default=())

    def elsewhere(self) -> set[int]:
        """Return the nodes outside the chosen part of a partitioned network."""
        chosen = self.largest_fit_partition()
        return {node for node in self.nodes if node not in chosen} if chosen else set()

    def choice(self) -> Choice:
        numbers = list(self.nodes)
        places, spares = numbers[: self.orders.nodes], numbers[self.orders.nodes :]
        unfit = {node.node for node in self.nodes.values() if node.unfit}
        bad = [link for link in self.links if link.verdict is Grade.FAIL]
        links = [(self.numbers[link.a], self.numbers[link.b]) for link in bad]
        slow = {
            node.node
            for node in self.nodes.values()
            for finding in node.findings
            if finding.check in ("bandwidth", "product", "pair") and finding.verdict is not Grade.PASS
        }
        return choose(places, spares, unfit, links, slow, self.elsewhere() - unfit)


def _needs(orders: Orders, run_dir: str, limits: tuple[tuple[str, float], ...]) -> tasks.RunNeeds:
    return tasks.RunNeeds(
        run_id=orders.run_id,
        run_dir=run_dir,
        home="",
        cwd=orders.cwd,
        python=orders.preflight.python,
        gpus=orders.gpus_per_node,
        ranks=orders.ranks_per_node,
        cpus_per_rank=orders.cpus_per_rank,
        limits=limits,
        check_commands=orders.preflight.check_commands,
    )
