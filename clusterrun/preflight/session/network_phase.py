"""The control round: plan the dials between nodes, repeat failed dials, and report faulty nodes and links."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes.dials import ConnectTrouble
from clusterrun.preflight.majority import some_of
from clusterrun.preflight.session import consistency, partition_findings
from clusterrun.preflight.session.state import NodeFinding, NodeState, SessionState
from clusterrun.preflight.tasks import DialTask
from clusterrun.preflight.thresholds import limit

# The kernel repeats a lost SYN after 1 and 3 seconds.
DIAL_SECONDS = 5.0
WITNESSES = 2
_SLACK_SECONDS = 10.0
# In a set of at most this size every node dials and resolves all others. In a larger set it resolves only the
# nodes that it dials.
FEW = 96
# In a set of at most this size every node dials all ports of all others if several links have silent ports.
_ALL_PORTS = 16
_SHUT_LINKS = 3
_TRIES = "tried {} times"
_FIREWALL = "open the ephemeral ports between the nodes of a job (iptables -L -n, nft list ruleset)"
_CABLE = "look at switch port, cable and route of {}: ip -s link, ethtool"
_PATH = "let the MTU of {} be what the switches carry: ping -M do -s 8972 from the one to the other"


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Dial along the ring and to and from rank 0. Repeat failed dials, also with witnesses.

    In a small set every node dials all others, since a bad link outside the ring stops the whole set too.
    """
    plan = _plan(state)
    return _dial(state, "control round", plan, plan)


def around(state: SessionState, nodes: Collection[int]) -> Iterator[tuple[type, ...]]:
    """Dial between these nodes and the others, which are not in doubt."""
    return _dial(state, "control round", _plan_around(state, nodes), nodes)


def everyone(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Let every node dial all others, unless the first control round did."""
    listeners = state.listeners()
    if len(listeners) <= FEW or state.seconds_left < DIAL_SECONDS:
        return
    plan = {
        node.node: {other.node: _some(other, place)[:1] for other in listeners if other is not node}
        for place, node in enumerate(listeners)
    }
    yield from _dial(state, "everybody dials everybody", plan, ())


def _dial(state: SessionState, label: str, plan: Plan, namers: Collection[int]) -> Iterator[tuple[type, ...]]:
    """Dial by this plan, and repeat the dials without an answer. ``namers`` also resolve names."""
    if not plan:
        return
    state.label = label
    _ask(state, plan, namers if state.orders.launch else ())  # without srun all nodes are one machine
    yield (DialTask,)
    again = _again(state)
    if again and state.seconds_left >= DIAL_SECONDS:
        state.label = "control round, again where something did not answer"
        _ask(state, again, ())
        yield (DialTask,)
    write(state)


# The ports to dial, by the dialling node and the dialled node.
Plan = dict[int, dict[int, tuple[int, ...]]]


def _plan(state: SessionState) -> Plan:
    listeners = state.listeners()
    plan: Plan = {node.node: {} for node in listeners} if len(listeners) > 1 else {}
    for place, node in enumerate(listeners if plan else ()):
        for other in (listeners[place - 1], listeners[(place + 1) % len(listeners)]):
            plan[node.node][other.node] = other.listening.ports
    for place, node in enumerate(listeners):
        for other in listeners[place + 1 :] if len(listeners) <= FEW or place == 0 else ():
            plan[node.node].setdefault(other.node, _some(other, place))
            plan[other.node].setdefault(node.node, _some(node, place))
    return plan


def _plan_around(state: SessionState, nodes: Collection[int]) -> Plan:
    listeners = state.listeners()
    plan: Plan = {}
    step = max(1, len(listeners) // FEW)
    for place, node in enumerate(listeners):
        near = (listeners[place - 1], listeners[(place + 1) % len(listeners)])
        for at, other in enumerate(listeners if node.node in nodes else ()):
            if other is not node and other in near:
                _both_ways(plan, node, other)
            elif other is not node and at % step == 0:
                plan.setdefault(node.node, {})[other.node] = _some(other, place)
                plan.setdefault(other.node, {})[node.node] = _some(node, at)
    return plan


def _some(node: NodeState, place: int) -> tuple[int, ...]:
    """Return two ports of a node. Nodes at other places dial its other ports."""
    ports = node.listening.ports
    both = (ports[(place + step) % len(ports)] for step in (0, len(ports) // 2))
    return tuple(dict.fromkeys(both))


def _again(state: SessionState) -> Plan:
    """Plan failed dials again in both directions on all ports, and dials of their ends with good nodes."""
    listeners = {node.node: node for node in state.listeners()}
    failing = [way for way in state.dials.failing() if way.a in listeners and way.b in listeners]
    plan: Plan = {}
    for way in failing:
        _both_ways(plan, listeners[way.a], listeners[way.b])
    shut = {frozenset((way.a, way.b)) for way in failing if not way.is_dead and way.bad}
    if len(shut) >= _SHUT_LINKS and len(listeners) <= _ALL_PORTS:
        # Only some nodes dialled the ports that others do not reach.
        for a, b in combinations(listeners.values(), 2):
            _both_ways(plan, a, b)
    troubled = dict.fromkeys(node for way in failing for node in (way.a, way.b))
    clean = [node for node in listeners if node not in troubled] or list(listeners)
    for place, node in enumerate(troubled):
        turned = clean[place % len(clean) :] + clean[: place % len(clean)]
        for witness in [other for other in turned if other != node][:WITNESSES]:
            _both_ways(plan, listeners[node], listeners[witness])
    return plan


def _both_ways(plan: Plan, node: NodeState, other: NodeState) -> None:
    plan.setdefault(node.node, {})[other.node] = other.listening.ports
    plan.setdefault(other.node, {})[node.node] = node.listening.ports


def _ask(state: SessionState, plan: Plan, namers: Collection[int]) -> None:
    listeners = [node_state.name for node_state in state.nodes.values() if node_state.listens]
    absent = [node_state.name for node_state in state.nodes.values() if node_state.absent]
    for node, targets in plan.items():
        near = [state.nodes[other].name for other in (node, *targets)]
        names = (*(listeners if len(listeners) <= FEW else near), *absent) if node in namers else ()
        goals = tuple(state.nodes[other].target(ports) for other, ports in targets.items())
        task = DialTask(state.nonce, node, goals, names, DIAL_SECONDS)
        state.ask(node, task, DIAL_SECONDS + _SLACK_SECONDS)


# --- findings ---


def write(state: SessionState) -> None:
    present = [node.node for node in state.present()]
    troubles, parts = state.dials.explain(present)
    partition_findings.write(state, "dialling", parts, _observed(state, parts))
    findings = [
        NodeFinding(trouble.nodes[0], of_node(state, trouble))
        for trouble in troubles
        if len(trouble.nodes) == 1
    ]
    links = (link(state, trouble) for trouble in troubles if len(trouble.nodes) == 2)
    state.write("control", findings, links)
    listeners = [node for node in state.nodes.values() if node.listens]
    views = {node.node: node.resolved for node in listeners if node.resolved}
    state.write("names", consistency.names(views, {node.name: node for node in listeners}))
    state.write("late names", consistency.late_names(listeners))
    clock_limits = (limit(state.needs.limits, name) for name in ("clock_warn", "clock_fail"))
    state.write("clocks", consistency.clocks(listeners, *clock_limits))
    state.write("interfaces", consistency.interfaces(listeners))


def _observed(state: SessionState, parts: Collection[Collection[int]]) -> str:
    place = {node: at for at, part in enumerate(parts) for node in part}
    ways = [way for way in state.dials.ways.values() if {way.a, way.b} <= place.keys()]
    ways = [way for way in ways if place[way.a] != place[way.b]]
    partly_good = [way for way in ways if way.good]
    if not partly_good:
        kind = "no connection"
    elif any(way.bad for way in partly_good):
        kind = "some TCP ports do not answer"
    else:
        kind = "large packets get lost"
    return f"{kind} between them ({len(ways)} ways tried), all is well inside"


def of_node(state: SessionState, trouble: ConnectTrouble) -> Finding:
    name = state.nodes[trouble.nodes[0]].name
    others = some_of([state.nodes[node].name for node in trouble.others], 4)
    tries = _TRIES.format(trouble.rounds) + (f"; {trouble.why}" if trouble.why else "")
    if trouble.kind == "ports":
        ports = ", ".join(map(str, trouble.ports))
        message = f"TCP ports {ports} answer nobody ({others}; {tries})"
        if not ports:
            message = (
                f"some TCP connections between it and {others} get no answer, each on other ports ({tries})"
            )
        return Finding("ports", Grade.FAIL, message, _FIREWALL)
    if trouble.kind == "large":
        message = f"large packets do not get through from and to {others} ({tries}); small ones do"
        return Finding("large-packets", Grade.FAIL, message, _PATH.format(name))
    messages = {
        "all": f"no connection from or to {others}",
        "in": f"no port of it answers {others}",
        "out": f"it reaches none of {others}",
    }
    remedy = _CABLE.format(name) if trouble.side == "all" else _FIREWALL
    return Finding("connections", Grade.FAIL, f"{messages[trouble.side]} ({tries})", remedy)


def link(state: SessionState, trouble: ConnectTrouble) -> LinkReport:
    a, b = (state.nodes[node].name for node in trouble.nodes)
    tries = _TRIES.format(trouble.rounds) + (f"; {trouble.why}" if trouble.why else "")
    if trouble.kind == "ports":
        message = f"TCP ports {', '.join(map(str, trouble.ports))} of {b} do not answer {a} ({tries})"
        remedy = _FIREWALL
    elif trouble.kind == "large":
        message, remedy = f"large packets get lost ({tries}); small ones pass", _PATH.format(f"{a} and {b}")
    else:
        message, remedy = f"no connection either way ({tries})", _CABLE.format(f"{a} and {b}")
        if not trouble.both:
            message = f"packets from {a} do not reach {b}, those back do ({tries})"
    direction = "both" if trouble.both else "a->b"
    return LinkReport(a, b, direction, Grade.FAIL, message, remedy)
