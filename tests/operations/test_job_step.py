"""Steps beside a job that clusterrun did not start: whose job it is, and why no step could be placed."""

from __future__ import annotations

import base64
import contextlib
import glob
import json
import os
import zlib
from typing import Any

import pytest

from clusterrun import system
from clusterrun.diagnosis.decide import Judgement
from clusterrun.diagnosis.evidence import ProcessSample, PythonStacks, RankSnapshot
from clusterrun.diagnosis.job_looks import JobLook, RankName, SeenRank
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict
from clusterrun.model.document import encode_set
from clusterrun.model.errors import BadInput, ClusterrunError, NoSuchRun
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunState
from clusterrun.model.states import Phase, State
from clusterrun.monitor.job_look import LINE, lines_of
from clusterrun.operations import diagnose_job as diagnosing
from clusterrun.operations import job_step
from clusterrun.operations.context import Context
from clusterrun.operations.diagnose_log import diagnose_ended_job
from clusterrun.operations.exec_in_job import ExecTarget, exec_beside_job
from clusterrun.operations.find_run import describing_foreign_jobs, find_run, find_run_or_job, other_job
from clusterrun.operations.job_step import (
    JobEnded,
    NotPlaced,
    StepAnswer,
    by_ssh,
    check_live,
    looks_in,
    refusal,
    step_argv,
)
from clusterrun.slurm.foreign_job import ForeignJob
from clusterrun.slurm.queries import JobRow
from tests.operations.values import RECORD

JOB = ForeignJob("7", "mine", "alice", "RUNNING", "n[1-3]", number="7")


@pytest.fixture(autouse=True)
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_step, "user_name", lambda: "alice")
    monkeypatch.setattr(job_step.os, "geteuid", lambda: 1000)


class Client:
    """Slurm, with one job, and the rows of this user."""

    def __init__(self, job: ForeignJob | None = JOB, rows: tuple[JobRow, ...] = ()) -> None:
        self.job, self._rows = job, rows

    def jobs(self) -> tuple[JobRow, ...]:
        return self._rows

    def step_options(self) -> tuple[str, ...]:
        return ("--cpu-bind=none", "--mpi=none", "--export=ALL", "--quiet")

    def why_not(self) -> str:
        return ""

    def foreign_job(self, job_id: str) -> ForeignJob | None:
        return self.job

    def shares_gpus(self) -> bool:
        return True

    def output_files(self, job: ForeignJob) -> tuple[str, ...]:
        return (job.output,)

    def step_files(self, job: ForeignJob) -> tuple[str, ...]:
        return (f"{glob.escape(os.path.dirname(job.output))}/fit*",)


def context(tmp_path: Any, job: ForeignJob | None = JOB) -> Context:
    environ = {"CLUSTERRUN_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    return Context(environ, client=Client(job))  # type: ignore[arg-type]


def test_a_job_of_mine_that_runs_has_its_nodes() -> None:
    assert check_live(JOB) == ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("changes", "user", "message"),
    [
        ({"user": "bob"}, "", "job 7 ('mine') is of bob, and you are alice"),
        ({"user": "bob"}, "bob", "job 7 ('mine') is of bob, and you are alice"),
        ({"user": "bob"}, "carol", "job 7 is of bob, not of carol"),
        ({"word": "PENDING", "nodelist": ""}, "", "job 7 ('mine') does not run now: it is PENDING"),
        (
            {"word": "PENDING", "reason": "Resources"},
            "",
            "job 7 ('mine') does not run now: it is PENDING (waits for nodes to become free)",
        ),
        (
            {"word": "SUSPENDED"},
            "",
            "job 7 ('mine') does not run now: it is SUSPENDED (suspended by Slurm: it keeps its nodes, and "
            "continues when it is resumed)",
        ),
        (
            {"tasks": (("7_1", "RUNNING"), ("7_2", "RUNNING"))},
            "",
            "7 is an array, and several of its tasks run",
        ),
    ],
)
def test_an_impossible_look_is_refused_with_the_reason(
    changes: dict[str, Any], user: str, message: str
) -> None:
    with pytest.raises(BadInput) as refused:
        check_live(replace(JOB, **changes), user)
    assert refused.value.seen == message


def test_root_may_look_at_a_job_of_the_user_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_step, "user_name", lambda: "root")
    monkeypatch.setattr(job_step.os, "geteuid", lambda: 0)
    assert check_live(JOB, "alice") == ("n1", "n2", "n3")
    with pytest.raises(BadInput):
        check_live(JOB)


def test_somebody_else_is_offered_no_command_that_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_step, "user_name", lambda: "bob")
    running = replace(JOB, output="/home/alice/out")
    for job in (running, replace(running, word="PENDING"), replace(running, comment="clusterrun:R:T")):
        with pytest.raises(NoSuchRun) as error, describing_foreign_jobs(context(tmp_path, job), "7"):
            raise NoSuchRun("there is no run '7'", "")
        assert error.value.remedy == "ask alice, or root; scontrol show job 7 shows its state"
    assert "scancel" not in other_job(context(tmp_path), "7", "R")
    several = replace(JOB, tasks=(("7_1", "RUNNING"), ("7_2", "RUNNING")))
    with pytest.raises(BadInput, match="is of alice"):
        check_live(several)
    monkeypatch.setattr(job_step.os, "geteuid", lambda: 0)
    with pytest.raises(BadInput) as refused:
        check_live(JOB)
    assert refused.value.remedy == "look at it: clusterrun diagnose --user alice 7"


def test_a_job_whose_nodes_slurm_clears_has_ended() -> None:
    with pytest.raises(JobEnded) as error:
        check_live(replace(JOB, word="COMPLETING"))
    assert "clusterrun diagnose 7" in error.value.remedy


@pytest.mark.parametrize(("me", "user"), [("bob", ""), ("bob", "alice"), ("alice", "bob")])
def test_the_output_of_an_ended_job_of_somebody_else_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, me: str, user: str
) -> None:
    monkeypatch.setattr(job_step, "user_name", lambda: me)
    (tmp_path / "out").write_text("fine\n")
    job = replace(JOB, word="FAILED", output=str(tmp_path / "out"))
    with pytest.raises(BadInput, match="of alice"):
        diagnose_ended_job(context(tmp_path), job, user=user)


@pytest.mark.parametrize(
    ("err", "kind", "message"),
    [
        ("srun: unrecognized option '--overlap'", NotPlaced, "this Slurm has no --overlap"),
        (
            "srun: error: Unable to create step for job 7: Requested nodes are busy",
            NotPlaced,
            "places no step",
        ),
        (
            "srun: error: Unable to create step for job 7: Memory required by task is not available",
            NotPlaced,
            "Memory",
        ),
        ("srun: error: Unable to create step: Access/permission denied", BadInput, "does not permit"),
        (
            "srun: error: Unable to create step for job 7: Job/step already completing",
            JobEnded,
            "ended meanwhile",
        ),
        ("srun: error: something new", NotPlaced, "failed: something new"),
    ],
)
def test_a_refused_step_is_reported_with_the_ssh_command(
    tmp_path: Any, err: str, kind: type[ClusterrunError], message: str
) -> None:
    error = refusal(context(tmp_path), JOB, StepAnswer("", err, 1), ("n1", "n2"))
    assert (type(error), message in error.seen) == (kind, True), error.seen
    if kind is NotPlaced:
        assert "for n in n1 n2; do" in error.remedy and "ssh $n" in error.remedy


def test_the_commands_for_ssh_name_some_nodes_of_many() -> None:
    commands = by_ssh([f"n{number}" for number in range(20)])
    assert "for n in n0 n1 n2 n3 n4 n5 n6 n7; do" in commands and "the first 8 of 20 nodes" in commands


@pytest.mark.parametrize("word", ["COMPLETED", "COMPLETING", "CANCELLED by 0"])
def test_a_job_that_ends_during_the_look_is_called_ended(word: str, tmp_path: Any) -> None:
    ended = context(tmp_path, replace(JOB, word=word))
    error = refusal(ended, JOB, StepAnswer("", "srun: error: n1: task 0: Terminated", 1), ("n1",))
    assert (error.seen, "clusterrun diagnose 7" in error.remedy) == ("job 7 has ended meanwhile", True)


def test_a_step_in_a_heterogeneous_job_has_a_part_for_each_component(tmp_path: Any) -> None:
    job = replace(JOB, nodelist="n[1-2],n7", het_nodelists=("n[1-2]", "", "n7"))
    argv = step_argv(context(tmp_path), job, ("n1", "n2", "n7"), ("look", "7"))
    arguments = [
        word for word in argv if word in (":", "look", "7") or word.startswith(("--het", "--nodelist"))
    ]
    first, last = ["--het-group=0", "--nodelist=n1,n2"], ["--het-group=2", "--nodelist=n7"]
    assert arguments == [*first, "look", "7", ":", *last, "look", "7"]
    assert ":" not in step_argv(context(tmp_path), job, ("n7",), ("look", "7"))


def test_the_world_of_a_rank_is_named_if_several_have_its_number(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosing, "ranks_of", lambda *_: {1: [("n2", 5), ("n3", 6)], 2: [("n3", 7)]})
    messages: list[str] = []
    for rank, node in ((2, "n3"), (1, "n2")):
        argv = exec_beside_job(context(tmp_path), JOB, ExecTarget(rank), ("true",), False, messages.append)
        assert f"--nodelist={node}" in argv
    assert messages == ["several worlds have a rank 1: process 5 on n2 is chosen, not process 6 on n3"]


def test_nodes_lines_are_put_together_however_they_are_mixed() -> None:
    looks = [
        JobLook(f"n{n}", 1.0, problems=(base64.b64encode(bytes(range(256)) * 20).decode(),)) for n in (1, 2)
    ]
    texts = [list(lines_of(look.node, look)) for look in looks]
    assert all(len(line) < LINE + 100 for lines in texts for line in lines)
    mixed = [line for pair in zip(*texts, strict=True) for line in pair]
    assert looks_in("\n".join(["noise", *mixed, "clusterrun-look n3 0 1 !"]), JobLook) == looks
    assert looks_in("\n".join(texts[0][:-1]), JobLook) == ([] if len(texts[0]) > 1 else looks[:1])


def test_nodes_without_an_answer_are_reported_with_sruns_message(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "\n".join(lines_of("n1", JobLook("n1", 1.0, processes=4)))
    err = "srun: error: Task launch for StepId=7.1 failed on node n3: Communication connection failure"

    def late(*arguments: Any, **options: Any) -> system.Completed:
        error = system.ProgramTimeout("srun gave no answer")
        error.out, error.err = out, err
        raise error

    monkeypatch.setattr(system, "run", late)
    diagnosis = diagnosing.diagnose_job(context(tmp_path), JOB, 40.0)
    assert "no answer from n2: within 21 s" in diagnosis.evidence
    assert any(
        line.startswith("no answer from n3: Task launch for StepId=7.1 failed") for line in diagnosis.evidence
    )


@pytest.mark.parametrize(
    ("is_certain", "later", "culprits"),
    [(False, 5.0, ()), (False, 0.0, ()), (True, 0.0, ()), (False, 5.0, (Culprit(1, "n1", "gone"),))],
)
def test_a_look_that_was_cut_short_names_a_longer_limit(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    is_certain: bool,
    later: float,
    culprits: tuple[Culprit, ...],
) -> None:
    """It may decide whether a rank comes. Ranks that make progress need none."""
    out = "\n".join(lines_of("n1", JobLook("n1", 1.0, processes=4)))
    monkeypatch.setattr(
        system, "run", lambda *arguments, **options: system.Completed(("srun",), 0, out, "", 1.0)
    )
    judgement = Judgement(Diagnosis(Verdict.NOTHING, "rank 3 may yet come", culprits), is_certain, later)
    monkeypatch.setattr(diagnosing, "diagnose_looks", lambda *arguments: judgement)
    remedy = diagnosing.diagnose_job(context(tmp_path), JOB, 1.0).remedy
    assert ("--limit 40s" in remedy) == (later > 0 and not culprits)


def test_a_limit_that_is_too_short_for_any_answer_is_named(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any, **options: Any) -> system.Completed:
        raise system.ProgramTimeout("srun gave no answer")

    monkeypatch.setattr(system, "run", late)
    for limit, is_named in ((1.0, True), (60.0, False)):
        with pytest.raises(NotPlaced) as error:
            diagnosing.diagnose_job(context(tmp_path), JOB, limit)
        assert ("--limit 40s" in error.value.remedy) == is_named


def test_a_failure_in_the_output_of_a_job_that_hangs_is_evidence(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, output=str(tmp_path / "slurm-7.out"), nodelist="n1")
    lines = (
        "Traceback (most recent call last):",
        '  File "fit.py", line 9, in <module>',
        "ValueError: no label",
    )
    (tmp_path / "slurm-7.out").write_text("\n".join(lines) + "\n")
    out = "\n".join(lines_of("n1", JobLook("n1", 1.0, processes=4)))
    answer = system.Completed(("srun",), 0, out, "", 1.0)
    monkeypatch.setattr(system, "run", lambda *arguments, **options: answer)
    diagnosis = diagnosing.diagnose_job(context(tmp_path), job, 40.0)
    assert "ValueError: no label, at fit.py:9" in diagnosis.evidence[0]


def test_the_remedy_for_a_rank_that_is_gone_is_that_of_the_failure_in_the_output(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, output=str(tmp_path / "slurm-7.out"), nodelist="n1")
    killed = "srun: error: n1: task 1: Out Of Memory"
    (tmp_path / "slurm-7.out").write_text(
        f"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n{killed}\n"
    )
    process = ProcessSample(8, "S", seconds=1.0, idle=60.0)
    stack = ("/torch/distributed/distributed_c10d.py:3 all_reduce", "/me/fit.py:9 <module>")
    snapshot = RankSnapshot(0, "n1", process, PythonStacks(stack))
    look = JobLook("n1", 1.0, (SeenRank(RankName("RANK", 0, 2), snapshot),), processes=4)
    answer = system.Completed(("srun",), 0, "\n".join(lines_of("n1", look)), "", 1.0)
    monkeypatch.setattr(system, "run", lambda *arguments, **options: answer)
    diagnosis = diagnosing.diagnose_job(context(tmp_path), job, 40.0)
    assert [culprit.rank for culprit in diagnosis.culprits] == [1]
    assert "--mem" in diagnosis.remedy
    assert "memory" in diagnosis.message


def test_an_error_in_the_output_of_a_job_whose_ranks_all_run_is_the_last_evidence(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, output=str(tmp_path / "slurm-7.out"), nodelist="n1")
    (tmp_path / "slurm-7.out").write_text(
        'Traceback (most recent call last):\n  File "plugins.py", line 9, in load\nImportError: no plugin\n'
    )
    process = ProcessSample(8, "T", seconds=1.0, idle=60.0)
    snapshot = RankSnapshot(0, "n1", process, PythonStacks(("/me/fit.py:9 <module>",)))
    look = JobLook("n1", 1.0, (SeenRank(RankName("RANK", 0, 1), snapshot),), processes=4)
    answer = system.Completed(("srun",), 0, "\n".join(lines_of("n1", look)), "", 1.0)
    monkeypatch.setattr(system, "run", lambda *arguments, **options: answer)
    evidence = diagnosing.diagnose_job(context(tmp_path), job, 40.0).evidence
    assert "failed first" not in str(evidence) and "ImportError: no plugin" in evidence[-1]


def test_ranks_that_called_a_collective_of_other_ranks_are_evidence(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, output=str(tmp_path / "slurm-7.out"), nodelist="n1")
    warning = "c10d.py:9: Running all_reduce on global rank {} which does not belong to the given group.\n"
    (tmp_path / "slurm-7.out").write_text("".join(map(warning.format, (2, 1, 2))))
    answer = system.Completed(
        ("srun",), 0, "\n".join(lines_of("n1", JobLook("n1", 1.0, processes=4))), "", 1.0
    )
    monkeypatch.setattr(system, "run", lambda *arguments, **options: answer)
    evidence = diagnosing.diagnose_job(context(tmp_path), job, 40.0).evidence
    assert "ranks 1-2 called all_reduce" in evidence[0]


@pytest.mark.parametrize(("warned", "culprits"), [((2, 1), [1, 2]), ((1, 3), [])])
def test_ranks_that_torch_did_not_let_into_the_call_of_all_others_are_the_culprits(
    warned: tuple[int, ...], culprits: list[int], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, output=str(tmp_path / "slurm-7.out"), nodelist="n1")
    warning = "c10d.py:9: Running all_reduce on global rank {} which does not belong to the given group.\n"
    (tmp_path / "slurm-7.out").write_text("".join(map(warning.format, warned)))
    c10d = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    ranks = []
    for rank, call in enumerate(("all_reduce", "barrier", "barrier", "all_reduce")):
        process = ProcessSample(8 + rank, "S", seconds=1.0, idle=60.0)
        stack = (f"{c10d}:9 {call}", f"/me/fit.py:9 {call}", "/me/fit.py:20 <module>")
        snapshot = RankSnapshot(rank, "n1", process, PythonStacks(stack), quiet=-1.0)
        ranks.append(SeenRank(RankName("RANK", rank, 4), snapshot))
    look = JobLook("n1", 1.0, tuple(ranks), processes=4)
    answer = system.Completed(("srun",), 0, "\n".join(lines_of("n1", look)), "", 1.0)
    monkeypatch.setattr(system, "run", lambda *arguments, **options: answer)
    diagnosis = diagnosing.diagnose_job(context(tmp_path), job, 40.0)
    assert [culprit.rank for culprit in diagnosis.culprits] == culprits


def test_a_look_that_no_node_answers_leaves_what_the_look_before_showed(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    c10d = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    process = ProcessSample(8, "S", seconds=1.0, idle=2.0)
    snapshot = RankSnapshot(0, "n1", process, PythonStacks((f"{c10d}:9 all_reduce", "/me/fit.py:9 <module>")))
    look = JobLook("n1", 1.0, (SeenRank(RankName("RANK", 0, 1), snapshot),), processes=4)
    first = system.Completed(("srun",), 0, "\n".join(lines_of("n1", look)), "", 1.0)
    answers = iter((first, system.Completed(("srun",), 1, "", "srun: error: it failed", 1.0)))
    monkeypatch.setattr(system, "run", lambda *arguments, **options: next(answers))
    diagnosis = diagnosing.diagnose_job(context(tmp_path), replace(JOB, nodelist="n1"), 40.0)
    assert (diagnosis.verdict, next(answers, None)) == (Verdict.NOTHING, None)


def test_a_later_look_that_fewer_nodes_answer_does_not_replace_a_fuller_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Judgement(Diagnosis(Verdict.NOTHING, "rank 1 may yet come"), certain=False, later=1.0)
    judgements = iter((judged, replace(judged, diagnosis=Diagnosis(Verdict.UNDETERMINED, "not enough seen"))))
    monkeypatch.setattr(diagnosing, "diagnose_looks", lambda *arguments: next(judgements))
    first, second = ("\n".join(lines_of(node, JobLook(node, 1.0, processes=4))) for node in ("n1", "n2"))
    outputs = iter((f"{first}\n{second}", first, ""))
    monkeypatch.setattr(
        system,
        "run",
        lambda *arguments, **options: system.Completed(("srun",), 0, next(outputs), "", 1.0),
    )
    diagnosis = diagnosing.diagnose_job(context(tmp_path), replace(JOB, nodelist="n[1-2]"), 40.0)
    assert diagnosis.message == "rank 1 may yet come"
    assert any("no answer from n2" in line for line in diagnosis.evidence)


def test_an_output_that_grows_during_the_looks_is_evidence(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = replace(JOB, output=str(tmp_path / "slurm-7.out"), nodelist="n1")

    def print_and_answer(*arguments: Any, **options: Any) -> system.Completed:
        with open(job.output, "a") as file:
            file.write("step 5\n")
        return system.Completed(
            arguments, 0, "\n".join(lines_of("n1", JobLook("n1", 1.0, processes=4))), "", 1.0
        )

    monkeypatch.setattr(system, "run", print_and_answer)
    diagnosis = diagnosing.diagnose_job(context(tmp_path), job, 40.0)
    assert any(line.startswith(f"{job.output} grew by 7 bytes") for line in diagnosis.evidence)


def test_a_word_means_a_run_or_else_a_job_that_clusterrun_did_not_start(tmp_path: Any) -> None:
    assert find_run_or_job(context(tmp_path), "7") == JOB


@pytest.mark.parametrize("word", ["last", "12x", "_0", "train"])
def test_a_word_without_a_number_is_no_job(tmp_path: Any, word: str) -> None:
    with pytest.raises(NoSuchRun) as error:
        find_run_or_job(context(tmp_path), word)
    assert "Slurm" not in error.value.seen


@pytest.mark.parametrize(
    ("job", "is_other"),
    [
        (JOB, True),
        (replace(JOB, word="PENDING"), True),
        (replace(JOB, comment="clusterrun:R2:T"), True),
        (replace(JOB, comment="clusterrun:R:T"), False),
        (replace(JOB, word="COMPLETED"), False),
    ],
)
def test_a_live_job_that_has_the_number_of_another_run_by_now_is_described(
    tmp_path: Any, job: ForeignJob, is_other: bool
) -> None:
    assert bool(other_job(context(tmp_path, job), "7", "R")) == is_other
    assert other_job(context(tmp_path, job), "R", "R") == ""


@pytest.mark.parametrize(("number", "tool"), [("7", "scontrol show job 7"), ("", "sacct -j 7")])
def test_the_state_of_an_ended_job_comes_from_what_remembers_it(
    tmp_path: Any, number: str, tool: str
) -> None:
    mine = context(tmp_path, replace(JOB, word="FAILED", number=number))
    with pytest.raises(NoSuchRun) as error, describing_foreign_jobs(mine, "7"):
        mine.store.find("7")
    assert tool in error.value.remedy


def row(job_id: str, name: str, word: str = "RUNNING", comment: str = "") -> JobRow:
    return JobRow(job_id, word, "", "n1", 1.0, None, name, comment)


@pytest.mark.parametrize(
    ("word", "rows", "named"),
    [
        (
            "last",
            (row("7", "mine"), row("8", "held", "PENDING"), row("9", "x", comment="clusterrun:R:T")),
            "",
        ),
        ("mine", (row("7", "mine"), row("8", "other")), ""),
        ("mine", (row("7", "mine", "FAILED"), row("8", "other")), ""),
        ("last", (row("7", "mine"), row("8_1", "other")), "7 ('mine'), 8_1 ('other')"),
        ("typo", (row("7", "mine"),), "7 ('mine')"),
    ],
)
def test_without_such_a_run_the_only_running_job_is_taken_and_several_are_named(
    tmp_path: Any, word: str, rows: tuple[JobRow, ...], named: str
) -> None:
    environ = {"CLUSTERRUN_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    mine = Context(environ, client=Client(JOB, rows))  # type: ignore[arg-type]
    notices: list[str] = []
    if named:
        with pytest.raises(NoSuchRun) as error:
            find_run_or_job(mine, word, notices.append)
        assert named in error.value.seen
    else:
        assert find_run_or_job(mine, word, notices.append) == JOB
    assert bool(notices) != bool(named)


@pytest.mark.parametrize(
    ("job", "ended_at", "elsewhere", "is_job"),
    [
        (JOB, None, "", False),
        (JOB, 2.0, "", True),
        (JOB, None, "other", True),
        (replace(JOB, word="COMPLETED"), 2.0, "", False),
        (replace(JOB, comment="clusterrun:R2:T"), 2.0, "", False),
    ],
)
def test_a_live_job_with_the_number_of_a_run_that_ended_or_is_on_another_cluster_is_taken(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    job: ForeignJob,
    ended_at: float | None,
    elsewhere: str,
    is_job: bool,
) -> None:
    monkeypatch.setattr(Context, "other_cluster", lambda *arguments: elsewhere)
    mine = context(tmp_path, job)
    state = RunState("R", 1, State.COMPLETED, Phase.ENDED, "", "n1", 7, 1.0, ended_at=ended_at)
    monkeypatch.setattr(mine.store, "find", lambda word: "R")
    monkeypatch.setattr(mine.store, "read", lambda run_id: RECORD)
    monkeypatch.setattr(mine.store, "state", lambda run_id: state)
    notices: list[str] = []
    assert find_run_or_job(mine, "7", notices.append) == (job if is_job else "R")
    assert bool(notices) == (not job.state.ended)


@pytest.mark.parametrize(("ended_at", "is_job"), [(None, False), (0.5, True), (2.0, False)])
def test_the_only_job_that_started_after_the_end_of_the_newest_run_is_the_last(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, ended_at: float | None, is_job: bool
) -> None:
    rows = (row("7", "mine"),)
    mine = Context({"CLUSTERRUN_HOME": str(tmp_path)}, client=Client(JOB, rows))  # type: ignore[arg-type]
    state = RunState("R", 1, State.COMPLETED, Phase.ENDED, "", "n1", 7, 1.0, ended_at=ended_at)
    monkeypatch.setattr(mine.store, "find", lambda word: "R")
    monkeypatch.setattr(mine.store, "read", lambda run_id: RECORD)
    monkeypatch.setattr(mine.store, "state", lambda run_id: state)
    notices: list[str] = []
    assert find_run_or_job(mine, "last", notices.append) == (JOB if is_job else "R")
    assert bool(notices) == is_job


@pytest.mark.parametrize(
    ("word", "job", "check_state", "is_job"),
    [
        ("7", JOB, State.COMPLETED, True),
        ("7", JOB, State.FAILED, True),
        ("7", replace(JOB, word="FAILED"), State.COMPLETED, True),
        ("7", replace(JOB, comment="clusterrun:R2:T"), State.COMPLETED, False),
        ("7", JOB, State.RUNNING, False),
        ("last", JOB, State.COMPLETED, True),
        ("last", JOB, State.FAILED, False),
        ("last", replace(JOB, word="COMPLETED"), State.COMPLETED, False),
    ],
)
def test_a_check_that_has_ended_does_not_stand_for_the_job_in_which_it_ran(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    job: ForeignJob,
    check_state: State,
    is_job: bool,
) -> None:
    mine = context(tmp_path, job)
    check = replace(RECORD, run_id="R", job_id="7", in_allocation=True, spec=replace(RECORD.spec, alone=True))
    ended_at = None if check_state is State.RUNNING else 2.0
    state = RunState("R", 1, check_state, Phase.ENDED, "", "n1", 7, 1.0, ended_at=ended_at)
    monkeypatch.setattr(mine.store, "find", lambda word: "R")
    monkeypatch.setattr(mine.store, "read", lambda run_id: check)
    monkeypatch.setattr(mine.store, "state", lambda run_id: state)
    assert find_run_or_job(mine, word) == (job if is_job else "R")
    # A report of the job's number is that of the check. Other commands on runs mean the job.
    assert find_run(mine, word) == "R"
    is_described = is_job and word != "last"
    raises = pytest.raises(NoSuchRun, match="'mine'") if is_described else contextlib.nullcontext()
    with raises, describing_foreign_jobs(mine, word):
        pass


def test_only_files_from_the_time_of_an_ended_job_are_read(tmp_path: Any) -> None:
    names = ("epoch_7.log", "fold_7.log", "rank0-7.log", "slurm-7.out")
    old, later, step, own = (tmp_path / name for name in names)
    for path, changed_at in ((old, 100.0), (later, 9000.0), (step, 2000.0), (own, 2000.0)):
        failed = "srun: error: n2: task 1: Exited with exit code 2\n"
        path.write_text(failed if path in (old, later) else "fine\n")
        os.utime(path, (changed_at, changed_at))
    job = replace(JOB, word="COMPLETED", output=str(own), submitted_at=1000.0, ended_at=2001.0)
    diagnosis = diagnose_ended_job(context(tmp_path), job)
    assert f"read: {own}, {step}" in diagnosis.evidence[-1]
    assert (diagnosis.verdict, diagnosis.remedy) == (Verdict.NOTHING, "")
    failed = diagnose_ended_job(context(tmp_path), replace(job, word="FAILED"))
    assert (failed.verdict, "clusterrun diagnose" in failed.remedy) == (Verdict.UNDETERMINED, False)


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("mpi-exit7-9.out", False),
        ("lr-7-9.out", False),
        ("step-7-1.txt", True),
        ("epoch7.log", True),
        ("mine-7-0.out", True),
        ("7_0_log.err", True),
        ("slurm-7.0.out", True),
        ("lr-9-7.out", True),
        ("lr-9_7.out", False),
        ("eval-7-rank3-n0002.log", True),
        ("lr-17.out", False),
    ],
)
def test_the_number_of_a_job_is_the_last_one_in_the_name_of_a_file_or_follows_its_name(
    tmp_path: Any, name: str, is_own: bool
) -> None:
    own = tmp_path / "out"
    own.write_text("fine\n")
    (tmp_path / name).write_text("srun: error: n2: task 1: Exited with exit code 2\n")
    diagnosis = diagnose_ended_job(context(tmp_path), replace(JOB, word="FAILED", output=str(own)))
    assert (name in diagnosis.evidence[-1]) is is_own


def test_the_files_that_the_steps_of_an_ended_job_wrote_are_read(tmp_path: Any) -> None:
    (tmp_path / "slurm-7.out").write_text("fine\n")
    (tmp_path / "fit_1").write_text("srun: error: n2: task 1: Exited with exit code 2\n")
    job = replace(JOB, word="FAILED", output=str(tmp_path / "slurm-7.out"))
    diagnosis = diagnose_ended_job(context(tmp_path), job)
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(1, "n2")]


@pytest.mark.parametrize("folder", ["", "logs"])
def test_the_output_of_an_ended_job_is_found_by_its_number_if_slurm_forgot_its_name(
    tmp_path: Any, folder: str
) -> None:
    written = tmp_path / folder / "train-7.out"
    written.parent.mkdir(exist_ok=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-7.txt").write_text("srun: error: n2: task 1: Exited with exit code 9\n")
    written.write_text("srun: error: n2: task 1: Exited with exit code 2\n")
    job = replace(JOB, word="FAILED", output=str(tmp_path / "slurm-7.out"))
    diagnosis = diagnose_ended_job(context(tmp_path), job)
    assert f"read: {written}" in diagnosis.evidence[-1] and "part-7" not in diagnosis.evidence[-1]
    assert diagnosis.verdict is Verdict.CRASHED


def test_a_look_is_one_document_that_every_client_reads() -> None:
    (line,) = lines_of("n1", JobLook("n1", 1.0))
    text = zlib.decompress(base64.b64decode(line.split(" ")[-1]))
    assert json.loads(text) == encode_set(JobLook("n1", 1.0)) == {"node": "n1", "clock": 1.0}
