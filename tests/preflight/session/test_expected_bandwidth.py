"""The expected bandwidth of the whole set: the user's number, else the table's."""

from __future__ import annotations

import json

import pytest

from clusterrun.model.frozen import replace
from clusterrun.preflight.observations import GroupTest
from clusterrun.preflight.session import expected_bandwidth
from clusterrun.preflight.session.expected_bandwidth import LARGE_MEGABYTES
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import SET, LocalAnswer, ProbeReading, TorchStarted
from clusterrun.runtime.machine_events import Now
from tests.preflight.simulated import name, orders

H100 = "NVIDIA H100 80GB HBM3"


def case(nodes: int, rate: str = "", backend: str = "nccl", floor: float = 0.0) -> SessionState:
    limits = (("set_floor", floor),) if floor else ()
    run_orders = replace(orders(nodes, limits=limits), gpus_per_node=8)
    subjects = [NodeState(node, name(node), f"10.0.0.{node}") for node in range(nodes)]
    ports = {f"mlx5_{n}/1": {"state": "4: ACTIVE", "rate": rate} for n in range(8)} if rate else {}
    for subject in subjects:
        subject.local = LocalAnswer((ProbeReading("infiniband", json.dumps(ports)),))
        subject.record_torch_worker(TorchStarted(True, 1.0, "", backend, 8, (("gpu", H100),)))
    state = SessionState(run_orders, subjects, Now(0.0, 0.0), "/r")
    state.backend = backend
    return state


def said(state: SessionState, rate: float) -> list[str]:
    trial = GroupTest(tuple(state.nodes), True, rate, kind=SET)
    return [note.finding.message for note in expected_bandwidth.of_set(state, trial)]


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        (case(1), "296: ml-engineering: 370 without NVLink SHARP, 480 with it; four fifths of the lower"),
        (case(2, "400 Gb/sec (4X NDR)"), "309: 387 with 1 GiB on 16 GPUs (published); four fifths"),
        (case(2, "400 Gb/sec", floor=100.0), "100: set_floor"),
    ],
)
def test_a_set_slower_than_its_hardware_is_a_warning_with_its_source(state, limit) -> None:
    assert said(state, 5.0) == [f"the whole set reaches 5 GB/s (limit {limit})"]
    assert said(state, 500.0) == []


@pytest.mark.parametrize(("nodes", "tells"), [(1, "NVLink"), (2, "switches")])
def test_the_remedy_for_a_slow_node_names_no_switch_between_nodes(nodes, tells) -> None:
    trial = GroupTest(tuple(range(nodes)), True, 5.0, kind=SET)
    (finding,) = expected_bandwidth.of_set(case(nodes, "400 Gb/sec" if nodes > 1 else ""), trial)
    assert tells in finding.finding.remedy


def test_nothing_is_expected_of_gloo_or_of_unknown_networks() -> None:
    assert said(case(2, "400 Gb/sec", backend="gloo"), 0.1) == []
    assert said(case(2), 0.1) == []
    assert said(case(2, "25 Gb/sec (1X EDR)"), 0.1) == []


@pytest.mark.parametrize("nodes", [3, 4, 8, 31])
def test_only_the_users_number_is_a_floor_for_more_than_two_nodes(nodes) -> None:
    assert said(case(nodes, "400 Gb/sec"), 5.0) == []
    assert said(case(nodes, "400 Gb/sec", floor=100.0), 5.0) != []


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
@pytest.mark.parametrize("rate", ["", "25 Gb/sec (1X EDR)", "400 Gb/sec (4X NDR)"])
def test_a_floor_judges_measurements_with_messages_of_its_size(nodes, rate) -> None:
    state = case(nodes, rate)
    floor, _ = expected_bandwidth.floor_of(state, tuple(range(nodes)))
    size = expected_bandwidth.megabytes(state, tuple(range(nodes)))
    assert size == (LARGE_MEGABYTES if floor else expected_bandwidth.SET_MEGABYTES)
