"""One check of a cluster that exists only in time: every fault is named, nothing else is blamed."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import fold
from clusterrun.model.orders import Level
from clusterrun.model.preflight_report import Finding, Grade, LinkReport
from clusterrun.preflight import tasks
from clusterrun.preflight.causes.ports import COMB, needed_connections
from clusterrun.preflight.observations import EarlierLink, NodeGone, PortSweep, Unanswered
from clusterrun.preflight.session import network_phase, report, session
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.session import Session, SessionNode
from clusterrun.preflight.tasks import DialTask, ThroughAnswer, ThroughTask
from clusterrun.reports.text_report import headline
from clusterrun.runtime.machine_events import Now
from tests.preflight.simulated import PORTS, START, Cluster, Faults, bad_links, blamed, examined, name, orders

LOOPBACK = "127.0.1.1"


def link(a: int, b: int) -> frozenset[int]:
    return frozenset((a, b))


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 8, 13])
def test_healthy_nodes_pass_and_train_in_their_order(nodes, level) -> None:
    outcome = examined(orders(nodes, level=level))
    assert (outcome.fit, outcome.world, outcome.excluded) == (True, tuple(range(nodes)), ())
    assert (outcome.report.verdict, blamed(outcome), bad_links(outcome)) == (Grade.PASS, set(), set())
    assert outcome.environment == (("GLOO_SOCKET_IFNAME", "eth0"), ("NCCL_SOCKET_IFNAME", "=eth0"))


@pytest.mark.parametrize("kind", ["ListenTask", "DialTask", "LocalTask", "StartTorch", "product"])
@pytest.mark.parametrize("seconds", [12.0, 16.0, 25.0])
@pytest.mark.parametrize("node", [0, 2, 5])
def test_one_late_answer_among_punctual_ones_blames_nobody(node, seconds, kind) -> None:
    outcome = examined(orders(6, budget=180.0), Faults(late={node: (kind, 1, seconds)}))
    assert (outcome.fit, outcome.report.verdict, blamed(outcome)) == (True, Grade.PASS, set())


@pytest.mark.parametrize("node", [0, 2, 5])
def test_a_node_with_repeatedly_late_answers_is_named(node) -> None:
    outcome = examined(orders(6, budget=180.0), Faults(late={node: ("", 9, 28.0)}))
    assert (outcome.fit, blamed(outcome)) == (False, {node})


@pytest.mark.parametrize(
    "symptoms",
    [
        {"late": ("", 9, 28.0)},
        {"frozen": True},
        {"blocked": set(range(8))},
        {"broken": True},
        {"broken": True, "blocked": {3, 4}},
    ],
)
def test_a_limit_that_expires_on_an_overloaded_node_blames_nobody(symptoms: dict[str, Any]) -> None:
    def faults(**more: Any) -> Faults:
        of_node = {kind: {2} if value is True else {2: value} for kind, value in symptoms.items()}
        return Faults(**of_node, **more)

    assert blamed(examined(orders(6, budget=180.0), faults())) == {2}
    outcome = examined(orders(6, budget=180.0), faults(overloaded={2}))
    failed = [node.node for node in outcome.report.nodes if node.verdict is Grade.FAIL]
    assert (outcome.fit, failed, outcome.excluded, bad_links(outcome)) == (True, [], (), set())
    assert outcome.report.verdict in (Grade.UNDETERMINED, Grade.PASS)


def test_an_overloaded_coordinator_blames_nobody_and_a_proven_fault_is_blamed_all_the_same() -> None:
    faults = Faults(overloaded=set(range(6)), late=dict.fromkeys(range(6), ("", 9, 20.0)))
    outcome = examined(orders(6, budget=60.0), faults)
    assert (outcome.fit, outcome.excluded, bad_links(outcome)) == (True, (), set())
    for fault in ({"corrupt": {2}}, {"damaged": {2}}):
        assert blamed(examined(orders(6, budget=180.0), Faults(overloaded=set(range(6)), **fault))) == {2}


@pytest.mark.parametrize("task", ["ListenTask", "DialTask", "product", "set"])
@pytest.mark.parametrize("lost", [{2}, {2, 3}])
def test_a_node_that_is_lost_while_it_is_overloaded_is_not_blamed(lost: set[int], task: str) -> None:
    """The others train, or too few are left: neither is a fault of these nodes."""
    lost_in = dict.fromkeys(lost, task)
    for spares, fit in ((2, True), (0, False)):
        outcome = examined(orders(6, spares), Faults(lost_in=lost_in, overloaded=lost))
        failed = [node.node for node in outcome.report.nodes if node.verdict is Grade.FAIL]
        assert (outcome.fit, failed, outcome.excluded) == (fit, [], ())
        assert (bad_links(outcome), outcome.report.set_message) == (set(), "")
        assert outcome.report.verdict is (Grade.WARN if fit else Grade.UNDETERMINED)
        reasons = {
            node.node: node.findings[0].message for node in outcome.report.nodes if node.role == "excluded"
        }
        assert reasons.keys() == {name(node) for node in lost}
        assert all("was overloaded" in reason for reason in reasons.values())
    assert blamed(examined(orders(6), Faults(lost_in=lost_in))) == lost


@pytest.mark.parametrize("absent", [{2}, {2, 4}])
@pytest.mark.parametrize("kind", ["absent", "agentless"])
def test_a_node_that_does_not_join_an_overloaded_coordinator_is_not_blamed(
    kind: str, absent: set[int]
) -> None:
    """An overloaded machine may miss messages. It blames no other machine for that."""
    everywhere = set(range(6)) - absent
    outcome = examined(orders(6), Faults(overloaded=everywhere, **{kind: absent}))
    failed = [node.node for node in outcome.report.nodes if node.verdict is Grade.FAIL]
    assert (outcome.fit, failed, outcome.report.excluded, bad_links(outcome)) == (False, [], (), set())


NODE_FAULTS = {
    "absent": Faults(absent={2}),
    "frozen": Faults(frozen={2}),
    "lost at once": Faults(lost_in={2: "ListenTask"}),
    "lost while dialling": Faults(lost_in={2: "DialTask"}),
    "lost in a product": Faults(lost_in={2: "product"}),
    "lost in the whole set": Faults(lost_in={2: "set"}),
    "talks nonsense": Faults(nonsense={2}),
    "cut off": Faults(cut={(2, other) for other in range(7)} | {(other, 2) for other in range(7)}),
    "reaches nobody": Faults(cut={(2, other) for other in range(7)}),
    "ports blocked": Faults(blocked={2: {3, 4}}),
    "all ports blocked": Faults(blocked={2: set(range(8))}),
    "small packets only": Faults(small_mtu={2}),
    "collectives hang": Faults(broken={2}),
    "torch worker dies": Faults(crashes={2}),
    "wrong sums": Faults(corrupt={2}),
    "no torch": Faults(no_torch={2}),
    "clock": Faults(clocks={2: -90.0}),
    "hosts": Faults(hosts={2: {4: LOOPBACK}}),
    "full /dev/shm": Faults(full_shm={2}),
    "home hangs": Faults(late_checks={2}),
}


@pytest.mark.parametrize("fault", NODE_FAULTS)
@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
def test_an_unfit_node_is_named_alone_and_a_spare_takes_its_rank(fault, level) -> None:
    outcome = examined(orders(6, 1, level=level), NODE_FAULTS[fault])
    assert (blamed(outcome), bad_links(outcome)) == ({2}, set())
    assert (outcome.fit, outcome.world, outcome.excluded) == (True, (0, 1, 6, 3, 4, 5), (name(2),))
    assert outcome.report.seconds <= 60
    assert [entry.role for entry in outcome.report.nodes] == ["rank"] * 2 + ["excluded"] + ["rank"] * 4


@pytest.mark.parametrize("fault", NODE_FAULTS)
def test_an_unfit_node_ends_the_run_without_a_spare_and_is_excluded_next_time(fault) -> None:
    outcome = examined(orders(6), NODE_FAULTS[fault])
    assert (outcome.fit, outcome.report.verdict, outcome.excluded) == (False, Grade.FAIL, (name(2),))
    assert (blamed(outcome), bad_links(outcome)) == ({2}, set())


@pytest.mark.parametrize(
    ("faults", "links"),
    [
        (Faults(cut={(1, 2)}), {(1, 2, "a->b")}),
        (Faults(cut={(2, 1)}), {(2, 1, "a->b")}),
        (Faults(cut={(1, 2), (2, 1)}), {(1, 2, "both")}),
        (Faults(cut={(0, 3)}), {(0, 3, "a->b")}),
        (Faults(cut={(5, 1)}), {(5, 1, "a->b")}),
        (Faults(broken_links={link(3, 4)}), {(3, 4, "both")}),
        (Faults(broken_links={link(1, 4)}), {(1, 4, "both")}),
        (Faults(cut={(1, 2), (5, 4)}), {(1, 2, "a->b"), (5, 4, "a->b")}),
    ],
)
def test_a_bad_link_is_named_with_its_direction_and_both_its_nodes_are_cleared(faults, links) -> None:
    outcome = examined(orders(6), faults)
    assert (bad_links(outcome), blamed(outcome)) == (links, set())
    assert not outcome.fit
    assert len(outcome.excluded) == len(links)
    assert all(set(outcome.excluded) & {name(a), name(b)} for a, b, _ in links)


@pytest.mark.parametrize("share", [0.02, 0.2])
def test_a_slow_node_is_named_with_its_number_and_replaced(share) -> None:
    outcome = examined(orders(8, 1), Faults(slow={5: share}))
    assert (blamed(outcome), bad_links(outcome), outcome.world) == ({5}, set(), (0, 1, 2, 3, 4, 8, 6, 7))
    (result,) = outcome.report.nodes[5].findings
    assert (result.check, result.verdict) == ("bandwidth", Grade.FAIL)
    assert "GB/s" in result.message and "of the median" in result.message


@pytest.mark.parametrize("share", [0.02, 0.15])
@pytest.mark.parametrize("node", [0, 3, 7])
def test_a_quick_check_tests_pairs_if_half_of_the_set_is_slow(share, node) -> None:
    outcome = examined(orders(8, 1, level=Level.QUICK), Faults(slow={node: share}))
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == ({node}, set(), True)
    assert node not in outcome.world
    assert {test.test for test in outcome.report.tests} == {"product", "set", "half", "pair"}


def test_a_quick_check_of_equally_fast_nodes_tests_no_pair() -> None:
    outcome = examined(orders(8, level=Level.QUICK))
    assert {test.test for test in outcome.report.tests} == {"product", "set", "half"}
    small = examined(orders(3, level=Level.QUICK))
    assert {test.test for test in small.report.tests} == {"product", "set"}


def test_the_parts_of_a_set_below_its_floor_are_named_where_pairs_and_nodes_are_not_to_blame() -> None:
    requested = orders(8, limits=(("set_floor", 0.5),), budget=200.0)
    outcome = examined(requested, Faults(crowded=frozenset({4, 5, 6, 7})))
    assert (outcome.fit, blamed(outcome), outcome.report.verdict) == (True, set(), Grade.WARN)
    assert (
        "n0004, n0005, n0006, n0007 are slow together, twice (limit 0.5 GB/s)" in outcome.report.set_message
    )


def test_a_slow_link_is_named_and_both_its_nodes_are_cleared() -> None:
    outcome = examined(orders(8, 1), Faults(slow_links={link(2, 3): 0.05}))
    assert ({entry[:2] for entry in bad_links(outcome)}, blamed(outcome)) in (
        ({(2, 3)}, set()),
        ({(3, 2)}, set()),
    )
    assert outcome.world in ((0, 1, 2, 8, 4, 5, 6, 7), (0, 1, 8, 3, 4, 5, 6, 7))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 13])
def test_a_node_that_loses_sent_packets_is_named_alone_and_replaced(nodes, share) -> None:
    outcome = examined(orders(nodes, 1), Faults(loses={2: share}))
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == ({2}, set(), True)
    assert 2 not in outcome.world


@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize(("nodes", "way"), [(2, (0, 1)), (5, (3, 2)), (8, (6, 7))])
def test_a_link_that_loses_packets_one_way_is_named_with_its_direction(nodes, way, share) -> None:
    outcome = examined(orders(nodes), Faults(lossy={way: share}))
    assert (blamed(outcome), bad_links(outcome)) == (set(), {(*way, "a->b")})
    assert outcome.fit is False


@pytest.mark.parametrize(("nodes", "way"), [(6, (0, 2)), (8, (1, 6)), (13, (12, 4))])
def test_a_path_that_is_not_on_the_ring_and_loses_packets_is_named(nodes, way) -> None:
    outcome = examined(orders(nodes), Faults(lossy={way: 0.3}))
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == (set(), {(*way, "a->b")}, False)


@pytest.mark.parametrize("nodes", [3, 5, 8])
def test_a_node_with_an_intermittent_network_is_named_alone(nodes) -> None:
    outcome = examined(orders(nodes, 1), Faults(flaps={1}))
    assert (blamed(outcome), bad_links(outcome)) == ({1}, set())


@pytest.mark.parametrize("noise", [0.0, 0.0005, 0.005, 0.05, 0.2])
@pytest.mark.parametrize("nodes", [3, 4, 8])
def test_equal_loss_on_all_paths_blames_no_node_and_no_link(nodes, noise) -> None:
    for seed in range(5):
        outcome = examined(orders(nodes), Faults(noise=noise), seed)
        assert (outcome.fit, blamed(outcome), bad_links(outcome)) == (True, set(), set())
        assert ("has to be sent again" in outcome.report.set_message) == (noise >= 0.05)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("inward", [True, False])
@pytest.mark.parametrize("nodes", [4, 8])
def test_a_narrow_range_of_blocked_ports_is_named_with_its_node_and_direction(nodes, inward, seed) -> None:
    ranges = {2: [(40000, 41000)]}
    faults = Faults(shut=ranges) if inward else Faults(shut_out=ranges)
    report = examined(orders(nodes, 1, budget=120.0), faults, seed).report
    if any(
        entry.outcome == "failed" for entry in report.tests if len(entry.nodes) == 2
    ):  # else it was never met
        (ill,) = [entry for entry in report.nodes if entry.verdict is Grade.FAIL]
        first = ill.findings[0]
        assert (ill.node, first.check, report.links) == (name(2), "ports", ())
        arguments = "its TCP ports from about 40" if inward else "it reaches TCP ports from about 40"
        assert first.message.startswith(arguments)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_limit_on_connections_is_reported_as_that_and_not_as_a_range_of_ports(seed, share) -> None:
    report = examined(orders(5, 1, budget=120.0), Faults(limits={2: share}), seed).report
    if any(
        test.outcome == "failed" for test in report.tests if len(test.nodes) == 2
    ):  # else it was never met
        (unfit,) = [node for node in report.nodes if node.verdict is Grade.FAIL]
        first = unfit.findings[0]
        assert (unfit.node, first.check, report.links) == (name(2), "ports", ())
        assert "whichever port" in first.message
        assert "connlimit" in first.remedy


@pytest.mark.parametrize(("ranks", "most"), [(4, 6), (8, 3), (8, 71)])
@pytest.mark.parametrize("gpus", [0, 8])
def test_a_connection_limit_below_the_jobs_need_is_named(ranks, most, gpus) -> None:
    requested = replace(orders(5, 1, budget=120.0), ranks_per_node=ranks, gpus_per_node=gpus)
    report = examined(requested, Faults(open_limits={2: most})).report
    (unfit,) = [node for node in report.nodes if node.verdict is Grade.FAIL]
    (finding,) = unfit.findings
    assert (unfit.node, finding.check, report.links) == (name(2), "ports", ())
    assert f"of {needed_connections(ranks)} TCP connections at a time" in finding.message
    assert f"{most} get an answer" in finding.message
    assert "connlimit" in finding.remedy


def test_a_connection_limit_above_the_jobs_need_passes_and_a_broken_node_is_not_called_limited() -> None:
    requested = replace(orders(5, 1, budget=120.0), ranks_per_node=8)
    assert examined(requested, Faults(open_limits={2: needed_connections(8)})).report.verdict is Grade.PASS
    findings = examined(requested, Faults(broken={2})).report.nodes[2].findings
    assert [finding.check for finding in findings if finding.verdict is Grade.FAIL] == ["pair"]


@pytest.mark.parametrize(("variable", "port"), [("12355", 12355), ("", 29500), ("70000", 29500)])
def test_a_check_names_the_ways_on_which_the_port_of_torchrun_is_silent(variable, port) -> None:
    requested = replace(orders(2, level=Level.QUICK), environment=(("MASTER_PORT", variable),))
    faults = Faults(shut={1: [(port, port)]})
    assert examined(requested, faults).report.verdict is Grade.PASS  # a run's ranks use another port
    report = examined(replace(requested, preflight=replace(requested.preflight, alone=True)), faults).report
    assert (report.verdict, report.excluded) == (Grade.WARN, ())
    assert f"{port}" in report.set_message and "n0000 -> n0001" in report.set_message
    assert "n0001 -> n0000" not in report.set_message


def test_a_firewall_that_rejects_the_port_of_torchrun_is_no_closed_port() -> None:
    requested = orders(3, level=Level.QUICK)
    requested = replace(requested, preflight=replace(requested.preflight, alone=True))
    assert examined(requested, Faults()).report.verdict is Grade.PASS
    report = examined(requested, Faults(rejected={1: [(29500, 29500)]})).report
    assert (report.verdict, report.excluded) == (Grade.WARN, ())
    assert "29500" in report.set_message and "rejected by a firewall" in report.set_message
    assert "n0000 -> n0001" in report.set_message and "n0002 -> n0001" in report.set_message
    assert "n0001 -> n" not in report.set_message


def test_the_clock_of_the_controller_tells_which_clock_of_two_nodes_is_wrong() -> None:
    assert blamed(examined(orders(2), Faults(clocks={1: 300.0}, has_controller=True))) == {1}


def test_a_node_without_gpus_gets_no_remedy_for_gpus() -> None:
    outcome = examined(orders(6), Faults(broken={2}))
    assert not any("dcgmi" in finding.remedy for finding in outcome.report.nodes[2].findings)


def test_findings_do_not_depend_on_the_order_of_observations() -> None:
    observations = [
        PortSweep({(0, 1): frozenset(COMB), (2, 1): frozenset(COMB), (3, 1): frozenset(COMB)}),
        EarlierLink(LinkReport(name(2), name(3), "both", Grade.FAIL, "tests failed")),
        EarlierLink(LinkReport(name(0), name(1), "both", Grade.FAIL, "tests failed")),
        NodeGone(1, (Finding("agent", Grade.FAIL, "it was lost"),), START),
        Unanswered(1, "dialling"),
    ]
    for order in itertools.permutations(observations):
        state = Cluster(orders(4), Faults()).machine._state
        for observation in order:
            state.observe(observation)
        explanation = explain(state)
        assert [finding.check for finding in explanation.findings(1)] == ["agent", "ports", "budget"]
        # The node with blocked ports explains its link, whichever was observed first.
        assert [(link.a, link.b) for link in explanation.links] == [(name(2), name(3))]


def test_a_finder_that_fails_is_reported_and_the_others_add_their_findings(monkeypatch) -> None:
    def fails(state, explanation):
        raise KeyError("n7")

    monkeypatch.setattr(report, "FINDERS", (fails, *report.FINDERS))
    outcome = examined(orders(4, 1), Faults(broken={2}))
    assert (blamed(outcome), outcome.world) == ({2}, (0, 1, 4, 3))
    assert "the check itself failed: KeyError: 'n7'" in outcome.report.set_message
    assert outcome.report.verdict is Grade.UNDETERMINED


def test_a_torch_worker_that_exits_once_is_restarted_and_reported() -> None:
    outcome = examined(orders(4), Faults(dies_alone={2: 1}))
    assert (outcome.fit, blamed(outcome)) == (True, set())
    assert outcome.report.notices == (
        "the Python of n0002 ended once (the torch worker ended: SIGKILL), and was started again",
    )
    pairs = [test.nodes for test in outcome.report.tests if test.test == "pair"]
    assert {node for nodes in pairs for node in nodes} == {name(node) for node in range(4)}


@pytest.mark.parametrize("times", [2, 9])
def test_a_warm_process_that_ends_again_and_again_makes_its_node_unfit(times) -> None:
    outcome = examined(orders(4, 1), Faults(dies_alone={2: times}))
    assert (blamed(outcome), outcome.world) == ({2}, (0, 1, 4, 3))


def test_a_node_whose_machine_answers_without_an_agent_is_unfit() -> None:
    outcome = examined(orders(4, 1), Faults(agentless={2}))
    assert (blamed(outcome), bad_links(outcome), outcome.excluded) == ({2}, set(), (name(2),))
    (result,) = outcome.report.nodes[2].findings
    assert (result.verdict, "the machine itself answers n0000, n0001, n0003, n0004" in result.message) == (
        Grade.FAIL,
        True,
    )


@pytest.mark.parametrize(
    ("cut", "way"),
    [({(0, 2)}, (0, 2, "a->b")), ({(2, 0)}, (2, 0, "a->b")), ({(0, 2), (2, 0)}, (0, 2, "both"))],
)
@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
def test_a_node_that_only_the_coordinators_does_not_reach_is_cleared_and_the_link_named(
    cut, way, level
) -> None:
    outcome = examined(orders(4, 1, level=level), Faults(agentless={2}, cut=cut))
    assert (bad_links(outcome), blamed(outcome), outcome.excluded) == ({way}, set(), (name(2),))
    assert (outcome.fit, outcome.world) == (True, (0, 1, 4, 3))
    (result,) = outcome.report.nodes[2].findings
    assert "it is left out for this link alone" in result.message


@pytest.mark.parametrize("cut", [{(0, 2)}, {(0, 2), (2, 0)}])
def test_a_node_is_not_blamed_for_a_broken_link_if_its_dials_do_not_answer_in_time(cut, monkeypatch) -> None:
    through = Cluster.through

    def late(cluster: Cluster, node: int, task: ThroughTask) -> tuple[float, ThroughAnswer]:
        if task.body and isinstance(tasks.task(task.body), DialTask):
            return task.limit, ThroughAnswer("", "no answer")
        return through(cluster, node, task)

    monkeypatch.setattr(Cluster, "through", late)
    outcome = examined(orders(4, 1), Faults(agentless={2}, cut=cut))
    assert (bad_links(outcome), outcome.world) == ({(0, 2, "both")}, (0, 1, 4, 3))
    (result,) = outcome.report.nodes[2].findings
    assert (result.verdict, "it was not examined" in result.message) == (Grade.UNDETERMINED, False)


def test_the_coordinators_node_is_cut_off_if_all_others_go_silent_at_once() -> None:
    outcome = examined(orders(4), Faults(lost_in=dict.fromkeys((1, 2, 3), "DialTask")))
    assert (outcome.fit, outcome.excluded) == (False, (name(0),))
    assert [entry.verdict for entry in outcome.report.nodes] == [Grade.FAIL, *[Grade.UNDETERMINED] * 3]
    (result,) = outcome.report.nodes[0].findings
    assert result.message == "3 nodes fell silent at the same time, and it reaches no other: it is cut off"


def test_a_link_to_the_coordinators_node_is_not_blamed_where_that_node_is_cut_off_from_all() -> None:
    faults = Faults(cut={(0, 3), (3, 0)}, lost_in=dict.fromkeys((1, 2), "DialTask"))
    outcome = examined(orders(4), faults)
    assert (bad_links(outcome), outcome.excluded) == (set(), (name(0),))
    assert [entry.verdict for entry in outcome.report.nodes] == [
        Grade.FAIL,
        *[Grade.UNDETERMINED] * 2,
        Grade.PASS,
    ]


@pytest.mark.parametrize("parts", [({1, 2}, {3, 4}, {5}), ({1, 2}, {3, 4}, {5, 6}), ({1, 2, 3}, {4, 5})])
def test_parts_that_only_the_coordinators_node_reaches_are_not_blamed(parts: tuple[set[int], ...]) -> None:
    """Every broken link is reported, no node, and an offer of nodes between which no link is broken."""
    pairs = [(a, b) for part, other in itertools.combinations(parts, 2) for a in part for b in other]
    cut = {way for a, b in pairs for way in ((a, b), (b, a))}
    outcome = examined(orders(1 + sum(map(len, parts))), Faults(cut=cut))
    assert (blamed(outcome), len(bad_links(outcome)), outcome.fit) == (set(), len(pairs), False)
    offered = [0, *sorted(max(parts, key=len))]
    assert f"--nodes {len(offered)} --nodelist {fold(map(name, offered))}" in "".join(outcome.report.notices)


@pytest.mark.parametrize("when", ["DialTask", "pair", "set"])
@pytest.mark.parametrize(
    ("nodes", "spares", "lost"), [(8, 0, {3, 4, 5, 6, 7}), (8, 2, {1, 2}), (5, 0, {3, 4})]
)
def test_several_nodes_that_go_silent_at_once_are_down_or_cut_off_without_blame(
    nodes, spares, lost, when
) -> None:
    outcome = examined(orders(nodes, spares), Faults(lost_in=dict.fromkeys(lost, when)))
    local = [node for node in range(nodes + spares) if node not in lost]
    assert blamed(outcome) == lost
    assert {outcome.report.nodes[node].verdict for node in lost} == {Grade.UNDETERMINED}
    assert f"{fold(map(name, lost))} answer none of {fold(map(name, local))}" in outcome.report.set_message
    for some in (local, sorted(lost)):
        assert f"--nodes {len(some)} --nodelist {fold(map(name, some))}" in outcome.report.set_message
    assert "may be several parts: clusterrun check --nodes" in outcome.report.set_message
    assert (outcome.fit, outcome.report.excluded) == (len(local) >= nodes, ())


@pytest.mark.parametrize("more", [{"stopped": {2, 4}}, {"lost_why": "it closed the connection"}])
def test_several_nodes_that_stop_while_their_machines_answer_are_each_blamed(more) -> None:
    outcome = examined(orders(6), Faults(lost_in={2: "pair", 4: "pair"}, **more))
    assert (blamed(outcome), outcome.report.excluded) == ({2, 4}, (name(2), name(4)))
    assert {outcome.report.nodes[node].verdict for node in (2, 4)} == {Grade.FAIL}


@pytest.mark.parametrize(("nodes", "late"), [(6, {0, 1, 3, 5}), (3, {0, 2}), (2, {0, 1}), (9, set(range(9)))])
def test_no_node_is_blamed_if_most_do_not_answer(nodes, late) -> None:
    outcome = examined(orders(nodes), Faults(frozen=late))
    assert {outcome.report.nodes[node].verdict for node in late} == {Grade.UNDETERMINED}
    assert (outcome.fit, outcome.report.excluded, blamed(outcome)) == (False, (), late)
    assert f"{len(late)} of {nodes} nodes did not answer in time" in outcome.report.set_message


def test_the_one_of_two_nodes_that_goes_silent_is_blamed() -> None:
    outcome = examined(orders(2), Faults(lost_in={1: "DialTask"}))
    assert blamed(outcome) == {1}


def test_a_node_lost_while_the_coordinators_ports_answer_nobody_is_not_blamed() -> None:
    faults = Faults(blocked={0: {2, 3}}, lost_in={3: "StartTorch"})
    outcome = examined(orders(5), faults)
    fail, passed = Grade.FAIL, Grade.PASS
    assert [entry.verdict for entry in outcome.report.nodes] == [
        fail,
        passed,
        passed,
        Grade.UNDETERMINED,
        passed,
    ]


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("srun: error: Job credential expired", "timedatectl"),
        ("python: can't open file 'agent.pyz': [Errno 2] No such file or directory", "findmnt"),
    ],
)
def test_the_launchers_message_decides_the_remedy_of_a_machine_that_lives(message, remedy) -> None:
    expired = f"its agent did not join ({message})"
    outcome = examined(orders(4, 1), Faults(agentless={2}, why=expired))
    (result,) = outcome.report.nodes[2].findings
    assert (result.verdict, remedy in result.remedy) == (Grade.FAIL, True)


def test_a_faulty_node_behind_a_cut_link_is_named_as_well() -> None:
    outcome = examined(orders(4, 1), Faults(agentless={2}, cut={(0, 2)}, full_shm={2}))
    assert (bad_links(outcome), blamed(outcome)) == ({(0, 2, "a->b")}, {2})


def test_the_link_is_named_without_a_direction_if_nothing_can_start_on_the_node() -> None:
    outcome = examined(orders(4, 1), Faults(agentless={2}, pythonless={2}, cut={(0, 2)}))
    assert (bad_links(outcome), outcome.excluded) == ({(0, 2, "both")}, (name(2),))
    assert (outcome.fit, outcome.world) == (True, (0, 1, 4, 3))
    assert [entry.verdict for entry in outcome.report.nodes if entry.node == name(2)] == [Grade.UNDETERMINED]


def test_an_absent_node_that_another_node_cannot_reach_is_faulty_itself() -> None:
    outcome = examined(orders(5), Faults(agentless={2}, cut={(3, 2)}))
    assert (blamed(outcome), bad_links(outcome), outcome.excluded) == ({2}, set(), (name(2),))


def test_nodes_absent_because_of_the_coordinators_node_are_not_blamed() -> None:
    outcome = examined(orders(6), Faults(agentless={2, 4}, blocked={0: {3, 4}}))
    verdicts = {
        entry.node: entry.verdict for entry in outcome.report.nodes if entry.verdict is not Grade.PASS
    }
    assert verdicts == {name(0): Grade.FAIL, name(2): Grade.UNDETERMINED, name(4): Grade.UNDETERMINED}
    assert (outcome.fit, bad_links(outcome), outcome.excluded) == (False, set(), (name(0),))
    assert outcome.report.excluded == (name(0),)


def test_nobody_is_blamed_if_only_the_coordinators_node_joined() -> None:
    outcome = examined(orders(4), Faults(agentless={1, 2, 3}))
    assert (outcome.fit, outcome.excluded) == (False, ())
    assert {entry.verdict for entry in outcome.report.nodes[1:]} == {Grade.UNDETERMINED}


def test_a_node_without_an_agent_that_several_others_do_not_reach_is_to_blame_itself() -> None:
    outcome = examined(orders(6), Faults(agentless={2}, cut={(0, 2), (4, 2)}))
    assert (blamed(outcome), bad_links(outcome), outcome.excluded) == ({2}, set(), (name(2),))
    assert outcome.report.nodes[2].verdict is Grade.FAIL


def test_one_end_of_a_bad_link_is_left_out_if_there_is_a_spare() -> None:
    outcome = examined(orders(4, 1), Faults(cut={(1, 2)}))
    assert (outcome.fit, outcome.world, outcome.excluded) == (True, (0, 1, 4, 3), ())
    roles = [node.role for node in outcome.report.nodes]
    assert (roles, outcome.report.spares) == (["rank", "rank", "separated", "rank", "rank"], ())


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
@pytest.mark.parametrize(
    ("nodes", "spares", "bad"), [(12, 3, {1, 6, 9}), (12, 3, {0, 1, 2}), (9, 2, {0, 8}), (7, 0, {2, 5})]
)
def test_several_bad_nodes_are_all_named(nodes, spares, bad, level) -> None:
    outcome = examined(orders(nodes, spares, level=level, budget=120.0), Faults(broken=bad))
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == (bad, set(), spares > 0)


def test_different_simultaneous_faults_are_each_named() -> None:
    faults = Faults(frozen={1}, full_shm={4}, broken={6}, cut={(2, 3)}, clocks={8: 90.0})
    outcome = examined(orders(9, 5), faults)
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == ({1, 4, 6, 8}, {(2, 3, "a->b")}, True)


def test_neither_of_two_nodes_can_be_named_without_a_third() -> None:
    alone = examined(orders(2), Faults(broken={1}))
    assert (alone.fit, alone.excluded) == (False, ())
    assert {entry.verdict for entry in alone.report.nodes} == {Grade.UNDETERMINED}
    assert "which of them is at fault cannot be told" in alone.report.set_message
    third = examined(orders(2, 1), Faults(broken={1}))
    assert (third.fit, third.world, blamed(third)) == (True, (0, 2), {1})


@pytest.mark.parametrize("seconds", [1.5, 40.0])
def test_a_coordinator_that_stood_still_finds_no_clock_wrong(seconds: float) -> None:
    outcome = examined(orders(6), Faults(stood_still=seconds))
    assert (outcome.report.verdict, blamed(outcome)) == (Grade.PASS, set())
    assert blamed(examined(orders(6), Faults(stood_still=1.5, clocks={2: -90.0}))) == {2}


def test_two_clocks_that_differ_name_neither_and_do_not_stop_the_run() -> None:
    outcome = examined(orders(2), Faults(clocks={1: 90.0}))
    assert (outcome.fit, blamed(outcome), outcome.report.verdict) == (True, set(), Grade.WARN)
    assert "differ by 90" in outcome.report.set_message


def test_a_name_that_most_resolve_wrongly_is_the_fault_of_its_entry() -> None:
    outcome = examined(orders(5), Faults(hosts={viewer: {3: LOOPBACK} for viewer in range(5)}))
    assert (outcome.fit, blamed(outcome), outcome.report.verdict) == (True, {3}, Grade.WARN)


def test_ranks_without_python_are_tested_without_collectives() -> None:
    outcome = examined(orders(3, python=""))
    assert (outcome.fit, outcome.report.verdict, outcome.report.backend) == (True, Grade.PASS, "")
    assert outcome.report.notices == ("no collective was tested: the ranks are not a Python program",)


def test_a_missing_torch_on_all_nodes_is_a_notice_and_no_failure() -> None:
    outcome = examined(orders(3), Faults(no_torch={0, 1, 2}))
    assert (outcome.fit, blamed(outcome)) == (True, set())
    assert outcome.report.notices == (
        "no collective was tested: no node can import torch (No module named 'torch')",
    )


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
@pytest.mark.parametrize("budget", [15.0, 30.0, 60.0, 200.0])
@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_the_run_does_not_start_if_no_joint_test_passes(nodes, budget, level) -> None:
    outcome = examined(orders(nodes, budget=budget, level=level), Faults(broken=set(range(nodes))))
    assert (outcome.fit, outcome.report.verdict) == (False, Grade.FAIL)
    assert outcome.excluded == ()


@pytest.mark.parametrize("nodes", [2, 3, 8])
@pytest.mark.parametrize("budget", [0.5, 2.0, 5.0, 10.0, 60.0])
@pytest.mark.parametrize(
    "faults", [Faults(), Faults(no_torch=set(range(8))), Faults(broken=set(range(8))), Faults(frozen={1})]
)
def test_a_pass_means_that_nodes_passed_a_test_together(nodes, budget, faults) -> None:
    report = examined(orders(nodes, budget=budget), faults).report
    together = [entry for entry in report.tests if entry.outcome == "passed" and len(entry.nodes) > 1]
    assert together or report.verdict in (Grade.UNDETERMINED, Grade.FAIL)


def test_a_set_that_fails_though_all_its_parts_work_blames_no_node() -> None:
    outcome = examined(orders(8, budget=200.0), Faults(set_only=True))
    assert (outcome.fit, blamed(outcome), bad_links(outcome), outcome.excluded) == (False, set(), set(), ())
    assert "the set, not a single node" in outcome.report.set_message


UNREACHED = "its agent did not join (srun: error: Task launch failed: Communication connection failure)"
UNHEARD = "it opened no connection to n0000 within 60 s, and no other node did"


@pytest.mark.parametrize("nodes", [3, 5, 12])
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"why": UNREACHED, "drops": {0}}, "it drops the connections itself that it begins to n0001, n0002"),
        ({"why": UNHEARD}, "no connection that n0001, n0002"),
    ],
)
def test_a_firewall_on_the_first_node_is_named_with_its_direction_and_nobody_else(
    nodes, more, message
) -> None:
    report = examined(orders(nodes, 0), Faults(agentless=set(range(1, nodes)), **more)).report
    (result,) = [entry for entry in report.nodes[0].findings if entry.verdict is Grade.FAIL]
    assert (result.check, result.message.startswith(message)) == ("connections", True)
    assert report.excluded == ("n0000",)
    assert {entry.verdict for entry in report.nodes[1:]} == {Grade.UNDETERMINED}


@pytest.mark.parametrize(
    "faults",
    [
        Faults(agentless={1, 2, 3}, why=UNREACHED),
        Faults(absent={1, 2, 3}, why=UNREACHED),
        Faults(absent={1, 2, 3}, why=UNHEARD),
        Faults(absent={1}, agentless={2, 3}, why=UNHEARD),
        Faults(agentless={2, 3}, why=UNHEARD, drops={0}),
    ],
)
def test_the_first_node_is_not_blamed_where_its_firewall_does_not_explain_all(faults) -> None:
    report = examined(orders(4, 0), faults).report
    assert report.nodes[0].verdict is not Grade.FAIL


def test_the_first_of_two_nodes_is_not_blamed_for_one_others_failure() -> None:
    for more in ({"why": UNREACHED, "drops": {0}}, {"why": UNHEARD}):
        assert examined(orders(2), Faults(agentless={1}, **more)).report.nodes[0].verdict is Grade.PASS


@pytest.mark.parametrize("faults", [{"absent": {1}}, {"agentless": {1}, "cut": {(0, 1)}}])
def test_the_link_of_two_nodes_is_named_if_only_the_first_node_tried(faults) -> None:
    """Nothing shows which end is at fault, or whether packets get lost one way or both."""
    report = examined(orders(2), Faults(why=UNREACHED, **faults)).report
    assert [node.verdict for node in report.nodes] == [Grade.PASS, Grade.UNDETERMINED]
    assert report.verdict is Grade.FAIL
    (link_report,) = report.links
    assert (link_report.ends, link_report.verdict) == ("n0000 - n0001", Grade.FAIL)
    assert "--spares 1" in link_report.remedy
    assert "unfit" not in headline(report)
    assert "the link n0000 - n0001 is broken" in headline(report)


def test_a_setting_of_the_user_is_not_changed() -> None:
    provided = replace(orders(2), environment=(("NCCL_SOCKET_IFNAME", "ib0"),))
    assert examined(provided).environment == (("GLOO_SOCKET_IFNAME", "eth0"),)


@pytest.mark.parametrize("budget", [1.0, 3.0, 5.0, 10.0, 20.0])
@pytest.mark.parametrize("fault", ["frozen", "collectives hang", "cut off", "home hangs"])
def test_the_time_budget_is_kept_and_skipped_tests_are_undetermined(fault, budget) -> None:
    outcome = examined(orders(6, 1, budget=budget), NODE_FAULTS[fault])
    assert outcome.report.seconds <= budget + 0.001
    assert {entry.verdict for entry in outcome.report.nodes} <= set(Grade)
    assert all(entry.verdict is not Grade.FAIL for entry in outcome.report.nodes if entry.node != name(2))


@pytest.mark.parametrize("fault", ["torch worker dies", "collectives hang", "wrong sums"])
def test_a_test_that_the_budget_ends_is_undetermined_for_all_its_members(fault) -> None:
    """The faulty node answers at once, and its partners wait for it when the budget ends."""
    cut_tests = 0
    for budget in range(4, 30):
        outcome = examined(orders(6, budget=float(budget)), NODE_FAULTS[fault])
        verdicts = {node.node: node.verdict for node in outcome.report.nodes}
        findings = {node.node: [finding.check for finding in node.findings] for node in outcome.report.nodes}
        for test in outcome.report.tests:
            if test.outcome == "void":
                cut_tests += 1
                assert all("budget" in findings[node] for node in test.nodes)
                assert Grade.PASS not in {verdicts[node] for node in test.nodes}
    assert cut_tests or fault == "wrong sums"


def test_a_healthy_cluster_that_gets_no_time_is_undetermined_and_runs() -> None:
    outcome = examined(orders(4, budget=0.5))
    assert (outcome.fit, outcome.report.verdict) == (True, Grade.UNDETERMINED)


def test_unrequested_answers_change_nothing() -> None:
    machine = Session(orders(1), [SessionNode(0, name(0), "10.0.0.1")], Now(START, 0.0))
    first = machine.begin()
    assert machine.answered(START, 0, 0, "{}") == machine.answered(START, 0, 999, "x") == []
    assert machine.answered(START, 7, first[0].number, "x") == []
    assert machine.outcome is None


def test_a_machine_that_was_suspended_reads_missed_messages_before_it_blames() -> None:
    machine = Session(orders(2), [SessionNode(n, name(n), f"10.0.0.{n}") for n in (0, 1)], Now(START, 0.0))
    machine.begin()
    assert machine.tick(START + 50.0) == []
    assert machine.wakes_at() == START + 51.0


def test_a_fault_of_the_check_itself_keeps_no_run_from_training(monkeypatch) -> None:
    def broken(*_):
        raise KeyError("a bug, as no real node makes one")

    monkeypatch.setattr("clusterrun.preflight.session.session.products", broken)
    outcome = examined(orders(3))
    assert (outcome.fit, outcome.world, outcome.report.verdict) == (True, (0, 1, 2), Grade.UNDETERMINED)
    assert outcome.report.set_message.startswith("the check itself failed: KeyError")


def test_results_that_cannot_be_reported_keep_no_run_from_training(monkeypatch) -> None:
    def broken(members):
        if any(member.local for member in members):
            raise ValueError("a reading that this version does not expect")
        return "", 0, 0

    monkeypatch.setattr(report, "faster_interface", broken)
    outcome = examined(orders(3, 1), Faults(lost_in={1: "pair"}))
    assert (outcome.fit, blamed(outcome), outcome.report.verdict) == (True, {1}, Grade.UNDETERMINED)
    assert "the check itself failed: ValueError" in outcome.report.set_message


@pytest.mark.parametrize("function", ["_take", "conclude"])
def test_a_fault_in_one_call_does_not_prevent_training(monkeypatch, function) -> None:
    original, calls = getattr(session, function), []

    def broken(*arguments):
        calls.append(function)
        if len(calls) == 1:
            raise KeyError("a bug")
        return original(*arguments)

    monkeypatch.setattr(session, function, broken)
    outcome = examined(orders(3))
    assert (outcome.fit, outcome.world, outcome.report.verdict) == (True, (0, 1, 2), Grade.UNDETERMINED)
    assert "the check itself failed: KeyError" in outcome.report.set_message


def test_progress_shows_open_requests_and_remaining_time() -> None:
    machine = Session(orders(1), [SessionNode(0, name(0), "10.0.0.1")], Now(START, 0.0))
    machine.begin()
    assert machine.progress == "local round, waiting for 3 answers, 60 s left"


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_it_ends_in_time_and_blames_exactly(seed) -> None:
    cluster = random_cluster(seed)
    outcome = cluster.outcome()
    faults = cluster.faults
    guilty = (
        faults.absent
        | faults.frozen
        | set(faults.lost_in)
        | faults.broken
        | faults.corrupt
        | faults.full_shm
        | faults.no_torch
    )
    assert outcome.report.seconds <= cluster.orders.preflight.budget + 0.001
    spares = set(range(cluster.orders.nodes, cluster.total))
    never_needed = (faults.broken | faults.corrupt) & spares
    assert guilty - never_needed <= blamed(outcome) <= guilty
    ends = {frozenset(way) for way in faults.cut}
    assert {link(a, b) for a, b, _ in bad_links(outcome)} == {end for end in ends if not end & guilty}
    assert outcome.fit == (len(outcome.world) == cluster.orders.nodes)
    assert not guilty & set(outcome.world)


def random_cluster(seed: int) -> Cluster:
    """Draw a cluster with up to a third of its nodes unfit, and perhaps a cut link. There is enough time."""
    import random

    chance = random.Random(seed)
    nodes, spares = chance.randint(5, 14), chance.randint(0, 4)
    everyone = list(range(nodes + spares))
    bad = chance.sample(everyone, chance.randint(0, len(everyone) // 3))
    faults = Faults()
    kinds = ["absent", "frozen", "broken", "corrupt", "full_shm", "no_torch", "lost_in"]
    for node in bad:
        kind = chance.choice(kinds)
        if kind == "lost_in":
            faults.lost_in[node] = chance.choice(["ListenTask", "DialTask", "StartTorch", "product"])
        else:
            getattr(faults, kind).add(node)
    if chance.random() < 0.5:
        faults.cut.add(tuple(chance.sample([node for node in everyone if node not in bad], 2)))
    level = chance.choice([Level.FULL, Level.QUICK])
    return Cluster(orders(nodes, spares, level=level, budget=300.0), faults, seed)


@pytest.mark.parametrize("seed", range(24))
def test_both_of_two_bad_links_are_named_wherever_they_are(seed) -> None:
    luck = random.Random(seed)
    nodes = luck.choice((6, 8, 12))
    two = luck.sample(list(itertools.combinations(range(nodes), 2)), 2)
    faults = Faults(broken_links={frozenset(ends) for ends in two})
    outcome = examined(orders(nodes, budget=200.0), faults, seed)
    assert {tuple(sorted(link[:2])) for link in bad_links(outcome)} == set(two)
    assert blamed(outcome) == set()


@pytest.mark.parametrize(
    "parts", [({0, 1, 2}, {3, 4, 5}, {6, 7}), ({0, 2, 4, 6}, {1, 3, 5, 7}), ({0, 1}, {2, 3, 4, 5, 6, 7})]
)
def test_a_network_that_splits_after_the_ring_test_blames_no_node(parts) -> None:
    faults = Faults(parts=parts, shut_between=True, later=8)
    outcome = examined(orders(8, budget=300.0), faults)
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == (set(), set(), False)
    assert "the network is partitioned between" in outcome.report.set_message


@pytest.mark.parametrize("seed", range(40))
def test_a_network_split_for_collectives_alone_is_reported_as_split(seed) -> None:
    chance = random.Random(seed)
    nodes = chance.randint(4, 9)
    order = chance.sample(range(nodes), nodes) if seed % 2 else list(range(nodes))
    cut = chance.randint(2, nodes - 2)
    sides = (set(order[:cut]), set(order[cut:]))
    outcome = examined(orders(nodes, budget=180.0), Faults(parts=sides, shut_between=True), seed)
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == (set(), set(), False)
    assert "the network is partitioned between" in outcome.report.set_message


def test_a_link_that_loses_large_packets_and_therefore_messages_is_reported_by_its_cause() -> None:
    faults = Faults(small_ways={(1, 2), (2, 1)}, lossy={(1, 2): 0.8, (2, 1): 0.8})
    outcome = examined(orders(5), faults)
    assert (bad_links(outcome), blamed(outcome)) == ({(1, 2, "both")}, set())
    (link,) = outcome.report.links
    assert "small ones pass" in link.message
    assert [node.role for node in outcome.report.nodes] == ["rank", "rank", "separated", "rank", "rank"]
    assert outcome.report.spares == ()


def test_a_node_that_gets_only_small_packets_and_did_not_join_is_named_with_that_cause() -> None:
    zero = "its agent did not join (srun: error: Zero Bytes were transmitted or received)"
    outcome = examined(orders(5), Faults(agentless={2}, small_mtu={2}, why=zero))
    (result,) = outcome.report.nodes[2].findings
    assert (result.verdict, "large packets to it get lost" in result.message) == (Grade.FAIL, True)
    assert "the MTU of n0002" in result.remedy
    assert blamed(outcome) == {2}


@pytest.mark.parametrize(("nodes", "small"), [(5, {3, 4}), (6, {3, 4, 5}), (8, {2, 3, 4, 5, 6, 7})])
def test_several_nodes_that_get_only_small_packets_are_parted_from_the_rest_and_not_to_blame(
    nodes, small
) -> None:
    zero = "its agent did not join (srun: error: Zero Bytes were transmitted or received)"
    outcome = examined(orders(nodes), Faults(agentless=small, small_mtu=small, why=zero))
    verdicts = {
        at: value.verdict for at, value in enumerate(outcome.report.nodes) if value.verdict is not Grade.PASS
    }
    assert (verdicts, bad_links(outcome), outcome.fit) == (
        dict.fromkeys(small, Grade.UNDETERMINED),
        set(),
        False,
    )
    assert "large packets from" in outcome.report.set_message
    assert outcome.report.excluded == ()
    best = max(set(range(nodes)) - small, small, key=len)
    assert set(outcome.excluded) == {name(node) for node in set(range(nodes)) - best}


@pytest.mark.parametrize("share", [0.015, 0.06, 0.2])
@pytest.mark.parametrize("cut", [2, 3, 4])
def test_loss_between_two_halves_is_attributed_to_the_network_and_not_to_a_link(share, cut) -> None:
    sides = (set(range(cut)), set(range(cut, 8)))
    lossy = {(a, b): share for value, other in (sides, sides[::-1]) for a in value for b in other}
    outcome = examined(orders(8), Faults(lossy=lossy), seed=cut)
    assert (blamed(outcome), bad_links(outcome)) == (set(), set())
    assert f"the network loses packets between {fold(name(node) for node in sorted(sides[cut < 4]))}" in (
        outcome.report.set_message
    )
    assert outcome.fit is (share < 0.03)


@pytest.mark.parametrize("lost", [{2}, {1, 2}, {3, 4, 5}])
def test_nodes_that_go_silent_because_large_packets_are_lost_are_reported_as_such(lost) -> None:
    faults = Faults(small_mtu=lost, lost_in=dict.fromkeys(lost, "DialTask"))
    outcome = examined(orders(7), faults)
    verdict = Grade.FAIL if len(lost) == 1 else Grade.UNDETERMINED
    verdicts = {
        at: value.verdict for at, value in enumerate(outcome.report.nodes) if value.verdict is not Grade.PASS
    }
    assert (verdicts, bad_links(outcome), outcome.fit) == (dict.fromkeys(lost, verdict), set(), False)
    if len(lost) == 1:
        assert "large packets do not get through" in str(outcome.report.nodes[2].findings)
    else:
        assert "large packets between" in outcome.report.set_message


def test_a_node_whose_name_resolves_to_a_dead_address_is_reported_with_that_address() -> None:
    hosts = {viewer: {2: "10.9.9.9"} for viewer in (0, 1, 3)}
    outcome = examined(orders(4), Faults(absent={2}, hosts=hosts))
    (result,) = outcome.report.nodes[2].findings
    assert (result.verdict, "nothing answers at 10.9.9.9, to which its name leads" in result.message) == (
        Grade.FAIL,
        True,
    )
    assert blamed(outcome) == {2}


def test_the_first_node_is_at_fault_if_it_alone_resolves_the_name_of_an_absent_node_wrongly() -> None:
    faults = Faults(agentless={2}, cut={(0, 2)}, hosts={0: {2: "10.9.9.9"}})
    outcome = examined(orders(4), faults)
    assert (blamed(outcome), bad_links(outcome)) == ({0}, set())
    assert "resolves n0002 as 10.9.9.9" in outcome.report.nodes[0].findings[0].message


@pytest.mark.parametrize("away", [{3, 4}, {1, 2, 3, 4}])
def test_several_nodes_absent_without_a_reason_are_not_blamed_and_one_is(away) -> None:
    why = "its agent did not join within 15 s"
    outcome = examined(orders(7), Faults(agentless=away, why=why))
    verdicts = {
        at: value.verdict for at, value in enumerate(outcome.report.nodes) if value.verdict is not Grade.PASS
    }
    assert (verdicts, outcome.fit, outcome.excluded) == (dict.fromkeys(away, Grade.UNDETERMINED), False, ())
    assert "a firewall between them" in outcome.report.set_message
    result = examined(orders(7), Faults(agentless=away, why=f"{why} (srun: error: no such file)"))
    assert {result.report.nodes[node].verdict for node in away} == {Grade.FAIL}
    alone = examined(orders(7), Faults(agentless={3}, why=why))
    assert (blamed(alone), alone.report.nodes[3].verdict) == ({3}, Grade.FAIL)
    remedies = " ".join(value.remedy for value in alone.report.nodes[3].findings)
    assert "does its Prolog take so long" in remedies


@pytest.mark.parametrize("away", [{2}, {1, 2, 3}])
def test_the_prolog_of_nodes_that_srun_gave_up_is_asked_for_and_not_all_are_blamed(away) -> None:
    why = "its agent did not join within 20 s (srun: error: Task launch failed: Socket timed out)"
    outcome = examined(orders(4), Faults(agentless=away, why=why))
    verdict = Grade.FAIL if len(away) == 1 else Grade.UNDETERMINED
    message = {at: value for at, value in enumerate(outcome.report.nodes) if value.verdict is not Grade.PASS}
    assert {at: value.verdict for at, value in message.items()} == dict.fromkeys(away, verdict)
    assert ["PrologFlags=Alloc" in str(value.findings) for value in message.values()] == [True] * len(away)


@pytest.mark.parametrize("away", [set(), {5}, {4, 5}])
def test_ports_that_do_not_answer_between_two_groups_part_the_network_and_blame_no_node(away) -> None:
    sides = ({0, 1, 2}, {3, 4, 5, 6})
    why = "its agent did not join within 15 s"
    faults = Faults(parts=sides, ports_between=frozenset({3, 4}), agentless=away, why=why)
    outcome = examined(orders(7), faults)
    verdicts = {
        at: value.verdict for at, value in enumerate(outcome.report.nodes) if value.verdict is not Grade.PASS
    }
    assert (verdicts, bad_links(outcome), outcome.fit) == (
        dict.fromkeys(away, Grade.UNDETERMINED),
        set(),
        False,
    )
    assert "some TCP ports do not answer between them" in outcome.report.set_message


@pytest.mark.parametrize("sides", [({0, 1, 2}, {3, 4, 5, 6}), ({0, 3, 5}, {1, 2, 4}, {6, 7})])
@pytest.mark.parametrize(("first", "last"), [(43264, 47488), (33024, 37120), (46976, 47232)])
def test_a_range_of_blocked_ports_between_two_groups_is_reported_without_a_link(sides, first, last) -> None:
    between = frozenset(at for at, port in enumerate(PORTS) if first <= port <= last)
    faults = Faults(parts=sides, ports_between=between, range_between=(first, last))
    outcome = examined(orders(sum(map(len, sides))), faults)
    messages = [notice for notice in outcome.report.notices if notice.startswith("between them TCP ports")]
    assert (blamed(outcome), bad_links(outcome), outcome.fit) == (set(), set(), False)
    assert len(messages) == 2 and all(
        f"from about {first} to {last} do not answer" in notice for notice in messages
    )


def test_a_large_set_dials_everybody_after_it_failed_together() -> None:
    count = network_phase.MOST_DIALLED_BY_ALL + 1
    cluster = Cluster(orders(count, budget=300.0), Faults(set_only=True))
    cluster.outcome()
    assert len(cluster.machine._state.dials.ways) == count * (count - 1)
