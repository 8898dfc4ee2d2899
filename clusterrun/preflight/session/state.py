"""All that one examination knows of its nodes and has asked so far; its rounds read and write it."""

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
from clusterrun.preflight.session.requests import AskWorker, Requests
from clusterrun.preflight.thresholds import limits_of

NOT_HEARD = tasks.ListenAnswer((), (), 0, 0.0)
"""Instead of the answer of a node that did not say where it can be dialled."""


@frozen
class NodeFinding:
    node: int | None
    finding: Finding


class NodeState:
    """``gone`` is why it is asked no more ('' while it is); ``ports`` are those it can lead a test on.

    ``absent`` is why it never joined, ``lost_at`` when it fell silent after that; ``excused``: by
    another's fault, it may be fit. ``late_until``: until then one late answer is waited for. ``ends``
    are how its torch workers ended before their time.
    """

    def __init__(self, node: int, name: str, address: str) -> None:
        self.node, self.name, self.address = node, name, address
        self.gone = self.absent = ""
        self.excused = False
        self.lost_at: float | None = None
        self.late_until: float | None = None
        self.local: tasks.LocalAnswer | None = None
        self.listening = NOT_HEARD
        self.earliest, self.latest = float("-inf"), float("inf")
        self.resolved: dict[str, str] = {}
        self.resolve_seconds = 0.0
        self.warm: tasks.TorchStarted | None = None
        self.first_torch_worker: tasks.TorchStarted | None = None
        self.ports: list[int] = []
        self.product: tasks.GroupResult | None = None
        self.ends: list[str] = []
        self._found: dict[str, tuple[Finding, ...]] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        in_order = (self._found[phase] for phase in PRECEDENCE if phase in self._found)
        return tuple(finding for findings in in_order for finding in findings)

    @property
    def verdict(self) -> Grade:
        return worst(tuple(finding.verdict for finding in self.findings))

    @property
    def unfit(self) -> bool:
        return bool(self.gone) or self.verdict is Grade.FAIL

    def failed_in(self, phase: str) -> bool:
        return any(finding.verdict is Grade.FAIL for finding in self._found.get(phase, ()))

    @property
    def listens(self) -> bool:
        return self.listening is not NOT_HEARD

    @property
    def torch_ready(self) -> bool:
        return self.warm is not None and self.warm.up and not self.unfit

    @property
    def interface(self) -> tasks.Interface | None:
        """The interface by which its agent reaches the coordinator: the one that ranks will use."""
        return next((one for one in self.listening.interfaces if one.address == self.address), None)

    @property
    def switches(self) -> tuple[str, ...]:
        return switches(self.listening.topology)

    @property
    def offset(self) -> float:
        """How far its clock is ahead of the coordinator's, in the middle of what is possible; seconds."""
        return (self.earliest + self.latest) / 2

    def target(self, ports: tuple[int, ...], address: str = "") -> tasks.Target:
        """It as one to be dialled on these ports; ``address`` where its agent never told one."""
        return tasks.Target(self.node, self.name, address or self.address, ports, self.listening.udp_port)

    def told_time(self, wall: float, earliest: float, latest: float) -> None:
        """Its clock said ``wall`` at a moment when the coordinator's stood between these two."""
        self.earliest, self.latest = max(self.earliest, wall - latest), min(self.latest, wall - earliest)

    def warm_up(self, said: tasks.TorchStarted) -> None:
        self.warm = said
        self.first_torch_worker = self.first_torch_worker or said
        self.ports = list(said.ports)
        if not said.up and self.first_torch_worker.up:
            why = f"its torch worker cannot be started again: {said.why}"
            self.mark_gone("torch", why, "see the examiner's log")

    def record_matmul(self, result: tasks.GroupResult) -> None:
        """Record its matrix product: of several the fastest, but a wrong one is kept."""
        best = self.product
        speeds = [dict(one.rates).get("product", 0.0) for one in (result, best or result)]
        if best is None or (best.passed and (not result.passed or speeds[0] > speeds[1])):
            self.product = result

    def write(self, phase: str, findings: Iterable[Finding]) -> None:
        """Replace the findings of a phase about this node."""
        _require_precedence(phase)
        self._found.pop(phase, None)
        if new := tuple(findings):
            self._found[phase] = new

    def exclude_as_known_unfit(self, findings: Iterable[Finding]) -> None:
        found = tuple(findings)
        failed = [one.said for one in found if one.verdict is Grade.FAIL]
        self.absent, self.excused = "", bool(found) and not failed
        self.gone = failed[0] if failed else "it was found unfit before"
        self.write("gone", found)

    def explain_gone(self, grade: Grade, said: str, remedy: str) -> None:
        """Why its agent is not here, instead of what was said of that before."""
        self.write("gone", [Finding("agent", grade, said, remedy)])

    def mark_gone(self, check: str, why: str, remedy: str) -> None:
        """It will not be asked any more: it is lost, or says nothing."""
        if not self.gone:
            self.gone = why
            self.write("gone", [Finding(check, Grade.FAIL, why, remedy)])


def _require_precedence(phase: str) -> None:
    if phase not in PRECEDENCE:
        raise ValueError(f"no precedence is declared for findings of {phase!r}")


class SessionState:
    """``now`` is the steady time of the last event, ``end_at`` that when the budget is spent."""

    def __init__(
        self, orders: Orders, nodes: list[NodeState], now: float, wall: float, run_dir: str, nonce: str = ""
    ) -> None:
        self.orders = orders
        self.nonce = nonce  # only the examiners of this check know it
        self.subjects = {one.node: one for one in nodes}
        self.numbers = {one.name: one.node for one in nodes}
        self.now = self.began = now
        self.wall = wall
        self.end_at = now + orders.preflight.budget
        self.questions = Requests()
        self.asks: list[AskWorker] = []
        self.dials = Dials()
        self.losses = Losses()
        self.watched: list[int] = []
        self.swept_after = -1
        self.swept: dict[tuple[int, int], frozenset[int]] = {}
        self.tests: list[Measurement] = []
        self.notices: list[str] = []
        self.label = "local round"
        self.rounds = 0
        self.backend = ""
        self.set_passed = False
        self.set_wanted = True
        # What this version has no limit for cannot be limited, and stops nothing.
        given = orders.preflight.limits
        known = tuple((name, value) for name, value in given if name in BY_NAME and 0 <= value < float("inf"))
        self.limits = limits_of(known)
        self.asked = _needs(orders, run_dir, known)
        self.parts: dict[str, tuple[tuple[int, ...], ...]] = {}
        """By who found them, the groups of nodes between which the network is partitioned."""
        self._links: dict[str, tuple[LinkReport, ...]] = {}
        self._together: dict[str, tuple[Finding, ...]] = {}

    # --- asking ---

    def ask(self, node: int, task: tasks.Task, seconds: float, body: str = "") -> None:
        self.asks.append(self.questions.ask(self.now, node, task, seconds, body))

    @property
    def warm_task(self) -> tasks.StartTorch:
        orders = self.orders
        contained = orders.container.is_prefix
        return tasks.StartTorch(orders.preflight.python, orders.cwd, not orders.hide_gpus, contained)

    @property
    def ranks(self) -> int:
        """Ranks of each node in a group test: a launcher of its own may start more of them than GPUs."""
        ranks, gpus = self.orders.ranks_per_node, self.orders.gpus_per_node
        return min(ranks, gpus) if self.backend == "nccl" and gpus else ranks

    @property
    def has_gpus(self) -> bool:
        return bool(self.orders.gpus_per_node) or self.backend == "nccl"

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return max(0.0, self.end_at - self.now)

    def wall_at(self, steady: float) -> float:
        return self.wall + steady - self.began

    def notice(self, words: str) -> None:
        """A line of the report that blames nobody; said once."""
        if words not in self.notices:
            self.notices.append(words)

    # --- what is known ---

    def present(self) -> list[NodeState]:
        return [one for one in self.subjects.values() if not one.gone]

    def listeners(self) -> list[NodeState]:
        """Those present that told where they can be dialled."""
        return [one for one in self.present() if one.listens]

    def led_to(self, name: str) -> list[str]:
        """The addresses to which a name leads those that looked for it."""
        seen = (one.resolved.get(name, "").split() for one in self.present())
        return [found[0] for found in seen if found]

    def names(self, nodes: Iterable[int]) -> str:
        return ", ".join(self.subjects[node].name for node in nodes)

    def write(self, phase: str, findings: Iterable[NodeFinding], links: Iterable[LinkReport] = ()) -> None:
        """Replace the findings of a phase."""
        _require_precedence(phase)
        by_node: dict[int | None, list[Finding]] = {}
        for found in findings:
            by_node.setdefault(found.node, []).append(found.finding)
        self._together[phase] = tuple(by_node.get(None, ()))
        self._links[phase] = tuple(links)
        for node, subject in self.subjects.items():
            subject.write(phase, by_node.get(node, ()))

    def write_of_all(self, phase: str, check: str, grade: Grade, message: str, remedy: str = "") -> None:
        """Replace the findings of a phase by one about all nodes together."""
        self.write(phase, [NodeFinding(None, Finding(check, grade, message, remedy))])

    @property
    def together(self) -> tuple[Finding, ...]:
        in_order = (self._together.get(phase, ()) for phase in PRECEDENCE)
        return tuple(finding for findings in in_order for finding in findings)

    @property
    def links(self) -> tuple[LinkReport, ...]:
        """Return the links with findings, each once. A node that is unfit may explain those of its links."""
        explaining = {
            node.name for node in self.subjects.values() if any(map(node.failed_in, EXPLAINS_LINKS))
        }
        lossy = {node.name for node in self.subjects.values() if node.failed_in(EXPLAINS_PAIRS)}
        by_ends: dict[frozenset[str], LinkReport] = {}
        for phase in PRECEDENCE:
            explained = explaining | lossy if phase in OF_PAIRS else explaining
            for link in self._links.get(phase, ()):
                if link.a not in explained and link.b not in explained:
                    by_ends.setdefault(frozenset((link.a, link.b)), link)
        return tuple(by_ends.values())

    def is_cut(self, a: int, b: int) -> bool:
        """Whether the control round found the link between two nodes broken: no test need be tried on it."""
        ends = {self.subjects[a].name, self.subjects[b].name}
        return any({link.a, link.b} == ends for link in self._links.get("control", ()))

    def largest_fit_partition(self) -> tuple[int, ...]:
        """Of a network that is partitioned the part with most fit nodes; () where it is not partitioned."""
        parts = next((self.parts[phase] for phase in PARTS_PRECEDENCE if self.parts.get(phase)), ())
        fit = (tuple(node for node in part if not self.subjects[node].unfit) for part in parts)
        return max(fit, key=lambda part: (len(part), -min(part, default=0)), default=())

    def elsewhere(self) -> set[int]:
        """Where the network is partitioned, all nodes that are not known to be in the chosen part."""
        chosen = self.largest_fit_partition()
        return {node for node in self.subjects if node not in chosen} if chosen else set()

    def choice(self) -> Choice:
        nodes = list(self.subjects)
        places, spares = nodes[: self.orders.nodes], nodes[self.orders.nodes :]
        unfit = {one.node for one in self.subjects.values() if one.unfit}
        bad = [link for link in self.links if link.verdict is Grade.FAIL]
        links = [(self.numbers[link.a], self.numbers[link.b]) for link in bad]
        slow = {
            one.node
            for one in self.subjects.values()
            for found in one.findings
            if found.check in ("bandwidth", "product", "pair") and found.verdict is not Grade.PASS
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
