"""The findings about tests of pairs."""

from __future__ import annotations

import pytest

from benchmarks.pair_world import PairWorld, ended_search
from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session.explanation import Explanation
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.pair_findings import notices, of_pairs
from clusterrun.preflight.session.state import SessionState
from clusterrun.runtime.machine_events import Now
from tests.preflight.simulated import name, orders


def state_of(nodes: int, floor: float = 0.0) -> SessionState:
    limits = (("pair_floor", floor),) if floor else ()
    node_states = [NodeState(node, name(node), f"10.0.0.{node}") for node in range(nodes)]
    return SessionState(orders(nodes, limits=limits), node_states, Now(0.0, 0.0), "/r")


def explained(world: PairWorld, nodes: int, floor: float) -> Explanation:
    state = state_of(nodes, floor)
    state.pair_searches.append(ended_search(world, nodes, limits=state.thresholds))
    explanation = Explanation(state.nodes, nodes)
    of_pairs(state, explanation)
    return explanation


@pytest.mark.parametrize(("floor", "count"), [(0.0, 0), (50.0, 0), (200.0, 1)])
def test_pairs_that_are_all_slower_than_the_floor_blame_no_node(floor, count) -> None:
    explanation = explained(PairWorld(1), 4, floor)
    assert [node for node in range(4) if explanation.findings(node)] == []
    assert len(explanation.network) == count
    for finding in explanation.together():
        assert finding.verdict is Grade.WARN
        assert "100 GB/s" in finding.message and "200" in finding.message


def test_two_nodes_on_a_network_that_is_far_too_slow_are_a_warning_of_the_network() -> None:
    explanation = explained(PairWorld(1, speeds={0: 1e-4, 1: 1e-4}), 2, 0.0)
    assert [finding.check for finding in explanation.network] == ["bandwidth"]


def test_a_node_below_the_floor_is_named_if_the_others_are_above_it() -> None:
    explanation = explained(PairWorld(1, speeds={2: 0.8}), 6, floor=95.0)
    assert [node for node in range(6) if explanation.findings(node)] == [2]
    assert not explanation.network


def test_links_over_switches_that_are_all_slower_are_a_notice() -> None:
    world = PairWorld(1, rack=4, across=0.5)
    search = ended_search(world, 8, distance=lambda link: int(link[0] // 4 != link[1] // 4))
    assert list(notices(state_of(8), search.result())) == [
        "the links over 1 level of switches reach 50 GB/s, the fastest kind 100: compared with their like"
    ]


def test_a_slow_node_whose_tests_waited_for_processors_is_a_notice() -> None:
    class BusyWorld(PairWorld):
        def test(self, a: int, b: int) -> GroupTest:
            return replace(super().test(a, b), starved=3 in (a, b))

    world = BusyWorld(1, speeds={3: 0.1})
    assert [node for node in range(6) if explained(world, 6, 0.0).findings(node)] == []
    result = ended_search(world, 6, limits=state_of(6).thresholds).result()
    assert [entry.nodes for entry in result.evidence if entry.finding_kind == "unproven"] == [(3,)]
    (notice,) = notices(state_of(6), result)
    assert name(3) in notice and "busy processors" in notice


@pytest.mark.parametrize(("lossy", "ends"), [((), {(2, 4)}), ((2,), set()), ((0,), {(2, 4)})])
def test_a_failed_pair_is_not_reported_beside_an_end_that_loses_packets(lossy, ends) -> None:
    explanation = Explanation(state_of(5).nodes, 5)
    explanation.lossy.update(lossy)
    link = LinkReport(name(2), name(4), "both", Grade.FAIL, "3 of 3 tests failed")
    explanation.add_links([link], of_pairs=True)
    assert {(link.a, link.b) for link in explanation.links} == {(name(a), name(b)) for a, b in ends}


def test_a_link_has_the_worst_verdict_of_all_searches() -> None:
    explanation = Explanation(state_of(5).nodes, 5)
    verdicts = (Grade.UNDETERMINED, Grade.FAIL, Grade.UNDETERMINED)
    links = [LinkReport(name(2), name(4), "both", verdict, "") for verdict in verdicts]
    explanation.add_links(links, of_pairs=True)
    assert [link.verdict for link in explanation.links] == [Grade.FAIL]


def test_a_spare_replaces_a_node_with_a_warning_of_its_speed() -> None:
    node_states = [NodeState(node, name(node), f"10.0.0.{node}") for node in range(4)]
    explanation = Explanation(SessionState(orders(3, 1), node_states, Now(0.0, 0.0), "/r").nodes, 3)
    explanation.add(1, Finding("bandwidth", Grade.WARN, "slow"))
    assert explanation.choice().world == (0, 3, 2)
