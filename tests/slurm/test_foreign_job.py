"""A job of anybody, as scontrol and sacct tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterrun.model.states import State
from clusterrun.slurm.foreign_job import ForeignJob, read_accounting, read_outputs, read_shown, read_steps

# Slurm 22.05, lines that are not read left out.
SHOWN = """\
JobId=38 JobName=eval JobState=FAILED UserId=mallory(7)
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[0001-0002]
   ExitCode=3:0
   Comment=clusterrun:20261125-232745-ygnq-mine:c3222c49d8a95e6f
   StdErr=/home/alice/my jobs/slurm-38.out
   StdOut=/home/alice/my jobs/./slurm-38.out
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
        "38",
        error_output="/home/alice/my jobs/slurm-38.out",
        exit_code="3:0",
    )
    assert read_shown("38", "No jobs in the system\n") is None


HETEROGENEOUS = """\
JobId=2 HetJobId=2 HetJobOffset=0 JobName=het
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]

JobId=3 HetJobId=2 HetJobOffset=1 JobName=het
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=PENDING Reason=None Dependency=(null)
   NodeList=(null)

JobId=4 HetJobId=2 HetJobOffset=2 JobName=het
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList=n7
"""


def test_a_heterogeneous_job_has_the_nodes_of_all_its_components() -> None:
    job = read_shown("2", HETEROGENEOUS)
    assert job and (job.number, job.nodelist, job.het_nodelists) == ("2", "n[1-2],n7", ("n[1-2]", "", "n7"))
    component = read_shown("3", HETEROGENEOUS.split("\n\n")[1])
    assert component and (component.number, component.het_leader) == ("3", "2")


WORDS = ("COMPLETED", "CANCELLED", "FAILED")
ARRAY = """\
JobId=41 ArrayJobId=41 ArrayTaskId=2-9 JobName=x
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=PENDING Reason=Resources Dependency=(null)

JobId=43 ArrayJobId=41 ArrayTaskId=1 JobName=x
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   NodeList=n0002

JobId=42 ArrayJobId=41 ArrayTaskId=0 JobName=JobState=RUNNING
   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A
   JobState=COMPLETED Reason=None Dependency=(null)
   NodeList=n0001
"""


def test_of_an_array_a_task_that_runs_is_shown_with_the_states_of_all() -> None:
    job = read_shown("41", ARRAY)
    assert job is not None and (job.job_id, job.number, job.nodelist) == ("41_1", "43", "n0002")
    assert job.tasks == (("41_0", "COMPLETED"), ("41_1", "RUNNING")) and job.running_tasks == ("41_1",)
    both = read_shown("41", ARRAY.replace("COMPLETED", "RUNNING"))
    assert both is not None and both.running_tasks == ("41_0", "41_1")


def test_of_an_array_that_has_ended_the_task_that_failed_is_shown() -> None:
    job = read_shown("41", ARRAY.replace("JobState=RUNNING Reason", "JobState=FAILED Reason"))
    assert job is not None and (job.job_id, job.number, job.word) == ("41_1", "43", "FAILED")
    rows = [f"41_{task}|alice|{word}|n1|1795713819|1795713899|0:0|x" for task, word in enumerate(WORDS)]
    job = read_accounting("41", "\n".join([*rows, "41_[3-9]|alice|PENDING||1795713819|Unknown|0:0|x"]))
    assert job is not None and (job.job_id, job.word) == ("41_2", "FAILED")
    assert job.tasks == tuple((f"41_{task}", word) for task, word in enumerate(WORDS))


def test_a_job_is_read_as_the_accounting_remembers_it() -> None:
    job = read_accounting("38", "38|alice|CANCELLED by 1000|n0001|1795713819|1795713899|0:15|a|b\n")
    times = {"submitted_at": 1795713819.0, "ended_at": 1795713899.0, "exit_code": "0:15"}
    assert job == ForeignJob("38", "a|b", "alice", "CANCELLED", "n0001", **times)
    assert job is not None and job.state is State.CANCELLED
    assert read_accounting("38", "") is None


@pytest.mark.parametrize(
    ("answer", "files"),
    [
        ("/w|logs/%x-%j.out|logs/%x-%j.err", ("/w/logs/my run-7.out", "/w/logs/my run-7.err")),
        ("/w|/out/%N-%4j|/dev/null", ("/out/*-7",)),
        ("/w|sbatch -o a.%j -N 2 job.sh", ("/w/a.7",)),
        ("/w|sbatch --output=a.out --error b.err job.sh", ("/w/a.out", "/w/b.err")),
        ("/w|sbatch job.sh", ("/w/slurm-7.out",)),
        ("/w|sbatch 'unbalanced", ("/w/slurm-7.out",)),
        ("", ()),
        ("|", ()),
    ],
)
def test_the_output_files_of_an_ended_job(answer: str, files: tuple[str, ...]) -> None:
    job = ForeignJob("7", "my run", "ada", "FAILED")
    assert read_outputs(job, answer) == files


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("srun -o fit.txt -e %x.%t python fit.py --output model", ("/w/fit.txt", "/w/my run.*")),
        ("/usr/bin/srun --label -o logs/fit-%j python fit.py", ("/w/logs/fit-7",)),
        ("srun -l python fit.py --output model", ()),
        ("sbatch -o fit.txt job.sh", ()),
    ],
)
def test_the_files_that_a_step_of_an_ended_job_wrote(line: str, files: tuple[str, ...]) -> None:
    job = ForeignJob("7", "my run", "ada", "FAILED")
    assert read_steps(job, f"/w|sbatch job.sh\n|\n|{line}\n") == files


def test_the_output_files_of_a_task_of_an_array() -> None:
    job = ForeignJob("41_3", "train", "ada", "FAILED", number="44")
    assert read_outputs(job, "/w|sbatch job.sh") == ("/w/slurm-41_3.out",)
    assert read_outputs(job, "/w|%j-%a|") == ("/w/44-3",)


def test_the_output_files_of_a_job_that_slurm_forgot_are_read_from_its_script(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --output=out/%x-%j.log\n#SBATCH -e err.%j\nsrun fit\n"
    )
    job = ForeignJob("44", "fit", "eve", "FAILED", number="44")
    files = (f"{tmp_path}/out/fit-44.log", f"{tmp_path}/err.44")
    assert read_outputs(job, f"{tmp_path}|sbatch --time 9 job.sh") == files
    assert read_outputs(job, f"{tmp_path}|sbatch -o mine job.sh") == (f"{tmp_path}/mine",)
