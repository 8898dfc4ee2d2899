"""Which node is at fault if names lead to wrong addresses, or are resolved slowly."""

from __future__ import annotations

import socket
import time

import pytest

from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.checks import names
from clusterrun.preflight.tasks import Target
from clusterrun.preflight.thresholds import SLOW_ANSWER_SECONDS
from tests.preflight.checks.values import FAIL, WARN, asked, blamed


def peers(count: int) -> tuple[Target, ...]:
    return tuple(Target(node, f"n{node}", f"10.0.0.{node}", (), 0) for node in range(count))


def judged(
    views: dict[int, dict[int, str]], count: int = 4, own: tuple[str, ...] = (), viewers: int | None = None
) -> dict[str, Grade]:
    """Judge what each viewer resolves otherwise than to the right address."""
    readings = {}
    for viewer in range(count if viewers is None else viewers):
        resolved = {f"n{node}": f"10.0.0.{node}" for node in range(count)}
        resolved.update((f"n{node}", address) for node, address in views.get(viewer, {}).items())
        readings[f"n{viewer}"] = {"resolved": resolved, "seconds": 0.0, "own": [*own]}
    return blamed(names, readings, asked(peers=peers(count)))


@pytest.mark.parametrize(
    ("views", "nodes"),
    [
        ({}, {}),
        ({2: {1: "127.0.1.1"}}, {"n2": FAIL}),
        ({2: {1: ""}}, {"n2": WARN}),
        (dict.fromkeys(range(4), dict.fromkeys(range(4), "")), {}),
        ({2: {2: "127.0.1.1 10.0.0.2"}}, {"n2": WARN}),
        ({key: {3: "10.9.9.9"} for key in range(3)}, {"n3": WARN}),
    ],
)
def test_a_wrong_name_is_the_fault_of_one_resolver_or_of_the_entry(views, nodes) -> None:
    assert judged(views) == nodes


@pytest.mark.parametrize(
    ("hosts", "addresses", "nodes"),
    [
        (("n0", "n1", "n2"), ("10.0.0.9", "", ""), {}),
        (("localhost", "n1", "n2"), ("127.0.0.1", "10.0.0.1", "10.0.0.2"), {"n0": WARN}),
        (("n0", "worker", "worker"), ("10.0.0.0", "10.0.0.1", "10.0.0.1"), {"n1": WARN, "n2": WARN}),
    ],
)
def test_a_host_name_that_leads_to_the_node_itself_or_that_two_nodes_have_is_named(
    hosts, addresses, nodes
) -> None:
    right = {f"n{node}": f"10.0.0.{node}" for node in range(3)}
    readings = {
        f"n{node}": {"resolved": {host: addresses[node], **right}, "seconds": 0.0, "own": [], "host": host}
        for node, host in enumerate(hosts)
    }
    assert blamed(names, readings, asked(peers=peers(3))) == nodes


def test_an_address_on_another_interface_of_the_node_is_right() -> None:
    assert judged({key: {1: "10.9.9.9"} for key in range(4)}, own=("10.9.9.9",)) == {}


def test_the_one_of_two_nodes_that_resolves_wrongly_is_named() -> None:
    assert judged({0: {1: "127.0.1.1"}}, count=2) == {"n0": FAIL}


@pytest.mark.parametrize(
    ("seconds", "nodes"),
    [
        ((0.0, 0.001, 0.4, 0.8), set()),
        ((0.0, 0.001, 4.0, 0.0), {"n2"}),
        ((2.5, 0.001, 4.0, 0.0), {"n0", "n2"}),
        ((2.5, 2.5, 4.0, 0.0), {""}),
        ((5.0, 0.0), {"n0"}),
        ((5.0,), {"n0"}),
    ],
)
def test_a_node_that_resolves_slowly_is_warned_of_and_most_nodes_together(seconds, nodes) -> None:
    readings = {f"n{node}": {"resolved": {}, "seconds": value} for node, value in enumerate(seconds)}
    assert blamed(names, readings) == dict.fromkeys(nodes, WARN)
    assert blamed(names, readings, asked(overloaded=tuple(readings))) == {}


def test_names_are_resolved_to_their_addresses() -> None:
    two_names = (Target(0, "localhost", "", (), 0), Target(1, "no.such.name.invalid", "", (), 0))
    reading = names.probe(asked(peers=two_names))
    assert "127.0.0.1" in reading["resolved"]["localhost"]
    assert reading["resolved"]["no.such.name.invalid"] == ""


def test_a_resolver_that_hangs_is_seen_by_the_seconds_for_a_name(monkeypatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(30.0) or [])
    monkeypatch.setattr(names, "DIAL_SECONDS", 1.0)
    reading = names.probe(asked(peers=peers(3)))
    assert (reading["resolved"], reading["seconds"] >= SLOW_ANSWER_SECONDS) == ({}, True)
