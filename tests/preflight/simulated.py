"""A cluster that exists only in time: nodes answer a check's requests as their faults let them."""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from clusterrun.model.orders import Level, Orders, Preflight
from clusterrun.preflight import tasks
from clusterrun.preflight.causes.ports import needed_connections
from clusterrun.preflight.session.session import AskExaminer, Session, SessionNode, SessionOutcome, ShortCheck
from clusterrun.preflight.tasks import (
    CPU_WAIT,
    DialAnswer,
    Dialled,
    DialTask,
    ExchangeAnswer,
    ExchangeTask,
    GroupResult,
    GroupTask,
    Interface,
    LinkTraffic,
    ListenAnswer,
    ListenTask,
    LocalAnswer,
    LocalTask,
    PeerTask,
    ProbeReading,
    StartTorch,
    ThroughAnswer,
    ThroughTask,
    TorchStarted,
)
from clusterrun.runtime.machine_events import Now

PORTS = tuple(33000 + 3500 * part for part in range(8))
RATE = 1.0
# Share of the full rate. A slower test waits for the network, not for busy machines.
BUSY = 0.05
WALL = 1.8e9
START = 1000.0


@dataclass
class Faults:
    """The faults of a simulated check. Nodes are numbers, links of lost packets are (from, to)."""

    absent: set[int] = field(default_factory=set)
    # Nodes that run, but whose agent did not join, and the reason.
    agentless: set[int] = field(default_factory=set)
    why: str = "its agent did not join"
    # Nodes that drop their packets to nodes without an agent.
    drops: set[int] = field(default_factory=set)
    # Nodes on which no examiner can be started from elsewhere.
    pythonless: set[int] = field(default_factory=set)
    # Seconds for which the coordinator is suspended after the first answer. They do not count.
    stood_still: float = 0.0
    # Nodes whose examiner never answers.
    frozen: set[int] = field(default_factory=set)
    # Nodes whose agent is lost at the first request of this task, or of this kind of group test.
    lost_in: dict[int, str] = field(default_factory=dict)
    lost_why: str = "no heartbeat for 12 s"
    # Lost nodes whose machine still answers.
    stopped: set[int] = field(default_factory=set)
    cut: set[tuple[int, int]] = field(default_factory=set)
    # Unreachable ports (by place) of a node.
    blocked: dict[int, set[int]] = field(default_factory=dict)
    # Collectives hang with these nodes and links. The links can be dialled.
    broken: set[int] = field(default_factory=set)
    broken_links: set[frozenset[int]] = field(default_factory=set)
    corrupt: set[int] = field(default_factory=set)
    # Nodes whose GPU reports an ECC error in every test with others, which then hang.
    damaged: set[int] = field(default_factory=set)
    # Nodes whose agents report an overload with every heartbeat. Ranks of failed tests waited there.
    overloaded: set[int] = field(default_factory=set)
    slow: dict[int, float] = field(default_factory=dict)
    # The machines do other work as well.
    busy: bool = False
    slow_links: dict[frozenset[int], float] = field(default_factory=dict)
    no_torch: set[int] = field(default_factory=set)
    # Nodes whose torch worker dies in every test of a group.
    crashes: set[int] = field(default_factory=set)
    # How often a node's torch worker dies in a matrix product.
    dies_alone: dict[int, int] = field(default_factory=dict)
    clocks: dict[int, float] = field(default_factory=dict)
    has_controller: bool = False
    # The addresses that a node gets for the names of other nodes.
    hosts: dict[int, dict[int, str]] = field(default_factory=dict)
    # Nodes that only small packets reach. They are lost, but their machines answer a dial.
    small_mtu: set[int] = field(default_factory=set)
    # Ways on which only small packets arrive.
    small_ways: set[tuple[int, int]] = field(default_factory=set)
    full_shm: set[int] = field(default_factory=set)
    late_checks: set[int] = field(default_factory=set)
    # For a node: the task ('': any), how many of its answers are late, and by how many seconds.
    late: dict[int, tuple[str, int, float]] = field(default_factory=dict)
    nonsense: set[int] = field(default_factory=set)
    # Port ranges of a node that are unreachable, and (``shut_out``) that it cannot reach elsewhere.
    # One pair test in four fails by that.
    shut: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    rejected: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by a firewall
    shut_out: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    # Share of the connections to a node that a limit drops. It makes one pair test in four fail.
    limits: dict[int, float] = field(default_factory=dict)
    # Most connections that one node may hold open to a node. Pair tests with more ranks fail.
    open_limits: dict[int, int] = field(default_factory=dict)
    # Share of packets that are lost: from a node, in one direction, from all nodes.
    loses: dict[int, float] = field(default_factory=dict)
    lossy: dict[tuple[int, int], float] = field(default_factory=dict)
    noise: float = 0.0
    flaps: set[int] = field(default_factory=set)
    set_only: bool = False
    # For a node: the smallest size of groups with it that hang.
    in_groups: dict[int, int] = field(default_factory=dict)
    # Groups between which the network is partitioned: collectives hang. With ``silent`` nothing passes.
    parts: tuple[set[int], ...] = ()
    # The number of group tests that start before the partition.
    later: int = 0
    silent: bool = False
    # Connections between the groups to closed ports and to ports of collectives vanish.
    shut_between: bool = False
    # Ports (by place) that do not answer between the groups.
    ports_between: frozenset[int] = frozenset()
    # Range of ports that no connection between the groups reaches.
    range_between: tuple[int, int] = (0, 0)
    # Not 0: the groups are not partitioned, but slow with each other by this factor.
    uplink: float = 0.0
    # Nodes that share a narrow link: slow together, fast in pairs.
    crowded: frozenset[int] = frozenset()


def name(node: int) -> str:
    return f"n{node:04d}"


def address(node: int) -> str:
    return f"10.0.{node // 250}.{node % 250 + 1}"


def orders(
    nodes: int, spares: int = 0, level: Level = Level.FULL, python: str = "/py", **more: Any
) -> Orders:
    return Orders(
        run_id="r1",
        run_name="r",
        nodes=nodes,
        ranks_per_node=1,
        gpus_per_node=0,
        cpus_per_rank=1,
        command=("python", "t.py"),
        cwd="/w",
        launch=("srun", "--nodes=9", "agent", "/run"),
        spares=spares,
        preflight=Preflight(level=level, python=python, **more),
    )


class Cluster:
    """Drives one check to its outcome; ``seed`` makes delays and chance."""

    def __init__(
        self, requested: Orders, faults: Faults, seed: int = 0, flakes: float = 0.0, **occasion: Any
    ) -> None:
        self.orders, self.faults, self.flakes = requested, faults, flakes
        self.chance = random.Random(seed)
        self.now = START
        self.total = requested.nodes + requested.spares
        missing = sorted(faults.absent | faults.agentless)
        remote = [node for node in range(self.total) if node not in missing]
        self.machine = Session(
            requested,
            [
                *(SessionNode(node, name(node), address(node)) for node in remote),
                *(
                    SessionNode(node, name(node), absent=faults.why, is_excused=0 in faults.overloaded)
                    for node in missing
                ),
            ],
            Now(START, WALL),
            short=ShortCheck(**occasion) if occasion else None,
        )
        # The tasks and the kinds of group tests that were requested, each with its node.
        self.kinds: set[tuple[str, int]] = set()
        self.events: list[tuple[float, int, tuple[Any, ...]]] = []
        self.number = 0
        self.asked = 0
        self.tests: dict[int, list[tuple[int, int, GroupTask]]] = {}
        self.lost: set[int] = set()
        self.deaths: dict[int, int] = {}
        self.lines: dict[int, list[int]] = {}
        self.held_port = 0  # of torchrun, on which the nodes listen
        self.lag = 0.0  # seconds by which the clock of the check is behind

    def put(self, delay: float, what: tuple[Any, ...]) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + delay, self.number, what))

    def outcome(self) -> SessionOutcome:
        for node in self.faults.overloaded:
            self.put(0.0, ("overloaded", node))
        self.take(self.machine.begin())
        for _ in range(200_000):
            if self.machine.outcome is not None:
                return self.machine.outcome
            due = self.machine.wakes_at()
            assert due is not None
            due += self.lag
            if self.events and self.events[0][0] <= due:
                self.now, _, what = heapq.heappop(self.events)
                if what[0] == "overloaded":
                    self.machine.overloaded(self.now - self.lag, what[1], 5.0)
                    self.put(5.0, what)
                elif what[0] == "lost":
                    why, is_excused = self.faults.lost_why, what[1] in self.faults.overloaded
                    self.take(self.machine.lost(self.now - self.lag, what[1], why, is_excused))
                elif what[1] not in self.lost:
                    wall = WALL + self.now - START
                    self.take(self.machine.answered(self.now - self.lag, *what[1:], wall))
                    self.lag = self.faults.stood_still
            else:
                self.now = max(self.now, due)
                self.take(self.machine.tick(self.now - self.lag))
        raise AssertionError("it does not end")

    def take(self, asks: Iterable[AskExaminer]) -> None:
        put = [(ask, tasks.task(ask.body)) for ask in asks]
        for ask, task in put:
            self.kinds.add((getattr(task, "kind", type(task).__name__), ask.node))
            dies = self.faults.lost_in.get(ask.node) in (type(task).__name__, getattr(task, "kind", ""))
            if dies and ask.node not in self.lost:
                self.lost.add(ask.node)
                self.put(0.1, ("lost", ask.node))
        for ask, task in put:
            if ask.node in self.faults.frozen | self.lost or self.hurried(ask, task):
                continue
            if isinstance(task, GroupTask) and task.kind != "product":
                self.gather(ask, task)
            else:
                delay, value = self.answer(ask.node, task)
                self.say(delay + self.lateness(ask.node, task), ask.node, ask.number, value)

    def lateness(self, node: int, task: Any) -> float:
        kind, times, seconds = self.faults.late.get(node, ("", 0, 0.0))
        if times == 0 or kind not in ("", type(task).__name__, getattr(task, "kind", "")):
            return 0.0
        self.faults.late[node] = (kind, times - 1, seconds)
        return seconds

    def hurried(self, ask: AskExaminer, task: Any) -> bool:
        """Return False: no node here takes as long as the shorter limit."""
        return isinstance(task, LocalTask) and task.limit > 0

    def say(self, delay: float, node: int, number: int, value: Any) -> None:
        body = "[1" if node in self.faults.nonsense else tasks.message_text(value)
        self.put(delay, ("answer", node, number, body))

    def answer(self, node: int, task: Any) -> tuple[float, Any]:
        faults, chance = self.faults, self.chance
        if isinstance(task, LocalTask):
            return (12.0 if node in faults.late_checks else 0.5 + chance.random()), self.readings(node, task)
        if isinstance(task, PeerTask):
            views = faults.hosts.get(node, {})
            resolved = {peer.name: views.get(peer.node, address(peer.node)) for peer in task.needs.peers}
            reading = {"resolved": resolved, "seconds": 0.001, "own": [address(node)]}
            ahead = {"least": -0.5, "most": 0.5} if self.faults.has_controller and node == 0 else {}
            readings = {"names": reading, "controller-clock": ahead}
            probed = (ProbeReading(check, json.dumps(value)) for check, value in readings.items())
            return 0.05, LocalAnswer(tuple(probed))
        if isinstance(task, ListenTask):
            self.held_port = task.port
            delay = 0.3 + chance.random()
            wall = self.wall(node, delay - 0.001)
            eth = Interface("eth0", address(node), 1500)
            return delay, ListenAnswer(
                (Interface("lo", "127.0.0.1", 65536), eth), PORTS, 40000, wall, holds_port=bool(task.port)
            )
        if isinstance(task, DialTask):
            return self.dial(node, task)
        if isinstance(task, ThroughTask):
            return self.through(node, task)
        if isinstance(task, ExchangeTask):
            return self.watch(node, task)
        if isinstance(task, StartTorch):
            if node in faults.no_torch:
                return 0.2, TorchStarted(False, 0.2, "No module named 'torch'")
            ports = tuple(50000 + number for number in range(40))
            return 1.0 + chance.random(), TorchStarted(True, 1.0, "", "gloo", 0, (("torch", "2.13"),), ports)
        assert isinstance(task, GroupTask)
        self.deaths[node] = self.deaths.get(node, 0) + 1
        if self.deaths[node] <= faults.dies_alone.get(node, 0):
            return 0.1, GroupResult(task.test, False, "warm", 0.1, why="the torch worker ended: SIGKILL")
        return 0.2, GroupResult(task.test, True, "done", 0.2, (("product", 0.1),), fingerprint="aa")

    def through(self, node: int, task: ThroughTask) -> tuple[float, ThroughAnswer]:
        """Answer a request that goes to another node through this one, if the two can talk."""
        other = int(task.name[1:])
        assert not task.body or task.argv[-3:] == ("examine", "/run", task.name)
        if not (self.passes(node, other) and self.passes(other, node)) or other in self.faults.pythonless:
            return task.limit, ThroughAnswer("", "srun: error: nothing came of it")
        if not task.body:
            return 0.1, ThroughAnswer("")
        delay, value = self.answer(other, tasks.task(task.body))
        return delay + 0.5, ThroughAnswer(tasks.message_text(value))

    def wall(self, node: int, delay: float) -> float:
        return WALL + self.now + delay - START + self.faults.clocks.get(node, 0.0)

    def readings(self, node: int, task: LocalTask) -> LocalAnswer:
        results = []
        for check in task.checks:
            if node in self.faults.late_checks and check == "home":
                results.append(ProbeReading(check, "", "ls (D in nfs_wait)", True))
            elif check == "shared-memory":
                free = 1000 if node in self.faults.full_shm else 1 << 34
                results.append(ProbeReading(check, json.dumps({"size": 1 << 34, "free": free})))
        return LocalAnswer(tuple(results))

    def watch(self, node: int, task: ExchangeTask) -> tuple[float, ExchangeAnswer]:
        """Return the segments sent so far: ten messages of five segments a second on each connection."""
        if task.targets:
            self.lines[node] = [target.node for target in task.targets]
            return 0.05, ExchangeAnswer(())
        ends = [*self.lines.get(node, ())]
        ends += [entry for entry, others in self.lines.items() for other in others if other == node]
        observed = []
        for other in ends:
            seconds = self.now + task.seconds - START
            sent = int(50 * seconds)
            share = self.faults.lossy.get((node, other), self.faults.loses.get(node, self.faults.noise))
            stalled = node in self.faults.flaps or other in self.faults.flaps
            stalls = (seconds > 3.0) * stalled * (other in self.lines.get(node, ()))
            resent = sum(self.chance.random() < share for _ in range(sent)) + 4 * stalls
            observed.append(LinkTraffic(other, sent, resent, 4.5 * bool(stalls), stalls))
        return 0.05 + task.seconds, ExchangeAnswer(tuple(observed))

    def apart(self, nodes: Iterable[int]) -> bool:
        """Return whether some of these nodes are in different parts."""
        if len(self.tests) <= self.faults.later and self.faults.later:
            return False
        return len({at for node in nodes for at, part in enumerate(self.faults.parts) if node in part}) > 1

    def passes(self, a: int, b: int) -> bool:
        if self.faults.silent and self.apart((a, b)):
            return False
        ended = self.faults.frozen | (self.lost - self.faults.small_mtu - self.faults.stopped)
        return (a, b) not in self.faults.cut and b not in ended

    def dial(self, node: int, task: DialTask) -> tuple[float, DialAnswer]:
        faults = self.faults
        dialled = []
        if task.closed:
            return self.sweep(node, task)
        if task.hold:
            for target in task.targets:
                most = faults.open_limits.get(target.node, len(target.ports))
                alive = self.passes(node, target.node) and self.passes(target.node, node)
                dialled.append(Dialled(target.node, (), target.ports[most * alive :], True))
            return task.limit, DialAnswer(tuple(dialled), ())
        for target in task.targets:
            alive = self.passes(node, target.node) and self.passes(target.node, node)
            knocks = target.ports[0] < PORTS[0]
            if knocks and target.node in faults.absent | faults.agentless | self.lost:
                drops = node in faults.drops
                live = alive and target.node not in faults.absent and not drops
                large = not {node, target.node} & faults.small_mtu
                refused, silent = target.ports * live, target.ports * (not live)
                dialled.append(Dialled(target.node, refused, silent, large, dropped=drops))
                continue
            shut = faults.blocked.get(target.node, set())
            shut = shut | (faults.ports_between if self.apart((node, target.node)) else set())
            silent = tuple(p for p in target.ports if not alive or PORTS.index(p) in shut)
            large = (
                not {node, target.node} & faults.small_mtu and (node, target.node) not in faults.small_ways
            )
            dialled.append(Dialled(target.node, (), silent, large))
        well = all(not entry.silent and entry.large for entry in dialled)
        heard = tuple(
            other
            for other in range(self.total)
            if other != node and other not in faults.frozen | self.lost and self.passes(other, node)
        )
        delay = 0.05 if well else task.limit
        return delay, DialAnswer(tuple(dialled), heard, self.wall(node, delay - 0.001))

    def sweep(self, node: int, task: DialTask) -> tuple[float, DialAnswer]:
        """Answer a sweep: closed ports refuse, except behind a firewall."""
        results = []
        for target in task.targets:
            ranges = [*self.faults.shut.get(target.node, ()), *self.faults.shut_out.get(node, ())]
            ranges += [self.faults.range_between] * self.apart((node, target.node))
            alive = self.passes(node, target.node) and self.passes(target.node, node)
            alive = alive and not (self.faults.shut_between and self.apart((node, target.node)))
            dropped = self.faults.limits.get(target.node, 0.0)
            silent = tuple(
                port
                for port in target.ports
                if not alive or any(a <= port <= b for a, b in ranges) or self.chance.random() < dropped
            )
            ranges = self.faults.rejected.get(target.node, ())
            open_port = 0 if any(a <= self.held_port <= b for a, b in ranges) else self.held_port
            refused = tuple(port for port in target.ports if port not in {*silent, open_port})
            results.append(Dialled(target.node, refused, silent, True))
        delay = task.limit if any(entry.silent for entry in results) else 0.1
        return delay, DialAnswer(tuple(results), ())

    def gather(self, ask: AskExaminer, task: GroupTask) -> None:
        """Start a test when every member that can come has come."""
        arrived = self.tests.setdefault(task.test, [])
        arrived.append((ask.node, ask.number, task))
        silent = {member.node for member in task.members} & (self.faults.frozen | self.lost)
        if len(arrived) + len(silent) == len(task.members):
            self.run(arrived, bool(silent))

    def run(self, arrived: list[tuple[int, int, GroupTask]], alone: bool) -> None:
        faults, chance = self.faults, self.chance
        task = arrived[0][2]
        nodes = {member.node for member in task.members}
        inner = [pair for pair in faults.broken_links if pair <= nodes]
        cut = [way for way in faults.cut if set(way) <= nodes]
        hangs = (
            alone or bool(nodes & faults.broken) or bool(inner) or bool(cut) or chance.random() < self.flakes
        )
        hangs = hangs or (
            bool(nodes & {*faults.shut, *faults.shut_out, *faults.limits}) and chance.random() < 0.25
        )
        hangs = hangs or any(
            needed_connections(task.ranks) > faults.open_limits.get(node, 1000) for node in nodes
        )
        hangs = hangs or (faults.set_only and len(nodes) > 4)
        hangs = hangs or any(len(nodes) >= faults.in_groups.get(node, len(nodes) + 1) for node in nodes)
        hangs = hangs or (not faults.uplink and self.apart(nodes))
        crashed = nodes & faults.crashes if len(nodes) > 1 else set()
        damaged = nodes & faults.damaged if len(nodes) > 1 else set()
        wrong = "the summand of a node arrived changed" if nodes & faults.corrupt and len(nodes) > 1 else ""
        pace = min([1.0, *(faults.slow.get(node, 1.0) for node in nodes)])
        pace = min([pace, *(factor for ends, factor in faults.slow_links.items() if ends <= nodes)])
        pace = min(pace, faults.uplink if faults.uplink and self.apart(nodes) else 1.0)
        pace = min(pace, 0.1 if faults.crowded and faults.crowded <= nodes else 1.0)
        rate = RATE * pace * chance.uniform(0.8, 1.2)
        for node, number, own in arrived:
            if node in crashed:
                result = GroupResult(own.test, False, "warm", 0.1, why="the torch worker ended: SIGSEGV")
            elif node in damaged:
                why = "CUDA error: uncorrectable ECC error encountered"
                starved = node in faults.overloaded
                result = GroupResult(own.test, False, "exact", 0.1, why=why, starved=starved)
            elif hangs or crashed or damaged:
                why, starved = "killed after its limit", node in faults.overloaded
                result = GroupResult(own.test, False, "group", own.limit, why=why, late=True, starved=starved)
            else:
                waited = 1.0 if faults.busy and pace > BUSY else 0.1
                rates = (("all_reduce", rate), ("send", rate), ("receive", rate), (CPU_WAIT, waited))
                result = GroupResult(own.test, not wrong, "done", 0.5, rates, wrong=wrong, ports=(60000,))
            self.say(0.1 + result.seconds, node, number, result)


def examined(
    requested: Orders, faults: Faults | None = None, seed: int = 0, flakes: float = 0.0
) -> SessionOutcome:
    """Return the outcome of one check."""
    return Cluster(requested, faults or Faults(), seed, flakes).outcome()


def blamed(outcome: SessionOutcome) -> set[int]:
    """Return the numbers of the nodes that did not pass."""
    return {int(entry.node[1:]) for entry in outcome.report.nodes if entry.verdict.value != "pass"}


def bad_links(outcome: SessionOutcome) -> set[tuple[int, int, str]]:
    """Return the links with a finding: numbers of both ends, and the direction."""
    return {(int(link.a[1:]), int(link.b[1:]), link.direction) for link in outcome.report.links}
