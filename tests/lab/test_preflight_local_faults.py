"""A node's own check names the local fault of that node. No other node is blamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterrun.lab.lab import Lab
from tests.lab.test_slurm_runs import Site
from tests.lab_fixture import MakeLab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODES = 8
PROLOG = """#!/bin/sh
cat {folder}/$(hostname) 2>/dev/null
exit 0
"""
OTHER_TORCH = """
import os, sys
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
whole = sys.path[:]
sys.path[:] = [path for path in whole if os.path.abspath(path or ".") != here]
del sys.modules["torch"]
import torch as real
real.__version__ = "1.2.3"
sys.path[:] = whole
sys.modules["torch"] = real
"""
"""Found before the real torch on a node's path, it is the real one with another version."""


class Machines:
    """A lab whose nodes can have variables of their own, from a file for each: Slurm's task prolog."""

    def __init__(self, lab: Lab, folder: Path, variables: Path) -> None:
        self.lab, self.variables, self.folder = lab, variables, folder
        self.site = Site(lab, folder / "home", folder)

    def export(self, node: str, name: str, value: object) -> None:
        (self.variables / node).write_text(f"export {name}={value}\n")

    def check(self, nodes: int) -> tuple[int, dict[str, dict[str, str]], list[object]]:
        """Return the exit code, {node: {check: verdict}} of every node with a finding, and links with one.

        ``cpus`` is left out: the nodes share the processors of this machine, which other programs may use.
        """
        options = ("--nodes", str(nodes), "--gpus", "8", "--level", "quick")
        requested = (*options, "--preflight-budget", "170", "--json")
        result = self.site.run("check", *requested, limit=240)
        assert result.code in (0, 3), result.err
        report = json.loads(result.out)
        results = {
            name: {finding["check"]: finding["verdict"] for finding in node["findings"]}
            for name, node in report["nodes"].items()
        }
        for findings in results.values():
            findings.pop("cpus", None)
        results = {name: findings for name, findings in results.items() if findings}
        return result.code, results, report["links"]


@pytest.fixture(scope="module")
def one_lab(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Lab, Path]:
    variables = tmp_path_factory.mktemp("variables")
    prolog = tmp_path_factory.mktemp("prolog") / "prolog.sh"
    prolog.write_text(PROLOG.format(folder=variables))
    prolog.chmod(0o755)
    return make_lab(nodes=NODES, gpus=8, settings={"TaskProlog": str(prolog)}), variables


@pytest.fixture
def machines(one_lab: tuple[Lab, Path], tmp_path: Path) -> Iterator[Machines]:
    lab, variables = one_lab
    (tmp_path / "home").mkdir()
    yield Machines(lab, tmp_path, variables)
    lab.heal()
    for file in variables.iterdir():
        file.unlink()


def test_six_nodes_with_a_fault_of_their_own_are_each_named_for_it(machines: Machines) -> None:
    lab = machines.lab
    lab.fault("gpu", "n0002", count=7)
    lab.fault("gpu", "n0003", xid=48, ecc=1, index=3)  # the driver asks for a reset
    lab.fault("gpu", "n0004", ecc=5)
    lab.fault("read-only", "n0005", path=str(machines.site.home))
    lab.fault("disk-full", "n0006", path="/dev/shm")
    lab.fault("gpu", "n0007", throttle=True)
    assert machines.check(NODES) == (
        3,
        {
            "n0002": {"gpus": "fail"},
            "n0003": {"gpu-errors": "fail", "xid": "fail"},
            "n0004": {"gpu-errors": "fail"},
            "n0005": {"run-directory": "fail"},
            "n0006": {"shared-memory": "fail"},
            "n0007": {"clocks": "warn"},
        },
        [],
    )


def test_a_hung_driver_a_lost_gpu_another_torch_and_a_wrong_interface_are_each_named(
    machines: Machines, tmp_path: Path
) -> None:
    (tmp_path / "other" / "torch").mkdir(parents=True)
    (tmp_path / "other" / "torch" / "__init__.py").write_text(OTHER_TORCH)
    machines.lab.fault("gpu", "n0002", hang=True)
    machines.lab.fault("gpu", "n0003", xid=79, index=3)
    machines.export("n0004", "PYTHONPATH", tmp_path / "other")
    machines.export("n0005", "NCCL_SOCKET_IFNAME", "ens9")
    assert machines.check(6) == (
        3,
        {
            "n0002": {"gpus": "fail"},
            "n0003": {"gpus": "fail", "xid": "fail"},
            "n0004": {"torch": "fail"},
            "n0005": {"environment": "fail"},
        },
        [],
    )


def test_outliers_are_reported_and_no_node_is_unfit(machines: Machines) -> None:
    machines.lab.fault("gpu", "n0002", remap=1)
    machines.export("n0003", "NCCL_IB_TIMEOUT", 14)
    assert machines.check(4) == (0, {"n0002": {"gpu-errors": "warn"}, "n0003": {"environment": "warn"}}, [])
