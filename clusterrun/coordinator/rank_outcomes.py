"""What the nodes have said about the ranks of one epoch: ended, lost, failed first; pure."""

from __future__ import annotations

from clusterrun.coordinator import failures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.coordinator.failures import FailureEvent
    from clusterrun.protocol.messages import RankExited


class RankOutcomes:
    """One epoch's counts: every report costs one step, whatever the number of ranks."""

    def __init__(self, epoch: int, nodes: int, processes: int, per_node: bool = False) -> None:
        self.epoch = epoch
        self._per_node = per_node
        self.failure_events: list[FailureEvent] = []
        self.stuck: list[str] = []
        self.stuck_on: dict[str, str] = {}
        self._nodes = nodes
        self._processes = processes
        self._started: dict[int, bool] = {}
        self._exited: dict[int, int] = {}
        self._ended: list[int] = []
        self._well = 0
        self._unwell = [processes] * nodes
        self._gone: dict[int, bool] = {}
        self._lost: dict[int, float] = {}
        self.dead_by = 0.0

    def started(self, node: int) -> bool:
        """All ranks of ``node`` run; True where that holds for every node now."""
        self._started[node] = True
        return len(self._started) == self._nodes

    @property
    def missing(self) -> list[int]:
        """The nodes that have not said that their ranks run."""
        return [node for node in range(self._nodes) if node not in self._started]

    def exited(self, node: int, report: RankExited, name: str, peer: str = "") -> FailureEvent | None:
        """A rank ended; the failure, where that is one. Raises ``ValueError`` for a rank of another node.

        ``peer`` is the node whose address its last words name.
        """
        if report.rank // self._processes != node:
            raise ValueError(f"rank {report.rank} is none of node {node}")
        if report.rank in self._exited:
            return None
        self._exited[report.rank] = report.code
        if report.stopped:
            return None
        if report.code == 0:
            self._ended.append(report.rank)
            self._well += 1
            self._unwell[node] -= 1
            return None
        failure_event = failures.of_rank(report, name, self._per_node, peer)
        self.failure_events.append(failure_event)
        return failure_event

    @property
    def first(self) -> FailureEvent:
        """The failure to report; there must be one. Whoever ended before those that only noticed is named."""
        found = failures.first(self.failure_events)
        if not found.noticed or not self._ended:
            return found
        return failures.after_early_ends(found, self._ended, "node" if self._per_node else "rank")

    @property
    def cause_may_come(self) -> bool:
        """All that failed only noticed that another one had gone, and that one's end was not told yet."""
        running = len(self._exited) < self._nodes * self._processes
        return (
            running
            and not self._ended
            and all(failure_event.noticed for failure_event in self.failure_events)
        )

    @property
    def completed(self) -> bool:
        """Every rank exited 0, and none because it had been told to end."""
        return self._well == self._nodes * self._processes

    def gone(self, node: int, stuck: tuple[str, ...], name: str) -> bool:
        """Nothing is left on ``node`` but ``stuck``; False where not all of its ranks had exited 0."""
        if node not in self._gone:
            self.stuck += [f"{name}: {process}" for process in stuck]
            if stuck:
                self.stuck_on[name] = f"a process cannot be killed there: {stuck[0]}"
        self._gone[node] = True
        return self._unwell[node] == 0

    def is_gone(self, node: int) -> bool:
        """``node`` has said that nothing is left."""
        return node in self._gone

    def lost(self, node: int, dead_by: float) -> bool:
        """``node`` will say no more and is dead at ``dead_by`` at the latest; False if it was gone before."""
        if node in self._gone:
            return False
        self._lost[node] = dead_by
        self.dead_by = max(self.dead_by, dead_by)
        return True

    @property
    def all_told(self) -> bool:
        """Nothing more is to be heard: where nodes were lost, the rest is waiting until ``dead_by``."""
        return len(self._gone) + len(self._lost) == self._nodes
