"""The limits of a lab's specification, and the names and addresses that follow from it."""

from __future__ import annotations

import pytest

from clusterrun.lab.spec import LabSpec, Layout
from clusterrun.model.errors import BadInput


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "--nodes must not be 0"),
        ({"nodes": 100_000}, "--nodes must not be 100000 (that would take about 429.8 GiB of memory)"),
        ({"gpus": -1}, "--gpus must not be -1"),
        ({"cpus": 0}, "--cpus must not be 0"),
        ({"name": "Lab"}, "'Lab' cannot be the name of a lab"),
        ({"name": "my_lab"}, "'my_lab' cannot be the name of a lab"),
        ({"name": "-lab"}, "'-lab' cannot be the name of a lab"),
        ({"name": ""}, "'' cannot be the name of a lab"),
        ({"name": "../lab"}, "'../lab' cannot be the name of a lab"),
        ({"name": "x" * 33}, f"'{'x' * 33}' cannot be the name of a lab"),
        ({"slurm": "new"}, "--slurm new is not a release of Slurm"),
        ({"settings": (("Kill Wait", "3"),)}, "Kill Wait='3' is not a line of slurm.conf"),
        ({"settings": (("KillWait", "3\nx"),)}, "KillWait='3\\nx' is not a line of slurm.conf"),
    ],
)
def test_an_impossible_lab_is_refused_with_the_possible_ones(wrong: dict, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        LabSpec(**wrong)
    assert caught.value.seen == message
    assert caught.value.remedy


def test_hosts_have_names_and_addresses_in_order() -> None:
    layout = Layout(nodes=3, slot=7)
    assert {host.name: host.address for host in layout.hosts.values()} == {
        "ctl": "10.107.255.1",
        "login": "10.107.255.2",
        "n0001": "10.107.0.2",
        "n0002": "10.107.0.3",
        "n0003": "10.107.0.4",
    }
    assert (layout.node_range, Layout(1, 0).node_range) == ("n[0001-0003]", "n0001")


def test_no_two_hosts_share_an_address_or_a_link() -> None:
    hosts = Layout(nodes=12_000, slot=0).hosts.values()
    assert len({host.address for host in hosts}) == 12_002
    assert len({host.link for host in hosts} | {host.mac for host in hosts}) == 2 * 12_002
    assert Layout(nodes=12_000, slot=0).node_names[-1] == "n12000"
