"""Recorded output of failed runs: the ranks that are named, and the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterrun.agent.log_tail import noticed
from clusterrun.diagnosis.decide import decide_end as explain
from clusterrun.diagnosis.printed_errors import Error, heard
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.verdict import Diagnosis
from clusterrun.model.record import Failure
from clusterrun.model.states import State

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[1] / "recorded" / "failures.json").read_text()
)
"""By name: nodes, the failure in the record, and what each stream of each rank printed, with its seconds."""

EXPECTED: dict[str, tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]] = {
    "dl_worker": (
        (1,),
        ("ValueError: sample 9 has no label", "(parse)"),
        ("Caught ValueError in DataLoader worker process 0., at",),
    ),
    "mp_spawn": ((2,), ("RuntimeError: child number one broke", "(child)"), ()),
    "mp_spawn_exit": ((0,), ("process 1 terminated with exit code 7",), ()),
    "torchrun_child": (
        (2,),
        ("ValueError: bad tokens in shard 2", "(step)", "rank 2"),
        ("rank 1 failed", "rank 1 on", "ChildFailedError"),
    ),
    "torchrun_segv": ((1,), ("Segmentation fault", "rank 1"), ("rank 0 failed", "rank 0 on")),
    "torchrun_kill": ((3,), ("SIGKILL", "rank 3"), ("rank 1 failed", "rank 1 on", "memory runs out")),
    "raise_from": ((1,), ("ValueError: the config has no learning rate", "KeyError: 'lr'", "(read)"), ()),
    "during_handling": ((0,), ("OSError: cannot remove lock", "RuntimeError: loss is nan"), ()),
    "thread": ((2,), ("ValueError: prefetch thread broke", "(work)"), ()),
    "exit_text": ((1,), ("no checkpoint found in /data/run7",), ()),
    "cli_args": ((2,), ("argument --lr: invalid float value: 'fast'",), ()),
    "syntax": ((0, 1, 2), ("all 3 ranks failed", "SyntaxError: invalid syntax", "syntax.py:5"), ()),
    "syntax_module": ((1,), ("SyntaxError: expected ':'", "broken_mod.py:2"), ()),
    "import_local": ((1,), ("ModuleNotFoundError: No module named 'helpers_of_mine'",), ()),
    "segfault": ((1,), ("Segmentation fault",), ()),
    "abort": ((2,), ("Aborted",), ()),
    "sigkill": ((2,), ("SIGKILL",), ("memory runs out",)),
    "exit0_early": (
        (1,),
        ("ended", "exit code 0"),
        ("rank 0 on local-0 failed first", "rank 2 on local-2 failed first"),
    ),
    "exit0_early_rank0": (
        (0,),
        ("ended", "exit code 0"),
        ("rank 1 on local-1 failed first", "rank 2 on local-2 failed first"),
    ),
    "exit0_osexit": ((2,), ("exit code 0",), ("rank 0 on local-0 failed first",)),
    "unicode_out": ((1,), ("ValueError: größe",), ()),
    "multiline": ((1,), ("Error(s) in loading state_dict for Net:", "fc.weight"), ()),
    "multiline_empty_head": ((1,), ("The tensor sizes differ",), ()),
    "stderr_closed": ((1,), ("loading shard 7 failed: giving up",), ("rank 0 on local-0 exited",)),
    "stderr_to_stdout": ((1,), ("ValueError: told on stdout",), ()),
    "tear_down": ((1,), ("RuntimeError: the true reason",), ("rank 1: OSError",)),
    "warnings_after": ((1,), ("RuntimeError: the true reason",), ()),
    "rich_tb": ((1,), ("ZeroDivisionError: division by zero",), ()),
    "rich_logging": ((1,), ("ZeroDivisionError: division by zero",), ()),
    "logging_exc": ((1,), ("ArithmeticError: loss is nan at step 12", "(step)"), ()),
    "logging_error_only": ((1,), ("validation split is empty, stopping",), ()),
    "terminate": ((1,), ("cannot open shard index",), ()),
    "cuda_text": ((2,), ("CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING=1"), ()),
    "excepthook_quiet": ((2,), ("hooked",), ()),
    "subprocess_err": ((1,), ("CalledProcessError", "exit status 2"), ()),
    "pool": ((1,), ("LookupError: token 3 unknown", "(tok)"), ()),
    "futures": ((1,), ("ConnectionError: mirror 3 refused us",), ()),
    "dl_killed": ((1,), ("is killed by signal: Killed",), ("mostly by the kernel",)),
    "errorfile_record": ((1,), ("ValueError: recorded problem",), ()),
    "cpu_oom_text": ((1,), ("can't allocate memory",), ()),
    "assert": ((1,), ("AssertionError",), ()),
    "sysexit_in_group": ((1,), ("usage: train.py DATA",), ()),
    "timeout_alarm": ((1,), ("SIGALRM",), ()),
    "recursion": ((1,), ("RecursionError: maximum recursion depth exceeded",), ()),
    "no_command": ((1,), ("tokenise_all: command not found",), ()),
    "stdout_last": ((1,), ("step 7: data are empty, leaving",), ()),
    "survived_retry": ((2,), ("ValueError: the real one",), ("rank 0 on local-0 failed first",)),
    "wrapped_peer": (
        (0,),
        ("exited with code 9",),
        ("rank 1 on local-1 failed first", "rank 2 on local-2 failed first"),
    ),
    "finally_barrier": ((1,), ("KeyError: 'vocab'",), ()),
    "two_of_four_leave": (
        (1, 3),
        ("ranks 1 and 3 ended with exit code 0",),
        ("rank 0 on local-0 failed first",),
    ),
    "one_stays": ((2,), ("ended with exit code 0",), ()),
    "torchrun_silent": (
        (1,),
        ("exited with code 17", "rank 1"),
        ("rank 0 on local-0 failed", "node 1 (local-1) failed"),
    ),
    "per_node_text": ((-1,), ("no scratch on this host", "node 1"), ("rank 1 on", "rank 1 printed")),
    "group_of_consequences": (
        (1,),
        (
            "ValueError: reader one",
            "OSError: reader two",
        ),
        (),
    ),
    "spawn_no_torch": ((1,), ("ValueError: plain child broke", "(child)"), ()),
    "dl_chained": ((1,), ("RuntimeError: decode failed", "KeyError: 'x'"), ("Caught RuntimeError",)),
    "store_gone": (
        (0,),
        ("exited with code 3",),
        ("rank 1 on local-1 failed first", "rank 2 on local-2 failed first"),
    ),
    "click_like": ((0, 1, 2), ("all 3 ranks failed", "Error: No such option: --lrr"), ()),
    "slow_end": (
        (2,),
        ("ValueError: failed, then slow to end",),
        ("rank 0 on local-0 exited with code 1", "rank 1 on local-1 exited with code 1"),
    ),
    "loguru_like": ((0, 1, 2), ("ZeroDivisionError: division by zero", "(step)"), ()),
    "never_inits": (
        (1,),
        ("rank 1 never came to init_process_group: 3 of 4 came",),
        ("rank 0 on local-0 failed first", "rank 2 on", "rank 3 on"),
    ),
    "ddp_params_differ": ((3,), ("ranks 0-2 have 4; rank 3 has 6",), ("rank 2 on local-1 failed first",)),
    "caught_by_peers": (
        (3,),
        ("ZeroDivisionError: empty validation split", "(train)"),
        ("rank 2 on local-1 failed first", "rank 4 on local-2 failed first"),
    ),
    "pool_error": ((3,), ("RuntimeError: document 5 has no text", "(tokenise)"), ()),
    "exc_group": ((3,), ("ConnectionRefusedError: shard server 1 refused", "(fetch)"), ()),
    "loader_error": ((1,), ("record 33 is no text", "(decode)"), ("Caught UnicodeDecodeError",)),
    "import_on_one_node": (
        (2, 3),
        ("No module named 'flash_attention_kernels_v9'", "all 2 ranks of local-1 failed"),
        (),
    ),
    "os_exit0": ((1,), ("rank 1 ended with exit code 0",), ("rank 0 on local-0 failed first",)),
    "pickle_spawn": ((1,), ("ValueError: bad cfg in child", "KeyError: 'cfg'"), ()),
}
"""Ranks that failed (-1: a node), texts of the message, and texts that it must not contain."""


def errors(case: dict[str, Any]) -> tuple[Error, ...]:
    printed = [(*key.split(), at, lines) for key, pieces in case["streams"].items() for at, *lines in pieces]
    pieces = ((int(rank), stream, 1000.0 + at, "\n".join(lines)) for rank, stream, at, lines in printed)
    return heard(pieces, case["per_node"])


def judged(case: dict[str, Any]) -> Diagnosis:
    failure = Failure(at=1000.0, **{**case["failure"], "last_lines": tuple(case["failure"]["last_lines"])})
    nodes = tuple(case["nodes"])
    return explain(
        Remains(State.FAILED, failure.why, failure, errors(case), nodes, per_node=case["per_node"])
    )


def test_every_recorded_run_has_an_expectation() -> None:
    assert set(RECORDED) == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recorded_failure_is_reported_with_its_message_and_place(name: str) -> None:
    ranks, arguments, others = EXPECTED[name]
    result = judged(RECORDED[name])
    message = "\n".join(
        (result.message, *(culprit.why for culprit in result.culprits), *result.evidence, result.remedy)
    )
    assert [culprit.rank for culprit in result.culprits] == list(ranks)
    assert [word for word in arguments if word not in message] == []
    assert [word for word in (*others, "printed no error") if word in message] == []


@pytest.mark.parametrize("name", [name for name in EXPECTED if not RECORDED[name]["per_node"]])
def test_only_the_culprit_of_recorded_ranks_is_no_observer(name: str) -> None:
    """Or, where a rank ended well too early, nobody did more than that."""
    case = RECORDED[name]
    culprits = EXPECTED[name][0]
    peers = [key for key in case["streams"] if key.endswith("err") and int(key.split()[0]) not in culprits]
    lines = {key: [line for _, *part in case["streams"][key] for line in part] for key in peers}
    arguments = ("closed by peer", "reset by peer", "Failed to recv")
    ended = [key for key in peers if any(word in line for line in lines[key] for word in arguments)]
    assert [key for key in ended if not noticed(int(key.split()[0]), 1, lines[key], launcher=False)] == []
