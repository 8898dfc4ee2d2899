"""Open requests: each number once, closed by an answer, a limit or a loss, and never twice."""

from __future__ import annotations

from clusterrun.preflight.session import local_phase
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.requests import Requests
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import ListenTask, StartTorch
from clusterrun.preflight.thresholds import START_SECONDS
from clusterrun.runtime.machine_events import Now
from tests.preflight.simulated import name, orders

LISTEN = ListenTask("n")
WARM = StartTorch("/py", "/")


def test_an_answer_closes_its_request_once_and_only_from_the_requested_node() -> None:
    requests = Requests()
    (ask,) = requests.ask(1.0, {3: "text"}, LISTEN, 5.0)
    assert requests.close(4, ask.number) is None
    assert requests.waits_for([ListenTask]) and not requests.waits_for([StartTorch])
    closed = requests.close(3, ask.number)
    assert closed is not None and (closed.task, closed.until) == (LISTEN, 6.0)
    assert requests.close(3, ask.number) is None
    assert (len(requests), requests.waits_for([ListenTask]), requests.due_at()) == (0, False, None)


def test_overdue_requests_are_closed_in_the_order_of_their_limits() -> None:
    requests = Requests()
    for node, seconds in ((0, 9.0), (1, 2.0), (2, 5.0)):
        requests.ask(0.0, {node: ""}, LISTEN, seconds)
    assert requests.due_at() == 2.0
    assert [entry.node for entry in requests.close_overdue(5.0)] == [1, 2]
    assert requests.due_at() == 9.0


def test_a_requests_limit_can_shrink_but_not_grow() -> None:
    requests = Requests()
    requests.ask(0.0, {0: ""}, LISTEN, 9.0)
    (entry,) = requests.of_type(ListenTask)
    requests.hurry(entry, 20.0)
    assert requests.due_at() == 9.0
    requests.hurry(entry, 4.0)
    assert requests.due_at() == 4.0
    assert [entry.seconds for entry in requests.close_overdue(4.0)] == [4.0]
    assert requests.due_at() is None


def test_a_lost_node_closes_all_its_requests() -> None:
    requests = Requests()
    for node in (0, 1):
        requests.ask(0.0, {node: ""}, LISTEN, 9.0)
        requests.ask(0.0, {node: ""}, WARM, 9.0)
    assert {type(entry.task) for entry in requests.drop_all_of(1)} == {ListenTask, StartTorch}
    batch = requests.batch(StartTorch)
    assert (len(requests), batch.open, batch.size) == (2, 1, 1)


def test_lost_nodes_do_not_keep_the_limits_of_the_others_long() -> None:
    nodes = [NodeState(node, name(node), "") for node in range(6)]
    state = SessionState(orders(6, budget=180.0), nodes, Now(0.0, 0.0), "/r")
    for node in range(6):
        local_phase.start_torch_worker(state, node)
    for node, number in ((0, 1), (1, 2)):
        state.requests.close(node, number)
        local_phase.hurry(state)
    assert state.requests.due_at() == 180.0  # 2 of 6 answered
    state.requests.drop_all_of(2)
    local_phase.hurry(state)
    assert state.requests.due_at() == 180.0  # 2 of 5
    state.requests.drop_all_of(3)
    local_phase.hurry(state)
    assert state.requests.due_at() == START_SECONDS  # 2 of 4
