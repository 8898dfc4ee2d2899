"""Logs that hold several runs: the last one is judged, and the ranks of one run are no runs."""

from __future__ import annotations

from clusterrun.diagnosis.job_log import JobLog
from clusterrun.diagnosis.log_verdict import diagnosis_of
from clusterrun.diagnosis.verdict import Diagnosis, Verdict

HEAD = ["Loaded module: python3/3.9.1", "Loaded dependency [torch/2.1]: cuda/11.8", "seed 17"]


def failed(line: int, message: str, call: str = "main()") -> list[str]:
    return [
        "Traceback (most recent call last):",
        '  File "train.py", line 80, in <module>',
        f"    {call}",
        f'  File "train.py", line {line}, in main',
        "    step(batch)",
        message,
    ]


def diagnosed(*lines: str) -> tuple[JobLog, Diagnosis]:
    log = JobLog()
    log.begin_file()
    for line in lines:
        log.hear(line)
    return log, diagnosis_of(log)


def test_the_last_run_of_a_script_is_judged_and_earlier_ones_are_named() -> None:
    runs = [*HEAD, *failed(40, "KeyError: 'lr'"), *HEAD, *failed(44, "ValueError: no lines")]
    log, diagnosis = diagnosed(*runs)
    assert log.runs == 2 and "ValueError: no lines" in diagnosis.message
    assert any("KeyError: 'lr'" in line for line in diagnosis.evidence)


def test_arguments_in_the_first_lines_may_differ_between_runs() -> None:
    begins = ["Namespace(batch_size=1, context=True, data_list='one.txt', lr=0.1)", "creating model"]
    others = ["Namespace(batch_size=8, context=True, data_list='two.txt', warmup=7)", "creating model"]
    log, diagnosis = diagnosed(*begins, *failed(40, "KeyError: 'lr'"), *others, *failed(44, "OSError: gone"))
    assert log.runs == 2 and "OSError: gone" in diagnosis.message


def test_a_run_without_a_failure_after_one_that_failed_is_told_and_the_failure_named() -> None:
    _, diagnosis = diagnosed(*HEAD, *failed(40, "KeyError: 'lr'"), *HEAD, "epoch 3 loss 0.2", "results: 0.5")
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNDETERMINED, ())
    assert "2 runs shows no failure" in diagnosis.message and "KeyError: 'lr'" in diagnosis.message


def test_ranks_that_print_the_same_lines_are_one_run() -> None:
    log, _ = diagnosed(*HEAD, *HEAD, *failed(40, "KeyError: 'lr'"), *HEAD, *failed(40, "KeyError: 'lr'"))
    assert log.runs == 1


def test_a_line_of_a_late_rank_begins_no_run() -> None:
    log, diagnosis = diagnosed(
        *HEAD, *failed(40, "KeyError: 'lr'"), HEAD[1], *failed(44, "ValueError: no lines")
    )
    assert log.runs == 1 and "KeyError: 'lr'" in diagnosis.message


def test_calls_of_ranks_at_one_line_are_one_run() -> None:
    assert diagnosed(*failed(40, "KeyError: 'lr'"), *failed(44, "OSError: gone"))[0].runs == 1


def test_nohup_begins_a_run() -> None:
    log, diagnosis = diagnosed(
        "nohup: ignoring input", *failed(40, "KeyError: 'lr'"), "nohup: ignoring input"
    )
    assert log.runs == 2 and "shows no failure" in diagnosis.message


def test_jobs_with_other_numbers_are_other_runs() -> None:
    ended = "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2025-01-01T0{}:00:00{} ***"
    log, diagnosis = diagnosed(ended.format(7, 1, " DUE TO TIME LIMIT"), "loading", ended.format(8, 2, ""))
    assert log.runs == 2 and "cancelled" in diagnosis.message
    assert any("time limit" in line for line in diagnosis.evidence)


def test_a_restart_of_torchrun_is_one_more_attempt() -> None:
    begins = [
        "INFO:elastic.agent.server.api:[default] starting",
        "INFO:elastic.agent.server.api:[default] up",
    ]
    restart = "INFO:elastic.agent.server.api:[default] FAILED. 3/3 attempts left; will restart worker group"
    log, _ = diagnosed(*begins, *failed(40, "KeyError: 'lr'"), restart, *begins, *begins)
    assert log.runs == 2


def test_a_message_that_each_rank_prints_begins_no_run() -> None:
    message = [
        *("Could not override 'trainer.devicess'.", "To append to your config use +trainer.devicess=4"),
        *("Key 'devicess' is not in struct", "    full_key: trainer.devicess", ""),
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ]
    log, diagnosis = diagnosed(*message, *message, "srun: error: m4: tasks 0-1: Exited with exit code 1")
    assert log.runs == 1 and "Could not override" in diagnosis.message


def test_the_first_line_of_a_script_after_the_end_of_a_rank_begins_another_run() -> None:
    steps = [f"it {number}" for number in range(12)]
    error = [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/w/t.py", line 3',
        "[rank1]: KeyError: 'lr'",
    ]
    failed_run = [*steps, *error, "srun: error: a1: task 1: Exited with exit code 1"]
    starts = [f"=== start Sat Oct 11 0{hour}:00:00 on a{hour}" for hour in (1, 2)]
    log, diagnosis = diagnosed(
        starts[0], *failed_run, starts[1], "resume from it 8", *steps, "Training complete"
    )
    assert (log.runs, diagnosis.verdict) == (2, Verdict.NOTHING)
