"""The control round: who dials whom, what is tried again, and what it says of nodes and links; pure."""

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

DIAL_SECONDS = 5.0
"""The kernel sends a lost SYN again after 1 and 3 seconds."""
WITNESSES = 2
_SLACK_SECONDS = 10.0
FEW = 96
"""Up to so many nodes everybody dials everybody, and resolves everybody's name; above, those it dials."""
_ALL_PORTS = 16
"""Among so many nodes everybody dials all ports of everybody, where several links have ports in trouble."""
_SHUT_LINKS = 3
_TRIES = "tried {} times"
_FIREWALL = "open the ephemeral ports between the nodes of a job (iptables -L -n, nft list ruleset)"
_CABLE = "look at switch port, cable and route of {}: ip -s link, ethtool"
_PATH = "let the MTU of {} be what the switches carry: ping -M do -s 8972 from the one to the other"


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Dial along the ring and to and from rank 0; where something was wrong, again and with witnesses.

    Where nodes are few, everybody dials everybody: a bad link off the ring stops the whole set too.
    """
    plan = _plan(state)
    return _dial(state, "control round", plan, plan)


def around(state: SessionState, nodes: Collection[int]) -> Iterator[tuple[type, ...]]:
    """Let these dial the others, and be dialled by them; about the others nothing is in doubt."""
    return _dial(state, "control round", _plan_around(state, nodes), nodes)


def everyone(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Let everybody dial everybody, where that was too much to begin with."""
    there = state.listeners()
    if len(there) <= FEW or state.left < DIAL_SECONDS:
        return
    plan = {
        one.node: {to.node: _some(to, at)[:1] for to in there if to is not one}
        for at, one in enumerate(there)
    }
    yield from _dial(state, "everybody dials everybody", plan, ())


def _dial(state: SessionState, label: str, plan: Plan, namers: Collection[int]) -> Iterator[tuple[type, ...]]:
    """Dial by this plan, and once more where something did not answer; ``namers`` resolve names as well."""
    if not plan:
        return
    state.label = label
    _ask(state, plan, namers if state.orders.launch else ())  # without srun all nodes are one machine
    yield (DialTask,)
    again = _again(state)
    if again and state.left >= DIAL_SECONDS:
        state.label = "control round, again where something did not answer"
        _ask(state, again, ())
        yield (DialTask,)
    write(state)


Plan = dict[int, dict[int, tuple[int, ...]]]
"""Who dials whom on which ports."""


def _plan(state: SessionState) -> Plan:
    there = state.listeners()
    plan: Plan = {one.node: {} for one in there} if len(there) > 1 else {}
    for place, one in enumerate(there if plan else ()):
        for other in (there[place - 1], there[(place + 1) % len(there)]):
            plan[one.node][other.node] = other.listening.ports
    for place, one in enumerate(there):
        for other in there[place + 1 :] if len(there) <= FEW or place == 0 else ():
            plan[one.node].setdefault(other.node, _some(other, place))
            plan[other.node].setdefault(one.node, _some(one, place))
    return plan


def _plan_around(state: SessionState, nodes: Collection[int]) -> Plan:
    there = state.listeners()
    plan: Plan = {}
    step = max(1, len(there) // FEW)
    for place, one in enumerate(there):
        near = (there[place - 1], there[(place + 1) % len(there)])
        for at, other in enumerate(there if one.node in nodes else ()):
            if other is not one and other in near:
                _both_ways(plan, one, other)
            elif other is not one and at % step == 0:
                plan.setdefault(one.node, {})[other.node] = _some(other, place)
                plan.setdefault(other.node, {})[one.node] = _some(one, at)
    return plan


def _some(node: NodeState, place: int) -> tuple[int, ...]:
    """Two ports of one that is not a neighbour in the ring: others try the others."""
    ports = node.listening.ports
    both = (ports[(place + step) % len(ports)] for step in (0, len(ports) // 2))
    return tuple(dict.fromkeys(both))


def _again(state: SessionState) -> Plan:
    """Every way that was not well, both ways, on all ports; and its ends with others who had no trouble."""
    there = {one.node: one for one in state.listeners()}
    ill = [way for way in state.dials.failing() if way.a in there and way.b in there]
    plan: Plan = {}
    for way in ill:
        _both_ways(plan, there[way.a], there[way.b])
    shut = {frozenset((way.a, way.b)) for way in ill if not way.is_dead and way.bad}
    if len(shut) >= _SHUT_LINKS and len(there) <= _ALL_PORTS:
        # Ports that some do not reach were not tried by all: only who has tried them is known to.
        for a, b in combinations(there.values(), 2):
            _both_ways(plan, a, b)
    troubled = dict.fromkeys(node for way in ill for node in (way.a, way.b))
    clean = [node for node in there if node not in troubled] or list(there)
    for place, node in enumerate(troubled):
        turned = clean[place % len(clean) :] + clean[: place % len(clean)]
        for witness in [one for one in turned if one != node][:WITNESSES]:
            _both_ways(plan, there[node], there[witness])
    return plan


def _both_ways(plan: Plan, node: NodeState, other: NodeState) -> None:
    plan.setdefault(node.node, {})[other.node] = other.listening.ports
    plan.setdefault(other.node, {})[node.node] = node.listening.ports


def _ask(state: SessionState, plan: Plan, namers: Collection[int]) -> None:
    there = [one.name for one in state.subjects.values() if one.listens]
    absent = [one.name for one in state.subjects.values() if one.absent]
    for node, targets in plan.items():
        near = [state.subjects[other].name for other in (node, *targets)]
        asked = (*(there if len(there) <= FEW else near), *absent) if node in namers else ()
        goals = tuple(state.subjects[other].target(ports) for other, ports in targets.items())
        task = DialTask(state.nonce, node, goals, asked, DIAL_SECONDS)
        state.ask(node, task, DIAL_SECONDS + _SLACK_SECONDS)


# --- what it says ---


def write(state: SessionState) -> None:
    present = [one.node for one in state.present()]
    troubles, parts = state.dials.explain(present)
    partition_findings.write(state, "dialling", parts, _seen(state, parts))
    nodes = [NodeFinding(one.nodes[0], of_node(state, one)) for one in troubles if len(one.nodes) == 1]
    state.write("control", nodes, (link(state, one) for one in troubles if len(one.nodes) == 2))
    heard = [one for one in state.subjects.values() if one.listens]
    views = {one.node: one.resolved for one in heard if one.resolved}
    state.write("names", consistency.names(views, {one.name: one for one in heard}))
    state.write("late names", consistency.late_names(heard))
    clock_limits = (limit(state.asked.limits, name) for name in ("clock_warn", "clock_fail"))
    state.write("clocks", consistency.clocks(heard, *clock_limits))
    state.write("interfaces", consistency.interfaces(heard))


def _seen(state: SessionState, parts: Collection[Collection[int]]) -> str:
    place = {node: at for at, part in enumerate(parts) for node in part}
    ways = [way for way in state.dials.ways.values() if {way.a, way.b} <= place.keys()]
    ways = [way for way in ways if place[way.a] != place[way.b]]
    some = [way for way in ways if way.good]
    kind = "some TCP ports do not answer" if any(way.bad for way in some) else "large packets get lost"
    return f"{kind if some else 'no connection'} between them ({len(ways)} ways tried), all is well inside"


def of_node(state: SessionState, one: ConnectTrouble) -> Finding:
    name = state.subjects[one.nodes[0]].name
    others = some_of([state.subjects[node].name for node in one.others], 4)
    tries = _TRIES.format(one.rounds) + (f"; {one.why}" if one.why else "")
    if one.kind == "ports":
        ports = ", ".join(map(str, one.ports))
        message = f"TCP ports {ports} answer nobody ({others}; {tries})"
        if not ports:
            message = (
                f"some TCP connections between it and {others} get no answer, each on other ports ({tries})"
            )
        return Finding("ports", Grade.FAIL, message, _FIREWALL)
    if one.kind == "large":
        said = f"large packets do not get through from and to {others} ({tries}); small ones do"
        return Finding("large-packets", Grade.FAIL, said, _PATH.format(name))
    words = {
        "all": f"no connection from or to {others}",
        "in": f"no port of it answers {others}",
        "out": f"it reaches none of {others}",
    }
    remedy = _CABLE.format(name) if one.side == "all" else _FIREWALL
    return Finding("connections", Grade.FAIL, f"{words[one.side]} ({tries})", remedy)


def link(state: SessionState, one: ConnectTrouble) -> LinkReport:
    a, b = (state.subjects[node].name for node in one.nodes)
    tries = _TRIES.format(one.rounds) + (f"; {one.why}" if one.why else "")
    if one.kind == "ports":
        said = f"TCP ports {', '.join(map(str, one.ports))} of {b} do not answer {a} ({tries})"
        remedy = _FIREWALL
    elif one.kind == "large":
        said, remedy = f"large packets get lost ({tries}); small ones pass", _PATH.format(f"{a} and {b}")
    else:
        said, remedy = f"no connection either way ({tries})", _CABLE.format(f"{a} and {b}")
        if not one.both:
            said = f"packets from {a} do not reach {b}, those back do ({tries})"
    direction = "both" if one.both else "a->b"
    return LinkReport(a, b, direction, Grade.FAIL, said, remedy)
