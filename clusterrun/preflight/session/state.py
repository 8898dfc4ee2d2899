"""All that one examination knows and has asked so far; its rounds read and write it. Judges nothing."""

from __future__ import annotations

from clusterrun.model.limits import BY_NAME
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.search.connectivity import Connectivity
from clusterrun.preflight.search.retransmissions import PacketLosses
from clusterrun.preflight.session.node_selection import choose
from clusterrun.preflight.session.requests import Requests
from clusterrun.preflight.tasks import Asked, WarmTask
from clusterrun.preflight.thresholds import limits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from clusterrun.model.orders import Orders
    from clusterrun.model.preflight_report import Finding, LinkReport, Measurement
    from clusterrun.preflight.session.consistency import NodeFinding
    from clusterrun.preflight.session.node_selection import Choice
    from clusterrun.preflight.session.node_state import NodeState
    from clusterrun.preflight.session.requests import AskWorker
    from clusterrun.preflight.tasks import Task


class FaultyLink:
    """A link that was found wanting, by the numbers of its ends, with its line for the report."""

    def __init__(self, a: int, b: int, report: LinkReport) -> None:
        self.a, self.b, self.report = a, b, report


class SessionState:
    """``now`` is the steady time of the last event; ``end_at`` that when the budget is spent.

    ``nonce`` is what only the examiners of this check know.
    """

    def __init__(
        self,
        orders: Orders,
        subjects: Sequence[NodeState],
        now: float,
        wall: float,
        run_dir: str,
        nonce: str = "",
    ) -> None:
        self.orders, self.nonce = orders, nonce
        self.subjects = {one.node: one for one in subjects}
        self.now = self.began = now
        self.wall = wall
        self.end_at = now + orders.preflight.budget
        self.questions = Requests()
        self.asks: list[AskWorker] = []
        self.crossings = Connectivity()
        self.losses = PacketLosses()
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
        self.limits = limits_of(_known(orders))
        self.asked = _asked(orders, run_dir)
        self.parts: dict[str, tuple[tuple[int, ...], ...]] = {}
        """By who found them, the groups of nodes between which the network is partitioned."""
        self._links: dict[str, tuple[FaultyLink, ...]] = {}
        self._together: dict[str, tuple[Finding, ...]] = {}

    # --- asking ---

    def ask(self, node: int, task: Task, seconds: float, body: str = "") -> None:
        """Ask a node; its answer is waited for that long."""
        self.asks.append(self.questions.ask(self.now, node, task, seconds, body))

    @property
    def warm_task(self) -> WarmTask:
        """What has a node import torch."""
        orders = self.orders
        contained = orders.container.is_prefix
        return WarmTask(orders.preflight.python, orders.cwd, not orders.hide_gpus, contained)

    @property
    def ranks(self) -> int:
        """Ranks of each node in a group test: a launcher of its own may start more of them than GPUs."""
        ranks, gpus = self.orders.ranks_per_node, self.orders.gpus_per_node
        return min(ranks, gpus) if self.backend == "nccl" and gpus else ranks

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return max(0.0, self.end_at - self.now)

    def wall_at(self, steady: float) -> float:
        """What the coordinator's clock said then."""
        return self.wall + steady - self.began

    def notice(self, words: str) -> None:
        """A line of the report that blames nobody; said once."""
        if words not in self.notices:
            self.notices.append(words)

    # --- what is known ---

    def present(self) -> list[NodeState]:
        return [one for one in self.subjects.values() if not one.gone]

    def names(self, nodes: Iterable[int]) -> str:
        """Their names with commas between."""
        return ", ".join(self.subjects[node].name for node in nodes)

    def write(self, source: str, said: Iterable[NodeFinding], links: Iterable[FaultyLink] = ()) -> None:
        """What ``source`` found, instead of what it had found before."""
        found: dict[int | None, list[Finding]] = {}
        for one in said:
            found.setdefault(one.node, []).append(one.finding)
        self._together[source] = tuple(found.get(None, ()))
        self._links[source] = tuple(links)
        for node, subject in self.subjects.items():
            subject.write(source, found.get(node, ()))

    @property
    def together(self) -> tuple[Finding, ...]:
        """What was found of all nodes together."""
        return tuple(finding for found in self._together.values() for finding in found)

    @property
    def links(self) -> tuple[FaultyLink, ...]:
        """Links with findings, each once: who found it first knows most of it."""
        known: dict[frozenset[int], FaultyLink] = {}
        for link in (link for links in self._links.values() for link in links):
            known.setdefault(frozenset((link.a, link.b)), link)
        return tuple(known.values())

    def is_cut(self, a: int, b: int) -> bool:
        """Whether the control round found the link between two nodes broken: no test need be tried on it."""
        return any({link.a, link.b} == {a, b} for link in self._links.get("control", ()))

    def explain_links_of(self, node: int) -> None:
        """The node itself is to blame for what was found of its links."""
        for source, links in self._links.items():
            self._links[source] = tuple(link for link in links if node not in (link.a, link.b))

    def chosen_part(self) -> tuple[int, ...]:
        """Of a network that is partitioned the part with most fit nodes; () where it is not partitioned."""
        parts = next(filter(None, self.parts.values()), ())
        fit = (tuple(node for node in part if not self.subjects[node].unfit) for part in parts)
        return max(fit, key=lambda part: (len(part), -min(part, default=0)), default=())

    def elsewhere(self) -> set[int]:
        """Where the network is partitioned, all nodes that are not known to be in the chosen part."""
        chosen = self.chosen_part()
        return {node for node in self.subjects if node not in chosen} if chosen else set()

    def choice(self) -> Choice:
        """Who would train by what is known now."""
        nodes = list(self.subjects)
        places, spares = nodes[: self.orders.nodes], nodes[self.orders.nodes :]
        unfit = {one.node for one in self.subjects.values() if one.unfit}
        links = [(link.a, link.b) for link in self.links if link.report.verdict is Grade.FAIL]
        flawed = {one.node for one in self.subjects.values() if one.verdict is not Grade.PASS}
        slow = {node for node in flawed if self._is_slow(node)}
        return choose(places, spares, unfit, links, slow, self.elsewhere() - unfit)

    def _is_slow(self, node: int) -> bool:
        slow = ("bandwidth", "product", "pair")
        found = self.subjects[node].findings
        return any(one.check in slow and one.verdict is not Grade.PASS for one in found)


def _known(orders: Orders) -> tuple[tuple[str, float], ...]:
    """The user's numbers; what this version has no limit for cannot be limited, and stops nothing."""
    given = orders.preflight.limits
    return tuple((name, number) for name, number in given if name in BY_NAME and 0 <= number < float("inf"))


def _asked(orders: Orders, run_dir: str) -> Asked:
    return Asked(
        run_id=orders.run_id,
        run_dir=run_dir,
        home="",
        cwd=orders.cwd,
        python=orders.preflight.python,
        gpus=orders.gpus_per_node,
        ranks=orders.ranks_per_node,
        cpus_per_rank=orders.cpus_per_rank,
        limits=_known(orders),
    )
