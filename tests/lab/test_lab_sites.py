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


def state_of(site: Lab, job: str) -> str:
    return site.exec(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).out.strip()


@pytest.mark.parametrize(("mode", "then"), [("requeue", "PENDING"), ("cancel", "PREEMPTED")])
def test_a_job_in_urgent_takes_the_node_of_one_in_debug(make_lab: MakeLab, mode: str, then: str) -> None:
    site = make_lab(nodes=1, gpus=0, preempt=mode)
    low = site.exec(
        ["sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--wrap", "sleep 600"]
    ).out.strip()
    assert wait_for(lambda: state_of(site, low) == "RUNNING", 60)
    result = site.exec(["srun", "-p", "urgent", "--exclusive", "hostname"], timeout=60)
    assert (result.out, state_of(site, low)) == ("n0001\n", then)
    site.down()


@pytest.mark.slow
def test_with_accounting_sacct_answers(make_lab: MakeLab) -> None:
    site = make_lab(nodes=2, accounting=True)
    site.exec(["srun", "-N2", "-J", "counted", "true"])
    requested = ["sacct", "-n", "-X", "-P", "-o", "JobName,State,ExitCode"]
    assert wait_for(lambda: site.exec(requested).out.strip() == "counted|COMPLETED|0:0", 60, 0.2)
    site.down()


def test_without_accounting_sacct_says_that_there_is_none(lab: Lab) -> None:
    assert "accounting storage is disabled" in lab.exec(["sacct"]).err


def test_any_line_of_slurm_conf_can_be_set(make_lab: MakeLab) -> None:
    site = make_lab(nodes=1, gpus=0, settings={"KillWait": "33"})
    assert "33 sec" in site.exec(["sh", "-c", "scontrol show config | grep KillWait"]).out
    site.down()
