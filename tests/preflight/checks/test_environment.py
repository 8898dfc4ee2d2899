"""Settings of NCCL and gloo must be equal on all nodes, and name interfaces that a node has."""

from __future__ import annotations

import pytest

from clusterrun.preflight.checks import environment
from tests.preflight.checks.values import ASKED, FAIL, WARN, asked, nodes, verdicts


def reading(interfaces: str = "eth0 ib0 ib1 lo", **variables: str) -> dict[str, object]:
    return {"variables": variables, "interfaces": interfaces.split()}


def test_equal_nodes_are_passed_over_in_silence() -> None:
    assert verdicts(environment, nodes(4, reading(NCCL_DEBUG="INFO", NCCL_SOCKET_IFNAME="ib"))) == []


def test_the_deviating_node_is_named_with_both_values() -> None:
    assert verdicts(environment, nodes(3, reading(NCCL_IB_HCA="mlx5"), bad=reading(NCCL_IB_HCA="mlx4"))) == [
        ("bad", WARN, "NCCL_IB_HCA is mlx4; it is mlx5 on 3 of 4 nodes")
    ]
    assert verdicts(environment, nodes(3, reading(), bad=reading(NCCL_P2P_DISABLE="1"))) == [
        ("bad", WARN, "NCCL_P2P_DISABLE is 1; it is not set on 3 of 4 nodes")
    ]


def test_two_differing_nodes_are_both_named() -> None:
    message = "NCCL_ALGO differs between nodes: Ring on n1, Tree on n2"
    assert verdicts(environment, {"n1": reading(NCCL_ALGO="Ring"), "n2": reading(NCCL_ALGO="Tree")}) == [
        ("n1", WARN, message),
        ("n2", WARN, message),
    ]


def test_a_missing_interface_makes_a_node_unfit_once() -> None:
    assert verdicts(
        environment, nodes(3, reading(NCCL_SOCKET_IFNAME="ib0"), bad=reading(NCCL_SOCKET_IFNAME="enp9"))
    ) == [
        ("bad", FAIL, "NCCL_SOCKET_IFNAME=enp9: this node lacks this interface (it has eth0, ib0, ib1, lo)")
    ]


def test_a_variable_of_nccl_is_no_failure_of_ranks_without_gpus() -> None:
    readings = nodes(2, reading(NCCL_SOCKET_IFNAME="enp9"))
    assert [finding.verdict for _, finding in environment.judge(asked(gpus=0), readings)] == [WARN]


def test_the_same_value_is_unfit_only_where_the_interface_is_missing() -> None:
    assert verdicts(
        environment,
        nodes(3, reading(GLOO_SOCKET_IFNAME="ib0"), bad=reading("eth0 lo", GLOO_SOCKET_IFNAME="ib0")),
    ) == [("bad", FAIL, "GLOO_SOCKET_IFNAME=ib0: this node lacks this interface (it has eth0, lo)")]


@pytest.mark.parametrize(("others", "remedy"), [("ib0", "unset GLOO_SOCKET_IFNAME"), ("eth0", "set")])
def test_the_remedy_for_a_missing_interface_is_another_one_if_all_nodes_have_the_same_value(
    others: str, remedy: str
) -> None:
    readings = nodes(3, reading(GLOO_SOCKET_IFNAME=others), bad=reading("eth0", GLOO_SOCKET_IFNAME="ib0"))
    ((node, result),) = environment.judge(ASKED, readings)
    assert (node, result.remedy.startswith(remedy)) == ("bad", True)


@pytest.mark.parametrize(
    ("name", "value", "useless"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", False),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", False),
        ("NCCL_SOCKET_IFNAME", "^eth,ib,lo", True),
        ("NCCL_SOCKET_IFNAME", "lo", True),
        ("NCCL_SOCKET_IFNAME", "bond,ib", False),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", False),
    ],
)
def test_interfaces_are_chosen_by_the_librarys_own_rules(name, value, useless) -> None:
    result = verdicts(environment, nodes(2, reading(**{name: value})))
    assert [(node, verdict) for node, verdict, _ in result] == ([("", FAIL)] if useless else [])


def addressed(node: int, shared: str = "docker0", machine: str = "", **variables: str) -> dict[str, object]:
    """Return a node with an address of its own on eth0, and a common one on the interface ``shared``."""
    addresses = {"lo": "127.0.0.1", "eth0": f"10.0.0.{node}", "docker0": f"172.17.1.{node}"}
    if shared:
        addresses[shared] = "172.17.0.1"
    own = machine or f"boot-{node} 4026531840"
    return {**reading("eth0 docker0 lo", **variables), "addresses": addresses, "machine": own}


def shared_by(count: int, **options: str) -> list[tuple[str, object, str]]:
    provided = asked(gpus=int(options.pop("gpus", "0")))
    readings = {f"n{i}": addressed(i, **options) for i in range(1, count + 1)}
    return verdicts(environment, readings, provided)


@pytest.mark.parametrize("count", [2, 3, 5, 16])
@pytest.mark.parametrize(
    ("name", "value", "gpus", "verdict"),
    [
        ("GLOO_SOCKET_IFNAME", "docker0", "0", FAIL),
        ("GLOO_SOCKET_IFNAME", "docker0", "8", FAIL),
        ("GLOO_SOCKET_IFNAME", "eth0,docker0", "0", FAIL),
        ("NCCL_SOCKET_IFNAME", "docker0", "8", FAIL),
        ("NCCL_SOCKET_IFNAME", "docker0", "0", WARN),
        ("NCCL_SOCKET_IFNAME", "^lo", "8", WARN),
        ("NCCL_SOCKET_IFNAME", "=eth0", "8", None),
        ("GLOO_SOCKET_IFNAME", "eth0", "0", None),
    ],
)
def test_an_address_that_several_nodes_share_fails_all_together_and_blames_no_node(
    count, name, value, gpus, verdict
) -> None:
    result = shared_by(count, gpus=gpus, **{name: value})
    assert [(node, grade) for node, grade, _ in result] == ([("", verdict)] if verdict else [])
    assert all(
        f"{name} chooses docker0, which has the same address 172.17.0.1" in entry[2] for entry in result
    )


def test_the_remedy_names_an_interface_with_an_address_of_its_own_on_every_node() -> None:
    readings = {f"n{i}": addressed(i, GLOO_SOCKET_IFNAME="docker0") for i in (1, 2, 3)}
    ((_, result),) = environment.judge(asked(gpus=0), readings)
    assert result.remedy.startswith("unset GLOO_SOCKET_IFNAME")
    assert result.remedy.endswith("GLOO_SOCKET_IFNAME=eth0")


def test_the_two_nodes_with_one_address_are_named() -> None:
    readings = {f"n{i}": addressed(i, shared="", GLOO_SOCKET_IFNAME="eth0") for i in range(1, 7)}
    readings["n4"]["addresses"]["eth0"] = "10.0.0.2"
    ((node, grade, message),) = verdicts(environment, readings, asked(gpus=0))
    assert (node, grade) == ("", FAIL)
    assert "same address 10.0.0.2 on n2, n4:" in message


def test_simulated_nodes_of_one_machine_may_share_its_addresses() -> None:
    assert shared_by(4, machine="boot 4026531840", GLOO_SOCKET_IFNAME="docker0") == []


def test_a_single_node_may_use_its_loopback() -> None:
    assert verdicts(environment, {"n1": reading(NCCL_SOCKET_IFNAME="lo")}) == []


def test_values_that_contain_node_or_file_names_may_differ() -> None:
    assert verdicts(environment, nodes(3, reading(NCCL_HOSTID="a"), n9=reading(NCCL_HOSTID="b"))) == []


def test_a_value_of_its_own_on_every_node_is_meant_so() -> None:
    assert verdicts(environment, {f"n{i}": reading(NCCL_IB_GID_INDEX=str(i)) for i in range(4)}) == []


def test_only_communication_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterrun.preflight.probes import process_context

    monkeypatch.setattr(process_context.os, "environ", {"NCCL_DEBUG": "INFO", "SECRET_TOKEN": "x"})
    result = environment.probe(ASKED)
    assert isinstance(result, dict)
    assert result["variables"] == {"NCCL_DEBUG": "INFO"}
    assert "lo" in result["interfaces"]
