"""Restarts of whole runs on this machine: real coordinator, shims, agents and ranks, no scheduler."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterrun import proc
from clusterrun.model import contract
from clusterrun.model.states import State
from clusterrun.protocol.bootstrap import Timeouts
from tests.coordinator.runs import Run, runs, until

Make = Callable[..., Run]
QUICK = Timeouts(heartbeat=0.3, lease=3.0, lost=2.0, kill=1.0, state=1.0, join=40.0)
ONCE = 'echo up; [ "$CLUSTERRUN_ATTEMPT" = 0 ] && exec sleep 600; exit 0'
"""The first attempt hangs until something ends it, the second one is well."""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with runs(tmp_path) as maker:
        yield maker


def ends(run: Run) -> list[tuple[str, str]]:
    """Wait for the completed run and return cause and outcome of every attempt."""
    assert run.wait(120.0) == 0, run.words
    state = run.state()
    assert state.state is State.COMPLETED
    return [(attempt.cause, attempt.outcome) for attempt in state.attempts]


def test_a_killed_agent_is_started_again_and_the_run_completes(make: Make) -> None:
    run = make(["/bin/sh", "-c", ONCE], max_restarts=1)
    run.start(QUICK)
    run.running(4)
    os.kill(run.agents()[1], signal.SIGKILL)
    assert ends(run) == [("first", "NODE_FAIL"), ("node", "COMPLETED")]


def test_a_frozen_agent_is_replaced_by_the_spare_that_waited(make: Make) -> None:
    run = make(["/bin/sh", "-c", ONCE], max_restarts=1, spares=1)
    run.start(QUICK)
    run.running(4)
    trains = until(lambda: run.state().attempts[0].nodes, "the state that tells who trains")
    first = [pid for pid in run.agents() if proc.environment(pid)[contract.NODE_NAME_VARIABLE] == trains[0]]
    os.kill(first[0], signal.SIGSTOP)
    assert ends(run) == [("first", "NODE_FAIL"), ("node", "COMPLETED")]
    assert run.state().attempts[1].nodes == ("local-2", trains[1])


def test_a_rank_that_fails_twice_is_started_a_third_time_on_the_same_nodes(make: Make) -> None:
    script = "case $CLUSTERRUN_ATTEMPT$RANK in 03) exit 5;; 1?) kill -9 $$;; esac; exit 0"
    run = make(["/bin/sh", "-c", script], max_restarts=2)
    run.start()
    assert ends(run) == [("first", "FAILED"), ("failure", "FAILED"), ("failure", "COMPLETED")]
    assert {attempt.nodes for attempt in run.state().attempts} == {("local-0", "local-1")}


def test_the_environment_tells_ranks_how_often_they_were_started_again_and_how_often_they_may(
    make: Make,
) -> None:
    progress = '{"format": 1, "step": 7, "checkpoint": null, "stopping": false, "at": 1.0}'
    message = (
        'echo "$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS"; [ $CLUSTERRUN_ATTEMPT = 2 ] && exit'
    )
    moved = (
        f"[ $CLUSTERRUN_ATTEMPT = 1 ] && echo '{progress}' >$CLUSTERRUN_RUN_DIR/attempts/001/progress.json"
    )
    run = make(["/bin/sh", "-c", f"{message}; {moved}; exit 1"], max_restarts=3)
    run.start()
    assert ends(run) == [("first", "FAILED"), ("failure", "FAILED"), ("failure", "COMPLETED")]
    # Attempt 1 got further than all before it, so the budget is full again: two more after attempt 2.
    assert [run.output(0, epoch=epoch) for epoch in (0, 1, 2)] == [b"0/3\n", b"1/3\n", b"2/4\n"]
