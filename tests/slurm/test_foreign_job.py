"""A job of anybody, as scontrol and sacct tell it."""

from __future__ import annotations

from clusterrun.model.states import State
from clusterrun.slurm.foreign_job import ForeignJob, read_accounting, read_shown

# Slurm 22.05, lines that are not read left out.
SHOWN = """\
JobId=38 JobName=eval JobState=FAILED UserId=mallory(7)
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[0001-0002]
   Comment=clusterrun:20261125-232745-ygnq-mine:c3222c49d8a95e6f
   StdErr=/home/alice/my jobs/slurm-38.out
   StdOut=/home/alice/my jobs/slurm-38.out
   Power=


JobId=39 JobName=other
   JobState=PENDING Reason=Priority Dependency=(null)
"""


def test_a_job_is_read_as_scontrol_shows_it() -> None:
    assert read_shown("38", SHOWN) == ForeignJob(
        "38",
        "eval JobState=FAILED UserId=mallory(7)",
        "alice",
        "RUNNING",
        "n[0001-0002]",
        "",
        "/home/alice/my jobs/slurm-38.out",
        "clusterrun:20261125-232745-ygnq-mine:c3222c49d8a95e6f",
    )
    assert read_shown("38", "No jobs in the system\n") is None


def test_a_job_is_read_as_the_accounting_remembers_it() -> None:
    job = read_accounting("38", "38|alice|CANCELLED by 1000|n0001|a|b\n")
    assert job == ForeignJob("38", "a|b", "alice", "CANCELLED", "n0001")
    assert job is not None and job.state is State.CANCELLED
    assert read_accounting("38", "") is None
