"""InfiniBand and RoCE ports; a made-up folder in the kernel's form stands for the adapters of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun.preflight.checks import infiniband
from tests.preflight.checks.values import ASKED, FAIL, WARN, asked, blamed, nodes, verdicts

ACTIVE = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
}
QUIET = dict.fromkeys(infiniband.COUNTERS, 0)


def port(
    first: dict[str, int] | None = None, later: dict[str, int] | None = None, **texts: str
) -> dict[str, Any]:
    before = {**QUIET, **(first or {})}
    return {**ACTIVE, **texts, "first": before, "later": {**before, **(later or {})}}


def ports(count: int = 8, **of_mlx5_3: Any) -> dict[str, Any]:
    return {f"mlx5_{i}/1": port(**(of_mlx5_3 if i == 3 else {})) for i in range(count)}


DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled", "rate": "10 Gb/sec (4X SDR)"}


def write(folder: Path, name: str, counters: dict[str, int]) -> None:
    place = folder / name / "ports" / "1"
    (place / "counters").mkdir(parents=True)
    for word, value in ACTIVE.items():
        (place / word).write_text(value + "\n")
    for word, number in counters.items():
        (place / "counters" / word).write_text(f"{number}\n")


def test_a_folder_of_adapters_is_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infiniband, "SAMPLE_SECONDS", 0.0)
    write(tmp_path, "mlx5_0", {"symbol_error": 7, "link_downed": 1})
    (tmp_path / "mlx5_bond").mkdir()
    counted = {"symbol_error": 7, "link_downed": 1}
    assert infiniband.probe(ASKED, str(tmp_path)) == {
        "mlx5_0/1": {**ACTIVE, "used": True, "first": counted, "later": counted}
    }


def test_a_machine_without_adapters_has_none(tmp_path: Path) -> None:
    assert infiniband.probe(ASKED, str(tmp_path / "none")) == {}
    assert verdicts(infiniband, nodes(3, {})) == []


def test_healthy_ports_are_passed_over_in_silence() -> None:
    assert verdicts(infiniband, nodes(4, ports())) == []


def test_a_port_that_is_down_on_one_node_and_active_elsewhere_is_unfit() -> None:
    assert verdicts(infiniband, nodes(3, ports(), bad=ports(**DOWN))) == [
        ("bad", FAIL, "port mlx5_3/1 is DOWN, and active on the other nodes")
    ]


def test_a_port_that_is_up_on_one_of_two_nodes_may_be_an_additional_cable() -> None:
    assert blamed(infiniband, nodes(1, ports(), bad=ports(**DOWN))) == {"bad": WARN}


def test_a_cable_in_another_port_is_no_finding_and_hides_no_port_that_is_down() -> None:
    spare = {"mlx5_8/1": port(**DOWN)}
    moved = {**ports(**DOWN), "mlx5_8/1": port()}
    assert verdicts(infiniband, nodes(3, {**ports(), **spare}, moved=moved)) == []
    slower = {**ports(), "mlx5_0/1": port(rate="200 Gb/sec (2X NDR)"), **spare}
    readings = nodes(3, {**ports(), **spare}, bad={**ports(**DOWN), **spare}, slower=slower)
    assert blamed(infiniband, readings) == {"bad": FAIL, "slower": WARN}


def test_a_port_of_a_node_with_other_adapters_is_no_failure() -> None:
    ethernet = {f"mlx5_{i}/1": port(link_layer="Ethernet", **(DOWN if i == 3 else {})) for i in range(8)}
    assert FAIL not in blamed(infiniband, nodes(3, ports(), other=ethernet)).values()
    fewer = {name: own for name, own in ports(**DOWN).items() if name in ("mlx5_3/1", "mlx5_4/1")}
    assert blamed(infiniband, nodes(3, ports(), other={**fewer, "mlx5_9/1": port()})) == {"other": FAIL}


def test_an_unused_port_is_no_finding() -> None:
    assert verdicts(infiniband, nodes(4, ports(**DOWN))) == []
    assert verdicts(infiniband, {"n1": ports(**DOWN)}) == []


def test_a_node_that_lacks_an_adapter_is_unfit() -> None:
    assert verdicts(infiniband, nodes(3, ports(), bad=ports(7))) == [
        ("bad", FAIL, "the number of active InfiniBand or RoCE ports is 7; it is 8 on 3 of 4 nodes")
    ]


def test_a_node_with_one_additional_port_is_healthy() -> None:
    assert verdicts(infiniband, nodes(3, ports(), more=ports(9))) == []


def test_a_missing_storage_port_is_no_finding() -> None:
    with_storage = {**ports(), **STORAGE}
    assert verdicts(infiniband, nodes(3, with_storage, without=ports())) == []
    excluded = {**ports(), **UNUSED}
    assert verdicts(infiniband, nodes(3, excluded, without=ports())) == []


def test_a_storage_port_that_is_down_hides_no_missing_adapter() -> None:
    with_storage = {**ports(), **STORAGE}
    storage_down = {**ports(), "mlx5_9/1": port(**{**STORAGE["mlx5_9/1"], **DOWN})}
    readings = nodes(3, with_storage, storage=storage_down, few={**ports(7), **STORAGE})
    assert blamed(infiniband, readings) == {"storage": WARN, "few": FAIL}


def test_only_a_slower_rate_than_on_the_other_nodes_is_a_warning() -> None:
    slow = ports(rate="200 Gb/sec (4X HDR)")
    assert verdicts(infiniband, nodes(3, ports(), bad=slow)) == [
        (
            "bad",
            WARN,
            "port mlx5_3/1 runs at 200 Gb/sec (4X HDR) here, at 400 Gb/sec (4X NDR) on the other nodes",
        )
    ]
    assert verdicts(infiniband, nodes(3, slow, newer=ports())) == []


def test_errors_that_grow_while_nobody_uses_the_link_are_a_warning() -> None:
    growing = ports(later={"symbol_error": 12})
    assert verdicts(infiniband, nodes(2, ports(), bad=growing)) == [
        ("bad", WARN, "port mlx5_3/1: symbol_error grew by 12 in 0.3 s (limit 0)")
    ]


def test_errors_far_beyond_all_other_ports_are_a_warning() -> None:
    flapping = ports(first={"link_downed": 250})
    assert verdicts(infiniband, nodes(2, ports(), bad=flapping)) == [
        ("bad", WARN, "port mlx5_3/1: link_downed is 250, the median 0 (limit +100)")
    ]
    assert verdicts(infiniband, nodes(2, ports(), bad=flapping), asked(limits=(("link_errors", 300),))) == []
    assert verdicts(infiniband, nodes(2, ports(), bad=ports(first={"link_downed": 3}))) == []


THERE = ("mlx5_0/1", "mlx5_0/2", "mlx5_1/1", "mlx5_10/1", "irdma0/1")


@pytest.mark.parametrize(
    ("environment", "used"),
    [
        ({}, set(THERE)),
        ({"NCCL_IB_DISABLE": "1"}, set()),
        ({"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"}, set(THERE)),
        ({"NCCL_NET": "Socket"}, set()),
        ({"NCCL_IB_HCA": "mlx5"}, {"mlx5_0/1", "mlx5_0/2", "mlx5_1/1", "mlx5_10/1"}),
        ({"NCCL_IB_HCA": "mlx5_1"}, {"mlx5_1/1", "mlx5_10/1"}),
        ({"NCCL_IB_HCA": "=mlx5_1"}, {"mlx5_1/1"}),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1"}, {"mlx5_0/1", "mlx5_1/1"}),
        ({"NCCL_IB_HCA": "^mlx5_1"}, {"mlx5_0/1", "mlx5_0/2", "irdma0/1"}),
        ({"NCCL_IB_HCA": "^=mlx5_1"}, {"mlx5_0/1", "mlx5_0/2", "mlx5_10/1", "irdma0/1"}),
    ],
)
def test_nccls_variables_select_the_ports(environment: dict[str, str], used: set[str]) -> None:
    assert {name for name in THERE if infiniband.may_use(name, environment)} == used


STORAGE = {"mlx5_9/1": port(rate="100 Gb/sec (4X EDR)")}
UNUSED = {"mlx5_9/1": port(used=False)}  # type: ignore[arg-type]
RAIL = {"mlx5_9/1": port()}


@pytest.mark.parametrize(
    ("more", "gpus", "verdict"), [(STORAGE, 8, WARN), (UNUSED, 8, WARN), (RAIL, 8, FAIL), (RAIL, 0, WARN)]
)
def test_a_port_that_is_down_is_unfit_only_where_the_ranks_use_it(
    more: dict[str, Any], gpus: int, verdict: Any
) -> None:
    ill = {"mlx5_9/1": {**more["mlx5_9/1"], **DOWN}}
    result = blamed(infiniband, nodes(3, {**ports(), **more}, bad={**ports(), **ill}), asked(gpus=gpus))
    assert result == {"bad": verdict}


@pytest.mark.parametrize("counter", ["local_ack_timeout_err", "retrans_timeout_events"])
def test_a_port_of_which_the_adapter_counts_many_more_retransmissions_is_named(counter) -> None:
    bad = ports(first={counter: 51234})
    assert verdicts(infiniband, nodes(3, ports(), bad=bad)) == [
        ("bad", WARN, f"port mlx5_3/1: {counter} is 51234, the median 0 (limit +100)")
    ]
