"""The port sweep: which range of TCP ports does not answer, on which node and in which direction; pure.

A closed port answers too, with a refusal. So a comb of ports is dialled on which nothing listens: only what a
firewall drops stays silent. It is done where dialling or a test of a pair gave a reason.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.search.node_groups import Groups
from clusterrun.preflight.session.state import NodeFinding, SessionState
from clusterrun.preflight.tasks import DialTask, Target

LOW, HIGH, STEP = 32768, 60999, 64
"""The usual ephemeral range; a comb of it is less than what one node dials at once."""
RUN = 3
"""So many neighbours of the comb must be silent: single ones may be taken, or lose an answer."""
WITNESSES = 2
ROUNDS = 2
"""Where answers get lost by the port they go to, another try has another one."""
_MOST_SUSPECTS = 6
_SECONDS = 4.0
_SLACK_SECONDS = 10.0
_FIREWALL = "open the ephemeral ports between the nodes of a job (iptables -S, nft list ruleset): on {}"

Silent = dict[tuple[int, int], frozenset[int]]
"""By (who dialled, whom): the ports of the comb that never answered."""


@frozen
class Blocked:
    """``nodes`` is (node,) or a link (from, to). ``inward``: a node's own ports, else those that it dials."""

    nodes: tuple[int, ...]
    first: int
    last: int
    inward: bool
    others: tuple[int, ...] = ()


def blocked(silent: Mapping[tuple[int, int], frozenset[int]]) -> list[Blocked]:
    """Nodes whose ports nobody reaches, then nodes that reach these ports nowhere, then links."""
    found = [*_nodes(silent, inward=True), *_nodes(silent, inward=False)]
    # Answers that go to a node's blocked ports get lost as well, on any way from and to it.
    guilty = {one.nodes[0] for one in found}
    for (a, b), ports in silent.items():
        span = _span(ports)
        if span and not {a, b} & guilty:
            found.append(Blocked((a, b), *span, inward=True))
    return found


def _nodes(silent: Mapping[tuple[int, int], frozenset[int]], inward: bool) -> Iterator[Blocked]:
    ways: dict[int, dict[int, frozenset[int]]] = {}
    for (a, b), ports in silent.items():
        node, other = (b, a) if inward else (a, b)
        ways.setdefault(node, {})[other] = ports
    for node, seen in ways.items():
        span = _span(frozenset.intersection(*seen.values()))
        if len(seen) >= WITNESSES and span:
            yield Blocked((node,), *span, inward=inward, others=tuple(sorted(seen)))


def _span(ports: frozenset[int]) -> tuple[int, int] | None:
    """The longest run of neighbours of the comb, where it is long enough."""
    runs: list[list[int]] = []
    for port in sorted(ports):
        if runs and port - runs[-1][-1] == STEP:
            runs[-1].append(port)
        else:
            runs.append([port])
    longest = max(runs, key=len, default=[])
    return (longest[0], longest[-1]) if len(longest) >= RUN else None


# --- in an examination ---


def rounds(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Sweep the ports of those in doubt, and let them sweep others'."""
    hints = sum(one.outcome == "failed" for one in state.tests)
    ways = _ways(state, _suspects(state)) if hints != state.swept_after else []
    state.swept_after = hints
    if not ways or state.left < ROUNDS * _SECONDS + _SLACK_SECONDS:
        return
    found = blocked((yield from _sweep(state, ways)))
    nodes = [one for one in found if len(one.nodes) == 1]
    for one in nodes:  # links that a node's ports explain are no findings of their own
        state.drop_link_findings_of(one.nodes[0])
    links = [_link(state, one) for one in found if len(one.nodes) > 1]
    state.write("port sweep", [NodeFinding(one.nodes[0], _of_node(state, one)) for one in nodes], links)


def rounds_between(state: SessionState) -> Iterator[tuple[type, ...]]:
    """Where only some ports do not answer between the parts of the network: which, by two of their nodes."""
    place = {node: at for at, part in enumerate(state.parts.get("dialling") or ()) for node in part}
    some = (ends for ends, way in state.connectivity.ways.items() if way.good and way.bad)
    ways = next(([ends, ends[::-1]] for ends in some if len({place.get(one, -1) for one in ends}) > 1), [])
    if not ways or state.left < ROUNDS * _SECONDS + _SLACK_SECONDS:
        return
    for one in blocked((yield from _sweep(state, ways))):
        a, b = (state.subjects[node].name for node in one.nodes)
        state.notice(f"between them TCP ports from about {one.first} to {one.last} do not answer: {a} -> {b}")


def _sweep(state: SessionState, ways: list[tuple[int, int]]) -> Generator[tuple[type, ...], None, Silent]:
    silent: Silent = {way: frozenset(range(LOW, HIGH + 1, STEP)) for way in ways}
    for _ in range(ROUNDS):
        asked = {way: ports for way, ports in silent.items() if len(ports) >= RUN}
        if not asked:
            break
        state.label = "a sweep of ports"
        state.swept.clear()
        _ask(state, asked)
        yield (DialTask,)
        # Of who did not answer nothing is known.
        silent = {way: ports & state.swept.get(way, frozenset()) for way, ports in silent.items()}
    return silent


def _suspects(state: SessionState) -> list[int]:
    """The ends of ways with silent ports, and of tests of pairs that failed."""
    ways = [list(ends) for ends, way in state.connectivity.ways.items() if way.missed and not way.dead]
    tests = [one.nodes for one in state.tests if one.outcome == "failed" and len(one.nodes) == WITNESSES]
    ways += [[state.numbers[name] for name in names] for names in tests]
    there = {one.node for one in state.listeners()}
    doubted = [node for ends in ways if there.issuperset(ends) for node in ends]
    return sorted(dict.fromkeys(doubted), key=lambda node: -doubted.count(node))[:_MOST_SUSPECTS]


def _ways(state: SessionState, suspects: list[int]) -> list[tuple[int, int]]:
    """Each with two others, both ways; with such that are not in doubt, where there are any.

    Who is joined with others by tests that passed has only these as witnesses: what keeps it from the rest
    may lie between. The newest test of some nodes counts: a firewall may have been changed since the first.
    """
    there = [one.node for one in state.listeners()]
    groups = Groups()
    newest = {frozenset(one.nodes): one.outcome for one in state.tests if one.outcome != "void"}
    for nodes in ([state.numbers[name] for name in one] for one in newest if newest[one] == "passed"):
        for other in nodes[1:]:
            groups.join(nodes[0], other)
    mates = {node: group for group in groups.of(state.subjects) for node in group}
    others = [node for node in there if node not in suspects] + suspects
    found: dict[tuple[int, int], None] = {}
    for place, node in enumerate(suspects):
        turned = others[place % len(others) :] + others[: place % len(others)]
        turned.sort(key=lambda one: one in suspects)
        near = mates[node]
        able = [one for one in turned if one != node and not state.is_cut(node, one)]
        able = [one for one in able if one in near] if len(near) > 1 else able
        for other in able[:WITNESSES]:
            found.update({(node, other): None, (other, node): None})
    return list(found)


def _ask(state: SessionState, ways: Mapping[tuple[int, int], frozenset[int]]) -> None:
    for a in dict.fromkeys(way[0] for way in ways):
        goals = [(state.subjects[b], ports) for (node, b), ports in ways.items() if node == a]
        # In no order: the kernel takes own ports in turn, and must not map a blocked range of these to a run.
        mixed = (tuple(sorted(ports, key=lambda port: port * 40503 % 65537)) for _, ports in goals)
        targets = tuple(
            Target(to.node, to.name, to.address, ports, 0) for (to, _), ports in zip(goals, mixed)
        )
        state.ask(a, DialTask("", a, targets, (), _SECONDS, closed=True), _SECONDS + _SLACK_SECONDS)


def _of_node(state: SessionState, one: Blocked) -> Finding:
    others = state.names(one.others)
    ports = f"TCP ports from about {one.first} to {one.last}"
    said = f"its {ports} answer nobody ({others})" if one.inward else f"it reaches {ports} nowhere ({others})"
    return Finding("ports", Grade.FAIL, said, _FIREWALL.format(state.names(one.nodes)))


def _link(state: SessionState, one: Blocked) -> LinkReport:
    a, b = (state.subjects[node].name for node in one.nodes)
    said = f"TCP ports of {b} from about {one.first} to {one.last} do not answer {a}"
    return LinkReport(a, b, "a->b", Grade.FAIL, said, _FIREWALL.format(f"{a} and {b}"))
