"""The port sweep: dial a comb of closed ports if a dial or a pair test failed, and report what is blocked."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.causes.components import Components
from clusterrun.preflight.causes.ports import COMB, Blocked, Silent, blocked
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import DialTask, Target

# Every suspect sweeps with two others, so that a node can be told from a link.
WITNESSES = 2
# A lost answer is not a blocked port: silent ports are dialled twice.
ROUNDS = 2
SECONDS = 18.0  # that must be left for a sweep
_MOST_SUSPECTS = 6
_SECONDS = 4.0
_SLACK_SECONDS = 10.0
_FIREWALL = "open the ephemeral ports between the nodes of a job (iptables -S, nft list ruleset): on {}"
_LIMIT = (
    "allow the connections of a job, which opens hundreds within a second (iptables -S | grep -E "
    "'limit|connlimit|recent', nft list ruleset, nf_conntrack_max, net.ipv4.tcp_max_syn_backlog): on {}"
)


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Sweep the ports of suspects, and let suspects sweep the ports of others."""
    hints = sum(test.outcome == "failed" for test in state.tests)
    ways = _ways(state, _suspects(state)) if hints != state.swept_after else []
    state.swept_after = hints
    if not ways or state.seconds_left < SECONDS:
        return
    causes = blocked((yield from _sweep(state, ways)))
    nodes = [cause for cause in causes if len(cause.nodes) == 1]
    links = [_link(state, cause) for cause in causes if len(cause.nodes) > 1]
    findings = [NodeFinding(cause.nodes[0], _of_node(state, cause)) for cause in nodes]
    state.write("port sweep", findings, links)


def rounds_between(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Report the range of ports that do not answer between two parts of the network."""
    place = {node: number for number, part in enumerate(state.parts.get("dialling") or ()) for node in part}
    partly = (ends for ends, way in state.dials.ways.items() if way.good and way.bad)
    ways = next(
        ([ends, ends[::-1]] for ends in partly if len({place.get(node, -1) for node in ends}) > 1), []
    )
    if not ways or state.seconds_left < SECONDS:
        return
    for cause in blocked((yield from _sweep(state, ways))):
        a, b = (state.nodes[node].name for node in cause.nodes)
        if cause.first:
            ports = f"TCP ports from about {cause.first} to {cause.last}"
            state.notice(f"between them {ports} do not answer: {a} -> {b}")


def _sweep(state: SessionState, ways: list[tuple[int, int]]) -> Generator[tuple[type, ...], None, Silent]:
    silent: dict[tuple[int, int], frozenset[int]] = dict.fromkeys(ways, frozenset(COMB))
    for _ in range(ROUNDS):
        open_ways = {way: ports for way, ports in silent.items() if ports}
        if not open_ways:
            break
        state.label = "a sweep of ports"
        state.swept.clear()
        _ask(state, open_ways)
        yield (DialTask,)
        # A node that did not answer says nothing about ports.
        silent = {way: ports & state.swept.get(way, frozenset()) for way, ports in silent.items()}
    return silent


def _suspects(state: SessionState) -> list[int]:
    """Return the ends of ways with silent ports and of failed pair tests, most doubted first."""
    ways = [list(ends) for ends, way in state.dials.ways.items() if way.missed and not way.is_dead]
    failed = [test.nodes for test in state.tests if test.outcome == "failed" and len(test.nodes) == 2]
    ways += [[state.numbers[name] for name in names] for names in failed]
    listeners = {node.node for node in state.listeners()}
    doubted = [node for ends in ways if listeners.issuperset(ends) for node in ends]
    return sorted(dict.fromkeys(doubted), key=lambda node: -doubted.count(node))[:_MOST_SUSPECTS]


def _ways(state: SessionState, suspects: list[int]) -> list[tuple[int, int]]:
    """Return the ways between each suspect and two others, if possible others that are no suspects.

    A suspect that passed tests with some nodes has only these as witnesses: what separates it from the others
    may lie between them. The newest test of a pair counts, since a firewall may have changed.
    """
    listeners = [node.node for node in state.listeners()]
    groups = Components()
    newest = {frozenset(test.nodes): test.outcome for test in state.tests if test.outcome != "void"}
    for names, outcome in newest.items():
        if outcome == "passed":
            first, *others = (state.numbers[name] for name in names)
            for other in others:
                groups.join(first, other)
    mates = {node: group for group in groups.of(state.nodes) for node in group}
    candidates = [node for node in listeners if node not in suspects] + suspects
    ways: dict[tuple[int, int], None] = {}
    for place, suspect in enumerate(suspects):
        start = place % len(candidates)
        turned = candidates[start:] + candidates[:start]
        turned.sort(key=lambda node: node in suspects)
        witnesses = []
        for node in turned:
            trouble = state.dials.between(suspect, node)
            is_dead = trouble is not None and trouble.kind == "dead"
            is_mate = len(mates[suspect]) <= 1 or node in mates[suspect]
            if node != suspect and not is_dead and is_mate:
                witnesses.append(node)
        for witness in witnesses[:WITNESSES]:
            ways.update({(suspect, witness): None, (witness, suspect): None})
    return list(ways)


def _ask(state: SessionState, ways: Mapping[tuple[int, int], frozenset[int]]) -> None:
    for a in dict.fromkeys(way[0] for way in ways):
        targets = []
        for (dialling, dialled), ports in ways.items():
            if dialling == a:
                target = state.nodes[dialled]
                # The kernel takes source ports in order. A shuffled comb keeps a blocked range of these from
                # looking like a blocked range of destination ports.
                shuffled = tuple(sorted(ports, key=lambda port: port * 40503 % 65537))
                targets.append(Target(target.node, target.name, target.address, shuffled, 0))
        task = DialTask("", a, tuple(targets), (), _SECONDS, closed=True)
        state.ask(a, task, _SECONDS + _SLACK_SECONDS)


def _of_node(state: SessionState, cause: Blocked) -> Finding:
    others, name = state.names(cause.others), state.names(cause.nodes)
    if not cause.first:
        ways = f"that {others} begin to it" if cause.inward else f"that it begins to {others}"
        message = f"{cause.share:.0%} of the TCP connections {ways} get no answer, whichever port: {_LIMITED}"
        return Finding("ports", Grade.FAIL, message, _LIMIT.format(name))
    ports = f"TCP ports from about {cause.first} to {cause.last}"
    message = (
        f"its {ports} answer nobody ({others})" if cause.inward else f"it reaches {ports} nowhere ({others})"
    )
    return Finding("ports", Grade.FAIL, message, _FIREWALL.format(name))


_LIMITED = "something limits how many are open or begin at a time"


def _link(state: SessionState, cause: Blocked) -> LinkReport:
    a, b = (state.nodes[node].name for node in cause.nodes)
    if not cause.first:
        connections = f"{cause.share:.0%} of the TCP connections from {a} to {b}"
        message = f"{connections} get no answer, whichever port: {_LIMITED}"
        return LinkReport(a, b, "a->b", Grade.FAIL, message, _LIMIT.format(f"{a} and {b}"))
    message = f"TCP ports of {b} from about {cause.first} to {cause.last} do not answer {a}"
    return LinkReport(a, b, "a->b", Grade.FAIL, message, _FIREWALL.format(f"{a} and {b}"))
