"""Logs in any dress: errors behind any mark, ends in any launcher's words, and ranks that no line proves."""

from __future__ import annotations

import json
import re

import pytest

from clusterrun.diagnosis.job_log import JobLog
from clusterrun.diagnosis.known_errors import ROWS
from clusterrun.diagnosis.log_remedies import foreign
from clusterrun.diagnosis.log_verdict import diagnosis_of
from clusterrun.diagnosis.verdict import Diagnosis, Verdict


def diagnosed(*lines: str) -> Diagnosis:
    log = JobLog()
    log.begin_file()
    for line in lines:
        log.hear(line)
    return diagnosis_of(log)


def ranks(diagnosis: Diagnosis) -> list[int]:
    return [culprit.rank for culprit in diagnosis.culprits]


EXCEPTION = [
    "Traceback (most recent call last):",
    '  File "/home/eve/fit.py", line 52, in <module>',
    "    main()",
    '  File "/home/eve/fit.py", line 31, in main',
    "    check(batch)",
    "ValueError: batch 7 is empty",
]
NATIVE = [
    "terminate called after throwing an instance of 'std::length_error'",
    "  what():  tile table overflows",
]
DUMP = [
    "Fatal Python error: Bus error",
    "",
    "Thread 0x00007f3a (most recent call first):",
    '  File "/home/eve/fit.py", line 31 in main',
]
MARKS = [
    "trainer-2  | ",
    "[pod/fit-0/main] ",
    "Nov 02 11:20:09 gx3 fit[77]: ",
    "2024-03-05T11:20:09.001Z stderr F ",
    "E0305 11:20:09.001 77 fit.py:9] ",
    "[1,mpirank:3,algo-2]<stderr>:",
    "[4]:",
    "ERROR:fit:",
    "> ",
    "    ",
    "\t",
]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (EXCEPTION, ["ValueError: batch 7 is empty", "fit.py:31"]),
        (NATIVE, ["tile table overflows"]),
        (DUMP, ["Bus error", "fit.py:31"]),
    ],
)
def test_any_mark_in_front_of_an_error_is_removed(mark: str, lines: list[str], facts: list[str]) -> None:
    message = diagnosed(*(mark + line for line in ("step 1 loss 3.1", *lines))).message
    assert [fact for fact in facts if fact not in message] == []


def escaped(lines: list[str]) -> list[str]:
    return ["worker failed: " + "\n".join(lines).replace("\n", "\\n")]


@pytest.mark.parametrize(
    "lines",
    [
        EXCEPTION[1:],
        [line.lstrip() for line in EXCEPTION],
        [f"{line}   " for line in EXCEPTION],
        [f"#033[34m{line}#033[0m" for line in EXCEPTION],
        [line.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;") for line in EXCEPTION],
        [line.replace("/home/eve/", "C:\\eve\\") for line in EXCEPTION],
        escaped(EXCEPTION),
        [json.dumps({"severity": "ERROR", "message": "\n".join(EXCEPTION)})],
    ],
    ids=[
        "cut at its start",
        "without indents",
        "padded",
        "colours",
        "of a page",
        "of Windows",
        "escaped",
        "JSON",
    ],
)
def test_a_traceback_is_read_in_any_form(lines: list[str]) -> None:
    message = diagnosed(*lines).message
    assert "ValueError: batch 7 is empty, at fit.py:31 (main)" in message


def test_an_error_in_a_library_has_the_place_in_the_library() -> None:
    lines = [EXCEPTION[0], '  File "/env/lib/python3.11/site-packages/dali/pipe.py", line 8, in build']
    assert "pipe.py:8 (build)" in diagnosed(*lines, "KeyError: 'crop'").message


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 3",
            "process 2",
        ),
        ("[rank: 2] Child process with PID 81 terminated with code 3. Stopping the others", "rank 2"),
        ("CRITICAL supervisor: worker for rank 2 exited with status 3", "rank 2"),
        ("ERROR: failed (exitcode: -9) local_rank: 2 (pid: 81) of binary: python", "SIGKILL"),
        ("trainer 2 was killed by signal 9", "SIGKILL"),
        ("sagemaker-training-toolkit ERROR    Encountered exit_code 3", "a process"),
    ],
)
def test_the_end_of_a_process_is_read_in_any_words(line: str, facts: str) -> None:
    diagnosis = diagnosed("starting", line)
    assert diagnosis.verdict is Verdict.CRASHED
    assert facts in diagnosis.message and ("code 3" in diagnosis.message or "SIGKILL" in diagnosis.message)


def test_a_program_that_announces_how_it_treats_a_signal_has_not_ended() -> None:
    line = "INFO scripts.py:1269 -- Subprocesses exit with SIGTERM will be treated as graceful."
    assert diagnosed("starting", line).verdict is Verdict.UNDETERMINED


def test_a_named_worker_counts_before_what_the_driver_says_of_it() -> None:
    diagnosis = diagnosed(
        "(fit pid=9) [rank: 1] Child process with PID 40 terminated with code 5. Stopping the others",
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. ID: 6f",
    )
    assert ranks(diagnosis) == [1] and "code 5" in diagnosis.message


def test_ranks_that_lost_their_peers_are_not_blamed_and_the_silent_one_is_named() -> None:
    lost = [
        *EXCEPTION[:5],
        "RuntimeError: [pair.cc:537] Read error [10.0.0.3]:29415: Connection reset by peer.",
    ]
    errors = [f"[rank{rank}]: {line}" for rank in (1, 3, 0) for line in lost]
    ends = [f"srun: error: n{rank // 2}: task {rank}: Exited with exit code 1" for rank in (3, 1, 0)]
    diagnosis = diagnosed("step 0 loss 1.0", *errors, *ends)
    assert diagnosis.verdict is Verdict.UNDETERMINED and ranks(diagnosis) == []
    assert "ranks 0-1 and 3 lost" in diagnosis.message and "rank 2 printed no error" in diagnosis.message


def test_tasks_of_srun_that_are_launchers_are_no_ranks() -> None:
    failed = "E0101 10:00:00.2 9 torch/distributed/elastic/multiprocessing/api.py:1] failed (exitcode: 4)"
    diagnosis = diagnosed("step 0 loss 1.0", failed, "srun: error: n7: task 1: Exited with exit code 1")
    assert 1 not in ranks(diagnosis)


def test_a_task_that_runs_torchrun_is_no_rank_if_torchrun_itself_failed() -> None:
    diagnosis = diagnosed(
        "Traceback (most recent call last):",
        '  File "/opt/env/torch/distributed/run.py", line 1019, in run',
        "    elastic_launch(",
        "torch.distributed.DistNetworkError: The client socket has timed out after 15000ms while trying to"
        " connect to (head9, 29602).",
        "srun: error: n0002: task 1: Exited with exit code 1",
    )
    assert ranks(diagnosis) in ([], [-1])
    assert "rank 1" not in diagnosis.message and "n0002" in diagnosis.message


def test_a_second_report_of_torchrun_names_the_errors_behind_the_first() -> None:
    def report(rank: int) -> tuple[str, ...]:
        return (
            *("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "=" * 60),
            *("Root Cause (first observed failure):", "[0]:", "  time      : 2026-01-01_10:00:00"),
            *(f"  host      : n{rank}", f"  rank      : {rank} (local_rank: 0)"),
            *("  exitcode  : 1 (pid: 54)", "  error_file: <N/A>", "=" * 60),
        )

    error = (*EXCEPTION[:3], "ModuleNotFoundError: No module named 'fused'")
    lost = "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/2"
    late = (*EXCEPTION[:5], lost)
    diagnosis = diagnosed(*error, *error, *report(2), *late, *report(0))
    assert ranks(diagnosis) == [2] and "fused" in diagnosis.message


def test_a_rendezvous_that_is_lost_after_a_rank_left_with_a_code_of_its_own_is_a_consequence() -> None:
    line = "=" * 60
    report = (
        *("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", line, "a.py FAILED"),
        *("Root Cause (first observed failure):", "[0]:", "  time      : 2026-01-01_10:00:00"),
        *("  host      : n1", "  rank      : 0 (local_rank: 0)", "  exitcode  : 3 (pid: 54)"),
        *("  error_file: <N/A>", "  traceback : To enable traceback see: the docs", line),
    )
    lost = "W0101 10:00:01.560000 230 dynamic_rendezvous.py:1346] The node 'n4_230_0' has failed to send a"
    lost += " keep-alive heartbeat to the rendezvous '12' due to an error of type RendezvousConnectionError."
    diagnosis = diagnosed("the settings are wrong", *report, lost)
    assert ranks(diagnosis) == [0] and "code 3" in diagnosis.message


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("WARNING:torch.distributed.elastic.agent:Received 1 death signal, shutting down workers", "SIGHUP"),
        ("srun: forcing job termination", "srun was interrupted"),
    ],
)
def test_an_end_from_outside_blames_no_rank(line: str, fact: str) -> None:
    cancelled = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***"
    diagnosis = diagnosed("step 8 loss 1.0", line, cancelled)
    assert fact in diagnosis.message and ranks(diagnosis) == []


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: Gloo job detected that one or more processes exited with non-zero status",
        "UnknownError: Horovod has been shut down. This was caused by an exception on one of the ranks",
        "RuntimeError: another rank has failed, leaving",
    ],
)
def test_a_message_about_another_rank_is_no_cause(text: str) -> None:
    diagnosis = diagnosed(*EXCEPTION[:-1], text)
    assert diagnosis.verdict is Verdict.UNDETERMINED and ranks(diagnosis) == []
    assert text in diagnosis.message


WAITED = "[E ProcessGroupNCCL.cpp:7] [Rank {}] Watchdog caught collective operation timeout: "
WAITED += "WorkNCCL(SeqNum=31, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600007 milliseconds"


def test_the_watchdog_of_an_unmarked_line_is_that_of_the_rank_in_it() -> None:
    diagnosis = diagnosed(*(WAITED.format(rank) for rank in (5, 2, 3)))
    assert ranks(diagnosis) == [] and "ranks 2-3 and 5 waited" in diagnosis.message.replace(", ", " and ")


def test_a_rank_is_not_absent_because_an_excerpt_lacks_its_lines() -> None:
    diagnosis = diagnosed("[rank1]:" + WAITED.format(1))
    assert ranks(diagnosis) == [] and "rank 1 waited" in diagnosis.message


@pytest.mark.parametrize(
    "line",
    [
        "[rank6]:[E ProcessGroupNCCL.cpp:9] [PG 1 Rank 6] Timeout at NCCL work: 44, last enqueued",
        "[rank6]:[E ProcessGroupNCCL.cpp:9] [PG 1 Rank 6] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=44, OpTy",
    ],
)
def test_a_time_out_whose_line_is_cut_still_names_who_waited(line: str) -> None:
    diagnosis = diagnosed(line)
    assert "rank 6 waited" in diagnosis.message and "44" in diagnosis.message
    assert ranks(diagnosis) == []


def test_ranks_of_a_report_that_is_cut_are_listed_and_none_is_first() -> None:
    failure = ["  time      : 2024-01-01_00:00:01", "  host      : gx3", "  rank      : {} (local_rank: 1)"]
    lines = [line.format(rank) for rank in (5, 6) for line in failure]
    diagnosis = diagnosed("elastic.multiprocessing.errors.ChildFailedError:", "Failures:", *lines)
    assert "ranks 5-6 on gx3" in diagnosis.message and ranks(diagnosis) == []


def test_an_unset_name_in_a_handler_is_not_the_first_error() -> None:
    handler = [*EXCEPTION[:-1], "NameError: name 'pool' is not defined"]
    assert "batch 7 is empty" in diagnosed(*handler, *EXCEPTION).message


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("fit: cannot open the table of shards", Verdict.UNDETERMINED),
        ("Number of trials: 1/1 (1 ERROR)", Verdict.UNDETERMINED),
        ("[E socket.cpp:7] [c10d] listening on port 70 is not permitted", Verdict.CRASHED),
        ("n1:7:7 [0] NCCL WARN the topology file has no root", Verdict.UNDETERMINED),
        ("floatingPointError: the loss is infinite at iteration=166", Verdict.CRASHED),
        ("HubError: 429 Too Many Requests for /glue/paths-info", Verdict.CRASHED),
    ],
)
def test_a_log_without_a_known_form_shows_what_looks_like_an_error(line: str, verdict: Verdict) -> None:
    diagnosis = diagnosed("step 4 loss 0.2", "saved", line, "bye")
    assert line in diagnosis.message
    assert diagnosis.verdict is verdict and ranks(diagnosis) == []


def test_the_message_below_the_name_of_an_exception_belongs_to_it() -> None:
    message = diagnosed("app.ConfigError: ", "      gpus: [0, 1]", "      the machine has: [0]").message
    assert "[0, 1]" in message and "has: [0]" in message


def test_an_error_with_much_output_behind_it_is_not_certain() -> None:
    output = [f"saved shard {name}" for name in "abcdefghijklmnop"]
    diagnosis = diagnosed("[E socket.cpp:7] [c10d] a port is not permitted", *output)
    assert diagnosis.verdict is Verdict.UNDETERMINED


@pytest.mark.parametrize(
    "line",
    [
        "Main process received SIGTERM, exiting",
        "Epoch 0:  31%|███    | 12/39 [1:07:35<2:33:02, 3.31s/it, loss=1.4][rank: 2] Received SIGTERM: 15",
        "*** SIGTERM received at time=1748300290 on cpu 8 ***",
        "read:  20% (117/558) [#      ] eta 28:34:54 \\Terminated",
    ],
)
def test_a_signal_from_outside_is_read_in_other_words_and_behind_a_bar(line: str) -> None:
    diagnosis = diagnosed("starting", line)
    assert diagnosis.verdict is Verdict.CRASHED and ranks(diagnosis) == []
    assert "SIGTERM" in diagnosis.message or "Terminated" in diagnosis.message


def test_an_error_behind_a_progress_bar_is_read() -> None:
    bar = "  0%|          | 0/5 [00:00<?, ?it/s]"
    diagnosis = diagnosed(f"{bar}ERROR: Unexpected segmentation fault encountered in worker.")
    assert diagnosis.message.endswith("ERROR: Unexpected segmentation fault encountered in worker.")


def test_what_ends_after_the_job_was_cancelled_is_no_cause() -> None:
    cancelled = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***"
    lost = "slurmstepd: error: container_p_join: open failed for /var/tmp/n1/5/.ns: No such file or directory"
    assert "cancelled" in diagnosed("step 8 loss 1.0", cancelled, lost).message


def test_scancel_of_a_step_is_no_signal_from_elsewhere() -> None:
    signal = "W0403 16:13:10.1 86 elastic/agent.py:723] Received 15 death signal, shutting down"
    cancelled = "slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***"
    assert "cancelled" in diagnosed("step 8 loss 1.0", signal, cancelled).message


def test_an_exception_that_python_ignores_at_exit_ends_no_labelled_rank() -> None:
    ignored = ("Exception ignored in atexit callback: <function save at 0x7f>", *EXCEPTION)
    diagnosis = diagnosed("0: step 8 loss 1.0", *(f"0: {line}" for line in ignored))
    assert diagnosis.verdict is Verdict.UNDETERMINED


def test_hydras_line_of_two_ranks_is_no_error() -> None:
    line = "Error executing job with overrides: ['gpus=2']"
    assert "batch 7 is empty" in diagnosed(line, line, *EXCEPTION).message


def test_the_hook_of_a_container_is_not_its_cause() -> None:
    lines = [
        "couldn't import",
        "    mount failed: /data is no directory",
        "    [ERROR] /etc/hooks/9.sh exited with return code 1",
    ]
    diagnosis = diagnosed(*(f"slurmstepd: error: pyxis: {line}" for line in lines))
    assert "/data is no directory" in diagnosis.message


def test_cut_lines_of_one_collective_are_no_different_calls() -> None:
    cut = "[rank{0}]:[E x.cpp:9] [Rank {0}] Watchdog caught collective operation timeout: "
    cut += "WorkNCCL(SeqNum=31, OpTy"
    lines = ["[rank1]:" + WAITED.format(1), cut.format(2), cut.format(4)]
    diagnosis = diagnosed(*lines)
    assert diagnosis.verdict is Verdict.NEVER_ARRIVED and ranks(diagnosis) == []
    assert "ranks 1-2 and 4 waited in ALLREDUCE" in diagnosis.message


def test_no_rank_is_absent_if_torch_reports_that_all_joined() -> None:
    report = "\t   - [0, 1, 2, 3] joined but didn't finish collective #31 (count from 1)"
    diagnosis = diagnosed("[rank1]:" + WAITED.format(1), report)
    assert diagnosis.verdict is Verdict.LINK and ranks(diagnosis) == []
    assert "[0, 1, 2, 3] joined" in diagnosis.message


def test_a_launcher_in_the_script_is_not_the_cause() -> None:
    called = "subprocess.CalledProcessError: Command '['mpirun', 'fit']' returned non-zero exit status 1."
    assert "tile.MapError: no map" in diagnosed("tile.MapError: no map", *EXCEPTION[:-1], called).message


def test_a_launcher_that_was_asked_to_end_blames_nobody() -> None:
    called = (
        "subprocess.CalledProcessError: Command '['/env/python', 'fit.py']' died with <Signals.SIGTERM: 15>."
    )
    diagnosis = diagnosed(EXCEPTION[0], *EXCEPTION[1:-1], called)
    assert "SIGTERM" in diagnosis.message and ranks(diagnosis) == []
    assert "kill" in diagnosis.remedy


def test_an_error_of_nccl_has_the_warning_before_it() -> None:
    warning = "n4:70:81 [0] misc/verbs.cc:18 NCCL WARN Call to ibv_reg_dm failed with error Not supported"
    failed = "RuntimeError: NCCL Error 2: unhandled system error"
    assert "Call to ibv_reg_dm" in diagnosed(warning, *EXCEPTION[:-1], failed).message


def test_the_handler_of_a_crash_names_its_process_and_node() -> None:
    lines = ["[gx3:991] *** Process received signal ***", "[gx3:991] Signal: Segmentation fault (11)"]
    diagnosis = diagnosed(*lines)
    assert [culprit.node for culprit in diagnosis.culprits] == ["gx3"]
    assert "process 991 was killed by signal 11" in diagnosis.message


def test_what_python_prints_of_a_process_that_ended_is_no_error() -> None:
    warning = (
        "resource_tracker.py:9: UserWarning: resource_tracker: '/m1': [Errno 2] No such file or directory"
    )
    diagnosis = diagnosed("CRITICAL fit: worker for rank 1 exited with status 3", warning)
    assert ranks(diagnosis) == [1] and "code 3" in diagnosis.message


def test_more_ranks_than_the_world_has_are_no_absent_rank() -> None:
    text = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: k:1 "
    )
    for came, verdict in ((6, Verdict.MISMATCH), (1, Verdict.NEVER_ARRIVED)):
        diagnosis = diagnosed(*EXCEPTION[:-1], f"{text}(world_size=3, worker_count={came}, timeout=0:30:00)")
        assert diagnosis.verdict is verdict


def test_the_file_of_an_error_is_named_if_no_line_names_its_rank() -> None:
    log = JobLog()
    for name, lines in (("/logs/a.out", ["step 1 loss 2"]), ("/logs/b.out", EXCEPTION)):
        log.begin_file(name=name)
        for line in lines:
            log.hear(line)
    assert "a process of b.out failed first" in diagnosis_of(log).message


def test_a_list_below_a_message_belongs_to_it() -> None:
    items = [f"/job:w/task:{number}" for number in range(1, 7)]
    message = diagnosed(*EXCEPTION[:-1], "tile.JoinError: these did not come:", *items).message
    assert [item for item in items if item not in message] == []


def test_lines_that_were_joined_are_read_one_by_one() -> None:
    mark = "2025-02-03 04:05:06,789 - fit - INFO - [rank4]: "
    diagnosis = diagnosed((" " * 20).join(mark + line for line in EXCEPTION[1:]))
    assert ranks(diagnosis) == [4] and "batch 7 is empty, at fit.py:31" in diagnosis.message


def test_the_node_of_a_lost_peer_of_mpi_is_named() -> None:
    rule = "-" * 74
    lines = ["An MPI communication peer process has unexpectedly disconnected.", "", "  Local host: n1"]
    diagnosis = diagnosed(rule, *lines, "  Peer host:  n2", rule)
    assert [culprit.node for culprit in diagnosis.culprits] == ["n2"]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("RuntimeError: Socket Timeout", Verdict.UNDETERMINED),
        ("RuntimeError: [third_party/gloo/tcp/pair.cc:7] connect [127.0.1.1]:9: Connection refused", None),
        ("RuntimeError: Connection timed out", Verdict.NEVER_ARRIVED),
    ],
)
def test_a_connection_that_was_not_made_is_no_error_of_the_program(
    text: str, verdict: Verdict | None
) -> None:
    diagnosis = diagnosed(*EXCEPTION[:-1], text)
    assert "program's own" not in diagnosis.remedy and diagnosis.verdict is (verdict or Verdict.UNDETERMINED)


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        ("TypeError: can only join tiles", True),
        ("AttributeError: 'Tile' object has no attribute 'w'", True),
        ("OSError: no scheduler at tcp://127.0.0.1:8000", False),
        ("RuntimeError: device acquire failed", False),
        ("AssertionError: ranks disagree", False),
    ],
)
def test_an_error_is_the_programs_own_only_if_no_other_cause_is_possible(text: str, is_own: bool) -> None:
    remedy = diagnosed(*EXCEPTION[:-1], text).remedy
    assert "fit.py:31" in remedy and ("program's own" in remedy) is is_own


@pytest.mark.parametrize(
    "text",
    [
        "Exception: TileProc initialization failed due to an exception in a background process.",
        "TileError: the run failed. Please inspect the messages above for a cause.",
    ],
)
def test_a_message_that_refers_to_another_one_is_no_cause(text: str) -> None:
    diagnosis = diagnosed(*EXCEPTION[:-1], text)
    assert diagnosis.verdict is Verdict.UNDETERMINED and text in diagnosis.message


def test_a_rank_that_waited_until_a_time_out_did_not_fail_first() -> None:
    message = diagnosed(*EXCEPTION[:-1], "RuntimeError: connect() timed out.").message
    assert "failed" not in message and "connect() timed out" in message


def test_lines_around_an_unknown_error_are_evidence() -> None:
    lines = ["device 5 cannot be opened", *EXCEPTION, "Reason: the last process failed to release it"]
    evidence = "".join(diagnosed(*lines).evidence)
    assert "device 5" in evidence and "failed to release it" in evidence


def test_garbage_that_a_failed_operation_left_is_not_the_first_error() -> None:
    failed = "[E ProcessGroupNCCL.cpp:9] Some NCCL operations have failed or timed out. Ending the process."
    diagnosis = diagnosed(*EXCEPTION[:-1], failed, "UnicodeDecodeError: invalid start byte")
    assert diagnosis.verdict is Verdict.NEVER_ARRIVED and "UnicodeDecodeError" in diagnosis.message


def test_an_error_of_nccl_after_a_time_out_is_its_consequence() -> None:
    failed = "RuntimeError: NCCL error in: x.cpp:9, unhandled cuda error"
    diagnosis = diagnosed(WAITED.format(2), *EXCEPTION[:-1], failed)
    assert diagnosis.verdict is Verdict.NEVER_ARRIVED and "rank 2" in diagnosis.message


def test_the_reason_below_the_line_of_a_library_belongs_to_its_message() -> None:
    lines = ["RuntimeError: NCCL error in: x.cpp:7, unhandled cuda error", "ncclUnhandledCudaError: failed."]
    assert "bad pitch" in diagnosed(*lines, "Last error:", "Cuda failure 'bad pitch'").message
    lines = [
        "RuntimeError: [ERROR] HCCL error in: x.ts:6",
        "[ERROR] (PID:7, Device:1, RankID:3) call failed.",
    ]
    diagnosis = diagnosed(*EXCEPTION[:-1], *lines, "EJ0009: Failed to start. Reason: the device is in use.")
    assert ranks(diagnosis) == [3] and "the device is in use" in diagnosis.message


def test_a_frame_shows_the_mark_in_front_of_lines() -> None:
    mark = "ERROR 04-11 22:28:52 [fit.py:8] "
    assert "batch 7 is empty, at fit.py:31" in diagnosed(*(mark + line for line in EXCEPTION[1:])).message


def test_the_section_of_a_rank_counts_if_the_head_of_the_report_is_cut() -> None:
    lines = ["  rank      : {0} (local_rank: {0})", "  exitcode  : {1} (pid: 7)", "{2}" * 20]
    text = "\n".join(lines)
    diagnosis = diagnosed(*text.format(1, 1, "---").split("\n"), *text.format(0, -11, "===").split("\n"))
    assert ranks(diagnosis) == [0] and "SIGSEGV" in diagnosis.message


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (["-" * 74, "prterun noticed that process rank 4 with PID 9 on node n7 exited on", "signal 11 (x).",
          "-" * 74], ["rank 4", "n7", "SIGSEGV"]),
        (["=   PID 66 RUNNING AT n7", "=   EXIT CODE: 9"], ["process 66", "n7", "code 9"]),
        (["Worker FitProcess pid 66 died, exit code: -15."], ["SIGTERM"]),
        (["SIGABRT(6), PID: 66, Thread 66:"], ["SIGABRT"]),
        (["> [n7:66:0:66] Caught signal 11 (Segmentation fault: address not mapped)"], ["n7", "SIGSEGV"]),
        (["submitit WARNING - Caught signal SIGHUP on n7: this job is preempted."], ["preempted"]),
    ],
    ids=["wrapped", "MPICH", "SIGTERM", "torch", "quoted", "submitit"],
)  # fmt: skip
def test_the_process_and_node_of_an_end_are_named(lines: list[str], facts: list[str]) -> None:
    message = diagnosed("starting", *lines).message
    assert [fact for fact in facts if fact not in message] == []


def test_a_message_of_mpi_is_not_what_a_rank_printed_before_its_end() -> None:
    rule = "-" * 74
    lines = [rule, "Primary job ended, but a process returned a non-zero error code; it was aborted.", rule]
    ended = [rule, "mpirun detected that a process exited:", "  Process name: [[1,1],2]", "  Exit code:    1"]
    message = diagnosed("cannot open tiles", *lines, *ended, rule).message
    assert "before that: cannot open tiles" in message


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("salloc: error: Node failure on n7", "n7"),
        (
            "slurmstepd: error: execve(): /var/spool/job9/slurm_script: No such file or directory",
            "a node lost",
        ),
        ("srun: error: Task launch for 7.0 failed on node n3: Socket timed out on send/recv", "n3"),
    ],
)
def test_what_slurm_says_of_a_node_is_no_error_of_the_command(line: str, fact: str) -> None:
    of_ended_step = "srun: error: Task launch for 7.0 failed on node n2: No such process"
    diagnosis = diagnosed("starting", of_ended_step, line)
    assert fact in diagnosis.message and "sinfo -R" in diagnosis.remedy


def test_a_rank_that_came_is_not_blamed_for_those_that_did_not() -> None:
    text = "ValueError: TP rank 1 has loaded, but there are other ranks that did not finish"
    assert diagnosed(*EXCEPTION[:-1], text).verdict is Verdict.UNDETERMINED


def test_a_traceback_without_its_exception_counts_before_an_error_that_was_skipped() -> None:
    skipped = ["WARNING: CUDA out of memory. Tried to allocate 9 GiB", " Skipping batch"]
    diagnosis = diagnosed(*skipped, *EXCEPTION[:-2])
    assert diagnosis.verdict is Verdict.CRASHED and "fit.py:31" in diagnosis.message


def test_a_traceback_of_a_launcher_blames_nobody() -> None:
    frame = '  File "/env/site-packages/torch/distributed/launcher/api.py", line 250, in launch_agent'
    diagnosis = diagnosed(EXCEPTION[0], frame, "    result = agent.run()")
    assert diagnosis.verdict is Verdict.UNDETERMINED and "of a launcher" in diagnosis.message


def test_the_place_of_an_error_is_not_the_line_that_started_its_process() -> None:
    spawned = [*EXCEPTION[:-1], "torch.multiprocessing.spawn.ProcessRaisedException: ", ""]
    child = ["-- Process 1 terminated with the following error:", EXCEPTION[0]]
    library = '  File "/env/site-packages/hub/http.py", line 8, in get'
    message = diagnosed(*spawned, *child, library, "hub.HttpError: 500 Server Error").message
    assert "in http.py:8" in message and "fit.py" not in message and "Process 1" in message


def test_the_settings_of_a_launcher_do_not_look_like_an_error() -> None:
    assert "no error in it" in diagnosed("rdzv_configs     : {'timeout': 900}").message
    assert "looks most" not in diagnosed("rdzv_configs     : {'timeout': 900}").message


LOST = "RuntimeError: gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:4958"


def raised(exception: str, mark: str = "", place: str = '"/home/eve/fit.py", line 31, in main') -> list[str]:
    return [mark + line for line in ("Traceback (most recent call last):", f"  File {place}", exception)]


def test_the_last_line_of_a_labelled_rank_that_exited_is_shown() -> None:
    others = raised(LOST, "0: [rank0]: ")
    end = "srun: error: n2: task 3: Exited with exit code 3"
    diagnosis = diagnosed("0: ready", "3: no tiles left", *others, end)
    assert ranks(diagnosis) == [3] and "last line of rank 3: no tiles left" in diagnosis.evidence


def test_a_rank_that_only_lost_its_peer_is_not_blamed_for_its_exit() -> None:
    log = JobLog()
    log.begin_file()
    for line in (*raised(LOST, "0: [rank0]: "), "srun: error: n1: task 0: Exited with exit code 1"):
        log.hear(line)
    assert diagnosis_of(log).culprits == ()
    log.job_ended("CANCELLED", "n[1-2]")
    assert "cancelled" in diagnosis_of(log).message and diagnosis_of(log).culprits == ()


def spawned(node: int, *message: str) -> list[str]:
    place = '"/env/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 211, in join'
    report = raised(f"torch.multiprocessing.spawn.{message[0]}", "", place)
    return [*report, *message[1:], "", f"srun: error: n{node}: task {node}: Exited with exit code 1"]


def test_the_launcher_of_another_node_does_not_hide_the_exception_of_a_spawned_process() -> None:
    title = "-- Process {} terminated with the following error:"
    first = spawned(1, "ProcessRaisedException: ", "", title.format(1), *EXCEPTION)
    second = spawned(0, "ProcessRaisedException: ", "", title.format(0), *raised(LOST))
    diagnosis = diagnosed(*first, *second)
    assert "batch 7 is empty" in diagnosis.message and "in Process 1" in diagnosis.message
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(-1, "n1")]


def test_a_task_that_spawned_processes_is_a_node_and_no_rank() -> None:
    first = spawned(1, "ProcessExitedException: process 1 terminated with exit code 3")
    title = "-- Process 0 terminated with the following error:"
    second = spawned(0, "ProcessRaisedException: ", "", title, *raised(LOST))
    diagnosis = diagnosed(*first, *second)
    assert "exit code 3" in diagnosis.message
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(-1, "n1")]


def test_a_node_that_mpirun_lost_has_failed() -> None:
    rule = "-" * 74
    sides = ("  HNP daemon   : [[7,0],0] on node n3", "  Remote daemon: [[7,0],1] on node n4")
    lost = (rule, "ORTE has lost communication with a remote daemon.", "", *sides, rule)
    diagnosis = diagnosed("step 4", *lost, *raised(LOST, "[rank0]: "))
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(-1, "n4")]


def test_ranks_that_ended_after_another_error_did_not_print_the_first_one() -> None:
    missing = raised("ModuleNotFoundError: No module named 'tiles'")
    waited = raised("torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients.")
    first_end = "srun: error: n2: tasks 2-3: Exited with exit code 1"
    last_end = "srun: error: n1: tasks 0-1: Exited with exit code 1"
    assert ranks(diagnosed(*missing, *missing, first_end, *waited, *waited, last_end)) == [2, 3]


def test_the_time_limit_of_another_scheduler_is_one() -> None:
    assert "time limit" in diagnosed("=>> PBS: job killed: walltime 259217 exceeded limit 259200").message


@pytest.mark.parametrize("python", ["/env/bin/python", "C:\\\\env\\\\python.exe"])
def test_a_parent_of_a_python_program_only_noticed_its_end(python: str) -> None:
    text = f"subprocess.CalledProcessError: Command '['{python}', 'fit.py']' returned non-zero exit status 1."
    diagnosis = diagnosed(text)
    assert "ended" in diagnosis.message and "what that process printed" in diagnosis.remedy


def test_a_rank_that_slurm_ended_after_another_one_noticed_a_failure_is_not_named() -> None:
    ends = ["srun: error: n1: task 0: Exited with exit code 1", "srun: Terminating StepId=7.0"]
    diagnosis = diagnosed(*raised(LOST, "0: [rank0]: "), *ends, "srun: error: n2: task 1: Terminated")
    assert diagnosis.verdict is Verdict.UNDETERMINED and "Connection closed by peer" in diagnosis.message


PEER_LOST = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.3]:8417."


def test_a_thread_that_failed_is_of_the_rank_that_noticed_it_not_of_the_first_that_ended() -> None:
    diagnosis = diagnosed(
        "Exception in thread reader:",
        *EXCEPTION,
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/home/eve/fit.py", line 60, in <module>',
        "[rank3]: _queue.Empty",
        f"[rank0]: {PEER_LOST}",
        "srun: error: n2: task 3: Exited with exit code 1",
        "srun: error: n1: task 0: Exited with exit code 1",
        "srun: error: n1: task 1: Exited with exit code 1",
    )
    assert ranks(diagnosis) == [3] and "batch 7 is empty" in diagnosis.message


def test_source_code_that_mentions_a_step_is_no_step_after_an_error() -> None:
    peers = [
        line
        for rank in (0, 1, 3)
        for line in (
            f"[rank{rank}]: Traceback (most recent call last):",
            f'[rank{rank}]:   File "/home/eve/fit.py", line 60, in <module>',
            f"[rank{rank}]:     if step > 4: dist.all_reduce(t)",
            f"[rank{rank}]: {PEER_LOST}",
        )
    ]
    diagnosis = diagnosed(
        *EXCEPTION,
        "[rank2]: Traceback (most recent call last):",
        '[rank2]:   File "/home/eve/fit.py", line 71, in <module>',
        "[rank2]: subprocess.CalledProcessError: Command 'shard' returned non-zero exit status 1.",
        *peers,
        "srun: error: n2: task 2: Exited with exit code 1",
    )
    assert ranks(diagnosis) == [2] and "batch 7 is empty" in diagnosis.message
    assert "fit.py:31" in diagnosis.message


def test_the_task_of_a_batch_script_that_failed_is_no_rank() -> None:
    diagnosis = diagnosed(
        "/var/spool/slurmd/job00015/slurm_script: line 8: module: command not found",
        "slurmstepd-n2: error: execve(): torchrun: No such file or directory",
        "srun: error: n2: task 1: Exited with exit code 2",
    )
    assert ranks(diagnosis) == [] and "module: command not found" in diagnosis.message
    assert "torchrun: No such file" in diagnosis.message


def test_a_node_that_cannot_report_its_end_is_named_instead_of_a_rank_that_did_not_come() -> None:
    waited = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete"
    diagnosis = diagnosed(
        *(f"[rank{rank}]: {waited}" for rank in range(4)),
        "srun: error: n0003: task 0: Exited with exit code 1",
        "slurmstepd-n0004: error: Failed to send MESSAGE_TASK_EXIT: Connection timed out",
    )
    assert [culprit.node for culprit in diagnosis.culprits] == ["n0004"] and ranks(diagnosis) == [-1]


@pytest.mark.parametrize(("has_end", "left"), [(False, True), (True, False)])
def test_a_silent_rank_of_srun_without_a_reported_end_may_have_left_with_code_0(
    has_end: bool, left: bool
) -> None:
    ended = [0, 1, 3] + [2] * has_end
    ends = [f"srun: error: n{rank // 2}: task {rank}: Exited with exit code 1" for rank in ended]
    diagnosis = diagnosed(*(f"[rank{rank}]: {PEER_LOST}" for rank in (0, 1, 3)), *ends)
    assert ("exit code 0" in diagnosis.message) is left


@pytest.mark.parametrize(("word", "verdict"), [("FAILED", Verdict.CRASHED), ("", Verdict.UNDETERMINED)])
def test_the_last_line_of_a_failed_job_without_ranks_is_the_command_that_ended_its_script(
    word: str, verdict: Verdict
) -> None:
    log = JobLog()
    log.begin_file()
    log.hear("cp: cannot stat '/data/train.tar': No such file or directory")
    log.job_ended(word, "n1")
    diagnosis = diagnosis_of(log)
    assert diagnosis.verdict is verdict and "/data/train.tar" in diagnosis.message


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", "time limit"),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "memory limit"),
        ("TERM_OWNER: job killed by owner.", "killed by owner"),
        ("=>> PBS: job killed: walltime 3630 exceeded limit 3600", "time limit"),
        ("=>> PBS: job killed: mem 9437184kb exceeded limit 8388608kb", "memory limit"),
        ("=>> PBS: job killed: ncpus 39.4 exceeded limit 32 (sum)", "ncpus 39.4"),
    ],
)
def test_the_end_of_a_job_by_another_scheduler_stands_above_the_code_of_its_script(
    line: str, fact: str
) -> None:
    diagnosis = diagnosed("User defined signal 2", line, "Exited with exit code 140.")
    assert fact in diagnosis.message and ranks(diagnosis) == []


def test_the_exit_code_that_lsf_reports_follows_from_an_exception() -> None:
    assert "batch 7 is empty" in diagnosed(*EXCEPTION, "Exited with exit code 1.").message
    assert "code 3" in diagnosed("loading", "Exited with exit code 3.").message


def test_a_lost_connection_of_ucx_or_ofi_is_no_disk_error() -> None:
    diagnosis = diagnosed(
        "[1579.8] [n1:56309:2] ucp_rkey.c:250  UCX  ERROR Failed to unpack remote key: Input/output error",
        "OFI poll failed (default nic=hsn0: Input/output error)",
        "srun: error: n1: task 0: Segmentation fault",
    )
    assert "Segmentation fault" in diagnosis.message and "disk" not in str(diagnosis)


@pytest.mark.parametrize("has_frame", [True, False])
def test_a_launcher_that_loses_the_rendezvous_store_only_noticed_an_end(has_frame: bool) -> None:
    """A store that was never reached raises the same exception."""
    function = "_call_store" if has_frame else "_create_tcp_store"
    place = "/usr/lib/python3/site-packages/torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
    diagnosis = diagnosed(
        "Traceback (most recent call last):",
        f'  File "{place}", line 116, in {function}',
        "    raise RendezvousConnectionError(",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.",
        "srun: error: n2: task 1: Exited with exit code 1",
    )
    # The node that waited may be the one that is well.
    assert ranks(diagnosis) == [] and ("on n2" in diagnosis.message) is not has_frame
    assert (diagnosis.verdict is Verdict.UNDETERMINED) is has_frame


def test_the_abort_of_a_watchdog_that_lost_a_peer_is_not_the_cause() -> None:
    diagnosis = diagnosed(
        "[E ProcessGroupNCCL.cpp:1182] [Rank 12] NCCL watchdog thread terminated with exception: NCCL error: "
        "remote process exited or there was a network error",
        "srun: error: n3: task 14: Aborted (core dumped)",
    )
    assert diagnosis.verdict is Verdict.UNDETERMINED and ranks(diagnosis) == []


def test_a_script_that_was_not_there_is_told_beside_the_package_that_it_would_have_brought() -> None:
    missing = "/var/spool/slurmd/job7/slurm_script: line 3: setup_env.sh: No such file or directory"
    module = [*EXCEPTION[:-1], "ModuleNotFoundError: No module named 'torch'"]
    diagnosis = diagnosed(missing, *module)
    assert "No module named 'torch'" in diagnosis.message
    assert any("setup_env.sh" in line for line in diagnosis.evidence)


def test_an_error_after_which_other_programs_ran_is_told_beside_the_last_one() -> None:
    other = [*EXCEPTION[:-1], "OSError: nothing to merge"]
    diagnosis = diagnosed(*EXCEPTION, *(f"part {number} is written" for number in range(40)), *other)
    assert "nothing to merge" in diagnosis.message
    assert any("batch 7 is empty" in line for line in diagnosis.evidence)


@pytest.mark.parametrize(
    "message",
    ["double free or corruption (!prev): 0x55", "free(): invalid pointer: 0x7f", "corrupted size vs"],
)
@pytest.mark.parametrize("front", ["", "*** Error in `/opt/env/bin/python': "])
def test_the_abort_of_the_c_library_is_the_end_of_its_process(front: str, message: str) -> None:
    diagnosis = diagnosed(front + message, "======= Backtrace: =========", "/lib64/libc.so.6(+0x81)[0x7f]")
    assert diagnosis.verdict is Verdict.CRASHED and "native library" in str(diagnosis.evidence)


def test_the_signal_of_a_process_in_any_words_is_named() -> None:
    assert "SIGABRT" in diagnosed("Error: process 1 terminated with signal SIGABRT").message


@pytest.mark.parametrize(
    "line",
    [
        'The application appears to have been direct launched using "srun",',
        "PMI2_Init failed to intialize.  Return code: 1",
        "*** An error occurred in MPI_Init_thread",
    ],
)
def test_mpi_that_could_not_begin_is_no_fault_of_a_rank(line: str) -> None:
    diagnosis = diagnosed("loading", line)
    assert (diagnosis.verdict, ranks(diagnosis)) == (Verdict.CRASHED, []) and "--mpi" in diagnosis.remedy


def test_the_parent_of_a_launcher_is_not_the_error_of_a_rank_in_its_report() -> None:
    line = "=" * 60
    diagnosis = diagnosed(
        *("Root Cause (first observed failure):", "[0]:", "  time      : 2026-01-01_10:00:00"),
        *("  host      : n1", "  rank      : 2 (local_rank: 2)", "  exitcode  : 1 (pid: 54)"),
        *("  error_file: <N/A>", "  traceback : To enable traceback see: the docs", line),
        *EXCEPTION[:-1],
        *("subprocess.CalledProcessError: Command 'accelerate", "launch", "a.py' returned exit status 1."),
    )
    assert ranks(diagnosis) == [2] and "CalledProcessError" not in diagnosis.message


def test_the_error_of_a_thread_is_not_that_of_a_rank_that_timed_out_in_a_collective() -> None:
    waits = [
        "Traceback (most recent call last):",
        '  File "/home/eve/fit.py", line 54, in main',
        "    dist.all_reduce(total)",
        "RuntimeError: [unbound_buffer.cc:129] Timed out waiting 20000ms for send operation to complete",
    ]
    diagnosis = diagnosed(
        "Exception in thread prefetch:",
        *EXCEPTION,
        *(f"[rank3]: {line}" for line in waits),
        *(f"[rank0]: {line}" for line in waits),
        "srun: error: n2: task 3: Exited with exit code 1",
        "srun: error: n1: task 0: Exited with exit code 1",
    )
    assert "ValueError: batch 7 is empty" in diagnosis.message and diagnosis.culprits == ()


def test_bars_that_other_ranks_complete_do_not_show_that_an_error_was_survived() -> None:
    diagnosis = diagnosed(
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB.",
        *["Loading modules: 100%|##########| 4/4 [00:15<00:00,  3.85s/it]"] * 3,
        *(f"srun: error: n{node}: task {node}: Exited with exit code 1" for node in (2, 1)),
    )
    assert diagnosis.verdict is Verdict.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "warning",
    [
        "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library "
        "'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file",
        "Warning: no fused kernels. The error was: ModuleNotFoundError(\"No module named 'apex_C'\")",
    ],
)
def test_a_library_that_a_program_does_without_is_not_the_failure(warning: str) -> None:
    diagnosis = diagnosed(f"2024-03-05 11:20:09.001: {warning}", *EXCEPTION)
    assert diagnosis.message.startswith("a process failed first: ValueError: batch 7 is empty")
    assert "library" not in diagnosis.remedy and "package" not in diagnosis.remedy


def test_processes_that_lost_their_parent_or_their_queue_did_not_fail_first() -> None:
    spawned = [
        "Traceback (most recent call last):",
        '  File "<string>", line 1, in <module>',
        '  File "/envs/a/lib/python3.10/multiprocessing/spawn.py", line 126, in _main',
        "    self = reduction.pickle.load(from_parent)",
        "_pickle.UnpicklingError: pickle data was truncated",
    ]
    assert "ValueError: batch 7 is empty" in diagnosed(*spawned, *EXCEPTION).message
    assert "ValueError: batch 7 is empty" in diagnosed("OSError: handle is closed", *EXCEPTION).message


def test_a_file_that_a_script_lacked_is_shown_if_the_log_has_no_other_error() -> None:
    missing = "/home/eve/run.sh: line 4: /tmp/venv/bin/activate: No such file or directory"
    diagnosis = diagnosed(missing, "loading the model", "step 1 loss 0.4", "step 2 loss 0.3")
    assert diagnosis.verdict is Verdict.UNDETERMINED and f"before that: {missing}" in diagnosis.evidence


IPYTHON = (
    "TypeError                                 Traceback (most recent call last)",
    "<ipython-input-27-03904d221969> in <module>",
    "----> 6 launch(main, num_gpus_per_machine=4)",
    "",
    "/venv/lib/python3.8/site-packages/torch/multiprocessing/spawn.py in spawn(fn, args, nprocs)",
    "--> 200     return start_processes(fn, args, nprocs)",
)


def test_the_header_of_ipython_names_the_exception_of_a_traceback_that_is_cut_off() -> None:
    diagnosis = diagnosed(*IPYTHON)
    assert diagnosis.verdict is Verdict.CRASHED and "TypeError" in diagnosis.message
    whole = diagnosed(*IPYTHON, "", "TypeError: cannot pickle '_thread.lock' object")
    assert "cannot pickle '_thread.lock' object" in whole.message


STEPS = [f"step {step} loss 0.4" for step in range(1, 6)]
IGNORED = "Exception ignored in atexit callback: <function save at 0x7f>"
MISSING = "[Errno 2] No such file or directory: 'a.tmp'"
NOTHING_ENDED = (
    ["lexer - ERROR - no room for the index", *EXCEPTION, *["words indexed"] * 6, "scores saved"],
    [f"WARNING 03-05 [load.py:9] {line}" for line in EXCEPTION],
    [*EXCEPTION, *STEPS, *EXCEPTION, "one more sample"],
    [IGNORED, *EXCEPTION[:3], IGNORED, f"FileNotFoundError: {EXCEPTION[0]}", EXCEPTION[1], MISSING]
    + [*EXCEPTION[2:5], f"FileNotFoundError: {MISSING}"],
    [*STEPS, "0: W0305 11:20:09.001 77 dynamic_rendezvous.py:12] The node 'gx3' has failed to shutdown it"]
    + [f"0: {line}" for line in (IGNORED, *EXCEPTION)],
    [f"/venv/tracker.py:237: UserWarning: '/loky-7': {MISSING}"],
)


@pytest.mark.parametrize("lines", NOTHING_ENDED)
def test_an_error_that_a_program_handles_is_not_the_failure(lines: list[str]) -> None:
    assert diagnosed(*lines).verdict is Verdict.UNDETERMINED


def test_a_handled_error_is_the_failure_if_a_process_then_exits_with_an_unnamed_code() -> None:
    lines = ["lexer - ERROR - no room for the index", *EXCEPTION, *["words indexed"] * 6]
    assert "ValueError: batch 7 is empty" in diagnosed(*lines, "Exited with exit code 1").message


MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective: "
    "CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, TensorShape=[{}], TensorDtypes=Half{options})"
    ", but Rank {} is running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE, "
    "TensorShape=[{}], TensorDtypes=Half{options})."
)
OPTIONS = (
    ", TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda, layout=Strided (default), "
    "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
)


def test_both_sides_of_a_mismatch_are_shown_and_neither_is_blamed() -> None:
    text = MISMATCH.format(3, 512, 0, 640, options=OPTIONS)
    diagnosis = diagnosed(*(f"[rank3]: {line}" for line in (*EXCEPTION[:-1], text)))
    assert diagnosis.verdict is Verdict.MISMATCH and diagnosis.culprits == ()
    assert "ranks 0 and 3" in diagnosis.message and "512" in diagnosis.message and "640" in diagnosis.message


def test_ranks_that_share_a_gpu_are_the_culprits_of_every_rank_that_reports_it() -> None:
    text = "DistBackendError: Last error: Duplicate GPU detected : rank 1 and rank 4 both on CUDA device 10"
    assert ranks(diagnosed(f"[rank2]: {text}")) == [1, 4]


def report(rank: int, code: int, signal: str) -> list[str]:
    return [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2024-03-05_11:20:09",
        "  host      : gx3",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 77)",
        f"  traceback : Signal {signal} received by PID 77",
        "=====================",
    ]


def test_the_last_line_of_a_table_is_no_error_of_another_rank() -> None:
    diagnosis = diagnosed(*(f"0: {line}" for line in report(1, -7, "7 (SIGBUS)")))
    assert ranks(diagnosis) == [1] and "SIGBUS" in diagnosis.message and "traceback" not in diagnosis.message


def test_the_table_decides_between_two_ranks_that_aborted() -> None:
    lines = ["[rank0]:terminate called without an active exception", "[rank0]:Fatal Python error: Aborted"]
    diagnosis = diagnosed(*lines, *report(1, -6, "6 (SIGABRT)"))
    assert ranks(diagnosis) == [1] and diagnosis.culprits[0].node == "gx3"


def test_a_configuration_below_the_line_of_hydra_is_no_error() -> None:
    announced = "Error executing job with overrides: ['lr=1']"
    diagnosis = diagnosed(announced, "{'data': {'on_error': 'raise', 'size': 3}}", *EXCEPTION)
    assert "failed first: ValueError: batch 7 is empty" in diagnosis.message


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("SignalException: Process 77 got signal: 2", "SIGINT"),
        (
            "W0305 11:20:09.001 7 api.py:868] Unable to shutdown process 7 via Signals.SIGHUP, exiting",
            "SIGHUP",
        ),
    ],
)
def test_a_signal_of_a_terminal_is_explained(line: str, name: str) -> None:
    diagnosis = diagnosed(line)
    assert name in diagnosis.message and "does not say why" not in diagnosis.message
    assert "Ctrl-C" in diagnosed(*EXCEPTION[:-1], "KeyboardInterrupt").remedy


@pytest.mark.parametrize(
    ("line", "message", "verdict"),
    [
        ("*** SIGSEGV received at time=1734086759 ***", "SIGSEGV", Verdict.CRASHED),
        (
            "slurmstepd: error: *** STEP 9.0 CANCELLED AT 2024-03-05T11:20:09 DUE TO TIME LIMIT ***",
            "time limit",
            Verdict.NOT_RUNNING,
        ),
        ("unknown option --master_port=25678", "--master_port", Verdict.CRASHED),
        ("HW Exception by GPU node-9 (Agent handle: 0x58) reason :GPU Hang", "GPU Hang", Verdict.CRASHED),
    ],
)
def test_an_end_is_read_in_the_words_of_its_handler(line: str, message: str, verdict: Verdict) -> None:
    diagnosis = diagnosed(*STEPS[:1], line)
    assert diagnosis.verdict is verdict and message in diagnosis.message


def test_a_spawned_process_that_exited_explains_the_lost_connections_of_others() -> None:
    lost = "RuntimeError: [tcp/pair.cc:598] Connection closed by peer [192.0.2.7]:16786"
    diagnosis = diagnosed(*EXCEPTION[:-1], lost, "Process 2 terminated with exit code 10, ending the others.")
    assert diagnosis.message.startswith("process 2 exited with code 10")


def test_the_rank_that_others_asked_for_the_key_of_their_group_did_not_come() -> None:
    diagnosis = diagnosed(
        "[rank45]: [45] is setting up NCCL, retrieving ncclUniqueId from [0]"
        " by key '0', but store->get('0') got error: wait timeout after 9000ms, keys: /default_pg/0//cuda//0"
    )
    assert diagnosis.verdict is Verdict.NEVER_ARRIVED and diagnosis.message.startswith("rank 0 never came")


def test_the_rank_that_dumps_after_a_timeout_did_not_fail_first() -> None:
    for line in (
        "[rank2]:[E703 15:37:17.1 ProcessGroupNCCL.cpp:1442] Exception thrown when waiting for future Flight "
        "recorder dump in heartbeatMonitor: std::future_error: Broken promise",
        "[rank2]:[E703 15:37:17.1 a.cpp:9] Received a dump signal due to a collective timeout from  rank 7",
    ):
        assert diagnosed(line).verdict is Verdict.UNDETERMINED
    hang = "[rank2]:[F205 18:19:06.3 a.cpp:16] Rank 2] Terminating, due to ProcessGroupNCCL watchdog hang."
    assert diagnosed(hang).verdict is Verdict.NEVER_ARRIVED


def test_a_dead_actor_of_ray_is_on_the_node_of_its_own_message() -> None:
    diagnosis = diagnosed(
        *EXCEPTION[:-1],
        "ray.exceptions.RayTaskError(ActorDiedError): ray::Driver.run() (pid=5, ip=gx-31-head-0)",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
        "\tclass_name: Worker",
        "\tactor_id: 00112c83",
        "\tpid: 77",
        "\tname: Worker_0:3",
        "\tnamespace: b88",
        "\tip: gx-31-worker-2",
    )
    assert [culprit.node for culprit in diagnosis.culprits] == ["gx-31-worker-2"]
    assert "pid: 77" in diagnosis.message


def test_a_traceback_of_ray_that_is_cut_off_names_the_error_of_its_task() -> None:
    task = "ray.exceptions.RayTaskError(ActorDiedError): ray::Driver.run() (pid=5, ip=192.0.2.7)"
    assert "ActorDiedError" in diagnosed(*EXCEPTION[:-1], task, *EXCEPTION[1:3]).message


def test_a_message_in_front_of_a_header_is_the_error_of_a_traceback_that_is_cut_off() -> None:
    front = (
        "ERROR 08-23 08:25:25 workers.py:226] Exception in worker Loader while processing method init_device"
    )
    header = f"{front}: NCCL error: unhandled system error (see NCCL_DEBUG=INFO), {EXCEPTION[0]}"
    assert "unhandled system error" in diagnosed(header, *EXCEPTION[1:3]).message


def test_a_bar_that_has_not_moved_is_no_progress() -> None:
    lines = [
        "CUDA Error: out of memory at allocator.cpp:62",
        "Episode:   0%|          | 0/309 [03:58<?, ?it/s]",
    ]
    assert diagnosed(*lines, *EXCEPTION[:-1]).message.count("out of memory") == 1


def test_a_traceback_that_is_cut_off_names_the_exception_in_front_of_its_header() -> None:
    assert "RuntimeError" in diagnosed(f"RuntimeError: {EXCEPTION[0]}", *EXCEPTION[1:3]).message
    assert ranks(diagnosed(f"[rank3]: {EXCEPTION[0]}")) == [3]


def test_the_line_of_the_parent_is_not_that_of_a_spawned_process() -> None:
    parent = [*EXCEPTION[:3], "Exception: ", "", "-- Process 2 terminated with the following error:"]
    worker = [EXCEPTION[0], *EXCEPTION[3:5]]
    message = diagnosed(*parent, *worker).message
    assert "in Process 2" in message and "fit.py:31" in message and "fit.py:52" not in message


def test_a_rank_in_the_mark_of_a_worker_is_read() -> None:
    diagnosis = diagnosed(*(f"(Worker rank=3 pid=77) {line}" for line in EXCEPTION))
    assert ranks(diagnosis) == [3]


@pytest.mark.parametrize(
    ("mark", "node"),
    [
        ("(fit, pid=77) ", ""),
        ("(worker1, rank=5, pid=77, ip=192.0.2.9) ", "worker1"),
        ("**(Engine pid=77) ", ""),
        ("(pid=77) ", ""),
        ("(EngineCore pid=70) (Worker pid=77, ip=192.0.2.9) ", "192.0.2.9"),
        ("192.0.2.9: ", "192.0.2.9"),
    ],
)
def test_a_mark_with_a_process_or_an_address_names_no_rank(mark: str, node: str) -> None:
    diagnosis = diagnosed(*(f"{mark}{line}" for line in EXCEPTION[1:]))
    assert "batch 7 is empty, at fit.py:31" in diagnosis.message
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == ([(-1, node)] if node else [])


def test_a_report_of_torchrun_alone_lists_its_ranks() -> None:
    failure = ["Failures:", "[1]:", "  host      : gx3", "  rank      : 5 (local_rank: 1)"]
    diagnosis = diagnosed(*(f"(worker1, rank=1, pid=77) {line}" for line in failure))
    assert "rank 5 on gx3" in diagnosis.message and ranks(diagnosis) == []


def test_a_program_that_a_signal_ended_is_that_of_the_rank_in_the_mark() -> None:
    assert ranks(diagnosed("[3]<stderr>:Killed", "[1]<stderr>:Terminated")) == [3]


def test_a_traceback_that_is_cut_off_after_torchrun_ended_its_ranks_is_not_the_first_failure() -> None:
    closing = "W1127 10:00:00 12 elastic/api.py:9] Sending process 77 closing signal SIGTERM"
    assert diagnosed(closing, *EXCEPTION[:-1]).verdict is Verdict.UNDETERMINED


@pytest.mark.parametrize(
    "line",
    [
        "/opt/lib/libbitsandbytes_cpu.so: undefined symbol: fast_adam",
        "x/nvls.cc:6 NCCL WARN Cuda failure 1 'invalid'",
    ],
)
def test_a_warning_of_a_library_is_no_failure(line: str) -> None:
    assert diagnosed(line, "starting").verdict is Verdict.UNDETERMINED


def test_the_end_of_a_command_is_not_the_error_that_ended_it() -> None:
    assert "failed first" not in diagnosed("41] [ERROR] Command exited with code 1").message


def test_a_lost_worker_of_a_loader_is_a_consequence_of_slurms_kill() -> None:
    error = "RuntimeError: Some background worker is 6 feet under. Yuck."
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some tasks have been OOM Killed."
    ended = "srun: error: gx6: task 0: Out Of Memory"
    assert diagnosed(*EXCEPTION[:-1], error, killed, ended).verdict is Verdict.OUT_OF_MEMORY


def test_the_error_inside_a_task_of_ray_is_named_also_if_its_wrapper_names_a_known_one() -> None:
    wrapper = "ray.exceptions.RayTaskError(FileNotFoundError): ray::fit() (pid=77, ip=192.0.2.9)"
    diagnosis = diagnosed(*EXCEPTION[:-1], wrapper, *EXCEPTION[3:5], "FileNotFoundError: no shard")
    assert "FileNotFoundError: no shard, at fit.py:31" in diagnosis.message
    assert "RayTaskError" not in diagnosis.message


def test_a_frame_of_rich_is_read_over_two_lines_and_without_the_head_of_its_box() -> None:
    box = ["│ /home/eve/fit.py:31      │", "│ in main                  │", "│ ❱ 31 │   check(batch)    │"]
    assert "fit.py:31 (main)" in diagnosed(*(f"192.0.2.9: {line}" for line in box)).message


def test_an_exception_with_the_mark_of_a_rank_counts_before_that_of_the_launcher() -> None:
    marked = [f"[rank{rank}]: ValueError: batch 7 is empty" for rank in (0, 1)]
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    diagnosis = diagnosed(*marked, "    raise ChildFailedError(", launcher)
    assert ranks(diagnosis) == [0, 1] and "batch 7 is empty" in diagnosis.message


@pytest.mark.parametrize(
    "line",
    [
        "main() subprocess.CalledProcessError: Command '['--local_rank=3']' died with <Signals.SIGSEGV: 11>.",
        "Child process 77 (local_rank 3) FAILED (exitcode 1)",
    ],
)
def test_the_local_rank_of_a_process_that_ended_is_named(line: str) -> None:
    assert "local rank 3" in diagnosed(line).message


def test_an_exception_that_was_never_raised_is_a_part_of_its_chain() -> None:
    link = "The above exception was the direct cause of the following exception:"
    last = "OSError: We couldn't connect to 'https://huggingface.co'"
    never = "pool.ProxyError: no way to the proxy"
    first = "ConnectionRefusedError: [Errno 111] Connection refused"
    diagnosis = diagnosed(*EXCEPTION[:-1], first, "", link, "", never, "", link, "", *EXCEPTION[:-1], last)
    assert "huggingface.co" in str(diagnosis.evidence) and "also printed" not in str(diagnosis.evidence)


def test_the_place_of_an_error_is_that_of_its_equal_in_the_chain() -> None:
    full = "OSError: [Errno 28] No space left on device"
    link = "During handling of the above exception, another exception occurred:"
    assert "at fit.py:31" in diagnosed(full, "", link, "", *EXCEPTION[:-1], full).message


def test_a_worker_that_hung_up_lost_its_terminal() -> None:
    error = "RuntimeError: DataLoader worker (pid 77) is killed by signal: Hangup."
    assert "terminal" in diagnosed(*EXCEPTION[:-1], error).remedy


def test_a_consequence_is_shown_once() -> None:
    consequence = (
        "RuntimeError: [/b/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.3]:3272."
    )
    blocks = {"rank2": "AssertionError: bad shard", "rank0": consequence}
    rows = [f"[{rank}]: {row}" for rank, error in blocks.items() for row in (*EXCEPTION[:-1], error)]
    evidence = diagnosed(*rows).evidence
    assert sum("Connection closed" in row for row in evidence) == 1, evidence


def test_the_parameters_without_gradients_are_shown() -> None:
    error = "RuntimeError: Expected to have finished reduction in the prior iteration before a new one."
    which = "Parameters which did not receive grad for rank 0: encoder.mask"
    assert f"near it: {which}" in diagnosed(*EXCEPTION[:-1], error, "and more", which).evidence


def test_a_warning_of_nccl_gives_the_cause_and_that_of_a_lost_peer_does_not() -> None:
    error = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:9, unhandled cuda error"
    memory = "gx3:77:78 [1] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'"
    peer = "gx4:77:78 [1] misc/socket.cc:72 NCCL WARN socketProgress: Connection closed by remote peer gx3"
    diagnosis = diagnosed(memory, *EXCEPTION[:-1], error, peer)
    assert diagnosis.verdict is Verdict.OUT_OF_MEMORY and "socketProgress" not in diagnosis.message


def test_a_node_whose_processes_outlived_slurms_kill_is_named() -> None:
    line = "*** JOB 7 STEPD TERMINATED ON gx3 AT 2026-04-07T13:07:45 DUE TO JOB NOT ENDING WITH SIGNALS ***"
    assert [culprit.node for culprit in diagnosed(f"slurmstepd: error: {line}").culprits] == ["gx3"]


def test_warnings_at_the_end_of_a_store_are_no_failure() -> None:
    lost = (
        "1: [W212 13:45:53.8 TCPStore.cpp:131] [c10d] recvVector failed on SocketImpl(fd=4): failed to recv"
    )
    assert "only warned" in diagnosed("0: saved", "1: saved", lost).message


@pytest.mark.parametrize("ends", [20, 28, 31, 37])
def test_a_frame_that_a_terminal_broke_is_read(ends: int) -> None:
    frame = EXCEPTION[3]
    lines = [*EXCEPTION[:3], frame[:ends], frame[ends:], *EXCEPTION[4:]]
    assert "batch 7 is empty, at fit.py:31" in diagnosed(*lines).message


def test_a_warning_of_torch_at_the_start_does_not_explain_a_later_signal() -> None:
    bind = "[W socket.cpp:426] [c10d] failed to bind to [::]:29400 (errno: 98 - Address already in use)."
    report = [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 6 (local_rank: 6)",
        "  exitcode  : -9 (pid: 77)",
        "  traceback : Signal 9 (SIGKILL) received by PID 77",
    ]
    assert "SIGKILL" in diagnosed(bind, "rank 6 has device 6", "environment is ready", *report).message


def test_an_error_that_a_program_caught_did_not_end_a_job_at_its_time_limit() -> None:
    caught = [EXCEPTION[0], EXCEPTION[3].replace("main", "attempt"), *EXCEPTION[4:]]
    limit = "slurmstepd: error: *** JOB 7 ON gx3 CANCELLED AT 2026-05-04T19:46:35 DUE TO TIME LIMIT ***"
    assert "time limit" in diagnosed(*caught, limit).message
    assert "batch 7 is empty" in diagnosed(*EXCEPTION, limit).message


@pytest.mark.parametrize(
    "line",
    [
        "Training completed successfully.",
        "`Trainer.fit` stopped: `max_epochs=2` reached.",
        "{'train_runtime': 119.8, 'train_loss': 1.2, 'epoch': 1.0}",
        "[2024-05-01 10:02:40,001] [INFO] [launch.py:351:main] Process 77 exits successfully.",
        "Local worker group finished (WorkerState.SUCCEEDED). Waiting 300 seconds for other agents",
    ],
)
def test_a_run_that_finished_has_no_failure(line: str) -> None:
    assert diagnosed("step 9", line).verdict is Verdict.NOTHING
    assert diagnosed(*EXCEPTION, *STEPS, line).verdict is Verdict.NOTHING


def test_a_metric_is_no_error() -> None:
    assert diagnosed("step 9", "mean error: 12.2", "bye").verdict is Verdict.UNDETERMINED


def test_an_option_that_srun_lacks_kept_the_ranks_from_starting() -> None:
    diagnosis = diagnosed("srun: unrecognized option '--container-image'")
    assert diagnosis.verdict is Verdict.CRASHED and "could not start the ranks" in diagnosis.message


def test_memory_that_ran_out_while_a_failed_write_was_handled_is_no_lack_of_memory() -> None:
    failed_write = "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 1088 vs 982"
    link = "During handling of the above exception, another exception occurred:"
    diagnosis = diagnosed(*EXCEPTION[:-1], failed_write, "", link, "", *EXCEPTION[:-1], "MemoryError")
    assert diagnosis.verdict is Verdict.CRASHED and "df -h" in diagnosis.remedy


def test_an_error_file_of_torchelastic_has_the_place_of_its_error() -> None:
    details = {"py_callstack": "\n".join([*EXCEPTION, ""]), "timestamp": "7"}
    content = {"message": {"message": EXCEPTION[-1], "extraInfo": details}}
    for text in (json.dumps(content), "[ERROR] error_handler: " + json.dumps(content, indent=2)):
        message = diagnosed(*text.splitlines()).message
        assert message == "a process failed first: ValueError: batch 7 is empty, at fit.py:31 (main)"


def test_a_rank_whose_output_alone_is_shown_may_not_have_failed_first() -> None:
    marked = [f"[rank3]: {line}" for line in EXCEPTION]
    assert "no other rank" in diagnosed(*marked).message
    assert "rank 3 failed first" in diagnosed("world_size: 4", *marked).message
    log = JobLog()
    for rank, lines in ((2, ["ready"]), (3, [*["ready"] * 400, *EXCEPTION])):
        log.begin_file(rank)
        for line in lines:
            log.hear(line)
    assert "rank 3 failed first" in diagnosis_of(log).message


def test_the_error_that_names_the_rank_of_the_report_is_that_of_the_rank() -> None:
    errors = [f"AssertionError: Rank {rank}: found NaN in local grad norm" for rank in (3, 2)]
    report = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 2 (local_rank: 2)",
        "  exitcode  : 1 (pid: 77)",
    ]
    diagnosis = diagnosed(*EXCEPTION[:-1], errors[0], *EXCEPTION[:-1], errors[1], *report)
    assert ranks(diagnosis) == [2] and errors[1] in diagnosis.message


def test_the_first_of_two_reports_whose_lines_are_mixed_counts() -> None:
    report = ["Root Cause (first observed failure):", "[0]:", "  rank      : {} (local_rank: 0)"]
    lines = [line.format(rank) for line in [*report, "  exitcode  : 1 (pid: 77)"] for rank in (0, 8)]
    diagnosis = diagnosed(*EXCEPTION, *lines)
    assert ranks(diagnosis) == [0] and "end first" not in diagnosis.message


def test_the_end_of_a_launcher_that_another_program_started_is_a_report() -> None:
    outer = "RuntimeError: 'accelerate-launch fit.py' failed with returncode 1"
    message = diagnosed('RemoteTraceback: """', *EXCEPTION, '"""', *EXCEPTION[:-1], outer).message
    assert "batch 7 is empty" in message


def test_a_traceback_that_ends_a_process_counts_although_a_handler_printed_it_before() -> None:
    caught = ["ERROR: Exception during training:", EXCEPTION[0], EXCEPTION[3].replace("main", "attempt")]
    diagnosis = diagnosed(*caught, *EXCEPTION[4:], "total time 0:01", "iter: 0", "iter: 0", *EXCEPTION)
    assert diagnosis.verdict is Verdict.CRASHED and "batch 7 is empty" in diagnosis.message


def test_ranks_that_horovod_misses_are_waited_for() -> None:
    stall = (
        "[0] W stall_inspector.cc:107] One or more tensors were submitted by subset of ranks. Missing ranks:"
    )
    assert "horovod" in diagnosed(stall.replace("by", "to be reduced, gathered or broadcasted by")).message


def test_the_process_of_a_loader_that_failed_is_named() -> None:
    spawned = "-- Process 3 terminated with the following error:"
    wrapper = "ValueError: Caught ValueError in DataLoader worker process 2."
    parent = "torch.multiprocessing.spawn.ProcessRaisedException:"
    inner = ["Original Traceback (most recent call last):", *EXCEPTION[1:]]
    message = diagnosed(EXCEPTION[0], parent, "", spawned, *EXCEPTION[:-1], wrapper, *inner).message
    assert "process 2" in message and "Process 3" in message and "batch 7" in message


def test_an_exception_in_deepspeeds_handler_of_signals_is_a_consequence() -> None:
    handler = '  File "/opt/lib/site-packages/deepspeed/launcher/runner.py", line 548, in sigkill_handler'
    error = "NameError: free variable 'kill_cmd' referenced before assignment"
    assert diagnosed(EXCEPTION[0], handler, "    Popen(kill_cmd)", error).verdict is Verdict.UNDETERMINED


def test_a_program_that_mpiexec_could_not_start_counts_before_the_ranks_it_killed() -> None:
    lost = "[proxy:0:1@gx4] HYDU_create_process (launch.c:74): execvp error on file /x/fit (No such file)"
    killed = ["=   RANK 2 PID 77 RUNNING AT gx3", "=   KILLED BY SIGNAL: 9 (Killed)"]
    diagnosis = diagnosed(lost, *killed)
    assert "/x/fit" in diagnosis.message and "gx4" in str(diagnosis)


def marked(mark: str, *lines: str) -> list[str]:
    return [mark + line for line in lines]


def test_a_checkpoint_that_fails_in_one_rank_is_the_failure_of_that_rank() -> None:
    """torch raises the exception in all ranks. Their lines are mixed, and the mark has no space behind it."""
    trace = [
        "Traceback (most recent call last):",
        '  File "/w/train.py", line 12, in <module>',
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([9])",
        "Traceback (most recent call last): (RANK 9)",
        *['  File "/env/lib/python3.12/site-packages/torch/checkpoint.py", line 4, in write'] * 20,
        "OSError: [Errno 122] Disk quota exceeded: 'step-60/__9_0.distcp'",
    ]
    ranks_of_node = (0, 4, 9)
    lines = [f"[rank{rank}]:{line}" for line in trace for rank in ranks_of_node]
    report = [
        f"Failures:\n[{rank}]:\n  host      : n2\n  rank      : {rank} (local_rank: 1)" for rank in (4, 9)
    ]
    first = "Root Cause (first observed failure):\n  host      : n1\n  rank      : 0 (local_rank: 0)"
    diagnosis = diagnosed(*lines, *"\n".join((*report, first, "  exitcode  : 1")).split("\n"))
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(9, "n2")]
    assert "Disk quota exceeded" in diagnosis.message and "train.py:12" in diagnosis.message


def test_the_node_on_which_ray_killed_a_task_is_named_and_not_that_of_its_caller() -> None:
    lines = [
        EXCEPTION[0],
        "ray.exceptions.RayTaskError(OutOfMemoryError): ray::_Inner.train() (pid=68, ip=10.4.0.10)",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "Memory on the node (IP: 10.4.0.13, ID: 5c1e) where the task (pid=7003) was running was 239GB",
        "2026-01-08 12:22:05,300\tERROR tune.py:1037 -- Trials did not complete",
    ]
    diagnosis = diagnosed(*lines)
    assert [culprit.node for culprit in diagnosis.culprits] == ["10.4.0.13"]
    assert "239GB" in diagnosis.message and "Trials" not in diagnosis.message


def test_a_proxy_of_mpiexec_that_ends_later_did_not_run_out_of_memory() -> None:
    diagnosis = diagnosed(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=8.0.",
        "=   PID 88199 RUNNING AT k22",
        "=   EXIT CODE: 9",
        "srun: error: k23: task 1: Exited with exit code 7",
    )
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(-1, "k22")]


def test_a_broken_gpu_is_no_consequence_of_a_collective_that_timed_out() -> None:
    diagnosis = diagnosed(
        "[rank1]:[E ProcessGroupNCCL.cpp:1] Some NCCL operations have failed or timed out.",
        *marked(
            "[rank4]: ", *EXCEPTION[:-1], "RuntimeError: CUDA error: uncorrectable ECC error encountered"
        ),
    )
    assert diagnosis.verdict is Verdict.CRASHED and "exclude" in diagnosis.remedy


def test_the_place_of_a_message_that_a_logger_could_not_write_is_no_error() -> None:
    diagnosis = diagnosed(
        "--- Logging error ---",
        *EXCEPTION[:-1],
        "OSError: [Errno 5] Input/output error",
        "Call stack:",
        '  File "/home/eve/log.py", line 9, in <module>',
        "Message: 'saving'",
        *EXCEPTION,
    )
    assert "ValueError: batch 7" in diagnosis.message and "log.py" not in str(diagnosis)


def test_a_host_that_is_not_known_explains_why_ranks_did_not_meet() -> None:
    diagnosis = diagnosed(
        *EXCEPTION[:-1],
        "ValueError: host not found: Name or service not known",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *EXCEPTION[:-1],
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection has failed.",
    )
    assert diagnosis.verdict is Verdict.CRASHED and "DNS" in diagnosis.remedy


def test_a_program_that_a_node_lacks_explains_that_the_others_wait_for_it() -> None:
    diagnosis = diagnosed(
        "slurmstepd: error: execve(): /scratch/bin/torchrun: No such file or directory",
        "srun: error: g7: task 0: Exited with exit code 2",
        *EXCEPTION[:-1],
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms.",
        "srun: error: g8: task 1: Exited with exit code 1",
    )
    assert "/scratch/bin/torchrun" in diagnosis.message
    assert [culprit.node for culprit in diagnosis.culprits] == ["g7"]


EARLY_STOP = "Monitored metric val_loss did not improve in the last 3 records. Signaling Trainer to stop."


@pytest.mark.parametrize(
    ("lines", "verdict", "fact"),
    [
        (
            [EARLY_STOP, "Epoch 8, step 18: not in top 1", *["| test_acc | 0.88 |"] * 9],
            Verdict.NOTHING,
            EARLY_STOP,
        ),
        (
            [EARLY_STOP, *[f"step {number} loss 2" for number in range(5)]],
            Verdict.UNDETERMINED,
            "step 4 loss 2",
        ),
        (["step 8 loss 2", "All done."], Verdict.NOTHING, "All done."),
        (["step 8 loss 2", "Done loading weights"], Verdict.UNDETERMINED, "step 8 loss 2"),
        (["Training of epoch 3 done in 41 s", "accuracy 0.8"], Verdict.UNDETERMINED, "epoch 3"),
        (["Done.", "NCCL INFO Init"], Verdict.UNDETERMINED, "no error"),
    ],
)
def test_a_log_without_an_error_shows_its_end_or_its_last_progress(
    lines: list[str], verdict: Verdict, fact: str
) -> None:
    diagnosis = diagnosed(*lines)
    assert diagnosis.verdict is verdict and fact in diagnosis.message


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "bf16"),
        ("RuntimeError: Rank 11, iteration 44: Unexpected result nan (message='found NaN in loss')", "bf16"),
        ("ValueError: Attempting to unscale FP16 gradients.", "float32"),
        ("RuntimeError: stack expects each tensor to be equal size, but got [5] and [7]", "pads"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "max-model-len"),
        ("RuntimeError: No CUDA GPUs are available", "nvidia-smi"),
        ("botocore.exceptions.NoCredentialsError: Unable to locate credentials", "AWS_PROFILE"),
        ("InductorError: /usr/bin/ld: cannot find -lcuda: No such file or directory", "TRITON_LIBCUDA_PATH"),
        ("AssertionError: train_batch_size is not equal to micro_batch_per_gpu * 256 != 4 * 7", "x data"),
        ("OSError: [Errno 30] Read-only file system: '/b/o.npy'", "mount"),
        ("ImportError: /env/flash_attn_2_cuda.so: undefined symbol: _ZN3c105ErrorC2E", "fits this torch"),
    ],
)
def test_the_remedy_of_a_frequent_error_fits_it(error: str, fact: str) -> None:
    assert fact in diagnosed(*EXCEPTION[:-1], error).remedy


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (
            "slurmstepd: error: pyxis:     [ERROR] URL https://r.io returned error code: 401",
            "credentials",
        ),
        ("FATAL:   container creation failed: mount source /data/set doesn't exist", "mounted"),
    ],
)
def test_the_remedy_of_a_container_that_did_not_start_depends_on_why(line: str, fact: str) -> None:
    assert fact in diagnosed(line).remedy


def test_no_remedy_for_a_foreign_job_names_an_option_of_submit() -> None:
    remedies = [foreign(row.remedy) for row in ROWS]
    options = ("--setup", "--python", "--snapshot", "--env ", "--avoid-bad", "--hang-after")
    assert [remedy for remedy in remedies if any(option in remedy for option in options)] == []


def test_a_crash_of_native_code_is_not_the_fault_of_the_line_that_called_it() -> None:
    diagnosis = diagnosed("Fatal Python error: Segmentation fault", *DUMP[1:])
    assert "fit together" in diagnosis.remedy and "fit.py:31" in diagnosis.message


def test_processes_of_several_nodes_that_fail_alike_are_all_named() -> None:
    lines = [f"worker-{node}: {line}" for node in (1, 0, 2) for line in EXCEPTION]
    diagnosis = diagnosed(*lines)
    assert [culprit.node for culprit in diagnosis.culprits] == ["worker-0", "worker-1", "worker-2"]


@pytest.mark.parametrize(
    ("error", "is_shown"), [("ModuleNotFoundError: No module named 'torch'", True), ("KeyError: 3", False)]
)
def test_an_environment_that_was_not_loaded_explains_what_a_program_lacks(error: str, is_shown: bool) -> None:
    not_loaded = "CondaError: Run 'conda init' before 'conda activate'"
    diagnosis = diagnosed(not_loaded, *EXCEPTION[:-1], error)
    assert (not_loaded in diagnosis.message, "shell.bash hook" in diagnosis.remedy) == (is_shown, is_shown)
    assert not_loaded in str(diagnosis)


def test_the_assertion_of_a_kernel_stands_beside_the_error_that_it_explains() -> None:
    assertion = (
        "/aten/Loss.cu:245: block: [0,0,0], thread: [1,0,0] Assertion `t >= 0 && t < n_classes` failed."
    )
    lines = marked("[rank2]: ", *EXCEPTION[:-1], "RuntimeError: CUDA error: device-side assert triggered")
    assert f"its cause: {assertion}" in diagnosed(assertion, *lines).message


def test_the_function_of_native_code_that_crashed_is_named() -> None:
    rule = "-" * 74
    stack = ("/lib64/libpthread.so.0(+0x12cf0)", "/home/eva/libhalo.so(halo_swap+0x2d4)", "solve(main+0x4b1)")
    diagnosis = diagnosed(
        "[c3:502] Signal: Segmentation fault (11)",
        "[c3:502] Failing at address: 0x7ffe00000018",
        *(f"[c3:502] [ {number}] {frame}[0x14d]" for number, frame in enumerate(stack)),
        rule,
        "mpirun noticed that process rank 7 with PID 502 on node c3 exited on signal 11 (Segfault).",
        rule,
    )
    assert ranks(diagnosis) == [7] and "halo_swap of libhalo.so" in diagnosis.message
    assert "PYTHON" not in diagnosis.remedy and not any(rule in line for line in diagnosis.evidence)


REQUEUED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T00:00:00 DUE TO JOB REQUEUE ***"
RESTARTED = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group"
RUN = [f"step {number} loss 2.0" for number in range(20)]


@pytest.mark.parametrize("restart", [REQUEUED, RESTARTED])
@pytest.mark.parametrize(
    ("end", "is_well"),
    [("Training completed.", True), ("[exiting program at iteration 20]", True), ("", False)],
)
def test_a_job_that_started_again_and_finished_did_not_fail(restart: str, end: str, is_well: bool) -> None:
    diagnosis = diagnosed(*RUN, *EXCEPTION, restart, *RUN, end)
    assert (diagnosis.verdict is Verdict.NOTHING) is is_well
    assert "batch 7 is empty" in str(diagnosis)
    assert diagnosed(*RUN, *EXCEPTION, restart, *RUN, *EXCEPTION).verdict is Verdict.CRASHED


def test_a_working_directory_that_a_node_lacks_explains_a_missing_file() -> None:
    chdir = (
        "slurmstepd: error: couldn't chdir to `/data/exp7': No such file or directory: going to /tmp instead"
    )
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'conf.yaml'"
    diagnosis = diagnosed(chdir, *EXCEPTION[:-1], missing)
    assert "conf.yaml" in diagnosis.message and chdir in diagnosis.message and "share" in diagnosis.remedy
    assert "chdir" not in diagnosed(chdir, *RUN, *EXCEPTION).message


@pytest.mark.parametrize(
    ("line", "word", "verdict"),
    [
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***", "", Verdict.NOT_RUNNING),
        (f"{REQUEUED[:-14]}TIME LIMIT ***", "", Verdict.NOT_RUNNING),
        ("", "TIMEOUT", Verdict.NOT_RUNNING),
        ("", "FAILED", Verdict.UNDETERMINED),
        ("", "COMPLETED", Verdict.NOTHING),
    ],
)
def test_a_closing_line_proves_nothing_if_slurm_says_that_the_job_did_not_complete(
    line: str, word: str, verdict: Verdict
) -> None:
    log = JobLog()
    log.begin_file()
    for text in (*RUN, "Dry run completed", "step 1 loss 2.0", line):
        log.hear(text)
    log.job_ended(word, "n1")
    assert diagnosis_of(log).verdict is verdict


def test_the_first_half_of_a_dos_line_end_in_a_name_is_shown() -> None:
    diagnosis = diagnosed("python: can't open file '/a/train.py\r': [Errno 2] No such file or directory\r")
    assert "train.py\\r'" in diagnosis.message and "dos2unix" in diagnosis.remedy


def test_an_option_that_a_script_refuses_has_its_remedy() -> None:
    diagnosis = diagnosed("usage: fit.py [-h]", "fit.py: error: unrecognized arguments: --local-rank=1")
    assert "LOCAL_RANK" in diagnosis.remedy


def test_times_of_json_records_order_several_files_and_their_host_is_the_node() -> None:
    log = JobLog()
    times = {0: ("08:09", "09:30"), 2: ("08:08", "09:01")}
    errors = {0: "RuntimeError: Connection closed by peer [10.0.0.6]:51", 2: EXCEPTION[-1]}
    for rank, (step, end) in times.items():
        log.begin_file()
        record = {"level": "INFO", "rank": rank, "host": f"n{rank}"}
        text = "\n".join([*EXCEPTION[:-1], errors[rank]])
        log.hear(json.dumps({**record, "ts": f"2026-08-08T08:{step}Z", "message": "step 1"}))
        log.hear(json.dumps({**record, "ts": f"2026-08-08T08:{end}Z", "message": "failed", "exc_info": text}))
    diagnosis = diagnosis_of(log)
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(2, "n2")]
    assert not any("goes on" in line for line in diagnosis.evidence)


def test_the_old_report_of_torchrun_has_rank_and_message() -> None:
    diagnosis = diagnosed(
        *("Root Cause:", "[0]:", "  time: 2021-08-26_17:12:07", "  rank: 3 (local_rank: 3)"),
        *("  exitcode: 1 (pid: 80)", "  msg:", "    {", '      "message": "ValueError: batch 7 is empty",'),
        *("    }", "======"),
    )
    assert ranks(diagnosis) == [3] and EXCEPTION[-1] in diagnosis.message


def test_a_traceback_on_one_line_is_read() -> None:
    line = "AlgorithmError: ExitCode 1 " + " ".join(text.strip() for text in EXCEPTION)
    message = diagnosed(line).message
    assert EXCEPTION[-1] in message and "fit.py:31" in message


def test_the_end_of_a_rank_by_pals_has_its_node_and_what_the_c_library_printed() -> None:
    host = "x3102c0s25b1n0.hsn.org"
    lines = [f"{host} 6: free(): invalid pointer", f"{host}: rank 6 died from signal 6 and dumped core"]
    diagnosis = diagnosed("step 1", *lines, f"{host}: rank 4 died from signal 15", f"{host}: rank 0 ended")
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(6, host)]
    assert any("free()" in line for line in diagnosis.evidence)


def test_an_unreachable_peer_of_crays_mpich_is_a_failure_of_the_network() -> None:
    stack = [
        "MPICH ERROR [Rank {}] [job id 4.0] [Thu Aug 14 08:27:11 2025] [nid6] - Abort(26): Fatal error in"
        " PMPI_Barrier: Other MPI error, error stack:",
        "PMPI_Barrier(534)...: MPI_Barrier(comm=MPI_COMM_WORLD) failed",
        "handle_cq_error(1075): OFI poll failed (ofi_events.c:1077:Input/output error - UNREACHABLE)",
        *("", "aborting job:", "Fatal error in PMPI_Barrier: Other MPI error, error stack:"),
    ]
    stacks = [line.format(rank) for rank in (12, 13) for line in stack]
    diagnosis = diagnosed(*stacks, "srun: error: nid6: task 12: Exited with exit code 255")
    assert ranks(diagnosis) == [12] and "exclude" in diagnosis.remedy
    assert diagnosis.message.endswith("failed") and any(
        "rank 13: handle" in line for line in diagnosis.evidence
    )


def test_an_option_that_argparse_refused_is_that_of_the_rank_with_its_number() -> None:
    errors = [f"fit.py: error: unrecognized arguments: --local-rank={rank}" for rank in (1, 0)]
    report = [
        *("Root Cause (first observed failure):", "[0]:", "  time      : 2026-03-02_14:22:07"),
        *("  host      : z1", "  rank      : 8 (local_rank: 0)", "  exitcode  : 2 (pid: 90)", "======"),
    ]
    diagnosis = diagnosed(*(line for error in errors for line in ("usage: fit.py [-h]", error)), *report)
    assert ranks(diagnosis) == [8] and "--local-rank=0" in diagnosis.message


@pytest.mark.parametrize(
    "lines",
    [
        ["Name:             fit-1", "Status:           Failed", "      Reason:       OOMKilled"],
        ["NAME     READY   STATUS      RESTARTS   AGE", "fit-1    0/1     OOMKilled   0          5m"],
    ],
)
def test_a_container_that_kubernetes_killed_for_its_memory_is_named(lines: list[str]) -> None:
    diagnosis = diagnosed("Name:             fit-0", *raised(LOST, "[rank0]: "), *lines)
    assert diagnosis.verdict is Verdict.OUT_OF_MEMORY
    assert [culprit.node for culprit in diagnosis.culprits] == ["fit-1"]


def test_submitit_names_the_rank_and_the_node_of_its_file() -> None:
    environment = "JobEnvironment(job_id=70_4, hostname=fair7, local_rank=0(1), node=0(1), global_rank=1(2))"
    diagnosis = diagnosed(f"submitit INFO - Starting with {environment}", *EXCEPTION)
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(1, "fair7")]


NET_IB = (
    "net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer 10.9.0.{}<40110> with status=12 vendor err 129"
)


@pytest.mark.parametrize(
    ("ends", "suspects"),
    [
        ([(1, 3), (3, 1), (3, 2), (2, 3), (4, 3)], ["n3"]),
        ([(1, 3), (2, 4)], []),
        ([(1, 2)], ["n1", "10.9.0.2"]),
    ],
)
def test_the_common_end_of_failed_connections_is_the_suspect(
    ends: list[tuple[int, int]], suspects: list[str]
) -> None:
    lines = [
        f"n{here}:11:61 [0] {NET_IB.format(there)} (Recv) localGid ::ffff:10.9.0.{here} remoteGids::ffff"
        for here, there in ends
    ]
    diagnosis = diagnosed(*lines)
    assert [culprit.node for culprit in diagnosis.culprits] == suspects
    assert diagnosis.verdict is Verdict.LINK


def lost_connection(rank: int, peer: str) -> list[str]:
    reason = f"Last error: NET/IB: Got completion from peer {peer}<40121> with status=12 vendor err 129"
    return raised(
        f"torch.distributed.DistBackendError: NCCL error, ncclRemoteError. {reason}", f"[rank{rank}]: "
    )


def test_the_peer_that_the_failed_connections_of_several_ranks_share_is_the_suspect() -> None:
    shared = diagnosed(*lost_connection(2, "10.1.4.17"), *lost_connection(9, "10.1.4.17"))
    assert [(culprit.rank, culprit.node) for culprit in shared.culprits] == [(-1, "10.1.4.17")]
    assert "reported by ranks 2 and 9" in shared.evidence and shared.verdict is Verdict.LINK
    assert diagnosed(*lost_connection(2, "10.1.4.17"), *lost_connection(9, "10.1.4.18")).culprits == ()


@pytest.mark.parametrize(("node", "is_cause"), [("w3", True), ("w4", False)])
def test_a_report_of_the_driver_explains_an_error_of_its_node(node: str, is_cause: bool) -> None:
    xid = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."
    watchdog = (
        "[E408 ProcessGroupNCCL.cpp:1895] [PG ID 0 Rank 27] Process group watchdog thread terminated with "
    )
    lines = [
        f"w3: {line}"
        for line in (EXCEPTION[0], f"{watchdog}exception: CUDA error: unspecified launch failure")
    ]
    error = [f"w3: {line}" for line in raised("RuntimeError: CUDA error: unspecified launch failure")]
    diagnosis = diagnosed(*lines, *error, f"{node}: [W408 socket.cpp:9] note", f"{node}: {xid}")
    assert (xid in diagnosis.message, "rebooted" in diagnosis.remedy) == (is_cause, is_cause)


def test_a_long_message_is_cut_at_a_word_and_shown_whole_once() -> None:
    message = "ValueError: " + "wrong shape of the tensor " * 12
    diagnosis = diagnosed(*EXCEPTION[:-1], message.strip())
    assert len(diagnosis.message) < len(message) and "fit.py:31" in diagnosis.message
    assert diagnosis.evidence[0] == message.strip()
    words = set(
        re.sub(r"[^\w ]", "", diagnosis.message.partition("ValueError")[2].partition(", at")[0]).split()
    )
    assert words <= set(message.split())


def test_the_reason_at_the_end_of_a_long_message_of_nccl_is_in_the_headline() -> None:
    text = f"torch.distributed.DistBackendError: NCCL error in: {'a/' * 90}x.cpp:31, unhandled system error "
    reason = "Last error: Call to ibv_create_cq failed"
    assert reason in diagnosed(*EXCEPTION[:-1], text + reason).message


def test_the_reason_of_a_failed_write_is_the_cause_of_the_error_that_says_less() -> None:
    handled = "During handling of the above exception, another exception occurred:"
    vague = "RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 64 vs 0"
    lines = [
        *EXCEPTION[:-1],
        "OSError: [Errno 122] Disk quota exceeded",
        "",
        handled,
        "",
        *EXCEPTION[:-1],
        vague,
    ]
    assert "remove files" in diagnosed(*lines).remedy


def test_an_error_that_a_caller_raises_again_is_named_once() -> None:
    text = "ValueError: No room for the cache, try increasing `gpu_memory_utilization`"
    frame = '  File "/env/lib/python3.11/site-packages/vllm/kv.py", line 8, in check'
    message = diagnosed(EXCEPTION[0], frame, text, *EXCEPTION[:-1], text).message
    assert message.count("No room") == 1 and "kv.py:8" in message and "fit.py:31" in message


def test_a_failure_that_every_rank_repeats_is_that_of_its_rank_alone() -> None:
    text = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])"
    elsewhere = [
        "Traceback (most recent call last): (RANK 2)",
        *EXCEPTION[1:-1],
        "OSError: [Errno 13] Permission denied",
    ]
    lines = [
        line for rank in range(3) for line in marked(f"[rank{rank}]: ", *EXCEPTION[:-1], text, *elsewhere)
    ]
    listed = [
        line for rank in (1, 2) for line in ("  host      : n1", f"  rank      : {rank} (local_rank: {rank})")
    ]
    report = ["Failures:", *listed, "Root Cause (first observed failure):", "  rank      : 0 (local_rank: 0)"]
    assert ranks(diagnosed(*lines, *report, "  exitcode  : 1 (pid: 9)", "======")) == [2]


def test_nodes_that_gave_up_waiting_are_innocent_of_a_command_that_another_one_lacks() -> None:
    waited = raised("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
    lines = [f"n{node}: {line}" for node in (1, 2) for line in waited]
    diagnosis = diagnosed(*lines, "n3: bash: line 1: torchrun: command not found")
    assert [culprit.node for culprit in diagnosis.culprits] == ["n3"]
    assert "torchrun: command not found" in diagnosis.message


def test_neither_of_two_versions_of_nccl_is_blamed() -> None:
    reason = "Mismatched NCCL version detected : rank 4 version 2 rank 0 version 1"
    text = f"RuntimeError: NCCL error. Last error: {reason}"
    diagnosis = diagnosed(*marked("[rank0]: ", *EXCEPTION[:-1], text))
    assert diagnosis.culprits == () and "ranks 0 and 4" in diagnosis.message


@pytest.mark.parametrize("end", ["Job finished at Thu Nov 27 11:26:10 CET 2025", "Training complete!"])
def test_last_words_of_a_batch_script_do_not_undo_the_failure_of_its_program(end: str) -> None:
    assert diagnosed("epoch 0 loss 1.2", "epoch 1 loss 1.1", *EXCEPTION, end).verdict is Verdict.CRASHED
    report = ["Root Cause (first observed failure):", "  rank      : 2 (local_rank: 2)", "  exitcode  : -9"]
    assert ranks(diagnosed("epoch 0 loss 1.2", *report, "=====", end)) == [2]


def test_a_date_at_both_ends_of_a_script_begins_no_other_run() -> None:
    for date in ("Thu Jul 10 10:10:10 CEST 2025", "Thu 10 Jul 2025 10:10:10 AM CEST"):
        end = "srun: error: n1: task 0: Exited with exit code 1"
        diagnosis = diagnosed(date, "node: n1", *EXCEPTION, end, date.replace("10:10:10", "10:12:10"))
        assert ranks(diagnosis) == [0]
        assert "runs" not in diagnosis.message


def test_a_warning_is_not_shown_as_what_went_wrong_before_an_end() -> None:
    warning = "[2024-10-03 18:01:13,871] [WARNING] [runner.py:212:fetch_hostfile] Unable to find hostfile"
    end = (
        "[2024-10-03 18:09:59,820] [ERROR] [launch.py:325:sigkill_handler] ['x'] exits with return code = -9"
    )
    assert "hostfile" not in diagnosed(warning, end).message


def test_the_function_in_which_ucx_saw_a_crash_is_named() -> None:
    frames = [" 0 0x0000000000042520 __sigaction()  ???:0", " 1 0x00000000000a1c2d uct_ib_send()  ???:0"]
    end = "srun: error: n1: task 6: Segmentation fault (core dumped)"
    assert "in uct_ib_send" in diagnosed("==== backtrace (tid:  42310) ====", *frames, end).message


def test_tasks_that_printed_one_error_and_ended_alike_failed_together() -> None:
    ends = ["srun: error: n1: tasks 0-1: Exited with exit code 1", "srun: Terminating StepId=1.0"]
    lines = [*EXCEPTION, *EXCEPTION[:1], EXCEPTION[-1], *ends]
    assert ranks(diagnosed(*lines, "srun: error: n2: tasks 2-3: Exited with exit code 1")) == [0, 1, 2, 3]


def test_memory_that_ran_out_is_that_of_the_rank_whose_process_was_killed() -> None:
    killed = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed."
    oom = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=8.batch."
    worker = diagnosed(*marked("[rank2]: ", *EXCEPTION[:-1], killed), oom)
    assert (worker.verdict, ranks(worker)) == (Verdict.OUT_OF_MEMORY, [2])
    report = [
        "Root Cause (first observed failure):",
        "  host      : n2.local",
        "  rank      : 5 (local_rank: 1)",
    ]
    task = "srun: error: n2: task 1: Out Of Memory"
    launcher = "torch.distributed.elastic.multiprocessing.api: failed"
    diagnosis = diagnosed(launcher, *report, "  exitcode  : -9 (pid: 7)", "=====", oom, task)
    assert (diagnosis.verdict, ranks(diagnosis)) == (Verdict.OUT_OF_MEMORY, [5])


def test_a_container_that_a_full_disk_stopped_needs_space() -> None:
    lines = ["pyxis: couldn't start container", "pyxis:     write /run/enroot/31: no space left on device"]
    assert "df -h" in diagnosed(*(f"slurmstepd: error: {line}" for line in lines)).remedy


def test_ranks_that_could_not_connect_get_the_interface_as_the_remedy() -> None:
    lines = [
        line
        for rank in (0, 2)
        for line in marked(f"[rank{rank}]: ", *EXCEPTION[:-1], "RuntimeError: Gloo connectFullMesh failed")
    ]
    cancelled = "slurmstepd: error: *** STEP 8.0 ON n1 CANCELLED AT 2025-03-14T16:42:14 ***"
    ends = ["srun: error: n1: task 0: Exited with exit code 1", "srun: Terminating StepId=8.0", cancelled]
    diagnosis = diagnosed(*lines, *ends, "srun: error: n1: task 1: Terminated")
    assert "GLOO_SOCKET_IFNAME" in diagnosis.remedy
    # Slurm ended rank 1 while it ran.
    assert "rank 1" not in diagnosis.message


def test_a_wrong_option_asks_for_another_command() -> None:
    assert "--help" in diagnosed("usage: fit.py [-h]", "fit.py: error: unrecognized arguments: --x 2").remedy


def test_files_of_ranks_that_were_joined_are_ordered_by_their_times() -> None:
    lines = []
    for rank, minute, exception in ((0, 42, "Timed out waiting 1800000ms for recv"), (1, 12, "no sample")):
        steps = [
            f"2025-10-13 08:{10 + step // 60}:{step % 60:02},000 rank={rank} INFO it={step}"
            for step in range(99)
        ]
        error = f"2025-10-13 08:{minute}:01,000 rank={rank} ERROR uncaught exception"
        lines += [*steps, error, *EXCEPTION[:-1], f"RuntimeError: {exception}"]
    # The file of rank 2 follows, and it went on.
    diagnosis = diagnosed(*lines, *(line.replace("rank=0", "rank=2") for line in lines[:99]))
    assert ranks(diagnosis) == [1] and "no sample" in diagnosis.message


@pytest.mark.parametrize(
    "reason", ["Invalid generic resource (gres) specification", "Memory required by task is not available"]
)
def test_a_step_that_does_not_fit_its_job_asks_for_other_options_of_srun(reason: str) -> None:
    remedy = diagnosed(f"srun: error: Unable to create step for job 8: {reason}").remedy
    assert "--gres and --mem of srun" in remedy


@pytest.mark.parametrize("mark", ["[rank1]", "[rank 1]", "[RANK1]"])
def test_a_rank_in_brackets_without_a_colon_is_the_rank_of_its_line(mark: str) -> None:
    lines = [f"{mark} it 3 loss 0.4", *marked(f"{mark} ", *EXCEPTION)]
    assert ranks(diagnosed("[rank0] it 3 loss 0.4", *lines)) == [1]
    diagnosis = diagnosed("[rank0] it 3 loss 0.4", f"{mark} RuntimeError: CUDA out of memory.")
    assert ranks(diagnosis) == [1] and "[" not in diagnosis.message


def test_an_error_that_names_a_step_is_no_progress() -> None:
    diagnosis = diagnosed("step 10 loss 2.1", "ERROR: loss is nan at step 11, aborting")
    assert diagnosis.verdict is Verdict.CRASHED and "loss is nan" in diagnosis.message
    metric = diagnosed(*(f"step {step} loss 2.1 val_error: 0.{step}" for step in range(10, 20)))
    assert metric.verdict is Verdict.UNDETERMINED


def test_a_warning_after_which_the_program_goes_on_is_no_failure() -> None:
    warned = "WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 1.50 GiB"
    goes_on = diagnosed("step 9 loss 0.4", warned, " Skipping batch", "step 10 loss 0.4", "training finished")
    assert goes_on.verdict is Verdict.NOTHING
    # The next one ends it.
    failed = diagnosed("step 9 loss 0.4", warned, *EXCEPTION[:-1], "OutOfMemoryError: CUDA out of memory")
    assert failed.verdict is Verdict.OUT_OF_MEMORY and "fit.py:31" in failed.message
    assert "giving up" in diagnosed("step 9 loss 0.4", warned, "ERROR: giving up").message


def test_the_last_of_several_attempts_ended_the_program() -> None:
    retried = ["step 1 loss 4", *EXCEPTION, "retrying (attempt 2)", "step 1 loss 4", *EXCEPTION]
    assert diagnosed(*retried).verdict is Verdict.CRASHED
    assert diagnosed(*retried, "retrying (attempt 3)", "step 1 loss 4").verdict is Verdict.UNDETERMINED


def test_a_lost_connection_does_not_explain_the_rank_that_was_killed_before() -> None:
    report = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  host      : g8",
        "  rank      : 6 (local_rank: 2)",
        "  exitcode  : -9 (pid: 41)",
        "  traceback : Signal 9 (SIGKILL) received by PID 41",
        "=" * 60,
    ]
    lost = (
        "[rank0]:[E1103 01:59:35.11 ProcessGroupNCCL.cpp:552] [Rank 0] NCCL error: remote process exited or "
        "there was a network error",
        "Last error:",
        "NET/IB : Got completion from peer 10.2.0.8<51810> with status=12 opcode=32600 len=0 vendor err 129",
    )
    for lines in ([*report, *lost], [*lost, *report]):  # two nodes, in any order
        diagnosis = diagnosed(*lines)
        assert ranks(diagnosis) == [6] and "RDMA" not in " ".join(diagnosis.evidence)


def test_why_a_rank_could_not_connect_is_shown() -> None:
    message = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29400"
    timeout = "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to"
    diagnosis = diagnosed(f"{message} (errno: 113 - No route to host).", f"{timeout} (n1, 29400).")
    assert "No route to host" in diagnosis.message


@pytest.mark.parametrize(
    "words",
    [
        ["done training in 613.2 seconds"],
        ["Finished. Model saved to /out/final"],
        ["Saved final checkpoint. Exiting."],
        ["all 10 epochs done in 3:10:11"],
        [
            "Saved model to out.pt",
            "Done.",
            "wandb: ERROR Error while calling W&B API: context deadline exceeded",
        ],
        ["Batch size 96 failed, trying batch size 80", "`Trainer.fit` stopped: `max_epochs=5` reached."],
    ],
)
def test_a_log_that_says_at_its_end_that_all_is_done_shows_no_failure(words: list[str]) -> None:
    assert diagnosed("epoch 9 loss 0.3", "epoch 10 loss 0.2", *words).verdict is Verdict.NOTHING


@pytest.mark.parametrize("words", ["Loss is NaN. Exiting.", "evaluation finished: 20 episodes"])
def test_other_words_do_not_say_that_all_is_done(words: str) -> None:
    assert diagnosed("epoch 9 loss 0.3", words).verdict is not Verdict.NOTHING


def test_counts_of_failures_in_progress_are_no_failure() -> None:
    lines = [f"episode {number} killed 3 enemies, died at t={number}, aborted 0" for number in range(9)]
    assert diagnosed(*lines, "word error rate: 7.1").verdict is Verdict.UNDETERMINED


TRIAL = [
    "[W 2025-11-03 10:06:00,100] Trial 1 failed because of: OutOfMemoryError('CUDA out of memory.')",
    "Traceback (most recent call last):",
    '  File "/envs/pt/lib/python3.11/site-packages/optuna/study/_optimize.py", line 201, in _run_trial',
    "    value_or_values = func(trial)",
    '  File "/home/eve/fit.py", line 12, in objective',
    "    return train(bs)",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    "[I 2025-11-03 10:12:00,100] Trial 2 finished with value: 0.84",
]


def test_a_trial_that_failed_is_neither_the_failure_of_a_study_nor_its_cause() -> None:
    assert diagnosed(*TRIAL, "Best trial: 2").verdict is Verdict.UNDETERMINED
    diagnosis = diagnosed(*TRIAL, *EXCEPTION, "srun: error: g1: task 0: Exited with exit code 1")
    assert "batch 7 is empty" in diagnosis.message and "CUDA" not in diagnosis.message


def test_a_warning_in_front_of_a_traceback_is_about_something_else() -> None:
    assert diagnosed("step 1 loss 2", "WARNING: no TF32", *EXCEPTION).verdict is Verdict.CRASHED


def test_a_rank_that_gave_up_waiting_for_others_is_not_blamed() -> None:
    error = (
        "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 14/16 joined."
    )
    lines = [*marked("0: ", *EXCEPTION[:-1], error), "srun: error: k1: task 0: Exited with exit code 1"]
    diagnosis = diagnosed(*lines)
    assert (diagnosis.verdict, ranks(diagnosis)) == (Verdict.NEVER_ARRIVED, [])


def test_the_pod_or_node_in_front_of_a_line_is_that_of_its_error() -> None:
    pod = diagnosed(*marked("2025-11-03T04:03:01.100Z train-worker-1 ", *EXCEPTION))
    launcher = "[2025-11-03 12:00:21,900] [ERROR] [launch.py:325:sigkill_handler]"
    end = f"{launcher} ['python', '-u', 'fit.py', '--local_rank=3'] exits with return code = -11"
    deepspeed = diagnosed("worker-2: step 1", f"worker-2: {end}")
    assert [pod.culprits[0].node, deepspeed.culprits[0].node] == ["train-worker-1", "worker-2"]


def test_a_job_that_resumes_after_its_end_is_another_run() -> None:
    preempted = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2025-11-03T10:10:00 DUE TO PREEMPTION ***"
    first = ["step 80 loss 3", "step 90 loss 3", preempted]
    second = ["resumed from step 90", "step 90 loss 3", *EXCEPTION]
    assert diagnosed(*first, *second).verdict is Verdict.CRASHED
    assert diagnosed(*first, *second[1:]).verdict is Verdict.NOT_RUNNING


def test_an_error_behind_the_line_of_a_cancelled_step_may_be_why_it_was_cancelled() -> None:
    step = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2025-10-29T13:09:42 ***"
    assert diagnosed("step 1 loss 3", step, *EXCEPTION).verdict is Verdict.CRASHED
    job = step.replace("STEP 5.0", "JOB 5")
    assert diagnosed("step 1 loss 3", job, *EXCEPTION).verdict is Verdict.NOT_RUNNING


def test_a_number_in_front_of_the_lines_of_nccl_is_the_rank() -> None:
    diagnosis = diagnosed(
        "1: z0:11:11 [0] NCCL INFO comm 0x1 rank 1 nranks 8 - Init COMPLETE",
        "5: z1:15:99 [1] transport/net_ib.cc:96 NCCL WARN NET/IB : mlx5_1:1 Got async event : port error",
        "1: z0:11:91 [0] net.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.1.2<4> with status=12",
        "srun: error: z0: task 1: Aborted (core dumped)",
    )
    assert [(culprit.rank, culprit.node) for culprit in diagnosis.culprits] == [(5, "z1")]


def test_the_last_line_of_a_rank_in_brackets_is_shown_beside_its_exit_code() -> None:
    report = ["Root Cause (first observed failure):", "[0]:", "  rank      : 1 (local_rank: 1)"]
    lines = ["[rank1] ERROR: config differs, stopping", *report, "  exitcode  : 3 (pid: 41)"]
    assert "config differs" in diagnosed(*lines).message


def test_a_job_that_reached_its_time_limit_after_the_run_had_finished_is_named_so() -> None:
    ended = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-11-03T10:10:00 DUE TO TIME LIMIT ***"
    diagnosis = diagnosed("step 8 loss 2", "Training finished", ended)
    assert "Training finished" in diagnosis.message and "--time" not in diagnosis.remedy
    assert "--time" in diagnosed("step 8 loss 2", ended).remedy


@pytest.mark.parametrize("text", ["job failed 2 times, giving up", "cannot open x while trying to load it"])
def test_an_error_whose_text_has_a_count_or_an_attempt_is_named(text: str) -> None:
    assert text in diagnosed("step 8 loss 2", f"ERROR: {text}").message


def test_a_traced_command_that_complains_and_is_the_last_one_ended_its_script() -> None:
    complaint = "cp: cannot stat '/data/a.tar': No such file or directory"
    diagnosis = diagnosed("+ mkdir -p /tmp/j1", "+ cp /data/a.tar /tmp/j1/", complaint)
    assert diagnosis.verdict is Verdict.CRASHED and complaint in diagnosis.message
    went_on = diagnosed("+ cp /data/a.tar /tmp/j1/", complaint, "+ python fit.py", "step 1 loss 3")
    assert went_on.verdict is Verdict.UNDETERMINED


def test_a_batch_script_that_says_that_it_is_done_hides_no_failure() -> None:
    assert diagnosed("step 1 loss 2", "ValueError: x", "Done.").verdict is Verdict.CRASHED
    restarted = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group"
    lines = ["step 1 loss 2", *EXCEPTION, restarted, "step 1 loss 2", *EXCEPTION, "Done."]
    assert diagnosed(*lines).verdict is Verdict.CRASHED
    finished = diagnosed(*lines[:8], "step 2 loss 2", "worker group successfully finished.")
    assert finished.verdict is Verdict.NOTHING


def test_the_stream_in_front_of_the_lines_of_a_container_is_no_part_of_them() -> None:
    end = "srun: error: n1: task 3: Killed"
    diagnosis = diagnosed("2025-11-03T10:00:00.5Z stdout F step 1", f"2025-11-03T10:00:01.5Z stderr F {end}")
    assert ranks(diagnosis) == [3]


@pytest.mark.parametrize("mark", ["{}: ", "[rank{}]: ", "[rank{}] "])
def test_an_error_of_a_rank_after_which_another_one_makes_steps_ended_nothing(mark: str) -> None:
    first, other = mark.format(0), mark.format(5)
    steps = [f"{first}step {number}/900 loss 2.{number}" for number in range(6)]
    handled = [*steps, *marked(other, *EXCEPTION), *steps]
    assert diagnosed(*handled).verdict is Verdict.UNDETERMINED
    last = [*EXCEPTION[:-1], "KeyError: 'mask'"]
    ends = ["srun: error: n1: task 1: Exited with exit code 1", "srun: error: n1: tasks 0,2-5: Terminated"]
    failed = diagnosed(*handled, *marked(mark.format(1), *last), *ends)
    assert ranks(failed) == [1] and "mask" in failed.message
    # A rank that the launcher saw end, whose peers print late, is the one that failed.
    assert ranks(diagnosed(*handled, "srun: error: n1: task 5: Exited with exit code 1")) == [5]


@pytest.mark.parametrize(
    ("lines", "is_finished"),
    [
        (["step 10/20 loss 3.1", "step 20/20 loss 2.9", "bye"], True),
        (["step 20/20 loss 2.9", "epoch 3/3 done | test acc 0.8"], True),
        (["Epoch 2/3", "loss 2.1", "Epoch 3/3"], False),
        (["epoch 3/3 loss 2.1", "epoch 3/3 loss 2.0"], False),
        (["epoch 3/3 step 20/40 loss 2.1"], False),
        (["step 10/20 loss 3.1", "step 20/20 loss 2.9", "step 20/20 loss 2.9"], True),
        (["Epoch 4/5 started at 10:04", "Epoch 5/5 started at 10:05"], False),
        (["warmup step 10/10 loss 9.1"], False),
        (["step 10/20 loss 3.1", "validation step 5/5 loss 2.9"], False),
        (["step 10/20 loss 3.1"], False),
    ],
)
def test_progress_that_reached_its_total_is_the_end_of_a_run(lines: list[str], is_finished: bool) -> None:
    assert (diagnosed(*lines).verdict is Verdict.NOTHING) is is_finished
    assert diagnosed(*lines, *EXCEPTION).verdict is Verdict.CRASHED


def test_steps_that_waited_in_a_buffer_hide_no_failure_that_the_launcher_saw() -> None:
    steps = [f"iter {number}: loss 2.{number}" for number in range(5)]
    ends = ["srun: error: n1: task 2: Exited with exit code 1", "srun: error: n1: tasks 0-1: Terminated"]
    report = ["Root Cause (first observed failure):", "[0]:", "  rank      : 2 (local_rank: 2)"]
    for end in (ends, [*report, "  exitcode  : 1 (pid: 41)", "=" * 60]):
        for mark in ("", "(rank 2) "):
            diagnosis = diagnosed(*steps, *marked(mark, *EXCEPTION), *steps, *end)
            assert ranks(diagnosis) == [2] and "batch 7 is empty" in diagnosis.message


def test_a_message_that_says_that_the_program_goes_on_needs_one_step_behind_it() -> None:
    skipped = "[rank1]: CUDA out of memory in step 12, skipping batch"
    lines = ["[rank0]: it 1 loss 3", skipped, "[rank0]: it 2 loss 3", *marked("[rank0]: ", *EXCEPTION)]
    diagnosis = diagnosed(*lines, "srun: error: n1: task 0: Exited with exit code 1")
    assert ranks(diagnosis) == [0] and "batch 7" in diagnosis.message


@pytest.mark.parametrize("mark", ["[INFO] ", "(rank 0) ", "2026-03-01 10:02:04,661 - train - INFO - ", "0: "])
def test_done_behind_the_mark_of_a_logger_is_the_end_of_a_run(mark: str) -> None:
    assert diagnosed(f"{mark}it 3 loss 2", f"{mark}Done.").verdict is Verdict.NOTHING


def test_a_traceback_that_a_handler_printed_ended_nothing_if_steps_of_others_follow() -> None:
    caught = [
        EXCEPTION[0],
        '  File "/home/eve/viz.py", line 12, in plot',
        "    save()",
        "PermissionError: [Errno 13] Permission denied: '/fig.png'",
    ]
    step = '{"level": "info", "rank": 0, "msg": "iter 210 loss=2.79"}'
    assert diagnosed(step, *caught, step, step, step).verdict is Verdict.UNDETERMINED
    end = "srun: error: n1: task 0: Exited with exit code 1"
    last = diagnosed(step, *caught, step, step, step, *EXCEPTION[:-1], "NotImplementedError", end)
    assert "NotImplementedError" in last.message
