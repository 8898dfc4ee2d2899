"""The laws of Slurm's words: a closed table for states, sentences for reasons, nothing unknown is "over"."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model.states import State
from clusterrun.slurm_text import job_states, reasons

SLURMS_OWN_LIST = {
    # base states
    "PENDING": "PD",
    "RUNNING": "R",
    "SUSPENDED": "S",
    "COMPLETED": "CD",
    "CANCELLED": "CA",
    "FAILED": "F",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "PREEMPTED": "PR",
    "BOOT_FAIL": "BF",
    "DEADLINE": "DL",
    "OUT_OF_MEMORY": "OOM",
    # flags
    "COMPLETING": "CG",
    "STAGE_OUT": "SO",
    "CONFIGURING": "CF",
    "RESIZING": "RS",
    "REQUEUED": "RQ",
    "REQUEUE_FED": "RF",
    "REQUEUE_HOLD": "RH",
    "SPECIAL_EXIT": "SE",
    "STOPPED": "ST",
    "REVOKED": "RV",
    "RESV_DEL_HOLD": "RD",
    "SIGNALING": "SI",
    "EXPEDITING": "EX",
}
ENDED = {
    "COMPLETED": State.COMPLETED,
    "CANCELLED": State.CANCELLED,
    "FAILED": State.FAILED,
    "TIMEOUT": State.TIMEOUT,
    "DEADLINE": State.TIMEOUT,
    "NODE_FAIL": State.NODE_FAIL,
    "BOOT_FAIL": State.NODE_FAIL,
    "PREEMPTED": State.PREEMPTED,
    "OUT_OF_MEMORY": State.OUT_OF_MEMORY,
}


def test_the_table_has_exactly_the_25_states_of_slurm() -> None:
    assert {word.full: word.short for word in job_states.WORDS} == SLURMS_OWN_LIST


@pytest.mark.parametrize("full, short", SLURMS_OWN_LIST.items())
def test_every_state_equals_its_code_and_only_end_states_mean_ended(full: str, short: str) -> None:
    state = job_states.read(full).state
    assert job_states.read(short).state is state
    assert state is ENDED.get(full, state)
    assert state.ended == (full in ENDED)


@pytest.mark.parametrize(
    "text, state",
    [("CANCELLED by 1000", State.CANCELLED), ("COMPLETED+", State.COMPLETED), ("completed", State.COMPLETED)],
)
def test_states_are_read_with_the_decoration_of_sacct(text: str, state: State) -> None:
    assert job_states.read(text).state is state


@given(st.text())
def test_a_word_that_is_not_slurms_is_unknown_and_never_ended(text: str) -> None:
    if text.split(" ")[0].rstrip("+").upper() not in {*SLURMS_OWN_LIST, *SLURMS_OWN_LIST.values()}:
        assert job_states.read(text).state is State.UNKNOWN


@pytest.mark.parametrize(
    "word, message, remedy",
    [
        ("Resources", "waits for nodes to become free", ""),
        ("(Priority)", "waits: jobs with a higher priority are ahead", ""),
        ("PartitionTimeLimit", "it asks for more time than the partition allows", "shorten --time"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
            "waits for nodes that are in use, down, drained or reserved (UnavailableNodes:n[1-2])",
            "see sinfo -R",
        ),
        (
            "ReqNodeNotAvail,_UnavailableNodes:n1",
            "waits for nodes that are in use, down, drained or reserved (UnavailableNodes:n1)",
            "see sinfo -R",
        ),
        (
            "(ReqNodeNotAvail, Reserved for maintenance)",
            "waits: maintenance of its nodes is planned",
            "scontrol show reservation; a shorter --time may fit before it, see clusterrun plan",
        ),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            "waits for nodes that are down, drained, or reserved for partitions with a higher priority",
            "see sinfo -R",
        ),
        (
            "ReqNodeNotAvail, May be reserved for other job",
            "waits for nodes that are reserved for others, down or drained",
            "see sinfo -R; scontrol show reservation; a shorter --time may fit before it, "
            "see clusterrun plan",
        ),
        ("RaisedSignal:9(Killed)", "was ended by a signal (9: Killed)", ""),
        ("(RaisedSignal:53(Real-time signal 19))", "was ended by a signal (53: Real-time signal 19)", ""),
        ("(null)", "", ""),
        (
            "AssocGrpGRES",
            "waits: all jobs together under your account may not use more now (AssocGrpGRES)",
            "",
        ),
        ("QOSMaxJobsPerUserLimit", "waits: its QOS may not use more now (QOSMaxJobsPerUserLimit)", ""),
        ("QOSMinGRES", "it asks for less than its QOS requires (QOSMinGRES)", "ask for more"),
        ("SomethingNew", "Slurm says: SomethingNew", ""),
        ("None", "", ""),
        ("", "", ""),
    ],
)
def test_a_reason_is_a_sentence_with_a_remedy_and_an_unknown_one_is_shown_unchanged(
    word: str, message: str, remedy: str
) -> None:
    result = reasons.explain(word)
    assert (result.meaning, result.remedy) == (message, remedy)


@pytest.mark.parametrize(
    "word, never",
    [
        ("DependencyNeverSatisfied", True),
        ("PartitionConfig", True),
        ("(BadConstraints)", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMaxGRESPerJob", True),
        ("QOSMinCpuNotSatisfied", True),
        ("AssocGrpGRES", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("Dependency", False),
        ("Resources", False),
        ("JobHeldUser", False),
        ("ReqNodeNotAvail, UnavailableNodes:n1", False),
        ("SomethingNew", False),
    ],
)
def test_a_job_never_starts_if_only_a_change_of_job_or_limit_helps(word: str, never: bool) -> None:
    assert reasons.explain(word).never is never
