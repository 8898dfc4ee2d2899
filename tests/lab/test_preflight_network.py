"""Faults of links and nodes on a real Slurm: the check names exactly those, and blames nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.lab.site import LabSite
from tests.lab.preflight_cases import CASES, Case, blame, node, play
from tests.lab.test_slurm_runs import Site, site
from tests.lab_fixture import MakeLab, make_anew

pytestmark = pytest.mark.lab

HERE = (
    "healthy, 5 nodes",
    "node dead before the start",
    "node dies during the check",
    "one-way cut",
    "one-way cut, to the coordinator's node",
    "a node loses what it sends",
    "slow network of a node",
    "slow link of a pair",
    "node frozen during the check",
    "own name is 127.0.1.1",
    "three of twelve",
)
"""The others are run by hand: python -m benchmarks.bench_preflight_faults."""

BUDGET = "3m"
"""More than it takes: a machine that is busy with other things is no fault of the nodes."""


@pytest.fixture(scope="module")
def twelve(make_lab: MakeLab) -> Iterator[Lab]:
    lab = make_lab(nodes=12, gpus=0)
    yield lab
    lab.down()


@pytest.fixture
def on_slurm(twelve: Lab, tmp_path: Path) -> Iterator[Site]:
    yield site(twelve, tmp_path)
    twelve.heal()
    if not twelve.wait_idle(10.0):  # the fault kept the word of a step's end from the controller
        make_anew(twelve)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in HERE], ids=lambda case: case.name)
def test_the_fault_is_named_exactly_and_nobody_else_is_blamed(on_slurm: Site, case: Case) -> None:
    result = play(case, on_slurm, BUDGET)
    assert case.exact(result), (result.status["reason"], result.said)


@pytest.mark.parametrize(
    ("rule", "ends", "message"),
    [
        (("OUTPUT", "!", "-o", "lo"), "-d", "it drops the connections itself that it begins"),
        (("INPUT", "!", "-i", "lo"), "-s", "no connection that n0002, n0003, n0004, n0005 begin reaches it"),
    ],
)
def test_a_firewall_on_the_first_node_is_named_with_its_direction(
    on_slurm: Site, rule: tuple[str, ...], ends: str, message: str
) -> None:
    """Between it and the other nodes; the controller it reaches, or no batch script would run there."""
    first, others = node(1), [node(number) for number in range(2, 6)]

    hosts = LabSite(on_slurm.lab.place, on_slurm.lab.state)  # another distribution may have no iptables

    def strike(lab: Lab, site: Site) -> None:
        for name in others:
            address = lab.exec(["getent", "hosts", name], host=first).out.split()[0]
            arguments = ("iptables", "-A", *rule, ends, address, "-p", "tcp", "--syn", "-j", "DROP")
            hosts.on_outside_root(first, *arguments)

    try:
        case = Case("firewall on the first node", 5, strike, blame([first]))
        result = play(case, on_slurm, BUDGET)
    finally:
        hosts.on_outside_root(first, "iptables", "-F")
    assert case.exact(result), (result.status["reason"], result.said)
    assert message in result.said


def test_a_limit_on_open_connections_is_named_as_that_if_the_job_would_exceed_it(on_slurm: Site) -> None:
    """Closed ports do not show it: a refused connection ends at once."""
    third = node(3)
    hosts = LabSite(on_slurm.lab.place, on_slurm.lab.state)
    rule = ("-p", "tcp", "--syn", "-m", "connlimit", "--connlimit-above", "15", "-j", "DROP")

    def strike(lab: Lab, site: Site) -> None:
        hosts.on_outside_root(third, "iptables", "-A", "INPUT", *rule)

    try:
        case = Case("limit", 4, strike, blame([third]), words=("--ranks-per-node", "4"))
        result = play(case, on_slurm, BUDGET)
    finally:
        hosts.on_outside_root(third, "iptables", "-F")
    assert case.exact(result), (result.status["reason"], result.said)
    assert "of 20 TCP connections at a time" in result.said


def test_a_firewall_that_rejects_the_port_of_torchrun_is_no_closed_port(on_slurm: Site) -> None:
    hosts = LabSite(on_slurm.lab.place, on_slurm.lab.state)
    rule = ("-p", "tcp", "--dport", "29500", "-j", "REJECT", "--reject-with", "tcp-reset")
    try:
        hosts.on_outside_root(node(2), "iptables", "-A", "INPUT", *rule)
        report = on_slurm.run("check", "--nodes", "2", "--gpus", "0", "--level", "quick").out
    finally:
        hosts.on_outside_root(node(2), "iptables", "-F")
    assert "TCP port 29500, on which torchrun meets, is rejected by a firewall" in report
    assert f"{node(1)} -> {node(2)}" in report and f"{node(2)} -> {node(1)}" not in report
