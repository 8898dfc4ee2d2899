"""Clocks and interfaces: who is alone with what it thinks."""

from __future__ import annotations

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.session.consistency import clocks, common_interface, faster_interface, interfaces
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.tasks import Interface, ListenAnswer

LIMITS = (1.0, 30.0)


def subject(node: int, mtu: int = 1500, interface: str = "eth0", more: tuple[str, ...] = ()) -> NodeState:
    entry = NodeState(node, f"n{node}", f"10.0.0.{node}")
    own = (Interface(interface, entry.address, mtu), *(Interface("ib0", address, 2044) for address in more))
    entry.listening = ListenAnswer((Interface("lo", "127.0.0.1", 65536), *own), (1,), 2, 0.0)
    return entry


def clock(node: int, offset: float, slack: float = 0.1) -> NodeState:
    entry = subject(node)
    entry.bound_clock(1000.0 + offset, 1000.0 - slack, 1000.0 + slack)
    return entry


def times(*offsets: float, slack: float = 0.1) -> list[tuple[int | None, Grade]]:
    return [
        (entry.node, entry.finding.verdict)
        for entry in clocks([clock(node, offset, slack) for node, offset in enumerate(offsets)], *LIMITS)
    ]


def test_a_clock_is_judged_against_the_median() -> None:
    assert times(0, 0.3, -0.2, 0.1) == []
    assert times(0, 0, 3.0, 0) == [(2, Grade.WARN)]
    assert times(0, 0, -90.0, 0) == [(2, Grade.FAIL)]
    assert times(90.0, 90.0, 0, 90.0) == [(2, Grade.FAIL)]


def test_a_clock_difference_within_the_round_trip_is_no_finding() -> None:
    assert times(0, 0, 3.0, 0, slack=4.0) == []


def test_several_looks_at_a_clock_narrow_it_down() -> None:
    entry = clock(0, 5.0, slack=10.0)
    entry.bound_clock(1105.0, 1100.0, 1100.2)
    assert (round(entry.earliest, 6), round(entry.latest, 6)) == (4.8, 5.0)


def test_no_node_is_named_if_half_of_the_clocks_differ() -> None:
    assert times(0, 0, 90.0, 90.0) == [(None, Grade.WARN)]
    assert times(0, 90.0) == [(None, Grade.WARN)]
    assert times(0) == []


def test_the_controllers_clock_decides_between_two_nodes() -> None:
    def named(first: float, second: float, controller: float) -> list[tuple[int | None, Grade]]:
        nodes = [clock(0, first), clock(1, second), clock(-1, controller)]
        return [(entry.node, entry.finding.verdict) for entry in clocks(nodes, *LIMITS)]

    assert named(0, 90.0, 0) == [(1, Grade.FAIL)]
    assert named(0, 90.0, 90.0) == [(0, Grade.FAIL)]
    assert named(0, 0, 90.0) == []
    assert named(0, 90.0, 180.0) == [(None, Grade.WARN)]


def test_the_odd_mtu_is_named_and_no_side_of_an_even_split() -> None:
    nodes = [subject(node, mtu=9000) for node in range(4)]
    assert list(interfaces(nodes)) == []
    (entry,) = interfaces([*nodes, subject(4, mtu=1500)])
    assert (entry.node, entry.finding.verdict) == (4, Grade.WARN)
    (both,) = interfaces([subject(0, mtu=9000), subject(1)])
    assert both.node is None


def test_a_common_interface_is_used_by_all_nodes() -> None:
    assert common_interface([subject(0), subject(1)]) == "eth0"
    assert common_interface([subject(0), subject(1, interface="eno1")]) == ""
    assert common_interface([NodeState(0, "n0", "10.0.0.1")]) == ""


def with_speeds(node: int, *each: tuple[str, int, str]) -> NodeState:
    """Return a node whose first interface is in use."""
    entry = NodeState(node, f"n{node}", f"10.0.0.{node}")
    own = [
        Interface(name, f"10.{i}.0.{node}", 1500, speed, kind) for i, (name, speed, kind) in enumerate(each)
    ]
    entry.listening = ListenAnswer((Interface("lo", "127.0.0.1", 65536, 0, "loopback"), *own), (1,), 2, 0.0)
    return entry


SLOW, FAST = ("eth0", 1000, "device"), ("eth1", 100_000, "device")


@pytest.mark.parametrize(
    "first, second, interface",
    [
        ((SLOW, FAST), (SLOW, FAST), ("eth1", 100_000, 1000)),
        ((SLOW, FAST), (SLOW, ("eth1", 10_000, "device")), ("eth1", 10_000, 1000)),
        ((SLOW, FAST, ("ib0", 400_000, "infiniband")), (SLOW, FAST), ("eth1", 100_000, 1000)),
        ((SLOW, FAST), (SLOW,), ("", 0, 1000)),
        ((FAST, SLOW), (FAST, SLOW), ("", 0, 100_000)),
        ((SLOW, ("eth1", 0, "device")), (SLOW, ("eth1", 0, "device")), ("", 0, 1000)),  # not told
        ((SLOW, ("docker0", 10_000, "bridge")), (SLOW, ("docker0", 10_000, "bridge")), ("", 0, 1000)),
        ((("eth0", 0, "device"), FAST), (("eth0", 0, "device"), FAST), ("", 0, 0)),
    ],
)
def test_the_fastest_interface_that_all_have_is_named(first, second, interface) -> None:
    assert faster_interface([with_speeds(0, *first), with_speeds(1, *second)]) == interface


def test_no_interface_is_named_for_nodes_without_an_answer() -> None:
    assert faster_interface([NodeState(0, "n0", "10.0.0.1")]) == ("", 0, 0)
    assert faster_interface([]) == ("", 0, 0)
