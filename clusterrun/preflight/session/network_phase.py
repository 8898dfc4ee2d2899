"""The control round: plan the dials between nodes, and repeat failed dials."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations

from clusterrun.model.frozen import replace
from clusterrun.preflight import registry
from clusterrun.preflight.observations import CONTROL
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import DialTask, PeerTask
from clusterrun.preflight.thresholds import ANSWER_SECONDS, DIAL_SECONDS, FEW_NODES, WITNESSES

# The ports to dial, by the dialling node and the dialled node.
Plan = dict[int, dict[int, tuple[int, ...]]]

# In a set of at most this size every node dials all others: 8 ports each are 760 connections, less than the
# usual limit of 1,024 descriptors.
MOST_DIALLED_BY_ALL = 96


def rounds(state: SessionState) -> Waits:
    """Dial along the ring and to and from rank 0. Repeat failed dials, also with witnesses.

    In a small set every node dials all others, since a bad link outside the ring stops the whole set too.
    """
    plan = first_plan(state)
    return _dial(state, "control round", plan, plan)


def around(state: SessionState, nodes: Collection[int]) -> Waits:
    """Dial between these nodes and the others, which are not in doubt."""
    listeners = state.listeners()
    plan: Plan = {}
    step = max(1, len(listeners) // MOST_DIALLED_BY_ALL)
    for index, node in enumerate(listeners):
        neighbours = (listeners[index - 1], listeners[(index + 1) % len(listeners)])
        for other_index, other in enumerate(listeners):
            if node.node not in nodes or other is node:
                continue
            if other in neighbours:
                _both_ways(plan, node, other)
            elif other_index % step == 0:
                plan.setdefault(node.node, {})[other.node] = _two_ports(other, index)
                plan.setdefault(other.node, {})[node.node] = _two_ports(node, other_index)
    return _dial(state, "control round", plan, nodes)


def everyone(state: SessionState) -> Waits:
    """Let every node dial all others, unless the first control round did."""
    listeners = state.listeners()
    if len(listeners) <= MOST_DIALLED_BY_ALL or state.clock.seconds_left < DIAL_SECONDS:
        return
    plan = {
        node.node: {other.node: _two_ports(other, index)[:1] for other in listeners if other is not node}
        for index, node in enumerate(listeners)
    }
    yield from _dial(state, "everybody dials everybody", plan, ())


def _dial(state: SessionState, label: str, plan: Plan, testers: Collection[int]) -> Waits:
    """Dial by this plan, and repeat failed dials. ``testers`` also make checks between nodes."""
    if not plan:
        return
    state.label = label
    _ask_dials(state, plan)
    # Few nodes make checks with all others, many nodes with those that they dial. Without srun all nodes are
    # one machine.
    listeners = [node.node for node in state.listeners()]
    absent = [node.node for node in state.nodes.values() if node.absent]
    for node, targets in plan.items() if state.orders.launch else ():
        partners = listeners if len(listeners) <= MOST_DIALLED_BY_ALL else targets
        if node in testers:
            ask_checks(state, node, [other for other in (*partners, *absent) if other != node])
    yield (DialTask, PeerTask)
    repeat_plan = _repeat_plan(state)
    if repeat_plan and state.clock.seconds_left >= DIAL_SECONDS:
        state.label = "control round, again where something did not answer"
        _ask_dials(state, repeat_plan)
        yield (DialTask,)
    state.end_phase(CONTROL)


def first_plan(state: SessionState) -> Plan:
    """Return the dials of the first round: the ring, and all nodes of a small set or rank 0 with all."""
    listeners = state.listeners()
    plan: Plan = {node.node: {} for node in listeners} if len(listeners) > 1 else {}
    for index, node in enumerate(listeners if plan else ()):
        for other in (listeners[index - 1], listeners[(index + 1) % len(listeners)]):
            plan[node.node][other.node] = other.listening.ports
    hubs = listeners if len(listeners) <= MOST_DIALLED_BY_ALL else listeners[:1]
    for index, node in enumerate(hubs):
        for other in listeners[index + 1 :]:
            plan[node.node].setdefault(other.node, _two_ports(other, index))
            plan[other.node].setdefault(node.node, _two_ports(node, index))
    return plan


def _repeat_plan(state: SessionState) -> Plan:
    """Return the dials that repeat failed ways in both directions on all ports, and dial from good nodes."""
    nodes = {node.node: node for node in state.listeners()}
    failing = [way for way in state.dials.failing() if way.a in nodes and way.b in nodes]
    plan: Plan = {}
    for way in failing:
        _both_ways(plan, nodes[way.a], nodes[way.b])
    shut = {frozenset((way.a, way.b)) for way in failing if not way.is_dead and way.bad}
    if len(shut) > WITNESSES and len(nodes) <= FEW_NODES:
        # More links have silent ports than two nodes explain. Only some nodes dialled these ports, so every
        # node of a small set dials all ports of all others.
        for a, b in combinations(nodes.values(), 2):
            _both_ways(plan, a, b)
    troubled = dict.fromkeys(node for way in failing for node in (way.a, way.b))
    clean = [node for node in nodes if node not in troubled] or list(nodes)
    for index, node in enumerate(troubled):
        turned = clean[index % len(clean) :] + clean[: index % len(clean)]
        for witness in [other for other in turned if other != node][:WITNESSES]:
            _both_ways(plan, nodes[node], nodes[witness])
    return plan


def _two_ports(node: NodeState, index: int) -> tuple[int, ...]:
    """Return two ports of a node. Nodes with another index dial its other ports."""
    ports = node.listening.ports
    chosen = (ports[(index + step) % len(ports)] for step in (0, len(ports) // 2))
    return tuple(dict.fromkeys(chosen))


def _both_ways(plan: Plan, node: NodeState, other: NodeState) -> None:
    plan.setdefault(node.node, {})[other.node] = other.listening.ports
    plan.setdefault(other.node, {})[node.node] = node.listening.ports


def _ask_dials(state: SessionState, plan: Plan) -> None:
    for node, targets in plan.items():
        goals = tuple(state.nodes[other].target(ports) for other, ports in targets.items())
        task = DialTask(state.nonce, node, goals, DIAL_SECONDS)
        state.ask(node, task, DIAL_SECONDS + ANSWER_SECONDS)


def ask_checks(state: SessionState, node: int, others: Iterable[int]) -> None:
    """Ask a node for its checks with others."""
    peers = tuple(state.nodes[peer].target(state.nodes[peer].listening.ports) for peer in (node, *others))
    checks = registry.check_names(state.needs, between_nodes=True)
    seconds = max(registry.probe_seconds(checks), default=0.0) + ANSWER_SECONDS
    state.ask(node, PeerTask(replace(state.needs, peers=peers), checks), seconds)
