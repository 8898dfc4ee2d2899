"""The post-mortem names the first error in time, and shows consequences as such."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.diagnosis.decide import decide_end as explain
from clusterrun.diagnosis.evidence import Group, RankSnapshot, Record
from clusterrun.diagnosis.explain_end import with_printed
from clusterrun.diagnosis.printed_errors import Error, ErrorListener
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict
from clusterrun.model.frozen import replace
from clusterrun.model.record import Failure
from clusterrun.model.states import State
from tests.diagnosis.ranks import ALL_REDUCE, LOOP, bare

PEER = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:5."
BAD = "ValueError: the data are bad"
ABORTED = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1000 vs 4. Received"


def heard(rank: int, *lines: str, at: float = 100.0) -> tuple[Error, ...]:
    """Return the errors in a rank's output, with a tenth of a second between lines."""
    listener = ErrorListener(rank)
    for number, line in enumerate(lines):
        listener.hear(at + number / 10, line)
    return tuple(listener.errors)


def traceback(rank: int, last: str, line: int = 9) -> list[str]:
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/home/me/train.py", line {line}, in step',
        f"[rank{rank}]:     loss = model(batch)",
        f'[rank{rank}]:   File "/venv/lib/python3.11/site-packages/torch/nn.py", line 1, in forward',
        f"[rank{rank}]: {last}",
    ]


def failure(rank: int, code: int = 1, at: float = 101.0) -> Failure:
    return Failure(rank, f"n{rank}", code, at, f"rank {rank} on n{rank} exited with code {code}")


def left(*errors: Error, **changes: Any) -> Remains:
    values: dict[str, Any] = {"state": State.FAILED, "reason": "", "failure": failure(1)}
    nodes = ("n0", "n1", "n2", "n3")
    return Remains(printed=tuple(errors), nodes=nodes, **{**values, **changes})


def test_a_traceback_gives_its_last_line_and_the_innermost_line_of_the_users() -> None:
    (result,) = heard(1, *traceback(1, BAD))
    assert (result.text, result.frame, result.message) == (
        BAD,
        "/home/me/train.py:9 step",
        f"{BAD}, at train.py:9 (step)",
    )


def test_ordinary_lines_are_no_errors() -> None:
    assert heard(0, "step 3 loss 0.1", "", "warning: slow", "Traceback is a word", "a: b") == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["\x1b[1mTraceback (most recent call last):\x1b[0m", "\x1b[31mKeyError\x1b[0m: 'x'"],
            ["KeyError: 'x'"],
        ),
        (
            ["Traceback (most recent call last):", '  File "/x.py", line 2, in f', "INFO: step 3", "step 4"],
            [],
        ),
        (
            ["Exception ignored in: <function A.__del__>", "Traceback (most recent call last):", "OSError: x"]
            + ["Traceback (most recent call last):", "ValueError: y"],
            ["ValueError: y"],
        ),
        (
            ["usage: train.py [-h]", "train.py: error: no such file", "x: error: y"],
            ["train.py: error: no such file"],
        ),
        (["RuntimeError: not below a traceback"], []),
        (
            ["Traceback (most recent call last):", "KeyError: 'a'", "", "Traceback (most recent call last):"]
            + ["ValueError: later"],
            ["KeyError: 'a'", "ValueError: later"],
        ),
    ],
)
def test_the_end_of_a_traceback_or_a_usage_line_is_an_error(lines: list[str], message: list[str]) -> None:
    assert [entry.message for entry in heard(1, *lines)] == message


def test_an_abort_is_reported_with_the_line_of_its_stack() -> None:
    (result,) = heard(
        0,
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'",
        f"  {ABORTED}",
        "Fatal Python error: Aborted",
        "",
        "Thread 0x00007f0fda82eb80 (most recent call first):",
        '  File "/venv/lib/python3.11/site-packages/torch/distributed.py", line 3 in all_reduce',
        '  File "/home/me/train.py", line 11 in <module>',
    )
    assert (result.text, result.frame) == (ABORTED, "/home/me/train.py:11 <module>")


def test_a_crash_without_a_message_has_its_signal_and_line() -> None:
    (result,) = heard(0, "Fatal Python error: Segmentation fault", '  File "/home/me/train.py", line 4 in go')
    assert result.message == "Fatal Python error: Segmentation fault, at train.py:4 (go)"


def test_the_first_error_has_priority_over_the_first_exit_and_others_are_consequences() -> None:
    """Rank 0 ended first, but only noticed that rank 1 had gone."""
    errors = (*heard(1, *traceback(1, BAD)), *heard(0, *traceback(0, PEER), at=100.2))
    assert explain(left(*errors, failure=failure(0))) == Diagnosis(
        Verdict.CRASHED,
        "rank 1 on n1 failed first",
        (Culprit(1, "n1", f"{BAD}, at train.py:9 (step)"),),
        (),
        (
            f"rank 1: {BAD}, at train.py:9 (step)",
            f"a consequence only, of rank 0: {PEER}, at train.py:9 (step)",
        ),
        "clusterrun logs --rank 1 shows all that it printed",
        certainty=60,
    )


@pytest.mark.parametrize("error", ["EOFError: Ran out of input", "BrokenPipeError: [Errno 32] Broken pipe"])
def test_a_rank_that_exits_without_a_traceback_wins_over_the_connection_that_another_lost(error: str) -> None:
    fatal = "FATAL: dataset index missing"
    end = replace(failure(2, code=4), last_lines=(fatal,))
    diagnosis = explain(left(*heard(3, *traceback(3, error), at=end.at + 0.1), failure=end))
    assert diagnosis.culprits == (Culprit(2, "n2", f"exited with code 4; it printed last: {fatal}"),)
    own = explain(left(*heard(3, *traceback(3, BAD), at=end.at + 0.1), failure=end))
    assert [culprit.rank for culprit in own.culprits] == [3]


def test_the_known_one_of_simultaneous_errors_is_reported() -> None:
    errors = (*heard(0, *traceback(0, BAD)), *heard(1, *traceback(1, "CUDA out of memory. Tried to")))
    result = explain(left(*errors))
    assert (result.verdict, result.culprits[0].rank) == (Verdict.OUT_OF_MEMORY, 1)


def test_an_error_that_was_survived_for_long_did_not_end_the_run() -> None:
    errors = (*heard(2, "CUDA out of memory: trying a smaller batch", at=10.0), *heard(1, *traceback(1, BAD)))
    assert explain(left(*errors)).culprits[0].rank == 1


@pytest.mark.parametrize(
    ("nodes", "who", "message", "named"),
    [
        ("abcd", [0, 1, 2, 3], "all 4 ranks failed with the same error", [0, 1, 2, 3]),
        ("aabb", [0, 1], "all 2 ranks of a failed with the same error", [0, 1]),
        ("aabbcc", [0, 1, 4, 5], "all 4 ranks of a, c failed with the same error", [0, 1, 4, 5]),
        ("aabb", [0, 1, 2], "rank 1 on a failed first", [1]),
        ("abcd", [0, 1], "rank 1 on b failed first", [1]),
    ],
)
def test_no_rank_is_singled_out_if_all_ranks_or_nodes_report_the_same(
    nodes: str, who: list[int], message: str, named: list[int]
) -> None:
    missing = "ModuleNotFoundError: No module named 'apex'"
    errors = [error for n in who for error in heard(n, *traceback(n, missing))]
    result = explain(replace(left(*errors), nodes=tuple(nodes)))
    assert (result.message.partition(": ")[0], [entry.rank for entry in result.culprits]) == (message, named)
    assert any(line.endswith("printed the same") for line in result.evidence)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, Verdict.CRASHED),
        ({"notes": ("out of memory on n1: the kernel ended a process there",)}, Verdict.OUT_OF_MEMORY),
        ({"notes": ("slurmstepd: error: Detected 1 oom_kill event in StepId=4.0.",)}, Verdict.OUT_OF_MEMORY),
        ({"state": State.OUT_OF_MEMORY}, Verdict.OUT_OF_MEMORY),
    ],
)
def test_a_rank_that_was_killed_is_the_culprit_whatever_the_others_print(changes, verdict) -> None:
    killed = Failure(1, "n1", -9, 101.0, "rank 1 on n1 was killed by signal 9 (SIGKILL)")
    errors = (*heard(0, *traceback(0, PEER), at=101.0), *heard(2, *traceback(2, BAD), at=101.2))
    result = explain(left(*errors, failure=killed, **changes))
    assert (result.verdict, [(c.rank, c.node, c.why) for c in result.culprits]) == (
        verdict,
        [(1, "n1", "was killed by signal 9 (SIGKILL)")],
    )


def test_the_nodes_own_word_that_memory_ran_out_is_believed() -> None:
    word = "clusterrun: out of memory: the kernel ended a process of this job on this node"
    killed = Failure(1, "n1", -9, 101.0, "rank 1 on n1 was killed by signal 9 (SIGKILL)", (word,))
    assert explain(left(failure=killed)).verdict is Verdict.OUT_OF_MEMORY


@pytest.mark.parametrize(("node", "remedy"), [("n2", "--exclude"), ("", "job.out")])
def test_only_a_failed_node_is_excluded(node: str, remedy: str) -> None:
    lost = Failure(-1, node, 1, 101.0, "the launcher ended with code 1: srun: error: Unable to create step")
    arguments = explain(left(failure=lost)).remedy
    assert [word for word in ("--exclude", "job.out") if word in arguments] == [remedy]


def test_a_program_that_could_not_be_executed_has_the_agents_remedy() -> None:
    failed = Failure(-1, "n1", 1, 101.0, "n1 could not start its ranks: no program 'x'; check its name")
    result = explain(left(failure=failed))
    assert (result.remedy, result.culprits[0].why) == (
        "check its name",
        "could not start its ranks: no program 'x'",
    )


def test_the_remedy_for_a_job_that_slurm_ended_at_its_start_is_the_prolog() -> None:
    ended = Failure(-1, "", 1, 101.0, "the launcher ended with code 1: srun: error: Slurm job 2 has expired")
    assert "sinfo -R shows a node whose prolog failed" in explain(left(failure=ended)).remedy


def test_the_remedy_for_a_cancelled_step_is_the_command_that_leaves_time_to_save() -> None:
    ended = Failure(-1, "", 1, 101.0, "step 7.0 was cancelled (scancel 7.0, or a signal to its srun)")
    assert "clusterrun cancel" in explain(left(failure=ended)).remedy


def test_a_rank_that_fails_before_another_is_killed_is_the_culprit() -> None:
    killed = Failure(1, "n1", -9, 110.0, "rank 1 on n1 was killed by signal 9 (SIGKILL)")
    result = explain(left(*heard(2, *traceback(2, BAD), at=100.0), failure=killed))
    assert result.culprits[0].rank == 2


def test_the_state_has_the_reason_if_no_rank_has_one() -> None:
    result = explain(left(failure=failure(1)))
    assert (result.verdict, result.message, result.evidence) == (
        Verdict.CRASHED,
        "rank 1 on n1 exited with code 1",
        ("rank 1 printed nothing",),
    )


@pytest.mark.parametrize(
    ("lines", "message", "evidence"),
    [
        (("step 3", "no checkpoint in /data", "", "╰──╯"), "", "rank 1 printed last: no checkpoint in /data"),
        (("│ No such option: --lrr │",), "", "rank 1 printed last: No such option: --lrr"),
        (("clusterrun: what ranks print cannot be written to /runs/7: No space left on device",),
         ": what ranks print cannot be written to /runs/7: No space left on device",
         "n1: what ranks print cannot be written to /runs/7: No space left on device"),
    ],
)  # fmt: skip
def test_the_last_output_is_reported_without_an_error(
    lines: tuple[str, ...], message: str, evidence: str
) -> None:
    result = explain(left(failure=replace(failure(1), last_lines=lines)))
    assert (result.message, result.evidence) == (f"rank 1 on n1 exited with code 1{message}", (evidence,))


@pytest.mark.parametrize(
    ("ended", "culprits"), [("3", [3]), ("2-3", [2, 3]), ("0-1,3", [2]), ("0,3", [0, 3])]
)
def test_a_rank_that_exited_0_while_others_waited_is_the_culprit_or_the_few_that_continued(
    ended: str, culprits: list[int]
) -> None:
    last = replace(failure(2), noticed=True, ended=ended, peer="n3")
    result = explain(left(*heard(2, *traceback(2, PEER)), failure=last))
    assert [entry.rank for entry in result.culprits] == culprits
    assert "ended with exit code 0 before the others" in result.message
    assert "its message names an address of n3" in result.evidence


@pytest.mark.parametrize(
    ("full", "cause"),
    [
        ("OSError: [Errno 28] No space left on device: '/scratch/a'", "a disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "a quota is used up"),
        ("OSError: [Errno 27] File too large", "a file reached the limit on its size (ulimit -f)"),
        ("OSError: [Errno 5] Input/output error", "a disk or a network file system does not deliver"),
    ],
)
def test_the_node_and_not_the_first_writer_is_blamed_for_a_file_system(full: str, cause: str) -> None:
    first = heard(1, *traceback(1, full))
    result = explain(left(*first, *heard(3, *traceback(3, PEER))))
    assert (result.verdict, [(entry.rank, entry.node) for entry in result.culprits]) == (
        Verdict.CRASHED,
        [(-1, "n1")],
    )
    assert result.message == f"{cause} on n1: rank 1 met it first"
    assert result.culprits[0].why == f"{cause}; rank 1 printed: {full}, at train.py:9 (step)"
    several = explain(left(*first, *heard(3, *traceback(3, full), at=101.0)))
    assert (several.message, several.culprits) == (f"{cause} that n1, n3 use: rank 1 met it first", ())
    assert "rank 3 printed the same" in several.evidence


def test_a_rank_with_the_same_error_about_its_own_file_is_reported_too() -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/run/__{}.metadata'"
    errors = [error for rank in range(4) for error in heard(rank, *traceback(rank, missing.format(rank)))]
    assert "ranks 0 and 2-3 printed the same" in explain(left(*errors)).evidence


def test_only_members_of_the_failed_group_are_named_among_exits_with_0() -> None:
    """A mesh of two by two: rank 2 fails of its group with rank 3; rank 0 of its own with rank 2."""

    def of_mesh(rank: int, row: str, column: str, newest: str) -> RankSnapshot:
        groups = (Group("0", 4, ranks="0-3"), Group("1", 2, ranks=row), Group("2", 2, ranks=column))
        records = tuple(
            Record(name, 6, "all_reduce", "[4]", "Float", name != newest, 100.0 + (name == newest))
            for name in ("0", "1", "2")
        )
        return bare(rank, f"n{rank}", "", groups=groups, records=records)

    last = replace(failure(2), noticed=True, ended="1,3")
    remains = left(*heard(2, *traceback(2, PEER)), failure=last)
    observed = (of_mesh(0, "0-1", "0,2", "2"), of_mesh(2, "2-3", "0,2", "1"))
    result = explain(replace(remains, last=observed))
    assert [entry.rank for entry in result.culprits] == [3]
    assert result.message == "rank 3 ended with exit code 0 before the others"
    assert result.evidence[:2] == (
        "ranks 1 and 3 ended with exit code 0, then rank 2 on n2 failed",
        "of these, rank 3 alone was in the groups in which the others failed",
    )
    whole = (of_mesh(2, "2-3", "0,2", "0"),)
    assert [entry.rank for entry in explain(replace(remains, last=whole)).culprits] == [1, 3]


def test_a_survived_error_yields_to_one_that_ended_another_rank() -> None:
    retried = replace(heard(2, *traceback(2, "ConnectionError: again"), at=90.0)[0], survived=True)
    assert explain(left(retried, *heard(1, *traceback(1, BAD)))).culprits[0].rank == 1
    assert explain(left(retried)).culprits[0].rank == 2


@pytest.mark.parametrize("code", [-11, -14, 139])
def test_a_rank_that_a_signal_ended_silently_is_the_culprit(code: int) -> None:
    errors = heard(0, *traceback(0, "TrainerError: step failed"), at=101.0)
    assert explain(left(*errors, failure=failure(1, code))).culprits[0].rank == 1


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed.",
        "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
    ],
)
def test_a_killed_child_is_attributed_to_memory_if_the_kernel_counted_it(message: str) -> None:
    errors = heard(1, *traceback(1, message))
    starved = replace(failure(1), last_lines=("clusterrun: out of memory: the kernel ended a process",))
    assert explain(left(*errors)).verdict is Verdict.CRASHED
    assert explain(left(*errors, failure=starved)).verdict is Verdict.OUT_OF_MEMORY


# --- launchers ---

BELOW = """[rank0]: Traceback (most recent call last):
[rank2]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 8, in <module>
[rank2]:   File "/home/me/train.py", line 6, in step
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:5.
[rank2]: ValueError: bad tokens
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 6, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 7)
"""
KILLED = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 6)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 7)  (SIGKILL)
"""
LEFT = """W1123 02:08:09.761000 9432 torch/distributed/run.py:874] Setting OMP_NUM_THREADS for each process
loading
no licence server on this node
W1123 02:08:25.734000 9432 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 9842
E1123 02:08:25.901000 9432 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 9844)
"""


def below(text: str) -> Remains:
    """Return the remains of two launchers, the second with the output ``text``."""
    listener = ErrorListener(1, launcher=True)
    for line in text.splitlines():
        listener.hear(100.0, line)
    return left(*listener.errors, per_node=True)


@pytest.mark.parametrize(
    ("text", "message", "evidence"),
    [
        (BELOW, "rank 2 on n1 failed first", "rank 2: ValueError: bad tokens, at train.py:6 (step)"),
        (KILLED, "rank 3 on n1 failed first", "rank 3: was killed by signal 9 (SIGKILL)"),
        (
            LEFT,
            "rank 3 on n1 failed first",
            "rank 3: exited with code 1; the last line before that: no licence server on this node",
        ),
        ("ValueError: x", "rank 1 on n1 exited with code 1", "node 1 printed nothing"),
        (
            "Traceback (most recent call last):\nValueError: x",
            "node 1 (n1) failed first",
            "node 1: ValueError: x",
        ),
    ],
)
def test_the_rank_below_a_launcher_is_named_else_the_node(text: str, message: str, evidence: str) -> None:
    result = explain(below(text))
    assert (result.message, result.evidence[0]) == (message, evidence)


def test_a_run_that_ended_well_has_nothing_wrong() -> None:
    result = explain(left(state=State.COMPLETED, failure=None))
    assert (result.verdict, result.culprits) == (Verdict.NOTHING, ())


def test_a_completed_run_whose_ranks_trained_alone_is_reported() -> None:
    message = "ranks 0-3 never joined the others: each trained a copy of its own"
    result = explain(left(state=State.COMPLETED, failure=None, notes=(f"training alone: {message}",)))
    assert (result.verdict, result.message) == (Verdict.ALONE, message)


def test_a_run_that_was_cancelled_has_no_culprit() -> None:
    result = explain(left(state=State.CANCELLED, reason="cancelled by request", failure=None))
    assert (result.verdict, result.message, result.culprits) == (
        Verdict.NOT_RUNNING,
        "the run ended as CANCELLED: cancelled by request",
        (),
    )


# --- ranks that did not agree ---


def last(rank: int, sizes: str, types: str = "Float") -> RankSnapshot:
    """Return the remains of a rank that failed."""
    record = Record("0", 6, "all_reduce", sizes, types, True, 100.0)
    return bare(rank, f"n{rank}", "", groups=(Group("0", 4, ranks="0-3"),), records=(record,))


def exchanges(rank: int, *sizes: str) -> RankSnapshot:
    """Return a rank with its inputs to successive all_to_all calls."""
    called = last(rank, "").records[0]
    records = tuple(
        replace(called, operation="all_to_all", sequence=number, sizes=size, at=90.0 + number)
        for number, size in enumerate(sizes)
    )
    return replace(last(rank, ""), records=records)


@pytest.mark.parametrize(
    ("brought", "named"),
    [
        ({1: ("[8]", "[8]", "[8]"), 2: ("[8]", "[8]", "[8]"), 3: ("[8]", "[8]", "[10]")}, [3]),
        ({1: ("[8]", "[8]", "[10]", "[8]"), 2: ("[8]", "[8]", "[8]"), 3: ("[8]", "[8]", "[8]")}, [1]),
        ({1: ("[8]", "[8]", "[8]"), 3: ("[8]", "[8]", "[10]")}, []),  # too few are known
        ({1: ("[8]", "[8]"), 2: ("[8]", "[8]"), 3: ("[8]", "[10]")}, []),  # once is no custom
        ({1: ("[8]", "[9]", "[8]"), 2: ("[8]", "[7]", "[8]"), 3: ("[8]", "[8]", "[10]")}, []),
        ({1: ("[8]", "[8]", "[9]"), 2: ("[8]", "[8]", "[8]"), 3: ("[8]", "[8]", "[10]")}, []),
    ],
)
def test_the_rank_with_an_unusual_size_is_named_if_sizes_may_differ(
    brought: dict[int, tuple[str, ...]], named: list[int]
) -> None:
    """As seen of an all_to_all_single with other splits on one rank: whom it sent too much aborts."""
    errors = heard(0, f"  {ABORTED}".replace("1000 vs 4", "16 vs 8"))
    snapshots = tuple(exchanges(rank, *sizes) for rank, sizes in brought.items())
    result = explain(left(*errors, failure=failure(0, -6), last=snapshots))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.MISMATCH, named)
    assert all("and the others called it of [8] Float" in entry.why for entry in result.culprits)


def test_the_odd_rank_is_found_by_records_after_an_abort_on_too_large_a_message() -> None:
    """Ranks 0 and 2 aborted and left nothing; 1 and 3 left one record each, which differ."""
    errors = (*heard(0, f"  {ABORTED}"), *heard(2, f"  {ABORTED}"), *heard(3, *traceback(3, PEER)))
    result = explain(left(*errors, failure=failure(0, -6), last=(last(1, "[1000]"), last(3, "[4]"))))
    assert (result.verdict, [(c.rank, c.why) for c in result.culprits]) == (
        Verdict.MISMATCH,
        [(1, "it called all_reduce of [1000] Float, collective 6 of its group")],
    )
    assert result.evidence[:2] == (
        "rank 1 called all_reduce of [1000] Float",
        "ranks 0 and 2-3 called all_reduce of [4] Float",
    )


def test_the_line_of_the_odd_rank_is_reported_if_it_still_was_in_that_call() -> None:
    stood = replace(in_call(1, "all_reduce", 20), records=last(1, "[1000]").records)
    went_on = (*stood.records, replace(stood.records[0], sequence=7, at=101.0))
    for records, where in ((stood.records, " at train.py:20 (step)"), (went_on, "")):
        observed = (replace(last(1, ""), records=records), last(3, "[4]"))
        result = explain(
            left(*heard(0, f"  {ABORTED}"), last=observed, stood=(replace(stood, records=records),))
        )
        why = f"it called all_reduce of [1000] Float{where}, collective 6 of its group"
        assert [(entry.rank, entry.why) for entry in result.culprits] == [(1, why)]


def test_the_odd_sender_of_a_gather_is_named_and_not_the_aborted_root() -> None:
    observed = (last(2, "[1000]"), last(3, "[4]"))
    lasts = tuple(
        replace(entry, records=(replace(entry.records[0], operation="gather"),)) for entry in observed
    )
    result = explain(left(*heard(0, f"  {ABORTED}"), failure=failure(0, -6), last=lasts))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.MISMATCH, [2])


def test_an_aborted_rank_is_not_named_if_others_made_the_call_that_it_expected() -> None:
    """Recorded of a gather: its root had expected what rank 3 called; who sent more left no record."""
    aborted = f"  {ABORTED}".replace("1000 vs 4.", "24 vs 16.")
    result = explain(left(*heard(0, aborted), failure=failure(0, -6), last=(last(3, "[4]"),)))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message == (
        "rank 0 on n0 was sent more than it expected: the records do not show the sender; "
        "ranks 1-2 left no record of what they called"
    )
    assert (
        result.evidence[0] == "of that size is all_reduce of [4] Float, which is in the records that are left"
    )


def test_nobody_is_blamed_if_pairs_of_ranks_have_sizes_of_their_own() -> None:
    sent = replace(last(2, "[1000]").records[0], operation="all_to_all")
    lasts = (replace(last(2, ""), records=(sent,)), replace(last(3, ""), records=(sent,)))
    result = explain(left(*heard(0, f"  {ABORTED}"), failure=failure(0, -6), last=lasts))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message.startswith("rank 0 on n0 was sent more than it expected in all_to_all")


DENIED = "PermissionError: store refused the write"


def of_checkpoint(rank: int, *failed: int) -> list[str]:
    """Return the lines that torch's checkpoint prints in every rank about the ranks that failed."""
    keys = ", ".join(map(str, failed))
    parts = [
        line
        for entry in failed
        for line in (
            f"Traceback (most recent call last): (RANK {entry})",
            '  File "/venv/lib/python3.11/site-packages/torch/utils.py", line 241, in all_reduce',
            f'  File "/home/me/train.py", line {20 + entry}, in write_data',
            DENIED,
            "",
        )
    ]
    raised = (
        f"torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([{keys}])"
    )
    return [*traceback(rank, raised), *(f"[rank{rank}]: {line}" for line in parts)]


@pytest.mark.parametrize("message", [(0, 1, 2, 3), (0, 2, 3), (3,)])
def test_a_checkpoint_error_of_every_rank_belongs_to_the_rank_where_it_happened(
    message: tuple[int, ...],
) -> None:
    errors = [error for rank in message for error in heard(rank, *of_checkpoint(rank, 1))]
    result = explain(left(*errors, failure=failure(message[0])))
    assert [(entry.rank, entry.node, entry.why) for entry in result.culprits] == [
        (1, "n1", f"{DENIED}, at train.py:21 (write_data)")
    ]
    assert not any(line.startswith(("rank 0", "rank 2", "rank 3")) for line in result.evidence)


def test_two_ranks_with_failed_checkpoints_have_separate_errors() -> None:
    errors = [error for rank in range(4) for error in heard(rank, *of_checkpoint(rank, 1, 3))]
    assert {(entry.origin, entry.message) for entry in errors} == {
        (1, f"{DENIED}, at train.py:21 (write_data)"),
        (3, f"{DENIED}, at train.py:23 (write_data)"),
    }
    assert [entry.is_consequence for entry in errors] == [True, True, False, True, True, True, True, False]


def test_a_wider_type_is_larger_too() -> None:
    errors = heard(0, f"  {ABORTED}")
    result = explain(left(*errors, last=(last(1, "[4]", "Double"), last(3, "[4]"))))
    assert [entry.rank for entry in result.culprits] == [1]


def test_the_aborted_rank_is_the_odd_one_if_all_records_agree() -> None:
    dumped = ("Fatal Python error: Aborted", '  File "/home/me/train.py", line 11 in <module>')
    for lines, where in (((), ""), (dumped, " at train.py:11")):
        aborted = heard(1, f"  {ABORTED}", *lines)
        result = explain(left(*aborted, last=(last(0, "[250]"), last(2, "[250]"))))
        assert (result.verdict, [(c.rank, c.why) for c in result.culprits]) == (
            Verdict.MISMATCH,
            [(1, f"it called something smaller than the others' all_reduce of [250] Float{where}")],
        )


def test_calls_after_the_too_large_one_are_not_named() -> None:
    """Recorded of a broadcast of other shapes: 16384 bytes came for 8192, and the others had gone on."""
    aborted = f"  {ABORTED}".replace("1000 vs 4", "16384 vs 8192")
    went_on = replace(last(0, "[4]"), records=(*last(0, "[512, 8]").records, *last(0, "[4]").records))
    for records, others in ((went_on, "the others' all_reduce of [512, 8] Float"), (last(0, "[4]"), "")):
        result = explain(left(*heard(2, aborted), last=(records, replace(records, rank=1))))
        why = (
            f"it called something smaller than {others or 'what the others called'} (half the bytes: a type "
        )
        why += "of half the width, or a smaller shape)"
        assert [(entry.rank, entry.why) for entry in result.culprits] == [(2, why)]
        assert "[4]" not in str(result)


@pytest.mark.parametrize(
    ("sizes", "sent", "named"),
    [("[8]", "16 vs 10", [1]), ("[8]", "32 vs 20", [1]), ("[272]", "136 vs 4", [1]), ("[1]", "136 vs 4", [])],
)
def test_sent_and_expected_sizes_differ_by_their_parts(sizes: str, sent: str, named: list[int]) -> None:
    """Recorded of an all_gather of a last batch of 5 where the others had 8: halves of them are sent."""
    aborted = heard(1, f"  {ABORTED}".replace("1000 vs 4", sent))
    result = explain(left(*aborted, failure=failure(1, -6), last=(last(0, sizes), last(2, sizes))))
    assert [entry.rank for entry in result.culprits] == named


def in_call(number: int, operation: str, line: int) -> RankSnapshot:
    """Return a rank with its stack at SIGTERM."""
    inner = f"/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:1 {operation}"
    return bare(number, f"n{number}", "S", stack=(inner, f"/home/me/train.py:{line} step"))


def gone_on() -> tuple[RankSnapshot, ...]:
    """Return ranks of which only rank 3 left records: a large call, then the others' small one."""
    records = (*last(3, "[272]").records, replace(last(3, "[]").records[0], sequence=7, at=101.0))
    return (replace(last(3, ""), records=records),)


def test_the_rank_in_a_line_different_from_all_others_is_the_odd_one() -> None:
    """One rank skipped a step of scaled gradients. The rank that aborted was right."""
    dumped = ("Fatal Python error: Aborted", '  File "/home/me/train.py", line 20 in step')
    aborted = heard(0, f"  {ABORTED}".replace("1000 vs 4", "136 vs 4"), *dumped)
    noticed = heard(3, *traceback(3, PEER, line=20))
    stood = (in_call(1, "backward", 17), in_call(2, "all_reduce", 20))
    result = explain(left(*aborted, *noticed, failure=failure(0, -6), last=gone_on(), stood=stood))
    why = "it was at train.py:17 (step) where the others were in all_reduce at train.py:20 (step)"
    assert (result.verdict, [(c.rank, c.why) for c in result.culprits]) == (Verdict.MISMATCH, [(1, why)])


@pytest.mark.parametrize(
    "stood",
    [
        (),
        (in_call(1, "backward", 17),),  # of rank 2 nothing is known
        (in_call(1, "backward", 17), in_call(2, "backward", 17)),  # two and two
        (in_call(1, "broadcast", 17), in_call(2, "broadcast", 20)),  # which others may leave alone
    ],
)
def test_nobody_is_blamed_if_lines_do_not_show_the_odd_rank(stood: tuple[RankSnapshot, ...]) -> None:
    dumped = ("Fatal Python error: Aborted", '  File "/home/me/train.py", line 20 in step')
    aborted = heard(0, f"  {ABORTED}".replace("1000 vs 4", "136 vs 4"), *dumped)
    noticed = heard(3, *traceback(3, PEER, line=20))
    result = explain(left(*aborted, *noticed, failure=failure(0, -6), last=gone_on(), stood=stood))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())


def test_two_ranks_of_a_group_with_different_sizes_are_both_reported() -> None:
    """As seen of tensor parallelism: rank 1 is in no group with rank 2 but that of all."""
    groups = (Group("0", 4, ranks="0-3"), Group("4", 2, ranks="2-3"))
    record = Record("4", 12, "all_reduce", "[6, 8]", "Float", True, 100.0)
    mate = bare(3, "n3", "", groups=groups, records=(record,))
    barrier = Record("0", 1, "barrier", "", "", True, 101.0)
    other = Record("3", 14, "all_reduce", "[6, 8]", "Float", True, 100.5)
    apart = bare(1, "n1", "", groups=(groups[0], Group("3", 2, ranks="0-1")), records=(other, barrier))
    aborted = heard(2, f"  {ABORTED}".replace("1000 vs 4", "48 vs 32"))
    result = explain(left(*aborted, failure=failure(2, -6), last=(apart, mate)))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message == (
        "rank 2 on n2 was sent more than it expected; rank 3 called all_reduce of [6, 8] Float: "
        "the records do not show which of them is wrong"
    )


def test_a_rank_that_passes_the_group_of_another_call_is_named_after_the_abort() -> None:
    groups = (Group("0", 4, ranks="0-3"), Group("2", 2, ranks="2-3"), Group("4", 2, ranks="1,3"))
    records = []
    for turn in range(1, 6):
        records.append(Record("4", turn, "all_reduce", "[1000]", "Float", True, turn))
        records.append(Record("2", turn, "all_reduce", "[1]", "Float", True, turn + 0.5))
    wrong = Record("2", 6, "all_reduce", "[1000]", "Float", False, 6.0)
    for last_call, named in ((wrong, [3]), (replace(wrong, sizes="[2000]"), [])):  # or a new kind of call
        stray = bare(3, "n3", "", groups=groups, records=(*records, last_call))
        result = explain(left(*heard(2, f"  {ABORTED}"), failure=failure(2, -6), last=(stray,)))
        assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.MISMATCH, named)
        assert ("in group 2 (ranks 2-3), and always before in group 4" in result.message) is bool(named)


def test_an_error_message_does_not_end_a_rank_that_exited_0() -> None:
    """It skipped a bad row, made fewer steps than the others, and left with exit code 0."""
    ended = replace(failure(0), noticed=True, ended="2")
    result = explain(left(*heard(2, *traceback(2, BAD)), *heard(0, *traceback(0, PEER)), failure=ended))
    assert (result.message, [(c.rank, c.why) for c in result.culprits]) == (
        "rank 2 ended with exit code 0 before the others",
        [(2, "it ended with exit code 0 while others waited for it")],
    )
    assert f"rank 2 had printed: {BAD}, at train.py:9 (step)" in result.evidence


@pytest.mark.parametrize(
    "aborted, vs, named",
    [
        ((0, 1, 2), ("1000 vs 4",) * 3, [3]),
        ((0, 1), ("1000 vs 4",) * 2, []),  # what rank 2 called is unknown
        ((0, 1, 2), ("1000 vs 4", "1000 vs 4", "1000 vs 8"), []),  # they did not expect the same
    ],
)
def test_several_equal_expectations_outvote_one_larger_call(
    aborted: tuple[int, ...], vs: tuple[str, ...], named: list[int]
) -> None:
    errors = [
        error
        for rank, sizes in zip(aborted, vs, strict=True)
        for error in heard(rank, f"  {ABORTED}".replace("1000 vs 4", sizes))
    ]
    diagnosis = explain(left(*errors, failure=failure(0, -6), last=(last(3, "[250]"),)))
    assert (diagnosis.verdict, [culprit.rank for culprit in diagnosis.culprits]) == (Verdict.MISMATCH, named)
    whys = ["it called all_reduce of [250] Float, and ranks 0-2 expected less"] if named else []
    assert [culprit.why for culprit in diagnosis.culprits] == whys


def test_the_receiver_of_too_much_is_reported_without_blame_if_there_are_no_records() -> None:
    """As seen of a pipeline of sends and receives, which nobody records: the stage before had sent more."""
    dumped = ("Fatal Python error: Aborted", '  File "/home/me/train.py", line 14 in stage')
    result = explain(left(*heard(1, f"  {ABORTED}", *dumped), failure=failure(1, -6)))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message == (
        "rank 1 on n1 was sent more than it expected at train.py:14 (stage): the records do not show "
        "whether it or the sender is wrong"
    )


def small(number: int) -> RankSnapshot:
    """Return the remains of a rank of a pipeline.

    It reduced its losses. Sends and receives are not recorded.
    """
    records = tuple(Record("0", turn, "all_reduce", "[1]", "Float", True, turn) for turn in range(1, 14))
    return bare(number, f"n{number}", "", groups=(Group("0", 4, 13, True, "gloo", "0-3"),), records=records)


@pytest.mark.parametrize(("sent", "odd"), [(1536, []), (4, [2])])
def test_a_size_above_all_recorded_calls_blames_nobody(sent: int, odd: list[int]) -> None:
    text = f"  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. {sent} vs 2. Received"
    dumped = ("Fatal Python error: Aborted", '  File "/home/me/train.py", line 14 in stage')
    records = tuple(small(number) for number in (0, 1, 3))
    result = explain(left(*heard(2, text, *dumped), failure=failure(2, -6), last=records))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.MISMATCH, odd)
    assert ("was sent more than it expected at train.py:14 (stage)" in result.message) is (not odd)


TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
    "address. port: 43267, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)


@pytest.mark.parametrize(("rank", "verdict"), [(0, Verdict.CRASHED), (2, Verdict.MISMATCH)])
def test_a_rank_that_opens_the_store_of_rank_0_only_suspects_it(rank: int, verdict: Verdict) -> None:
    result = explain(left(*heard(rank, *traceback(rank, TAKEN)), failure=failure(rank)))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (verdict, [rank])
    assert ("says perhaps that it is rank 0" in result.message) is (rank == 2)


NO_KERNELS = ["Traceback (most recent call last):", "ModuleNotFoundError: No module named 'kernels'"]
RESET = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 5, in fetch']
RESET += ["ConnectionResetError: [Errno 104] Connection reset by peer"]


def test_a_message_of_every_rank_did_not_end_the_first_failed_rank() -> None:
    fell_back = [error for rank in range(4) for error in heard(rank, *NO_KERNELS, at=98.0)]
    result = explain(left(*fell_back, *heard(1, *traceback(1, BAD))))
    assert result.culprits == (Culprit(1, "n1", f"{BAD}, at train.py:9 (step)"),)
    assert f"rank 1 also printed: {NO_KERNELS[1]}" in result.evidence


def test_an_error_of_one_rank_is_reported_with_its_later_output() -> None:
    ended = [error for rank in range(4) for error in heard(rank, *traceback(rank, BAD))]
    result = explain(left(*heard(1, *NO_KERNELS, at=90.0), *ended, failure=failure(0)))
    assert {entry.rank for entry in result.culprits} == {1}
    assert f"rank 1 also printed: {BAD}, at train.py:9 (step)" in result.evidence


def test_a_broken_connection_of_the_rank_that_failed_first_is_its_own() -> None:
    end = replace(failure(1), last_lines=tuple(RESET))
    result = explain(left(*heard(1, *RESET), failure=end))
    assert result.culprits[0].why == f"exited with code 1; {RESET[2]}, at train.py:5 (fetch)"
    assert result.message.endswith("a connection of it broke, and no rank had failed before it")
    assert "only noticed" not in result.remedy
    elsewhere = explain(left(*heard(1, *RESET), failure=replace(end, peer="n2")))
    assert "a peer of this rank ended" in elsewhere.message


WORKER = "RuntimeError: DataLoader worker (pid 1984) exited unexpectedly with exit code 7. Details are lost"
NO_KEY = "torch.distributed.DistStoreError: wait timeout after 9000ms, keys: /default_pg/0//ready/shards"


@pytest.mark.parametrize(
    ("last", "cause", "remedy"),
    [
        (WORKER, "a worker of the data-loader ended before", "num_workers=0"),
        (NO_KEY, "no rank set a key of the store in time", "which rank sets that key"),
    ],
)
def test_an_error_without_a_connection_is_not_called_one(last: str, cause: str, remedy: str) -> None:
    """Recorded: the others only lost their peer."""
    end = replace(failure(1), last_lines=tuple(traceback(1, last)))
    result = explain(
        left(*heard(1, *traceback(1, last)), *heard(3, *traceback(3, PEER), at=100.9), failure=end)
    )
    assert (cause in result.message, remedy in result.remedy) == (True, True)
    assert [entry.rank for entry in result.culprits] == [1]
    assert last in result.culprits[0].why


def test_a_workers_output_in_c_hides_no_traceback() -> None:
    """Recorded: a worker of a data-loader that ended by a segmentation fault."""
    last = "RuntimeError: DataLoader worker (pid 15272) is killed by signal: Segmentation fault. "
    first, *others = traceback(2, last, line=19)
    message = "ERROR: Unexpected segmentation fault encountered in worker."
    (result,) = heard(2, message, f"\0{first}", *others)
    assert (result.text, result.frame) == (last, "/home/me/train.py:19 step")


@pytest.mark.parametrize("keys", ["/default_pg/0//cpu//0/0", "/default_pg/0/store_based_barrier_key:1"])
def test_a_key_that_torch_itself_waits_for_is_the_consequence_of_a_rank_that_did_not_come(keys: str) -> None:
    (result,) = heard(
        1, *traceback(1, f"torch.distributed.DistStoreError: wait timeout after 9ms, keys: {keys}")
    )
    assert result.is_consequence


def test_a_rank_that_continued_when_the_others_had_ended_is_reported_with_its_line() -> None:
    """Recorded: a barrier that only rank 0 comes to, at the end."""
    last = replace(failure(2), noticed=True, ended="0-1,3")
    result = explain(left(*heard(2, *traceback(2, PEER, line=13)), failure=last))
    assert [(entry.rank, entry.why) for entry in result.culprits] == [
        (2, "it went on after ranks 0-1 and 3 had ended with exit code 0, and failed at train.py:13 (step)")
    ]
    assert result.remedy.startswith("does only that rank come to that line?")


def test_errors_below_a_launcher_are_those_of_its_ranks_and_not_of_the_rank_that_has_its_number() -> None:
    """Node 1's launcher complained of something, its rank 3 of something else: rank 1 said nothing."""
    hang = Diagnosis(Verdict.NEVER_ARRIVED, "", (Culprit(1, "n0", ""), Culprit(3, "n1", "")))
    messages = [*heard(1, *traceback(3, BAD)), Error(100.0, 1, "OSError: of the launcher")]
    below = [replace(entry, inner=3) for entry in messages[:1]]
    message = with_printed(hang, [*below, messages[1]], per_node=True)
    assert message.evidence == (f"rank 3 has printed: {BAD}, at train.py:9 (step)",)
    assert with_printed(hang, messages[1:], per_node=False).evidence == (
        "rank 1 has printed: OSError: of the launcher",
    )


UNMET = (
    "torch.distributed.DistStoreError: Timed out after 21 seconds waiting for clients. 3/4 clients joined."
)
WAITED = "torch.distributed.DistStoreError: wait timeout after 20000ms, keys: /default_pg/0//cpu//0/0"


@pytest.mark.parametrize(
    ("message", "silent"), [((0, 2, 3), [1]), ((0, 1, 2), [3]), ((0, 2), []), ((0,), [])]
)
def test_an_absent_rank_is_named_and_never_a_waiting_one(message: tuple[int, ...], silent: list[int]) -> None:
    """Recorded of a rank that downloads for ever; of ranks that ended before they spoke none is named."""
    errors = [heard(rank, *traceback(rank, WAITED if rank else UNMET)) for rank in message]
    result = explain(left(*(entry for of_rank in errors for entry in of_rank), failure=failure(0)))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.NEVER_ARRIVED, silent)
    assert "3 of 4 came" in result.message


def test_the_odd_one_of_models_with_different_parameters_is_named_and_of_two_none() -> None:
    def differs(rank: int, own: int, other: int, size: int) -> tuple[Error, ...]:
        text = f"Rank {rank} has {own} params, while rank {other} has inconsistent {size} params."
        return heard(
            rank, *traceback(rank, f"RuntimeError: DDP expects same model across all ranks, but {text}")
        )

    most = (*differs(0, 4, 3, 6), *differs(2, 4, 3, 6), *differs(3, 6, 0, 4))
    result = explain(left(*most, failure=failure(2)))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.MISMATCH, [3])
    assert result.message.endswith("ranks 0 and 2 have 4; rank 3 has 6")
    result = explain(left(*differs(2, 4, 3, 6), failure=failure(2)))
    assert result.culprits == ()
    assert result.message.endswith("rank 2 has 4; rank 3 has 6")


def test_a_monitored_barrier_names_the_absent_rank_for_any_first_printer() -> None:
    others = (
        "RuntimeError: Rank {} successfully reached monitoredBarrier, but received errors while waiting for"
    )
    first = "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 7000 ms"
    errors = (
        *heard(1, *traceback(1, f"{others.format(1)} send/recv from rank 0."), at=99.5),
        *heard(3, *traceback(3, f"{others.format(3)} send/recv from rank 0."), at=99.6),
        *heard(0, *traceback(0, first)),
    )
    result = explain(left(*errors, failure=failure(1)))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.NEVER_ARRIVED, [2])


def test_an_old_log_line_of_another_rank_did_not_end_the_run() -> None:
    logged = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 3, in track']
    for seconds, culprit in ((8.0, 1), (3.0, 3)):
        errors = (
            *heard(3, *logged, "ConnectionError: the tracking server is away", at=100.0 - seconds),
            *heard(1, *traceback(1, BAD)),
            *heard(0, *traceback(0, PEER), at=100.7),
        )
        result = explain(left(*errors, failure=failure(1, at=100.6)))
        assert [entry.rank for entry in result.culprits] == [culprit]


def test_an_exception_that_ended_a_rank_wins_however_late_the_others_fail_of_it() -> None:
    errors = (
        *heard(3, *traceback(3, BAD), at=70.0),
        *heard(1, *traceback(1, "ValueError: no batch"), at=100.0),
    )
    result = explain(left(*errors, failure=failure(1)))
    assert [entry.rank for entry in result.culprits] == [3]


def test_a_message_that_ends_in_a_colon_continues_in_the_next_line() -> None:
    """As torch.compile tells what its backend raised."""
    messages = [
        "torch._dynamo.exc.BackendCompilerFailed: backend='own' raised:",
        "KeyError: 'aten.cosh'",
        "",
        "set",
    ]
    lines = ["Traceback (most recent call last):", '  File "/home/me/train.py", line 7, in step', *messages]
    (result,) = heard(1, *lines)
    assert result.message == f"{messages[0]} {messages[1]}, at train.py:7 (step)"


# --- watchdogs of the script's own, codes that are lost ---


def hung(number: int, sequence: int, at: float, stack: tuple[str, ...]) -> RankSnapshot:
    """Return a rank that still ran at SIGTERM. It began collective ``sequence`` at ``at``."""
    groups = (Group("0", 4, ranks="0-3"),)
    records = tuple(
        Record("0", n, "all_reduce", "[4]", "Float", n < sequence, at - 0.1 * (sequence - n))
        for n in range(1, sequence + 1)
    )
    return bare(number, f"n{number}", "S", stack=stack, groups=groups, records=records)


def watched(code: int, *lines: str, stands: tuple[str, ...] = LOOP, since: float = 93.0) -> Diagnosis:
    """Return the diagnosis of rank 0's end at 100 s, while ranks 1 and 2 wait for rank 3 from ``since``."""
    waits = tuple(hung(number, 9, since, ALL_REDUCE) for number in (1, 2))
    still = (*waits, hung(3, 8, since - 0.1, stands))
    ended = replace(failure(0, code, at=100.0), last_lines=lines)
    return explain(left(failure=ended, last=still, stood=still))


@pytest.mark.parametrize(
    "arguments",
    [
        "watchdog: no step for 6 s, aborting",
        "[Watchdog] training is stuck",
        "no progress since 7 s",
        "job appears to be hung",
    ],
)
def test_a_watchdog_of_the_scripts_own_is_not_to_blame_for_the_hang_that_it_noticed(arguments: str) -> None:
    result = watched(9, arguments)
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.NEVER_ARRIVED, [3])
    assert result.message == (
        "rank 3 never came to all_reduce (call 9 of group 0), in which others had waited 7 s when rank 0 on "
        "n0 ended the run: it waits in user code at train.py:33 (work)"
    )
    assert arguments in result.evidence


def test_the_rank_that_was_awaited_longest_is_named_among_late_ranks() -> None:
    """Rank 2 has begun the ninth and waits for its GPU, as all do that went on to the tenth."""
    still = (hung(1, 10, 93.5, LOOP), hung(2, 9, 93.0, LOOP), hung(3, 8, 92.9, LOOP))
    ended = replace(failure(0, 9, at=100.0), last_lines=("watchdog: stuck",))
    result = explain(left(failure=ended, last=still, stood=still))
    assert [entry.rank for entry in result.culprits] == [3]


@pytest.mark.parametrize("code", [124, -14, 142])
def test_a_rank_at_its_time_limit_is_not_blamed_for_the_hang_before(code: int) -> None:
    result = watched(code)
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.NEVER_ARRIVED, [3])


def test_a_watchdog_may_speak_before_the_signal_that_it_sends() -> None:
    stack = '  File "/home/me/watchdog.py", line 3 in all_reduce'
    result = watched(-6, "watchdog: no progress for 7 s", "Fatal Python error: Aborted", "", stack)
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.NEVER_ARRIVED, [3])
    assert watched(-6, stack).culprits[0].rank == 0


@pytest.mark.parametrize(
    ("arguments", "stands", "since"),
    [
        ("the learning rate is negative", LOOP, 93.0),  # an end of its own
        ("no progress bar in this terminal", LOOP, 93.0),
        ("watchdog: no step", LOOP, 97.0),  # they had hardly waited
        ("watchdog: no step", ALL_REDUCE, 93.0),  # nobody was elsewhere
    ],
)
def test_a_rank_that_ends_itself_is_named(arguments: str, stands: tuple[str, ...], since: float) -> None:
    result = watched(9, arguments, stands=stands, since=since)
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.CRASHED, [0])


def timer(rank: int, *frames: str) -> tuple[Error, ...]:
    """Return the output of ``faulthandler.dump_traceback_later``: a helper thread, then the main thread."""
    lines = [f'  File "{place}", line {line} in {name}' for place, line, name in map(str.split, frames)]
    helper = '  File "/run/prelude/clusterrun_prelude.py", line 117 in answer'
    head = "Thread 0x00007f0f (most recent call first):"
    return heard(rank, "Timeout (0:00:07)!", head, helper, "", head, *lines)


C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py 3252 all_reduce"
REDUCES, RESTORES = (C10D, "/home/me/train.py 11 step"), ("/home/me/train.py 15 restore",)


def test_the_rank_outside_collectives_is_named_among_those_that_a_timer_ended() -> None:
    stood = [timer(rank, *(RESTORES if rank == 2 else REDUCES)) for rank in range(4)]
    assert [entry.message for entry in (*stood[2], *stood[3])] == [
        "Timeout (0:00:07)!, at train.py:15 (restore)",
        "Timeout (0:00:07)!, at train.py:11 (step), in all_reduce",
    ]
    result = explain(left(*(entry for of_rank in stood for entry in of_rank)))
    assert (result.verdict, [entry.rank for entry in result.culprits]) == (Verdict.NEVER_ARRIVED, [2])
    crashed = explain(left(*stood[2], *stood[3], *heard(1, *traceback(1, BAD))))
    assert crashed.message == "rank 1 on n1 failed first", "a timer that only tells where a rank is ends none"


def test_an_exception_whose_exit_code_a_pipe_lost_is_reported_for_a_completed_run() -> None:
    errors = (*heard(2, *traceback(2, BAD)), *heard(1, *traceback(1, PEER), at=101.0))
    result = explain(left(*errors, state=State.COMPLETED, failure=None))
    assert result.message == "the run ended with exit code 0, though rank 2 on n2 failed first"
    assert ([entry.rank for entry in result.culprits], "pipefail" in result.remedy) == ([2], True)
    assert explain(left(state=State.COMPLETED, failure=None)).verdict is Verdict.NOTHING


@pytest.mark.parametrize(
    "code, cause, remedy",
    [
        (124, "so does timeout(1)", "clusterrun logs"),
        (-24, "its limit of processor time was reached", "propagate=NONE"),
        (152, "its limit of processor time was reached", "propagate=NONE"),
        (-25, "its limit on the size of a file was reached", "propagate=NONE"),
    ],
)
def test_the_code_of_a_limit_is_explained(code: int, cause: str, remedy: str) -> None:
    result = explain(left(failure=failure(1, code)))
    assert (cause in result.message, remedy in result.remedy) == (True, True)
