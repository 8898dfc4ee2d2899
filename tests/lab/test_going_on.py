"""One run over several jobs on a real Slurm: shown, followed, waited for and cancelled as one."""

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
    """Two nodes that a job in the partition `urgent` takes from whoever has them, and ends his job."""
    lab = make_lab(nodes=2, gpus=2, preempt="cancel")
    yield lab
    lab.down()


@pytest.fixture
def here(crowded: Lab, tmp_path: Path) -> Iterator[Site]:
    result = site(crowded, tmp_path)
    (result.project / "lines.py").write_text(LINES)
    yield result
    crowded.exec(["scancel", "--user=root"])
    until(lambda: queue(result) == [])
    assert leftovers(crowded, 60.0) == []


def queue(here: Site) -> list[str]:
    """The ids of all jobs that have not ended."""
    return sorted(here.lab.exec(["squeue", "--noheader", "--format=%i"]).out.split(), key=int)


def take_the_nodes(here: Site) -> str:
    """A job with more right to them."""
    argv = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 600"]
    result = here.lab.exec(argv, cwd=str(here.project))
    assert result.code == 0, result.err
    return result.out.strip()


def submit(here: Site, *arguments: str) -> dict[str, Any]:
    return here.submit("--nodes", "2", "--preflight", "off", "--requeue-by", "chain", *arguments)


def trains(here: Site, run_id: str, attempt: int) -> bool:
    status = here.status(run_id)
    return (status["state"], status["phase"], status["attempt"]) == ("RUNNING", "training", attempt)


def waits(here: Site, run_id: str) -> bool:
    return bool(here.status(run_id)["state"] == "PENDING")


def test_a_preempted_run_of_a_chain_is_one_run_by_every_number(here: Site) -> None:
    answer = submit(here, "lines.py", "1")
    run_id, first = answer["run_id"], answer["job_id"]
    until(lambda: trains(here, run_id, 0))
    until(lambda: len(queue(here)) == 2)
    followed: list[Completed] = []
    follower = Thread(target=lambda: followed.append(here.run("logs", "-f", run_id, limit=400)))
    follower.start()
    urgent = take_the_nodes(here)
    until(lambda: waits(here, run_id), 120)
    between = here.status(run_id)
    assert (between["job_id"], between["phase"], between["ended_at"]) == (
        str(int(first) + 1),
        "queued",
        None,
    )
    assert here.status(first)["run_id"] == here.status(between["job_id"])["run_id"] == run_id
    here.lab.exec(["scancel", urgent])
    result = here.run("wait", "--json", run_id, limit=400)
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
    until(lambda: queue(here) == [])  # the third job of the chain is taken back


@pytest.mark.parametrize("phase", ["training", "between"])
def test_a_run_of_a_chain_that_is_cancelled_leaves_no_job_in_the_queue(here: Site, phase: str) -> None:
    answer = submit(here, "lines.py", "9")
    until(lambda: trains(here, answer["run_id"], 0))
    until(lambda: len(queue(here)) == 2)
    if phase == "between":
        urgent = take_the_nodes(here)
        until(lambda: waits(here, answer["run_id"]), 120)
        assert urgent in queue(here)
    result = here.run("cancel", answer["run_id"], limit=200)
    assert (result.code, result.out) == (0, f"{answer['run_id']} CANCELLED\n")
    remaining = [job for job in queue(here) if phase == "training" or job != urgent]
    until(lambda: not set(remaining) & set(queue(here)))  # of a job that ran Slurm clears the nodes
    states = here.lab.exec(["squeue", "--noheader", "--states=PENDING", "--format=%i"]).out.split()
    assert states == []
    assert here.status(answer["run_id"])["state"] == "CANCELLED"


def test_the_end_of_a_chain_stays_as_it_was_reported_while_slurm_does_not_answer(here: Site) -> None:
    answer = submit(here, "lines.py", "9")
    run_id, first = answer["run_id"], answer["job_id"]
    until(lambda: trains(here, run_id, 0))
    until(lambda: len(queue(here)) == 2)
    (following,) = set(queue(here)) - {first}
    here.lab.exec(["scancel", following])
    # The coordinator writes no end: only Slurm can tell that the run has ended.
    coordinators = [process.process for process in strangers(here.lab) if " coordinate " in process.command]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in coordinators:
            os.kill(process, number)
    until(lambda: here.status(run_id)["ended_at"] is not None)
    reported = here.status(run_id)
    here.lab.fault("freeze", "ctl", process="slurmctld")
    try:
        shutil.rmtree(here.home / "cache")
        assert here.status(run_id) == reported
        assert here.run("wait", run_id).code == 1
    finally:
        here.lab.heal()
