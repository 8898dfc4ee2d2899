"""NCCL's sockets get all interfaces that are as fast as the fastest, and that work between all nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.observations import InterfaceDials
from clusterrun.preflight.session.session import SessionOutcome
from clusterrun.preflight.tasks import (
    DialTask,
    GroupTask,
    Interface,
    ListenTask,
    LocalTask,
    ProbeReading,
    StartTorch,
)
from tests.preflight.simulated import Cluster, Faults, address, name, orders

RECORDED = json.loads((Path(__file__).parents[2] / "recorded" / "healthy" / "interfaces.json").read_text())
TWO = RECORDED[0]


class Machines(Cluster):
    """Nodes with these network interfaces. ``deaf``: (node, interface) that nobody reaches."""

    layout: dict[str, Any] = TWO
    deaf: set[tuple[int, str]] = set()
    ports: dict[str, dict[str, str]] = {}
    backend = "nccl"

    def answer(self, node: int, task: object) -> tuple[float, object]:
        if isinstance(task, DialTask) and task.interface:
            assert all(
                target.address == self.address_of(target.node, task.interface) for target in task.targets
            )
        delay, value = super().answer(node, task)
        if isinstance(task, ListenTask):
            entries = [
                Interface(interface, self.address_of(node, interface), 1500, speed, kind)
                for interface, _, speed, kind in self.layout["interfaces"]
            ]
            value = replace(value, interfaces=(Interface("lo", "127.0.0.1", 65536, 0, "loopback"), *entries))
        elif isinstance(task, StartTorch):
            value = replace(value, backend=self.backend, devices=1)
        elif isinstance(task, LocalTask) and self.ports:
            value = replace(
                value, readings=(*value.readings, ProbeReading("infiniband", json.dumps(self.ports)))
            )
        elif isinstance(task, DialTask) and task.interface:
            unreachable = task.interface in self.layout.get("unreachable", ())
            dialled = [
                replace(way, silent=(1,)) if unreachable or (way.node, task.interface) in self.deaf else way
                for way in value.dialled
            ]
            value = replace(value, dialled=tuple(dialled))
        return delay, value

    def address_of(self, node: int, interface: str) -> str:
        """Return an address of a node. Agents use that of the interface in use."""
        if interface == self.layout["used"]:
            return address(node)
        addresses = {entry[0]: entry[1] for entry in self.layout["interfaces"]}
        return str(addresses[interface]).format(node + 1)

    def run(self, arrived: list[tuple[int, int, GroupTask]], alone: bool) -> None:
        self.tested_over |= {task.interface for _, _, task in arrived}
        super().run(arrived, alone)

    @property
    def tested_over(self) -> set[str]:
        return self.__dict__.setdefault("_tested_over", set())

    @tested_over.setter
    def tested_over(self, interfaces: set[str]) -> None:
        self.__dict__["_tested_over"] = interfaces


def cluster_of(
    nodes: int, layout: dict[str, Any], environment: tuple[tuple[str, str], ...] = (), **more: Any
) -> Machines:
    requested = replace(orders(nodes), gpus_per_node=1, environment=environment)
    occasion = more.pop("occasion", {})
    cluster = Machines(requested, Faults(), **occasion)
    cluster.layout = layout
    for attribute, value in more.items():
        setattr(cluster, attribute, value)
    return cluster


def checked(nodes: int, layout: dict[str, Any], **more: Any) -> SessionOutcome:
    return cluster_of(nodes, layout, **more).outcome()


def sockets(outcome: SessionOutcome) -> str:
    return dict(outcome.environment).get("NCCL_SOCKET_IFNAME", "")


@pytest.mark.parametrize("layout", RECORDED, ids=lambda layout: layout["machine"])
@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_the_fastest_interfaces_that_work_are_tested_and_chosen(nodes: int, layout: dict[str, Any]) -> None:
    cluster = cluster_of(nodes, layout)
    outcome = cluster.outcome()
    names = ",".join(layout["chosen"])
    assert (outcome.fit, outcome.report.verdict) == (True, Grade.PASS)
    assert dict(outcome.environment) == {
        "GLOO_SOCKET_IFNAME": layout["used"],
        "NCCL_SOCKET_IFNAME": f"={names}",
    }
    assert cluster.tested_over == {names}
    notices = [notice for notice in outcome.report.notices if notice.startswith("NCCL's sockets use")]
    assert bool(notices) == (layout["chosen"] != [layout["used"]])


@pytest.mark.parametrize("node", [0, 2])
def test_an_interface_that_one_node_lacks_or_that_is_unreachable_is_left_out(node: int) -> None:
    outcome = checked(3, TWO, deaf={(node, "enP1p1s0f1")})
    assert (sockets(outcome), outcome.report.verdict) == ("=enP1p1s0f0", Grade.PASS)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"backend": "gloo"}, "=enP1p1s0f0"),
        ({"ports": {"mlx5_0/1": {"state": "4: ACTIVE", "rate": "100 Gb/sec"}}}, "=enP1p1s0f0"),
        ({"environment": (("NCCL_SOCKET_IFNAME", "bond0"),)}, ""),
    ],
)
def test_one_interface_suffices_without_sockets_and_the_users_choice_stays(more: Any, expected: str) -> None:
    cluster = cluster_of(3, TWO, **more)
    assert sockets(cluster.outcome()) == expected
    assert not cluster.machine._state.log.of(InterfaceDials)


def test_a_single_node_uses_one_interface() -> None:
    assert sockets(checked(1, TWO)) == "=enP1p1s0f0"


def test_the_check_between_two_attempts_keeps_the_interfaces() -> None:
    first = checked(4, TWO)
    again = checked(4, TWO, occasion={"suspects": [2], "after": first.report})
    assert sockets(first) == sockets(again) == "=enP1p1s0f0,enP1p1s0f1"
    assert name(2) in again.report.world
