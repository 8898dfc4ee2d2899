"""The table that decides whether a failure recurs: each rule, the nearest case in which it must not apply."""

from __future__ import annotations

from typing import Any

import pytest

from clusterrun.coordinator.failure_rules import RULES, FailureConsequence, FailureEvidence, judge
from clusterrun.coordinator.failures import FailureEvent, FailureKind
from clusterrun.coordinator.restart_policy import _since_progress
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.record import Attempt, Failure
from clusterrun.model.states import State
from tests.coordinator.tapes import WALL, all_gone, failed, training
from tests.coordinator.test_restarts import allocated

MISMATCH = "ranks called different collectives: ranks 0 and 2-3 called all_reduce at t.py:12, rank 1 barrier"
LINE = "/home/me/train.py:12 main"
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "79.15 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has {own} GiB memory in "
    "use. Of the allocated memory 75.00 GiB is allocated by PyTorch, and {unused} is reserved by PyTorch but "
    "unallocated."
)


def evidence(
    error: str,
    code: int = 1,
    steps: tuple[int, ...] = (-1,),
    seconds: float = 30.0,
    place: str = LINE,
    everywhere: bool = True,
    before: str | None = None,
) -> FailureEvidence:
    """Return one attempt for each of ``steps``, with this error (``before``: the earlier ones' error)."""
    attempts = []
    for epoch, step in enumerate(steps):
        is_last = epoch == len(steps) - 1
        text = error if is_last or before is None else before
        failure = Failure(3, "n1", code, WALL + seconds, "rank 3 failed", error=text, place=place)
        attempts.append(Attempt(epoch, "", ("n0", "n1"), WALL, step=step, ranks_at=WALL, failure=failure))
    failure = attempts[-1].failure
    assert failure
    event = FailureEvent(FailureKind.RANK, failure, everywhere=everywhere)
    return FailureEvidence(event, attempts, _since_progress(attempts))


def test_a_job_that_exceeds_its_memory_without_progress_is_not_restarted() -> None:
    def decided(steps: tuple[int, ...]) -> str:
        facts = evidence("StepId=3.0 exceeded memory limit (20 > 10), being killed", -9, steps)
        judgement = judge(replace(facts, event=replace(facts.event, kind=FailureKind.MEMORY)))
        return judgement.word if judgement else ""

    assert [decided((-1,)), decided((40,)), decided((40, 40))] == ["host-memory", "", "host-memory"]


@pytest.mark.parametrize(
    ("before", "steps", "expected"),
    [
        (MISMATCH, (-1, -1), "same-error"),
        (MISMATCH, (40, 40), "same-error"),
        (MISMATCH, (40, 80), ""),
        ("ranks called different collectives: rank 0 called barrier", (-1, -1), ""),
    ],
)
def test_a_script_that_hangs_in_the_same_way_twice_without_progress_is_not_restarted(
    before: str, steps: tuple[int, ...], expected: str
) -> None:
    facts = evidence(MISMATCH, steps=steps, before=before, place="")
    judgement = judge(replace(facts, event=replace(facts.event, kind=FailureKind.HANG)))
    assert (judgement.word if judgement else "") == expected


def word(**facts: Any) -> str:
    judgement = judge(evidence(**facts))
    return judgement.word if judgement else ""


NAME = "NameError: name 'optimiser' is not defined"
VALUE = "ValueError: bad shard"
MODULE = "ModuleNotFoundError: No module named 'einops'"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"error": NAME}, "own-text"),
        ({"error": "SyntaxError: expected ':'", "steps": (900, -1)}, "own-text"),
        ({"error": NAME, "steps": (40,)}, ""),
        ({"error": NAME, "seconds": 7200.0}, ""),
        ({"error": "AttributeError: 'Net' object has no attribute 'hed'"}, "own-text"),
        ({"error": "AttributeError: 'NoneType' object has no attribute 'group'"}, ""),
        ({"error": "train.py: error: unrecognized arguments: --lrr", "code": 2, "place": ""}, "usage"),
        ({"error": "train.py: error: no space for the index", "code": 1, "place": ""}, ""),
        ({"error": MODULE}, "environment"),
        ({"error": MODULE, "everywhere": False}, ""),
        ({"error": MODULE, "steps": (5,)}, ""),
        ({"error": "AttributeError: module 'torch' has no attribute 'foo'", "everywhere": False}, ""),
        ({"error": "bash: line 1: trainer: command not found", "code": 127, "place": ""}, "environment"),
        (
            {
                "error": "python: can't open file '/x/trian.py': [Errno 2] No such file",
                "code": 2,
                "place": "",
            },
            "environment",
        ),
        ({"error": FULL.format(own="78.10", unused="2.50 GiB")}, "gpu-memory"),
        ({"error": FULL.format(own="78.10", unused="2.50 GiB"), "steps": (70,)}, ""),
        ({"error": FULL.format(own="78.10", unused="2.50 GiB"), "steps": (70, 60)}, "gpu-memory"),
        ({"error": FULL.format(own="8.10", unused="0 bytes")}, ""),
        ({"error": "RuntimeError: CUDA error: uncorrectable ECC error encountered"}, "hardware"),
        ({"error": "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: …"}, "network"),
        ({"error": VALUE}, ""),
        ({"error": VALUE, "steps": (-1, -1)}, "same-error"),
        ({"error": VALUE, "steps": (70, 70)}, "same-error"),
        ({"error": VALUE, "steps": (70, 90)}, ""),
        ({"error": VALUE, "steps": (-1, -1), "seconds": 7200.0}, ""),
        ({"error": VALUE, "steps": (-1, -1), "before": "KeyError: 'shard'"}, ""),
        ({"error": VALUE, "steps": (-1, -1), "place": ""}, ""),
        ({"error": "ConnectionError: mirror 3 refused us", "steps": (-1, -1)}, ""),
        ({"error": "KeyboardInterrupt", "steps": (-1, -1)}, ""),  # a signal from outside
        ({"error": "OSError: [Errno 116] Stale file handle", "steps": (-1, -1)}, ""),
        ({"error": "torch.distributed.DistStoreError: Timed out after 21 seconds", "steps": (-1, -1)}, ""),
        ({"error": "RuntimeError: [1] is setting up NCCL communicator: Connection reset by peer"}, ""),
        ({"error": ""}, ""),
    ],
)
def test_a_rule_applies_to_its_case_and_not_to_the_nearest_other_case(
    facts: dict[str, Any], expected: str
) -> None:
    assert word(**facts) == expected


def test_an_observation_of_a_rank_is_not_judged() -> None:
    case = evidence(NAME)
    noticed = replace(case.event, failure=replace(case.failure, noticed=True))
    assert judge(replace(case, event=noticed)) is None


@pytest.mark.parametrize(
    ("own", "unused", "arguments"),
    [
        ("78.10", "512.00 MiB", ("2.0 GiB more did not fit into 79.2 GiB", "at least 1.0 GiB less")),
        ("78.10", "2.50 GiB", ("2.5 GiB of the process's memory was unused", "expandable_segments")),
    ],
)
def test_the_remedy_for_out_of_memory_names_a_size_that_fits(
    own: str, unused: str, arguments: tuple[str, ...]
) -> None:
    judgement = judge(evidence(FULL.format(own=own, unused=unused)))
    assert judgement and [text for text in arguments if text not in judgement.reason] == []


def fails(tape: Any, error: str, time: float = 5.0, epoch: int = 0) -> list[Any]:
    """Let rank 3 of ``epoch`` fail with ``error``. Everything of the epoch is gone at ``time`` + 1 s."""
    event = failed(3, time)
    message = replace(event.message, epoch=epoch, error=error, place=LINE)
    tape.at(time, replace(event, message=message))
    tape.at(time + 0.3)
    return all_gone(tape, time + 1.0, epoch)


def test_a_run_that_would_fail_again_ends_with_the_reason() -> None:
    tape = training(max_restarts=3)
    actions = fails(tape, NAME)
    state = next(action.state for action in reversed(actions) if hasattr(action, "state"))
    assert state.state is State.FAILED and state.exit_code == 3
    assert state.reason == (
        "rank 3 on n1 exited with code 3; not restarted: NameError: name 'optimiser' is not defined, "
        "at train.py:12 (main), before a step was reported (--no-progress 0 restarts it anyway)"
    )
    (attempt,) = state.attempts
    assert (attempt.decision, attempt.failure.error, attempt.failure.place) == ("own-text", NAME, LINE)


def test_no_progress_0_restarts_it_all_the_same() -> None:
    tape = training(max_restarts=3, survival=Survival(no_progress=0))
    fails(tape, NAME)
    state = tape.state(6.5)
    assert state.state is State.RUNNING and state.reason.startswith("restart 1 of 3: rank 3 on n1")
    assert state.attempts[0].decision == "failure"


def test_a_node_with_broken_hardware_is_replaced_by_a_spare() -> None:
    tape = allocated(3, max_restarts=1)
    event = failed(3, 5.0)
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    tape.at(5.0, replace(event, message=replace(event.message, error=error, place=LINE)))
    tape.at(5.3)
    all_gone(tape, 6.0, 0)
    state = tape.state(7.0)
    assert state.attempts[0].decision == "hardware" and state.excluded == ("n1",)
    assert "a GPU's memory is damaged" in state.reason


def test_a_node_with_broken_hardware_trains_again_without_a_spare() -> None:
    tape = training(max_restarts=1)
    fails(tape, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    state = tape.state(7.0)
    assert (state.attempts[0].decision, state.excluded) == ("hardware", ())


def test_each_rule_has_a_word_of_its_own_that_the_schema_lists() -> None:
    from clusterrun.cli.status_view import DECISIONS

    rule_words = [rule.word for rule in RULES]
    assert len(rule_words) == len({*rule_words}) and {*rule_words} <= {*DECISIONS}
    assert all(DECISIONS[word] for word in rule_words)
    assert {rule.consequence for rule in RULES} == {*FailureConsequence}
