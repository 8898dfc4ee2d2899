"""Slurm's answers about a job are read. The lines were recorded from Slurm 22.05."""

from __future__ import annotations

import pytest

from clusterrun.coordinator.events import JobTold
from clusterrun.coordinator.slurm_job import SlurmJob, answer, question

BEGAN = 1795184835.0
JOB = SlurmJob("12", 0, BEGAN + 1.0)


def told(line: str, job: SlurmJob = JOB) -> JobTold:
    return answer(job, (line, ""))


@pytest.mark.parametrize(
    "line, means",
    [
        ("RUNNING|None|1795184835|1795188435|0|N/A|", JobTold("", 1795188435.0)),
        ("RUNNING|None|1795184835|NONE|0|N/A|", JobTold("", None)),
        ("COMPLETING|None|1795184835|1795184858|0|N/A|", JobTold("cancelled")),
        ("COMPLETING|TimeLimit|1795184835|1795184945|0|N/A|", JobTold("time-limit")),
        ("COMPLETING|None|1795184835|1795184859|0|1795184859|", JobTold("preemption")),
        ("COMPLETING|None|1795184889|NONE|1|1795184889|", JobTold("preemption", requeued=True)),
        ("COMPLETING|None|1795184889|NONE|1|N/A|", JobTold("requeue", requeued=True)),
        (
            "RUNNING|None|1795184835|1795184900|0|1795184840|",
            JobTold("preemption", 1795184900.0, in_grace=True),
        ),
        ("RUNNING|None|1795184835|NONE|0|1795184840|", JobTold("preemption", in_grace=True)),
        ("HIBERNATING|None|1795184835|1795188435|0|N/A|", JobTold("unknown")),
        ("", JobTold("unknown")),
        ("slurm_load_jobs error: Unable to contact slurm controller", JobTold("unknown")),
    ],
)
def test_why_and_when_a_job_is_ended(line: str, means: JobTold) -> None:
    assert told(line) == means


@pytest.mark.parametrize(
    "state", ["CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"]
)
def test_a_job_that_has_its_nodes_is_not_being_ended(state: str) -> None:
    means = JobTold("", 1795188435.0, halted=state in ("STOPPED", "SUSPENDED"))
    assert told(f"{state}|None|1795184835|1795188435|0|N/A|") == means


def test_restarts_are_counted_from_those_before_this_job() -> None:
    line = "COMPLETING|None|1795184889|1795184890|2|N/A|"
    assert told(line, SlurmJob("12", 2, BEGAN)) == JobTold("cancelled")
    assert told(line, SlurmJob("12", 1, BEGAN)) == JobTold("requeue", requeued=True)


@pytest.mark.parametrize("wrong", [3600.0, -3600.0])
def test_a_clock_that_is_an_hour_wrong_moves_no_end(wrong: float) -> None:
    job = SlurmJob("12", 0, BEGAN + wrong)
    assert told("RUNNING|None|1795184835|1795188435|0|N/A|", job) == JobTold("", 1795188435.0 + wrong)


def test_the_question_names_the_columns_that_the_answer_is_read_by() -> None:
    columns = "State:|,Reason:|,StartTime:|,EndTime:|,RestartCnt:|,PreemptTime:|"
    assert question(JOB) == ("squeue", "-h", "-t", "all", "-j", "12", "-O", columns)
