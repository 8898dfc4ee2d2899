"""The sweep after a failed dial or pair test: dial a comb of closed ports, then hold connections open."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import cycle, islice

from clusterrun.preflight.causes.components import Components
from clusterrun.preflight.causes.ports import COMB, Silent, blocked, needed_connections
from clusterrun.preflight.observations import FailedRendezvous, GroupTest, PortSweep
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import DialTask, Target
from clusterrun.preflight.thresholds import ANSWER_SECONDS, DIAL_SECONDS, FEW_NODES, WITNESSES

# A lost answer is not a blocked port: silent ports are dialled twice.
ROUNDS = 2
# The port on which torchrun listens by default.
RENDEZVOUS_PORT = 29500
# The time that must be left for a sweep.
SECONDS = ROUNDS * DIAL_SECONDS + ANSWER_SECONDS


def rounds(state: SessionState) -> Waits:
    """Sweep the ports of suspects, and let suspects sweep the ports of others."""
    hints = len(state.failed_tests())
    ways = _ways(state, _suspects(state)) if hints != state.failures_at_sweep else []
    state.failures_at_sweep = hints
    if ways and state.clock.seconds_left >= SECONDS:
        silent = yield from _sweep(state, ways)
        needed = needed_connections(state.ranks)
        # A limit on open connections explains a failure that no port explains.
        if blocked(silent, state.thresholds) or state.clock.seconds_left < SECONDS:
            state.observe(PortSweep(silent))
        else:
            unheld = yield from _hold(state, ways, needed)
            state.observe(PortSweep({way: silent[way] for way in unheld}, unheld, needed))


def hold_ring(state: SessionState) -> Waits:
    """Hold the connections of a job along the ring, and sweep around nodes that limit them.

    The connections of ranks on GPUs depend on NCCL's network. They are held only if a test of a pair failed.
    """
    listeners, needed = state.listeners(), needed_connections(state.ranks)
    ring = [(node.node, listeners[index - 1].node) for index, node in enumerate(listeners)]
    ways = [ends for ends in ring if ends in state.dials.ways and state.dials.ways[ends].works]
    # The control round opened as many connections as there are ports.
    is_tested = not ways or needed <= len(listeners[0].listening.ports)
    if state.has_gpus or is_tested or state.clock.seconds_left < SECONDS:
        return
    unheld = yield from _hold(state, ways, needed)
    if any(unheld.values()):
        state.observe(PortSweep(dict.fromkeys(unheld, frozenset()), unheld, needed))
        yield from rounds(state)


def rendezvous_port(state: SessionState) -> int:
    """Return the port of torchrun, on which nodes listen for a check without ranks; 0 for other checks."""
    variable = dict(state.orders.environment).get("MASTER_PORT", "")
    port = int(variable) if variable.isdecimal() and 0 < int(variable) < 65536 else RENDEZVOUS_PORT
    return port if state.orders.preflight.alone else 0


def dial_rendezvous(state: SessionState) -> Waits:
    """Dial the port of torchrun on every node. A refusal counts if the examiner of the node listens."""
    port, ways = rendezvous_port(state), [ends for ends, way in state.dials.ways.items() if way.works]
    if port and state.clock.seconds_left >= SECONDS:
        silent = yield from _sweep(state, ways, frozenset({port}))
        held = [ends for ends in ways if state.nodes[ends[1]].listening.holds_port]
        refused = tuple(ends for ends in held if port in state.refused_ports.get(ends, ()))
        state.observe(FailedRendezvous(port, tuple(filter(silent.get, ways)), refused))


def rounds_between(state: SessionState) -> Waits:
    """Report the range of ports that do not answer between two parts of the network."""
    part_of = {node: number for number, part in enumerate(explain(state).dial_parts) for node in part}
    partly = (ends for ends, way in state.dials.ways.items() if way.good and way.bad)
    ways = next(
        ([ends, ends[::-1]] for ends in partly if len({part_of.get(node, -1) for node in ends}) > 1), []
    )
    if not ways or state.clock.seconds_left < SECONDS:
        return
    for cause in blocked((yield from _sweep(state, ways)), state.thresholds):
        a, b = (state.nodes[node].name for node in cause.nodes)
        if cause.first:
            ports = f"TCP ports from about {cause.first} to {cause.last}"
            state.notice(f"between them {ports} do not answer: {a} -> {b}")


def _sweep(
    state: SessionState, ways: list[tuple[int, int]], ports: frozenset[int] = frozenset(COMB)
) -> Generator[tuple[type, ...], None, Silent]:
    silent: dict[tuple[int, int], frozenset[int]] = dict.fromkeys(ways, ports)
    for _ in range(ROUNDS):
        open_ways = {way: unanswered for way, unanswered in silent.items() if unanswered}
        if not open_ways:
            break
        state.label = "a sweep of ports"
        state.silent_ports.clear()
        for a in dict.fromkeys(way[0] for way in open_ways):
            targets = []
            for (dialling, dialled), unanswered in open_ways.items():
                if dialling == a:
                    target = state.nodes[dialled]
                    # The kernel takes source ports in order. A shuffled comb keeps a blocked range of
                    # these from looking like a blocked range of destination ports.
                    shuffled = tuple(sorted(unanswered, key=lambda port: port * 40503 % 65537))
                    targets.append(Target(target.node, target.name, target.address, shuffled, 0))
            task = DialTask("", a, tuple(targets), DIAL_SECONDS, closed=True)
            state.ask(a, task, DIAL_SECONDS + ANSWER_SECONDS)
        yield (DialTask,)
        # A node that did not answer says nothing about ports.
        silent = {way: silent[way].intersection(state.silent_ports.get(way, ())) for way in ways}
    return silent


def _hold(
    state: SessionState, ways: list[tuple[int, int]], needed: int
) -> Generator[tuple[type, ...], None, Mapping[tuple[int, int], int]]:
    """Hold ``needed`` connections open on each way. Return how many got no answer, twice.

    A way is left out if nothing is known of it: it gave no answer at all, or an overload excuses it.
    """
    unheld: dict[tuple[int, int], int] = {}
    limited = ways
    for _ in range(ROUNDS):
        state.label = "connections that are open at once"
        state.silent_ports.clear()
        targets: dict[int, list[Target]] = {}
        for a, b in limited:
            ports = tuple(islice(cycle(state.nodes[b].listening.ports), needed))
            targets.setdefault(a, []).append(state.nodes[b].target(ports))
        for a, own_targets in targets.items():
            task = DialTask(state.nonce, a, tuple(own_targets), DIAL_SECONDS, hold=True)
            state.ask(a, task, DIAL_SECONDS + ANSWER_SECONDS)
        if not limited:
            break
        yield (DialTask,)
        for way in limited:
            count = len(state.silent_ports.get(way, range(needed)))
            unheld[way] = min(count, unheld.get(way, needed))
            if count == needed:
                del unheld[way]
        limited = [way for way, count in unheld.items() if count]
    return unheld


def _suspects(state: SessionState) -> list[int]:
    """Return the ends of ways that limit connections or have silent ports, and of failed pair tests.

    Nodes in more of these ways and tests come first.
    """
    ways = [list(ends) for ends, way in state.dials.ways.items() if way.missed and not way.is_dead]
    ways += [list(test.nodes) for test in state.failed_tests() if len(test.nodes) == 2]
    ways += [
        list(ends) for sweep in state.log.of(PortSweep)[-1:] for ends in sweep.unheld if sweep.unheld[ends]
    ]
    listeners = {node.node for node in state.listeners()}
    doubted = [node for ends in ways if listeners.issuperset(ends) for node in ends]
    return sorted(dict.fromkeys(doubted), key=lambda node: -doubted.count(node))[:FEW_NODES]


def _ways(state: SessionState, suspects: list[int]) -> list[tuple[int, int]]:
    """Return the ways between each suspect and two others, if possible others that are no suspects.

    A suspect that passed tests with some nodes has only these as witnesses: what separates it from the others
    may lie between them. The newest test of a pair counts, since a firewall may have changed.
    """
    listeners = [node.node for node in state.listeners()]
    groups = Components()
    tests = state.log.of(GroupTest)
    newest = {frozenset(test.nodes): test.passed for test in tests if test.passed is not None}
    for nodes, passed in newest.items():
        if passed:
            first, *others = nodes
            groups.join((first, other) for other in others)
    group_of = {node: group for group in groups.of(state.nodes) for node in group}
    candidates = [node for node in listeners if node not in suspects] + suspects
    ways: dict[tuple[int, int], None] = {}
    for index, suspect in enumerate(suspects):
        start = index % len(candidates)
        turned = candidates[start:] + candidates[:start]
        turned.sort(key=lambda node: node in suspects)
        witnesses = []
        for node in turned:
            trouble = state.dials.between(suspect, node)
            is_dead = trouble is not None and trouble.symptom == "dead"
            is_mate = len(group_of[suspect]) <= 1 or node in group_of[suspect]
            if node != suspect and not is_dead and is_mate:
                witnesses.append(node)
        for witness in witnesses[:WITNESSES]:
            ways.update({(suspect, witness): None, (witness, suspect): None})
    return list(ways)
