"""The state of a check: its nodes, requests, observations and budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clusterrun.model.limits import BY_NAME
from clusterrun.model.orders import Orders
from clusterrun.model.overloads import Overloads
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight import tasks
from clusterrun.preflight.causes.dials import Dials
from clusterrun.preflight.causes.groups import GroupSearch
from clusterrun.preflight.causes.pair_search import Search
from clusterrun.preflight.observations import CheckFault, GroupTest, Log, NodeDials, NodeGone, PhaseEnd
from clusterrun.preflight.session.explanation import Explanation
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.quantities import Quantities
from clusterrun.preflight.session.requests import AskExaminer, Requests
from clusterrun.preflight.thresholds import Thresholds
from clusterrun.runtime.machine_events import Now

# The batch script, and with it the coordinator, runs on the first node of the allocation.
HOST = 0
# Added to the reason of what an overload of a node, or of the coordinator's machine, explains.
OVERLOADED = "; it or the first node was overloaded"


class SessionClock:
    """The times of a check. All but ``wall_now`` are on the steady clock."""

    def __init__(self, now: Now, budget: float) -> None:
        self.now = self.began = now.steady  # the last and the first event
        self.end_at = now.steady + budget
        self.wall_now = self._wall_began = now.wall  # the wall clock at the last answer and at ``began``

    @property
    def seconds_left(self) -> float:
        """Return the seconds that remain of the budget."""
        return max(0.0, self.end_at - self.now)

    def wall_at(self, steady: float) -> float:
        return self._wall_began + steady - self.began


class SessionState:
    """The state of a check."""

    def __init__(
        self, orders: Orders, nodes: list[NodeState], now: Now, run_dir: str, nonce: str = ""
    ) -> None:
        self.orders = orders
        self.nonce = nonce  # only the examiners of this check know it
        self.nodes = {node.node: node for node in nodes}
        self.numbers = {node.name: node.node for node in nodes}
        self.clock = SessionClock(now, orders.preflight.budget)
        self.requests = Requests()
        self.overloads = Overloads()  # of the coordinator's machine
        self.asks: list[AskExaminer] = []
        self.log = Log()
        # The result of `report.explain` for the current observations; None if it must be computed.
        self.explanation: Explanation | None = None
        self.pair_searches: list[Search] = []
        self.group_searches: list[tuple[GroupTest, GroupSearch]] = []  # each with the test that failed
        self.exchanging: list[int] = []  # nodes that exchange messages
        self.failures_at_sweep = -1  # failed tests before the last sweep of ports
        # In the running round of a sweep: ports without an answer, and ports that refused, by (dialling,
        # dialled) node.
        self.silent_ports: dict[tuple[int, int], tuple[int, ...]] = {}
        self.refused_ports: dict[tuple[int, int], tuple[int, ...]] = {}
        self.quantities = Quantities()
        self.notices: list[str] = []
        self.label = "local round"
        self.rounds = 0
        self.backend = ""
        self.should_test_set = True
        self.has_ended = False
        self.dials = Dials()  # of ports that listen
        self.knocks = Dials()  # of closed ports; they show whether the machine of a gone node lives
        # Limits that this version does not know are ignored.
        requested = orders.preflight.limits
        valid = tuple(
            (name, limit) for name, limit in requested if name in BY_NAME and 0 <= limit < float("inf")
        )
        self.thresholds = Thresholds.of_user(valid)
        self.needs = tasks.RunNeeds(
            run_dir=run_dir,
            home="",
            cwd=orders.cwd,
            gpus=orders.gpus_per_node,
            ranks=orders.ranks_per_node,
            limits=valid,
            check_commands=orders.preflight.check_commands,
        )

    # --- requests ---

    def ask(self, node: int, task: tasks.Task, seconds: float) -> None:
        self.ask_each({node: tasks.message_text(task)}, task, seconds)

    def ask_each(self, text_by_node: Mapping[int, str], task: tasks.Task, seconds: float) -> None:
        """Ask several nodes. Their texts may differ from the text of ``task``."""
        self.asks += self.requests.ask(self.clock.now, text_by_node, task, seconds)

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

    def excuse(self, nodes: Iterable[int], since: float) -> bool:
        """Return whether an overload of a node, or of this machine, explains a wait since then."""
        overloads = [self.overloads, *(self.nodes[node].overloads for node in nodes if node in self.nodes)]
        return any(machine.excuse(since, self.clock.now) for machine in overloads)

    def notice(self, message: str) -> None:
        """Add a line to the report that blames no node. A repeated line is added once."""
        if message not in self.notices:
            self.notices.append(message)

    # --- observations ---

    def observe(self, *observations: object) -> None:
        """Append observations to the log. Earlier explanations are out of date."""
        self.log.append(observations)
        self.explanation = None
        for dials in observations:
            if isinstance(dials, NodeDials):
                (self.knocks if dials.task.sizes else self.dials).take(dials.task, dials.answer)

    def mark_gone(self, node: NodeState, check: str, why: str, remedy: str, is_lost: bool = False) -> None:
        """Mark a node as lost or silent. It gets no more requests. An excused node is not blamed."""
        if not node.gone:
            node.gone = why + OVERLOADED * node.is_excused
            grade = Grade.UNDETERMINED if node.is_excused else Grade.FAIL
            finding = Finding(check, grade, node.gone, remedy)
            self.observe(NodeGone(node.node, (finding,), self.clock.now, is_lost))

    def drop_results(self) -> None:
        """Drop all results but lost nodes and faults of the check itself."""
        kept_log = Log()
        kept_log.append([*self.log.of(NodeGone), *self.log.of(CheckFault)])
        self.log, self.quantities, self.dials, self.knocks = kept_log, Quantities(), Dials(), Dials()
        self.pair_searches.clear()
        self.group_searches.clear()
        for node in self.nodes.values():
            node.local = node.product = node.burn = node.torch_worker = node.first_torch_worker = None

    def end_phase(self, phase: str) -> None:
        self.observe(PhaseEnd(phase, tuple(node.node for node in self.present())))

    def failed_tests(self) -> list[GroupTest]:
        return [test for test in self.log.of(GroupTest) if test.passed is False]

    def present(self) -> list[NodeState]:
        return [node for node in self.nodes.values() if not node.gone]

    @property
    def load_seconds(self) -> float:
        """Return how long torch and the driver took to load in the local round, on the slowest present node.

        A process of a test loads the same driver and libraries again. Without persistence mode the driver
        takes up to half a minute (Azure/AgentBaker#2897), and a slow file system delays cuBLAS.
        """
        return max((node.load_seconds for node in self.present()), default=0.0)

    def listeners(self) -> list[NodeState]:
        """Return the present nodes that reported their ports."""
        return [node for node in self.present() if node.listens]

    def addresses_of(self, name: str) -> list[str]:
        """Return the first address of a name on each present node that resolves it."""
        resolved = (node.resolved.get(name, "").split() for node in self.present())
        return [addresses[0] for addresses in resolved if addresses]

    def names(self, nodes: Iterable[int]) -> str:
        return ", ".join(self.nodes[node].name for node in nodes)
