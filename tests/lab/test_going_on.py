"""A run over several jobs on a real Slurm is shown, followed, waited for and cancelled as a single run."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from clusterrun.lab.lab import Lab
from clusterrun.system import Completed
from tests.lab.test_slurm_runs import Site, site, until
from tests.lab_fixture import MakeLab, leftovers, strangers

pytestmark = pytest.mark.lab

LINES = """
import os, sys, time
attempt = int(os.environ["CLUSTERRUN_ATTEMPT"])
print("attempt", attempt, "of", os.environ["RANK"], flush=True)
time.sleep(0.5 if attempt >= int(sys.argv[1]) else 600)
"""


@pytest.fixture(scope="module")
def crowded(make_lab: MakeLab) -> Iterator[Lab]:
    """Yield a lab of two nodes. A job in the partition `urgent` takes them from any other job and ends it."""
    lab = make_lab(nodes=2, gpus=2, preempt="cancel")
    yield lab
    lab.down()


@pytest.fixture
def crowded_site(crowded: Lab, tmp_path: Path) -> Iterator[Site]:
    result = site(crowded, tmp_path)
    (result.project / "lines.py").write_text(LINES)
    yield result
    crowded.exec(["scancel", "--user=root"])
    until(lambda: queue(result) == [])
    assert leftovers(crowded, 60.0) == []


def queue(crowded_site: Site) -> list[str]:
    """Return the ids of all jobs that have not ended."""
    return sorted(crowded_site.lab.exec(["squeue", "--noheader", "--format=%i"]).out.split(), key=int)


def take_the_nodes(crowded_site: Site) -> str:
    """Queue a job with a higher priority and return its id."""
    argv = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 600"]
    result = crowded_site.lab.exec(argv, cwd=str(crowded_site.project))
    assert result.code == 0, result.err
    return result.out.strip()


def submit(crowded_site: Site, *arguments: str) -> dict[str, Any]:
    return crowded_site.submit("--nodes", "2", "--preflight", "off", "--requeue-by", "chain", *arguments)


def trains(crowded_site: Site, run_id: str, attempt: int) -> bool:
    status = crowded_site.status(run_id)
    return (status["state"], status["phase"], status["attempt"]) == ("RUNNING", "training", attempt)


def waits(crowded_site: Site, run_id: str) -> bool:
    return bool(crowded_site.status(run_id)["state"] == "PENDING")


def test_a_preempted_chain_is_one_run_under_each_of_its_job_numbers(crowded_site: Site) -> None:
    answer = submit(crowded_site, "lines.py", "1")
    run_id, first = answer["run_id"], answer["job_id"]
    until(lambda: trains(crowded_site, run_id, 0))
    until(lambda: len(queue(crowded_site)) == 2)
    followed: list[Completed] = []
    follower = Thread(target=lambda: followed.append(crowded_site.run("logs", "-f", run_id, limit=400)))
    follower.start()
    urgent = take_the_nodes(crowded_site)
    until(lambda: waits(crowded_site, run_id), 120)
    between = crowded_site.status(run_id)
    assert (between["job_id"], between["phase"], between["ended_at"]) == (str(int(first) + 1), "queued", None)
    assert crowded_site.status(first)["run_id"] == crowded_site.status(between["job_id"])["run_id"] == run_id
    crowded_site.lab.exec(["scancel", urgent])
    result = crowded_site.run("wait", "--json", run_id, limit=400)
    (ended,) = json.loads(result.out)["runs"]
    assert (result.code, ended["state"], ended["job_id"]) == (0, "COMPLETED", between["job_id"])
    assert [(entry["attempt"], entry["job_id"]) for entry in ended["attempts"]] == [
        (0, first),
        (1, between["job_id"]),
    ]
    follower.join(300)
    assert followed[0].code == 0
    for line in ("attempt 0 of 0", "attempt 0 of 1", "attempt 1 of 0", "attempt 1 of 1"):
        assert line in followed[0].out
    until(lambda: queue(crowded_site) == [])  # the third job of the chain is taken back


@pytest.mark.parametrize("phase", ["training", "between"])
def test_a_run_of_a_chain_that_is_cancelled_leaves_no_job_in_the_queue(
    crowded_site: Site, phase: str
) -> None:
    answer = submit(crowded_site, "lines.py", "9")
    until(lambda: trains(crowded_site, answer["run_id"], 0))
    until(lambda: len(queue(crowded_site)) == 2)
    if phase == "between":
        urgent = take_the_nodes(crowded_site)
        until(lambda: waits(crowded_site, answer["run_id"]), 120)
        assert urgent in queue(crowded_site)
    result = crowded_site.run("cancel", answer["run_id"], limit=200)
    assert (result.code, result.out) == (0, f"{answer['run_id']} CANCELLED\n")
    remaining = [job for job in queue(crowded_site) if phase == "training" or job != urgent]
    until(lambda: not set(remaining) & set(queue(crowded_site)))  # of a job that ran Slurm clears the nodes
    states = crowded_site.lab.exec(["squeue", "--noheader", "--states=PENDING", "--format=%i"]).out.split()
    assert states == []
    assert crowded_site.status(answer["run_id"])["state"] == "CANCELLED"


def test_the_end_of_a_chain_stays_as_it_was_reported_while_slurm_does_not_answer(crowded_site: Site) -> None:
    answer = submit(crowded_site, "lines.py", "9")
    run_id, first = answer["run_id"], answer["job_id"]
    until(lambda: trains(crowded_site, run_id, 0))
    until(lambda: len(queue(crowded_site)) == 2)
    (following,) = set(queue(crowded_site)) - {first}
    crowded_site.lab.exec(["scancel", following])
    # The coordinator writes no end: only Slurm can tell that the run has ended.
    coordinators = [
        process.process for process in strangers(crowded_site.lab) if " coordinate " in process.command
    ]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in coordinators:
            os.kill(process, number)
    until(lambda: crowded_site.status(run_id)["ended_at"] is not None)
    reported = crowded_site.status(run_id)
    crowded_site.lab.fault("freeze", "ctl", process="slurmctld")
    try:
        shutil.rmtree(crowded_site.home / "cache")
        assert crowded_site.status(run_id) == reported
        assert crowded_site.run("wait", run_id).code == 1
    finally:
        crowded_site.lab.heal()
