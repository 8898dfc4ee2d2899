"""Sites differ: what Slurm leaves behind, who preempts whom, whether there is accounting."""

from __future__ import annotations

import pytest

from clusterrun.lab import needs
from clusterrun.lab.lab import Lab
from clusterrun.lab.namespaces import wait_for
from tests.lab_fixture import MakeLab, leftovers

pytestmark = pytest.mark.lab

LEAVE = """
setsid sleep 1001 >/dev/null 2>&1 &
sleep 1002 >/dev/null 2>&1 &
sleep 0.2
"""


def sleepers(site: Lab) -> set[str]:
    return {p.command for p in site.processes() if p.command.startswith("sleep 10")}


@pytest.mark.parametrize(
    ("proctrack", "remaining"),
    [("linuxproc", {"sleep 1001", "sleep 1002"}), ("pgid", {"sleep 1001"}), ("cgroup", set())],
)
def test_each_proctrack_leaves_its_own_processes_behind(
    make_lab: MakeLab, proctrack: str, remaining: set
) -> None:
    if proctrack == "cgroup" and not (needs.FREEZER.is_dir() or needs.unified_cgroups()):
        pytest.skip("no freezer of cgroup version 1 here, nor version 2 alone")
    site = make_lab(nodes=1, gpus=0, proctrack=proctrack)
    site.exec(["srun", "bash", "-c", LEAVE])
    assert wait_for(lambda: sleepers(site) == remaining, 60), sleepers(site)
    assert len(leftovers(site, 0.1)) == len(remaining)
    site.down()


def test_sacct_reports_that_accounting_is_absent(lab: Lab) -> None:
    assert "accounting storage is disabled" in lab.exec(["sacct"]).err
