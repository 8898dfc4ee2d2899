"""Names, clocks and interfaces: who is alone with what it thinks."""

from __future__ import annotations

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.session.consistency import (
    clocks,
    common_interface,
    faster_interface,
    interfaces,
    late_names,
    names,
)
from clusterrun.preflight.session.state import NodeState
from clusterrun.preflight.tasks import Interface, ListenAnswer

LIMITS = (1.0, 30.0)


def subject(node: int, mtu: int = 1500, interface: str = "eth0", more: tuple[str, ...] = ()) -> NodeState:
    entry = NodeState(node, f"n{node}", f"10.0.0.{node}")
    own = (Interface(interface, entry.address, mtu), *(Interface("ib0", address, 2044) for address in more))
    entry.listening = ListenAnswer((Interface("lo", "127.0.0.1", 65536), *own), (1,), 2, 0.0)
    return entry


def view(nodes: int, **wrong: str) -> dict[str, str]:
    return {f"n{node}": wrong.get(f"n{node}", f"10.0.0.{node}") for node in range(nodes)}


def judged(
    views: dict[int, dict[str, str]], nodes: int = 4, **more: NodeState
) -> set[tuple[int | None, Grade]]:
    subjects = {f"n{node}": subject(node) for node in range(nodes)} | more
    return {(entry.node, entry.finding.verdict) for entry in names(views, subjects)}


def test_right_names_are_no_finding():
    assert judged({node: view(4) for node in range(4)}) == set()


def test_an_address_on_another_interface_of_the_node_is_right():
    views = {node: view(4, n1="10.9.9.9") for node in range(4)}
    assert judged(views, n1=subject(1, more=("10.9.9.9",))) == set()


def test_one_viewer_with_a_wrong_line_is_named():
    views = {node: view(4) for node in range(4)}
    assert judged(views | {2: view(4, n1="127.0.1.1")}) == {(2, Grade.FAIL)}
    assert judged(views | {2: view(4, n1="")}) == {(2, Grade.WARN)}


def test_names_that_only_slurm_knows_are_no_finding():
    views = {node: {f"n{other}": "" for other in range(4)} for node in range(4)}
    assert judged(views) == set()


def test_ones_own_name_on_the_loopback_is_a_warning():
    views = {node: view(4) for node in range(4)}
    assert judged(views | {2: view(4, n2="127.0.1.1 10.0.0.2")}) == {(2, Grade.WARN)}


def test_the_owner_of_a_wrong_entry_is_named_where_most_see_it():
    views = {node: view(4, n3="10.9.9.9") for node in range(3)} | {3: view(4)}
    assert judged(views) == {(3, Grade.WARN)}


def test_of_two_nodes_the_one_that_sees_wrongly_is_named():
    assert judged({0: view(2, n1="127.0.1.1"), 1: view(2)}, nodes=2) == {(0, Grade.FAIL)}


def clock(node: int, offset: float, slack: float = 0.1) -> NodeState:
    entry = subject(node)
    entry.bound_clock(1000.0 + offset, 1000.0 - slack, 1000.0 + slack)
    return entry


def times(*offsets: float, slack: float = 0.1) -> list[tuple[int | None, Grade]]:
    return [
        (entry.node, entry.finding.verdict)
        for entry in clocks([clock(node, offset, slack) for node, offset in enumerate(offsets)], *LIMITS)
    ]


def test_a_clock_is_judged_against_the_median():
    assert times(0, 0.3, -0.2, 0.1) == []
    assert times(0, 0, 3.0, 0) == [(2, Grade.WARN)]
    assert times(0, 0, -90.0, 0) == [(2, Grade.FAIL)]
    assert times(90.0, 90.0, 0, 90.0) == [(2, Grade.FAIL)]


def test_what_the_way_to_and_fro_explains_is_no_finding():
    assert times(0, 0, 3.0, 0, slack=4.0) == []


def test_several_looks_at_a_clock_narrow_it_down():
    entry = clock(0, 5.0, slack=10.0)
    entry.bound_clock(1105.0, 1100.0, 1100.2)
    assert (round(entry.earliest, 6), round(entry.latest, 6)) == (4.8, 5.0)


def test_where_half_of_the_clocks_are_elsewhere_nobody_is_named():
    assert times(0, 0, 90.0, 90.0) == [(None, Grade.WARN)]
    assert times(0, 90.0) == [(None, Grade.WARN)]
    assert times(0) == []


def test_the_odd_mtu_is_named_and_no_side_of_an_even_split():
    nodes = [subject(node, mtu=9000) for node in range(4)]
    assert list(interfaces(nodes)) == []
    (entry,) = interfaces([*nodes, subject(4, mtu=1500)])
    assert (entry.node, entry.finding.verdict) == (4, Grade.WARN)
    (both,) = interfaces([subject(0, mtu=9000), subject(1)])
    assert both.node is None


def test_a_common_interface_is_one_that_all_use():
    assert common_interface([subject(0), subject(1)]) == "eth0"
    assert common_interface([subject(0), subject(1, interface="eno1")]) == ""
    assert common_interface([NodeState(0, "n0", "10.0.0.1")]) == ""


def with_speeds(node: int, *each: tuple[str, int, str]) -> NodeState:
    """Its first interface is the one in use."""
    entry = NodeState(node, f"n{node}", f"10.0.0.{node}")
    own = [
        Interface(name, f"10.{i}.0.{node}", 1500, speed, kind) for i, (name, speed, kind) in enumerate(each)
    ]
    entry.listening = ListenAnswer((Interface("lo", "127.0.0.1", 65536, 0, "loopback"), *own), (1,), 2, 0.0)
    return entry


SLOW, FAST = ("eth0", 1000, "device"), ("eth1", 100_000, "device")


@pytest.mark.parametrize(
    "first, second, found",
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
def test_the_fastest_interface_that_all_have_is_named(first, second, found):
    assert faster_interface([with_speeds(0, *first), with_speeds(1, *second)]) == found


def test_of_nodes_that_said_nothing_no_interface_is_named():
    assert faster_interface([NodeState(0, "n0", "10.0.0.1")]) == ("", 0, 0)
    assert faster_interface([]) == ("", 0, 0)


@pytest.mark.parametrize(
    ("naming", "text"),
    [
        ((0.0, 0.001, 0.4, 0.8), set()),
        ((0.0, 0.001, 4.0, 0.0), {2}),
        ((2.5, 0.001, 4.0, 0.0), {0, 2}),
        ((2.5, 2.5, 4.0, 0.0), {None}),
        ((5.0, 0.0), {0}),
        ((5.0,), {0}),
    ],
)
def test_who_waits_for_names_is_warned_of_and_where_most_do_all_together(naming, text):
    subjects = [subject(node) for node in range(len(naming))]
    for value, seconds in zip(subjects, naming, strict=True):
        value.resolve_seconds = seconds
    message = list(late_names(subjects))
    assert ({value.node for value in message}, len(message)) == (text, len(text))
    assert {value.finding.verdict for value in message} <= {Grade.WARN}
