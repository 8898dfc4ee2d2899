"""Tasks of an array as jobs of runs: which row speaks for which, and how they are ended."""

from __future__ import annotations

from clusterrun import system
from clusterrun.model.frozen import replace
from clusterrun.operations.job_matching import Jobs
from clusterrun.operations.run_files import RunFiles
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm_text.job_row import job_of, own_id
from tests.operations.values import RECORD, row

MARK = "clusterrun:20270115-080000-0000-lr:token"


def files(task: int, job_id: str = "") -> RunFiles:
    record = replace(
        RECORD,
        run_id=f"20270115-080000-0000-lr.{task}",
        spec=replace(RECORD.spec, name=f"lr.{task}"),
        name=f"lr.{task}",
        token=f"token_{task}",
        job_id=job_id,
        sweep="20270115-080000-0000-lr",
    )
    return RunFiles(record, None, None)


def test_each_array_run_is_known_by_its_own_task_and_waiting_ones_by_their_common_row() -> None:
    jobs = Jobs(
        [
            row("PENDING", job_id="41_[0,3-5%2]", comment=MARK, nodelist=""),
            row("RUNNING", job_id="41_1", comment=MARK, nodelist="n1"),
            row("COMPLETED", job_id="41_2", comment=MARK, nodelist="n2"),
        ]
    )
    job_by_task = {task: jobs.speaking(files(task)) for task in range(7)}
    assert {task: (job.row.job_id, job.row.word) for task, job in job_by_task.items() if job} == {
        0: ("41_0", "PENDING"),
        1: ("41_1", "RUNNING"),
        2: ("41_2", "COMPLETED"),
        3: ("41_3", "PENDING"),
        4: ("41_4", "PENDING"),
        5: ("41_5", "PENDING"),
    }


def test_the_successor_of_a_task_counts_after_the_tasks_end() -> None:
    jobs = Jobs(
        [
            row("TIMEOUT", job_id="41_1", comment=MARK),
            row("RUNNING", job_id="97", comment="clusterrun:20270115-080000-0000-lr.1:token_1"),
        ]
    )
    job_by_task = jobs.speaking(files(1, "41_1"))
    assert job_by_task and (job_by_task.row.job_id, job_by_task.own) == ("97", "41_1")


def test_number_and_name_identify_an_array_at_sites_without_comments() -> None:
    jobs = Jobs([row("PENDING", job_id="41_[1]", comment="", name="lr"), row(job_id="41_2", comment="")])
    job_by_task = [jobs.speaking(files(task, f"41_{task}")) for task in (1, 2)]
    assert [job.row.job_id if job else None for job in job_by_task] == ["41_1", None]


def test_tasks_of_an_array_are_ended_with_one_argument() -> None:
    commands = []

    def run(argv: tuple[str, ...], timeout: float, **_: object) -> system.Completed:
        commands.append(argv)
        return system.Completed(argv, 0, "", "", 0.0)

    SlurmClient({}, run).cancel(["41_0", "41_1", "41_2", "41_7", "17", "42_5"])
    assert commands == [("scancel", "41_[0-2,7]", "17", "42_5")]


def test_a_task_never_uses_the_number_of_its_whole_array() -> None:
    task = {
        "SLURM_JOB_ID": "41",
        "SLURM_ARRAY_JOB_ID": "41",
        "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_RESTART_COUNT": "2",
    }
    assert (job_of(task), own_id({"SLURM_JOB_ID": "5"}), own_id({})) == (("41_7", 2), "5", "")
