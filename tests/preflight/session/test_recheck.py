"""The check between two attempts: suspects are looked at, and nobody else is asked for more than a call."""

from __future__ import annotations

import pytest

from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level, Orders
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.preflight.session.session import SessionOutcome
from clusterrun.preflight.tasks import DialAnswer, DialTask, Target
from tests.preflight.simulated import PORTS, Cluster, Faults, bad_links, blamed, examined, name, orders


def short(
    requested: Orders, suspects: list[int], faults: Faults | None = None, **occasion: object
) -> tuple[SessionOutcome, set[tuple[str, int]]]:
    """Return the outcome, and the tasks with their nodes."""
    cluster = Cluster(requested, faults or Faults(), suspects=suspects, **occasion)
    return cluster.outcome(), cluster.kinds


def whole(requested: Orders, faults: Faults | None = None) -> Report:
    return examined(requested, faults).report


@pytest.mark.parametrize("level", [Level.FULL, Level.QUICK])
@pytest.mark.parametrize("suspects", [[3], [0], [1, 6]])
def test_a_healthy_suspect_continues_training_in_its_place_without_torch(suspects, level) -> None:
    outcome, requested = short(orders(8, level=level), suspects)
    assert (outcome.fit, outcome.world, outcome.report.verdict) == (True, tuple(range(8)), Grade.PASS)
    assert {node for what, node in requested if what == "LocalTask"} == set(suspects)
    assert {what for what, _ in requested} == {"ListenTask", "LocalTask", "DialTask", "PeerTask"}
    assert outcome.report.seconds < 3
    assert f"a short check: of {', '.join(map(name, suspects))} alone" in outcome.report.notices


def test_nothing_is_asked_without_a_suspect_and_with_all_nodes() -> None:
    outcome, requested = short(orders(8), [])
    assert (outcome.fit, outcome.world, requested) == (True, tuple(range(8)), set())


FAULTS = {
    "frozen": Faults(frozen={2}),
    "lost while dialling": Faults(lost_in={2: "DialTask"}),
    "talks nonsense": Faults(nonsense={2}),
    "cut off": Faults(cut={(2, other) for other in range(7)} | {(other, 2) for other in range(7)}),
    "reaches nobody": Faults(cut={(2, other) for other in range(7)}),
    "ports blocked": Faults(blocked={2: {3, 4}}),
    "full /dev/shm": Faults(full_shm={2}),
    "home hangs": Faults(late_checks={2}),
    "collectives hang": Faults(broken={2}),
    "wrong sums": Faults(corrupt={2}),
    "no torch": Faults(no_torch={2}),
    "torch worker dies": Faults(crashes={2}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unfit_suspect_is_named_alone_and_a_spare_replaces_it(fault) -> None:
    outcome, _ = short(orders(6, 1), [2], FAULTS[fault])
    assert (blamed(outcome), bad_links(outcome)) == ({2}, set())
    assert (outcome.fit, outcome.world, outcome.excluded) == (True, (0, 1, 6, 3, 4, 5), (name(2),))


def test_pairs_are_tested_with_a_few_partners_only() -> None:
    _, requested = short(orders(40, 2), [20])
    assert {node for what, node in requested if what == "pair"} == {19, 20, 21, 22, 40, 41}
    assert not any(what in ("product", "set") for what, _ in requested)


def test_a_spare_that_is_unfit_itself_is_passed_over() -> None:
    outcome, _ = short(orders(6, 2), [2], Faults(frozen={2}, full_shm={6}))
    assert (outcome.world, blamed(outcome)) == ((0, 1, 7, 3, 4, 5), {2, 6})


def test_a_lost_node_is_replaced_by_a_spare_that_was_looked_at() -> None:
    outcome, requested = short(orders(4, 2), [], Faults(absent={1}))
    assert (outcome.fit, outcome.world, outcome.excluded) == (True, (0, 4, 2, 3), (name(1),))
    assert {node for what, node in requested if what == "LocalTask"} == {4, 5}


@pytest.mark.parametrize("why", [contract.AGENT_LOST, contract.NOT_BACK])
@pytest.mark.parametrize("lives", [True, False])
@pytest.mark.parametrize("spares", [0, 3])
@pytest.mark.parametrize("lost", [{1, 2}, {3, 4, 5}])
def test_several_lost_nodes_are_attributed_to_their_shared_part(lost, spares, lives, why) -> None:
    faults = Faults(why=why, **{"agentless" if lives else "absent": lost})
    outcome, _ = short(orders(6, spares), [], faults)
    verdicts = {at: value.verdict for at, value in enumerate(outcome.report.nodes) if at in lost}
    assert (verdicts, outcome.report.excluded) == (dict.fromkeys(lost, Grade.UNDETERMINED), ())
    assert (outcome.fit, blamed(outcome) - lost) == (bool(spares), set())
    again, _ = short(orders(6, spares), [], Faults(why=why, absent=lost), after=outcome.report)
    assert again.report.excluded == ()


@pytest.mark.parametrize("suspects", [[], [0, 2]])
@pytest.mark.parametrize("cut", [{(3, 0)}, {(0, 3)}, {(3, 0), (0, 3)}])
def test_one_of_several_lost_nodes_dials_the_coordinators_listening_ports(cut, suspects) -> None:
    cluster = Cluster(orders(5), Faults(agentless={3, 4}, cut=cut, why=contract.NOT_BACK), suspects=suspects)
    dialled: list[Target] = []

    def dial(node: int, task: DialTask) -> tuple[float, DialAnswer]:
        dialled.extend(target for target in task.targets if (node, target.node) == (3, 0))
        return Cluster.dial(cluster, node, task)

    cluster.dial = dial  # type: ignore[method-assign]
    assert cluster.outcome().report.verdict is Grade.FAIL
    assert [target.ports for target in dialled] == [PORTS]


def test_an_unfit_suspect_ends_the_run_without_a_spare() -> None:
    outcome, _ = short(orders(6), [2], Faults(full_shm={2}))
    assert (outcome.fit, outcome.excluded) == (False, (name(2),))


def test_a_possible_network_fault_is_tested_with_pairs_and_with_the_whole_set() -> None:
    outcome, requested = short(orders(6), [2], Faults(broken={2}), network=True)
    assert (outcome.fit, blamed(outcome), outcome.excluded) == (False, {2}, (name(2),))
    healthy, requested = short(orders(6, level=Level.QUICK), [2], network=True)
    assert (healthy.fit, {node for what, node in requested if what == "set"}) == (True, set(range(6)))


def test_the_world_keeps_the_order_that_the_last_check_gave_it_and_the_unfit_stay_out() -> None:
    before = whole(orders(6, 2), Faults(full_shm={2}))
    assert before.world == tuple(map(name, (0, 1, 6, 3, 4, 5)))
    same, _ = short(orders(6, 2), [4], after=before)
    assert (same.world, same.excluded, blamed(same)) == ((0, 1, 6, 3, 4, 5), (name(2),), {2})
    next_one, _ = short(orders(6, 2), [4], Faults(frozen={4}), after=before)
    assert (next_one.world, set(next_one.excluded)) == ((0, 1, 6, 3, 7, 5), {name(2), name(4)})


def test_an_unfit_node_is_examined_again_if_it_is_named() -> None:
    before = whole(orders(6, 2), Faults(full_shm={2}))
    outcome, _ = short(orders(6, 2), [2, 4], Faults(frozen={4}), after=before)
    assert (blamed(outcome), outcome.excluded) == ({4}, (name(4),))


def test_a_link_that_was_bad_stays_outside() -> None:
    before = whole(orders(4, 1), Faults(cut={(1, 2)}))
    assert before.world == tuple(map(name, (0, 1, 4, 3)))
    outcome, _ = short(orders(4, 1), [1], Faults(), after=before)
    assert outcome.world == (0, 1, 4, 3)
    lost, _ = short(orders(4, 1), [], Faults(absent={4}), after=before)
    assert lost.fit is False


def test_a_run_that_may_queue_itself_elsewhere_tests_pairs_without_a_spare() -> None:
    requested = replace(orders(6), preflight=replace(orders(6).preflight, resubmit=("sbatch", "{excluded}")))
    outcome, _ = short(requested, [2], Faults(corrupt={2}))
    assert (outcome.fit, blamed(outcome)) == (False, {2})


@pytest.mark.parametrize("nodes", [97, 200, 500])
def test_a_suspect_in_a_large_set_dials_some_of_the_others(nodes) -> None:
    outcome, requested = short(orders(nodes), [7])
    assert (outcome.fit, blamed(outcome)) == (True, set())
    assert 4 <= sum(what == "DialTask" for what, _ in requested) <= 2 * 96 + 3


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_small_runs_end_too(nodes) -> None:
    outcome, _ = short(orders(nodes), [0], network=nodes > 1)
    assert (outcome.fit, outcome.world) == (True, tuple(range(nodes)))
    outcome, _ = short(orders(nodes, 1), [0], Faults(full_shm={0}))
    assert (outcome.fit, outcome.world) == (True, (nodes, *range(1, nodes)))
