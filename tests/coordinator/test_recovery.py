"""A new coordinator continues from the state of the previous one."""

from __future__ import annotations

import pytest

from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import EpochClaimed, MessageCame
from clusterrun.coordinator.recovery import first_claim, in_words, is_over
from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, RunState
from clusterrun.model.states import Phase, State
from clusterrun.protocol.messages import Beat, ReservePort
from clusterrun.runtime.machine_events import Tick
from tests.coordinator.tapes import ORDERS, Tape, join, sent

FIRST = Attempt(0, "first start", ("n0", "n1"), 1.0, job_id="7")
RUNS = RunState("r", 0, State.RUNNING, Phase.TRAINING, "", "n0", 42, 6.0, (FIRST,), excluded=("n9",))


def ended(outcome: str, state: State = State.PENDING) -> RunState:
    return replace(RUNS, state=state, attempts=(replace(FIRST, outcome=outcome),))


def test_the_first_coordinator_of_a_run_knows_of_nobody() -> None:
    assert first_claim(0, None, None) == EpochClaimed(0)


def test_an_attempt_of_which_nobody_wrote_a_word_may_live() -> None:
    assert first_claim(1, None, None) == EpochClaimed(1, quiet=False, cause="node", lease=75.0)


def test_an_attempt_without_an_end_may_live_unless_it_is_proven_dead() -> None:
    lost_attempt = replace(FIRST, ended_at=6.0, outcome="NODE_FAIL")
    killed_attempt = replace(lost_attempt, outcome="FAILED")
    lost = EpochClaimed(1, (lost_attempt,), False, ("n9",), "node", host=RUNS.host)
    killed = replace(
        lost, earlier=(killed_attempt,), cause="coordinator", dead_since=20.0, nodes=("n0", "n1", "n2")
    )
    with_spare = replace(RUNS, spares=("n2",))
    assert (first_claim(1, RUNS, None), first_claim(1, with_spare, 20.0)) == (lost, killed)
    assert [in_words(lost), in_words(killed)] == [
        "started again after the loss of n0, or of the coordinator there",
        "started again after the loss of its coordinator on n0",
    ]


def test_an_attempt_that_was_killed_while_it_waited_sets_no_limit() -> None:
    state = replace(RUNS, attempts=(FIRST, replace(FIRST, epoch=1, nodes=())))
    assert first_claim(2, state, 20.0).dead_since is None


@pytest.mark.parametrize(
    "outcome, cause",
    [
        ("TIMEOUT", "time-limit"),
        ("PREEMPTED", "preemption"),
        ("PENDING", "unfit"),
        ("NODE_FAIL", "node"),
        ("CANCELLED", "requeue"),
    ],
)
def test_a_handed_over_run_ends_silently_and_its_last_attempt_has_the_reason(
    outcome: str, cause: str
) -> None:
    state = ended(outcome)
    assert first_claim(1, state, None) == EpochClaimed(1, state.attempts, True, ("n9",), cause)


def test_a_run_that_ended_and_is_started_again_was_put_back_by_somebody() -> None:
    state = ended("COMPLETED", State.COMPLETED)
    assert first_claim(1, state, None) == EpochClaimed(1, state.attempts, True, ("n9",), "requeue")


def test_a_run_is_over_for_every_job_except_its_last() -> None:
    state = ended("COMPLETED", State.COMPLETED)
    assert [is_over(state, job_id) for job_id in ("8", "7", "")] == [True, False, False]
    assert not is_over(RUNS, "8")
    assert not is_over(None, "8")


def test_the_lease_of_the_earlier_nodes_is_waited_for_if_it_was_longer() -> None:
    assert first_claim(1, replace(RUNS, lease=75.0), None).lease == 75.0
    quiet_since = {}
    for lease in (20.0, 75.0):
        tape = Tape(Coordinator(replace(ORDERS, max_restarts=2), "login", 42))
        tape.at(0.0)
        tape.at(0.0, EpochClaimed(1, (FIRST,), False, cause="coordinator", dead_since=0.0, lease=lease))
        join(tape, 1.0)
        time, messages = 1.0, []
        while not any(isinstance(message, ReservePort) for _, message in messages):
            time += 1.0
            messages = sent(tape.does(time, *(MessageCame(node, Beat(int(time))) for node in (0, 1)), Tick()))
            assert time < 200.0
        quiet_since[lease] = time
        assert tape.state(time).lease == max(lease, 20.0)
    assert quiet_since == {20.0: 23.0, 75.0: 78.0}
