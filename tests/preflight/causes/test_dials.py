"""From who dialled whom to the node, link or port that is to blame."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest

from clusterrun.preflight.causes.dials import SLOW_ANSWER_SECONDS, ConnectTrouble, Dials
from clusterrun.preflight.session.connection_findings import link_of
from clusterrun.preflight.tasks import DialAnswer, Dialled, DialTask, Target

PORTS = (1, 2, 3, 4)


def crossings(
    nodes: int,
    cut: set[tuple[int, int]] = frozenset(),
    blocked: dict[int, set[int]] | None = None,
    small: set[int] = frozenset(),
    datagrams: bool = True,
    rounds: int = 2,
    rejected: set[tuple[int, int]] = frozenset(),
) -> Dials:
    """Return the dials of all nodes to all nodes. TCP needs both ways, a datagram one."""
    result = Dials()
    for _ in range(rounds):
        for node in range(nodes):
            others = [other for other in range(nodes) if other != node]
            task = DialTask("x", node, tuple(Target(o, "", "", PORTS, 9) for o in others), 5.0)
            dialled = []
            for other in others:
                dead = (node, other) in cut or (other, node) in cut
                silent = PORTS if dead else tuple(sorted((blocked or {}).get(other, ())))
                refused = PORTS if (node, other) in rejected else ()
                dialled.append(Dialled(other, refused, silent, not {node, other} & small))
            heard = tuple(other for other in others if datagrams and (other, node) not in cut)
            result.take(task, DialAnswer(tuple(dialled), heard))
    return result


def summary(dials: Dials, nodes: int) -> list[tuple[str, tuple[int, ...], bool]]:
    return [(entry.symptom, entry.nodes, entry.both) for entry in dials.troubles_among(range(nodes))[0]]


def all_ways(node: int, nodes: int) -> set[tuple[int, int]]:
    return {(node, o) for o in range(nodes) if o != node} | {(o, node) for o in range(nodes) if o != node}


def test_no_component_is_in_trouble_if_every_dial_succeeds() -> None:
    assert summary(crossings(5), 5) == []


@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(range(4), 2)))
def test_a_one_way_cut_is_a_link_with_the_direction_of_the_loss(a, b) -> None:
    assert summary(crossings(4, cut={(a, b)}), 4) == [("dead", (a, b), False)]


@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_direction_with_refused_ports_is_not_one_that_loses_packets(is_rejected: bool) -> None:
    ways = {(1, 2)}
    dials = crossings(4, rejected=ways) if is_rejected else crossings(4, cut=ways)
    (trouble,), _ = dials.troubles_among(range(4))
    assert (trouble.symptom, trouble.nodes, trouble.both) == ("dead", (1, 2), False)
    assert trouble.is_refused is is_rejected
    state = SimpleNamespace(nodes={node: SimpleNamespace(name=f"n{node}") for node in range(4)})
    assert ("REJECT" in link_of(state, trouble).remedy) is is_rejected


def test_a_way_on_which_only_connections_are_dropped_is_not_one_on_which_packets_vanish() -> None:
    dials = crossings(4)
    dials.ways[1, 2].good.clear()
    (trouble,), _ = dials.troubles_among(range(4))
    assert (trouble.nodes, trouble.both, trouble.is_one_sided) == ((1, 2), False, True)
    ((cut,), _) = crossings(4, cut={(1, 2)}).troubles_among(range(4))
    assert not cut.is_one_sided


def test_a_port_that_the_dialling_machine_could_not_dial_says_nothing_about_the_way() -> None:
    dials = Dials()
    task = DialTask("x", 1, (Target(2, "", "", PORTS, 9),), 5.0)
    answer = Dialled(2, (), (), True, why="Cannot assign requested address", unsent=(3, 4))
    dials.take(task, DialAnswer((answer,), ()))
    assert dials.troubles_among(range(4))[0] == ()
    assert (dials.ways[1, 2].good, dials.unsent) == ({1, 2}, {1: {2: "Cannot assign requested address"}})


def test_a_cut_in_both_directions_is_one_link() -> None:
    ((kind, nodes, both),) = summary(crossings(4, cut={(1, 2), (2, 1)}), 4)
    assert (kind, set(nodes), both) == ("dead", {1, 2}, True)


def test_no_direction_is_claimed_if_no_datagram_ever_arrives() -> None:
    ((kind, nodes, both),) = summary(crossings(4, cut={(1, 2)}, datagrams=False), 4)
    assert (kind, set(nodes), both) == ("dead", {1, 2}, True)


def test_the_link_of_two_nodes_is_in_trouble_and_neither_node() -> None:
    assert summary(crossings(2, cut={(0, 1)}), 2) == [("dead", (0, 1), False)]


@pytest.mark.parametrize("nodes", [3, 4, 9])
def test_a_node_that_nobody_reaches_is_its_own_fault(nodes) -> None:
    assert summary(crossings(nodes, cut=all_ways(1, nodes)), nodes) == [("dead", (1,), False)]


def test_ports_that_nobody_reaches_are_named_with_their_node() -> None:
    assert crossings(4, blocked={2: {3, 4}}).troubles_among(range(4))[0] == (
        ConnectTrouble("ports", (2,), 2, (3, 4), "in", others=(0, 1, 3)),
    )


def test_a_port_that_one_node_cannot_reach_belongs_to_the_link() -> None:
    result = crossings(4)
    silent = Dialled(2, (), (3,), True)
    result.take(DialTask("x", 1, (Target(2, "", "", (3,), 9),), 5.0), DialAnswer((silent,), ()))
    assert result.troubles_among(range(4))[0] == ()  # it answered once: what answered once is good
    fresh = Dials()
    fresh.take(DialTask("x", 1, (Target(2, "", "", PORTS, 9),), 5.0), DialAnswer((silent,), ()))
    (entry,) = fresh.troubles_among(range(4))[0]
    assert (entry.symptom, entry.nodes, entry.ports, entry.both) == ("ports", (1, 2), (3,), False)


def test_a_node_that_drops_large_packets_is_faulty() -> None:
    assert summary(crossings(4, small={1}), 4) == [("large", (1,), False)]


def test_a_lost_node_explains_nothing_and_is_not_blamed_twice() -> None:
    result = crossings(4, cut=all_ways(1, 4))
    assert result.troubles_among([0, 2, 3])[0] == ()


@pytest.mark.parametrize("seed", range(200))
def test_isolated_nodes_and_cut_links_have_different_findings(seed) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(6, 12)
    everyone = range(nodes)
    cut_off = set(chance.sample(everyone, chance.randint(0, nodes // 3)))
    rest = [node for node in everyone if node not in cut_off]
    links = {tuple(chance.sample(rest, 2)) for _ in range(chance.randint(0, 2))}
    cut = set(links).union(*(all_ways(node, nodes) for node in cut_off))
    troubles = crossings(nodes, cut).troubles_among(everyone)[0]
    assert {trouble.nodes[0] for trouble in troubles if len(trouble.nodes) == 1} == cut_off
    assert {frozenset(trouble.nodes) for trouble in troubles if len(trouble.nodes) == 2} == set(
        map(frozenset, links)
    )


@pytest.mark.parametrize("nodes", [4, 5, 8])
def test_a_node_behind_a_blocked_range_is_to_blame_alone_though_answers_get_lost_at_random(nodes) -> None:
    results = {tuple(summary(behind_a_blocked_range(nodes, seed), nodes)) for seed in range(300)}
    assert results <= {(("ports", (2,), False),), (("dead", (2,), False),)}


def behind_a_blocked_range(nodes: int, seed: int) -> Dials:
    """Return dials of which node 2 answers only on ports 0 and 1 of 8, and then 29 % of the time."""
    chance = random.Random(seed)
    result = Dials()
    for again in (False, True):
        for node in range(nodes):
            targets, dialled = [], []
            for other in range(nodes):
                near = again or abs(node - other) in (1, nodes - 1)
                ports = tuple(range(8)) if near else (node % 8, (node + 4) % 8)
                way = result.ways.get((node, other))
                if other == node or (again and (way is None or way.works)):
                    continue
                blocked = 2 in (node, other)
                silent = tuple(port for port in ports if blocked and (port > 1 or chance.random() > 0.29))
                targets.append(Target(other, "", "", ports, 9))
                dialled.append(Dialled(other, (), silent, True))
            result.take(DialTask("x", node, tuple(targets), 5.0), DialAnswer(tuple(dialled), ()))
    return result


def test_a_node_with_failures_on_all_ports_is_faulty_and_its_links_are_not() -> None:
    """As a lab recorded it: TCP from and to ports 40000 to 44000 of node 1 is dropped, answers too."""
    silent = {
        (3, 1): (40371, 46615),
        (1, 0): (41442, 60108),
        (0, 1): (42372, 50233),
        (1, 2): (43022, 43844),
        (2, 1): (42372,),
        (1, 3): (42011,),
    }
    result = Dials()
    for node in range(4):
        targets, dialled = [], []
        for other in range(4):
            if other != node:
                bad = silent.get((node, other), ())
                targets.append(Target(other, "", "", (34000, 36000, *bad), 9))
                dialled.append(Dialled(other, (), bad, True))
        result.take(DialTask("x", node, tuple(targets), 5.0), DialAnswer(tuple(dialled), ()))
    assert summary(result, 4) == [("ports", (1,), False)]


def test_a_way_that_needed_a_second_attempt_stays_slow() -> None:
    """The test of losses begins with the pairs of such ways."""
    dials = Dials()
    for seconds in (0.1, SLOW_ANSWER_SECONDS, 0.1):
        task = DialTask("x", 0, tuple(Target(node, "", "", PORTS, 9) for node in (1, 2)), 5.0)
        dialled = tuple(
            Dialled(node, (), (), True, slowest=slowest) for node, slowest in ((1, seconds), (2, 0.1))
        )
        dials.take(task, DialAnswer(dialled, (1, 2)))
    assert [(way.b, way.slow) for way in dials.ways.values()] == [(1, True), (2, False)]
