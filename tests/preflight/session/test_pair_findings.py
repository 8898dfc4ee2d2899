"""What the search found, in words."""

from __future__ import annotations

import pytest

from benchmarks.pair_world import PairWorld, searched
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.session.pair_findings import PairFindings
from clusterrun.preflight.session.state import NodeFinding, NodeState, SessionState
from tests.preflight.simulated import name, orders


def said_of(world: PairWorld, nodes: int, floor: float = 0.0) -> list[NodeFinding]:
    limits = (("pair_floor", floor),) if floor else ()
    subjects = [NodeState(node, name(node), f"10.0.0.{node}") for node in range(nodes)]
    created = SessionState(orders(nodes, limits=limits), subjects, 0.0, 0.0, "/r")
    result = searched(world, nodes, limits=created.limits)
    return list(PairFindings(created, result, {}, {}).of_nodes())


@pytest.mark.parametrize(("floor", "heard"), [(0.0, 0), (50.0, 0), (200.0, 1)])
def test_where_all_pairs_are_slower_than_the_floor_it_is_said_of_all_and_of_no_node(floor, heard):
    actual = said_of(PairWorld(1), 4, floor)
    assert [entry.node for entry in actual] == [None] * heard
    for entry in actual:
        assert entry.finding.verdict is Grade.WARN
        assert "100 GB/s" in entry.finding.said and "200" in entry.finding.said


def test_a_node_below_the_floor_is_named_where_the_others_are_above_it():
    actual = said_of(PairWorld(1, speeds={2: 0.8}), 6, floor=95.0)
    assert [entry.node for entry in actual] == [2]


def test_links_over_switches_that_are_slower_alike_are_a_line_that_blames_nobody():
    world = PairWorld(1, rack=4, across=0.5)
    result = searched(world, 8, distance=lambda entry: int(entry.a // 4 != entry.b // 4))
    subjects = [NodeState(node, name(node), f"10.0.0.{node}") for node in range(8)]
    created = SessionState(orders(8), subjects, 0.0, 0.0, "/r")
    assert list(PairFindings(created, result, {}, {}).passing()) == [
        "the links over 1 level of switches reach 50 GB/s, the fastest kind 100: compared with their like"
    ]


@pytest.mark.parametrize(("unfit", "message"), [((), {("n2", "n4")}), ((2,), set()), ((0,), {("n2", "n4")})])
def test_a_failed_pair_is_not_told_beside_an_end_that_loses_packets(unfit, message):
    subjects = [NodeState(node, f"n{node}", f"10.0.0.{node}") for node in range(5)]
    created = SessionState(orders(5), subjects, 0.0, 0.0, "/r")
    created.write("pairs", (), [LinkReport("n2", "n4", "both", Grade.FAIL, "3 of 3 tests failed")])
    created.write(
        "loss", [NodeFinding(node, Finding("loss", Grade.FAIL, "packets get lost")) for node in unfit]
    )
    assert {(link.a, link.b) for link in created.links} == message
