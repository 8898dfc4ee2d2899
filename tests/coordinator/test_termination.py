"""The laws of a job's end: notices, time limits, preemptions, requeues, chains, as tapes of a whole run."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from clusterrun.coordinator.actions import (
    AskJob,
    ClaimEpoch,
    DropLink,
    DropNext,
    ExcludeNext,
    Finish,
    LaunchAgents,
    QueueNext,
    ReadProgress,
    Requeue,
    SaveState,
    Send,
    WriteNotice,
)
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import (
    AgentLeft,
    CancelAsked,
    EpochClaimed,
    HandedOver,
    JobTold,
    LauncherEnded,
    MessageCame,
    NextQueued,
    Progressed,
    SupervisorGone,
)
from clusterrun.coordinator.lifecycle import Collaborators
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.record import Attempt
from clusterrun.model.states import State
from clusterrun.protocol.messages import (
    Ack,
    Beat,
    Farewell,
    RankExited,
    RanksGone,
    SignalRanks,
    SignalSeen,
    SignalTaken,
    StopRanks,
)
from clusterrun.runtime.machine_events import Note, Now, SignalCame, Tick
from tests.coordinator.tapes import ORDERS, WALL, Tape, join, train

ARGV = ("sbatch", "{dependency}", "script.sh")
REQUEUE = Survival(requeue="requeue", resubmit=ARGV, notice=60.0, max_preemptions=2, max_time_limits=2)
CHAIN = replace(REQUEUE, requeue="chain")
TERM, NOTICE = SignalCame(signal.SIGTERM), SignalCame(signal.SIGUSR2)
LIMIT = "the job's time limit was reached"
PREEMPTED = "preempted: the scheduler needs the nodes for another job"
TOLD = [Send(0, SignalRanks(0, signal.SIGUSR2)), Send(1, SignalRanks(0, signal.SIGUSR2))]
STOPPED = [Send(0, StopRanks(0, 12.0)), Send(1, StopRanks(0, 12.0))]
FAILED = [Send(0, StopRanks(0, 8.0)), Send(1, StopRanks(0, 8.0))]
FAREWELL = [Send(0, Farewell()), Send(1, Farewell())]


class Job(Tape):
    """A run of two nodes, two ranks each, in job 7; ``progress`` answers how far its ranks have come."""

    progress = Progressed(0)

    def _on(self, time: float, event: Any) -> list[Any]:
        out = self.machine.on(Now(time, WALL + time), event)
        requested = [action for action in out if isinstance(action, ReadProgress)]
        return [a for a in out if a not in requested] + [
            a for _ in requested for a in self._on(time, self.progress)
        ]

    def does(self, time: float, *events: Any) -> list[Any]:
        dull = (Note, SaveState, Ack)
        acted = self.at(time, *events)
        return [
            a
            for a in acted
            if not isinstance(a, dull) and not (isinstance(a, Send) and isinstance(a.message, Ack))
        ]


def job(
    survival: Survival = REQUEUE, earlier: tuple[Attempt, ...] = (), cause: str = "first", **changes: Any
) -> Job:
    """Return a job that starts at 0 s. Its first attempt is ours."""
    orders = replace(ORDERS, survival=survival, launch=("srun",), **changes)
    tape = Job(Coordinator(orders, "login", 42, collaborators=Collaborators(job_id="7")))
    tape.at(0.0)
    tape.began = tape.does(0.0, EpochClaimed(len(earlier), earlier, cause=cause))
    return tape


def training(survival: Survival = REQUEUE, end_at: float | None = None, **changes: Any) -> Job:
    """Return a job that trains since 1 s. At 5 s the scheduler has answered when it ends (steady clock)."""
    tape = job(survival, **changes)
    join(tape, 1.0)
    train(tape, 1.0)
    assert (QueueNext(()) in tape.began) is (survival.requeue == "chain")
    assert tape.does(5.0) == [AskJob()]
    tape.at(5.0, JobTold("", None if end_at is None else WALL + end_at))
    if survival.requeue == "chain":
        tape.at(5.0, NextQueued("8"))
    return tape


def over(tape: Job, time: float, code: int = 0, progress: Progressed | None = None) -> list[Any]:
    """End all ranks with nothing left. Return the actions that follow."""
    tape.progress = progress or Progressed(0)
    for rank in range(4):
        tape.at(time, MessageCame(rank // 2, RankExited(0, rank, code, WALL + time, stopped=code != 0)))
    return tape.does(time, MessageCame(0, RanksGone(0)), MessageCame(1, RanksGone(0)))


def left_by_all(tape: Job, time: float) -> list[Any]:
    """Let agents and launcher leave. Return the actions when nothing else is left."""
    return tape.does(time, AgentLeft(0, ""), AgentLeft(1, ""), LauncherEnded(0))


def stopped_by_the_limit(survival: Survival = REQUEUE) -> Job:
    """Return a job that reached its time limit: all ranks are gone at 97 s."""
    tape = training(survival, end_at=100.0)
    tape.at(95.0, TERM)
    tape.at(95.1, JobTold("time-limit"))
    over(tape, 97.0, -15)
    return tape


# --- notices ---


def test_ranks_learn_the_end_time_at_a_notice_and_are_ended_then() -> None:
    tape = training(end_at=100.0)
    assert tape.does(50.0, NOTICE) == [AskJob()]
    assert tape.does(50.1, JobTold("", WALL + 100.0)) == [WriteNotice(0, "time-limit", WALL + 73.0), *TOLD]
    assert tape.does(72.9) == []
    assert tape.does(73.0) == STOPPED
    assert over(tape, 78.0, -15) == FAREWELL
    state = tape.saved
    assert (state.state, state.reason) == (
        State.PENDING,
        f"{LIMIT}; the run goes on when Slurm starts it again",
    )
    assert (state.attempts[-1].outcome, state.attempts[-1].failure) == ("TIMEOUT", None)
    assert left_by_all(tape, 78.5) == [Requeue(())]
    assert tape.does(79.0, HandedOver()) == [Finish(0)]


def test_a_notice_that_never_comes_is_due_by_our_own_clock() -> None:
    tape = training(end_at=100.0)
    assert tape.does(39.9) == []
    assert tape.does(40.0) == [AskJob()]
    assert tape.does(40.1, JobTold("", WALL + 100.0))[0] == WriteNotice(0, "time-limit", WALL + 73.0)


def test_the_old_end_of_an_extended_job_is_not_announced() -> None:
    tape = training(end_at=100.0)
    assert tape.does(40.0) == [AskJob()]
    assert tape.does(40.1, JobTold("", WALL + 900.0)) == []
    assert tape.does(840.0)[-1:] == [AskJob()]


def test_a_notice_that_comes_too_early_waits_for_its_time() -> None:
    tape = training(end_at=120.0)
    tape.at(10.0, NOTICE)
    assert tape.does(10.1, JobTold("", WALL + 120.0)) == []
    tape.at(60.0)
    assert tape.does(60.1, JobTold("", WALL + 120.0))[0] == WriteNotice(0, "time-limit", WALL + 93.0)


def test_the_same_notice_from_every_node_counts_once() -> None:
    tape = training(end_at=100.0)
    assert tape.does(50.0, NOTICE, MessageCame(0, SignalSeen(signal.SIGUSR2)), NOTICE) == [AskJob()]
    tape.at(50.1, JobTold("", WALL + 100.0))
    assert tape.does(51.0, MessageCame(1, SignalSeen(signal.SIGUSR2))) == []


def test_our_own_clock_explains_a_notice_without_an_answer() -> None:
    tape = training(end_at=100.0)
    tape.at(50.0, NOTICE)
    assert tape.does(53.4) == []
    assert tape.does(53.5)[0] == WriteNotice(0, "time-limit", WALL + 73.0)


def test_ranks_learn_the_end_of_a_preemptions_grace() -> None:
    tape = training(end_at=None)
    tape.at(50.0, TERM)
    notice, *rest = tape.does(50.0, JobTold("preemption", WALL + 80.0))
    assert (notice, rest) == (WriteNotice(0, "preemption", WALL + 80.0), TOLD)
    assert [a for a in tape.does(84.9) if isinstance(a, Send)] == []


@pytest.mark.parametrize("survival", [Survival(), Survival(requeue="requeue")])
def test_a_preemption_whose_grace_has_no_known_end_ends_no_rank(survival: Survival) -> None:
    """Slurm sends TERM at the beginning of the grace time, and again at its end."""
    tape = job(survival)
    join(tape, 1.0)
    train(tape, 1.0)
    tape.at(50.0, TERM)
    notice, *rest = tape.does(50.0, JobTold("preemption", in_grace=True))
    assert (notice, rest) == (WriteNotice(0, "preemption", WALL + 50.0 + survival.notice), TOLD)
    assert [a for a in tape.does(84.9) if isinstance(a, Send)] == []


def test_a_user_may_tell_ranks_to_make_room_and_nobody_ends_them() -> None:
    tape = training(end_at=90_000.0)
    tape.at(50.0, NOTICE)
    assert tape.does(50.1, JobTold("", WALL + 90_000.0)) == TOLD
    assert over(tape, 60.0, 0, Progressed(0, 5, 5, True)) == FAREWELL
    assert tape.saved.state is State.PENDING and tape.saved.attempts[-1].outcome == "PREEMPTED"


def test_a_notice_without_a_requeue_is_passed_on_and_ends_nothing() -> None:
    tape = job(Survival())
    join(tape, 1.0)
    train(tape, 1.0)
    tape.at(5.0, JobTold("", WALL + 100.0))
    tape.at(50.0, NOTICE)
    assert [a for a in tape.does(50.1, JobTold("", WALL + 100.0)) if isinstance(a, Send)] == TOLD
    assert not [a for a in tape.does(99.0) if isinstance(a, Send)]
    over(tape, 99.5)
    assert tape.saved.state is State.COMPLETED


def test_a_notice_before_ranks_run_ends_the_job() -> None:
    tape = job()
    tape.at(50.0, NOTICE)
    tape.at(50.1, JobTold("preemption", WALL + 100.0))
    assert tape.saved.state is State.PENDING


# --- what ranks make of it ---


@pytest.mark.parametrize(
    "taken, progress, state",
    [
        (0, Progressed(0), State.COMPLETED),
        (1, Progressed(0), State.PENDING),
        (1, Progressed(0, 9, 9, False), State.COMPLETED),
        (0, Progressed(0, 9, 9, True), State.PENDING),
    ],
)
def test_ranks_that_exit_0_after_a_notice_made_room_or_are_done(taken, progress, state) -> None:
    tape = training(end_at=100.0)
    tape.at(50.0, NOTICE)
    tape.at(50.1, JobTold("", WALL + 100.0), MessageCame(0, SignalTaken(0, signal.SIGUSR2, taken)))
    over(tape, 55.0, 0, progress)
    assert tape.saved.state is state


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGUSR1])
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ((50.3, JobTold("", WALL + 100.0)), State.PENDING),
        ((54.0,), State.PENDING),  # the scheduler does not answer
        ((50.3, JobTold("cancelled")), State.COMPLETED),
    ],
)
def test_ranks_that_exit_0_before_the_meaning_of_a_notice_is_known_are_judged_after_it(
    number: signal.Signals, answer: tuple[Any, ...], state: State
) -> None:
    tape = training(replace(REQUEUE, signal=signal.SIGUSR1), end_at=100.0)
    tape.at(50.0, SignalCame(number), MessageCame(0, SignalTaken(0, number, 1)))
    over(tape, 50.1)
    assert tape.saved.state is State.RUNNING
    tape.at(*answer)
    assert tape.saved.state is state


def test_ranks_that_fail_after_a_notice_continue_in_the_next_job_with_their_failure_recorded() -> None:
    tape = training(end_at=100.0, max_restarts=3)
    tape.at(50.0, NOTICE)
    tape.at(50.1, JobTold("", WALL + 100.0))
    tape.at(51.0, MessageCame(1, RankExited(0, 3, 1, WALL + 51.0)))
    tape.at(51.4)
    tape.at(52.0, MessageCame(0, RanksGone(0)), MessageCame(1, RanksGone(0)))
    newest = tape.saved.attempts[-1]
    assert (tape.saved.state, newest.outcome) == (State.PENDING, "TIMEOUT")
    assert newest.failure is not None and newest.failure.rank == 3


# --- what a TERM means ---


@pytest.mark.parametrize(
    "means, state, outcome",
    [
        (JobTold("time-limit"), State.PENDING, "TIMEOUT"),
        (JobTold("preemption"), State.PENDING, "PREEMPTED"),
        (JobTold("preemption", requeued=True), State.PENDING, "PREEMPTED"),
        (JobTold("requeue", requeued=True), State.PENDING, "REQUEUED"),
        (JobTold("cancelled"), State.CANCELLED, "CANCELLED"),
        (JobTold(""), State.CANCELLED, "CANCELLED"),
        (JobTold("unknown"), State.CANCELLED, "CANCELLED"),
    ],
)
def test_the_scheduler_is_asked_for_the_meaning_of_a_term(means, state, outcome) -> None:
    tape = training(end_at=9_000.0)
    assert tape.does(50.0, TERM) == [AskJob()]
    tape.at(50.1, means)
    tape.at(53.0)
    over(tape, 54.0, -15)
    assert (tape.saved.state, tape.saved.attempts[-1].outcome) == (state, outcome)


def test_a_term_at_the_time_limit_means_the_limit_if_the_scheduler_does_not_answer() -> None:
    tape = training(end_at=100.0)
    tape.at(38.0, JobTold("unknown"))
    tape.at(95.0, TERM)
    assert [a for a in tape.does(98.5) if isinstance(a, Send)] == STOPPED
    over(tape, 99.0, -15)
    assert tape.saved.attempts[-1].outcome == "TIMEOUT"


def test_ranks_that_end_before_the_answer_are_judged_after_it() -> None:
    tape = training()
    tape.at(50.0, MessageCame(1, SignalSeen(signal.SIGTERM)))
    for rank in range(4):
        tape.at(50.05, MessageCame(rank // 2, RankExited(0, rank, -15, WALL + 50.05, stopped=True)))
    tape.at(50.1, MessageCame(0, RanksGone(0)), MessageCame(1, RanksGone(0)))
    tape.at(50.4)
    assert tape.does(50.5) == []
    assert tape.does(51.0, JobTold("preemption", requeued=True)) == FAREWELL
    assert (tape.saved.state, tape.saved.attempts[-1].outcome) == (State.PENDING, "PREEMPTED")


def test_a_launcher_that_ends_before_the_answer_is_a_consequence() -> None:
    tape = job()
    tape.at(2.0, TERM)
    tape.at(2.1, LauncherEnded(143))
    assert tape.saved is None or tape.saved.state is State.RUNNING
    tape.at(2.2, JobTold("cancelled"))
    assert tape.saved.state is State.CANCELLED


def test_failures_before_ranks_run_and_before_the_answer_cost_no_restart() -> None:
    tape = job(max_restarts=3)
    tape.at(1.0, TERM)
    assert ClaimEpoch(0) not in tape.at(1.5, LauncherEnded(143))
    tape.at(2.0, JobTold("preemption", requeued=True))
    tape.at(2.1)
    assert tape.saved is not None
    assert (tape.saved.state, [a.outcome for a in tape.saved.attempts]) == (State.PENDING, ["PREEMPTED"])


def test_an_answer_from_before_a_signal_does_not_explain_it() -> None:
    tape = job()
    join(tape, 1.0)
    train(tape, 1.0)
    assert tape.does(5.0) == [AskJob()]
    assert tape.does(5.1, TERM) == [AskJob()]
    assert tape.does(5.2, JobTold("", WALL + 900.0)) == []
    tape.at(5.3, JobTold("preemption", requeued=True))
    tape.at(7.4)
    over(tape, 8.0, code=-15)
    assert tape.saved is not None
    assert (tape.saved.state, tape.saved.attempts[0].outcome) == (State.PENDING, "PREEMPTED")


def test_a_cancel_needs_no_answer() -> None:
    tape = training()
    tape.at(50.0, TERM)
    assert tape.does(50.1, CancelAsked()) == STOPPED
    over(tape, 51.0, -15)
    tape.at(54.0)
    assert (tape.saved.state, tape.saved.reason) == (State.CANCELLED, "cancelled by request")


def test_a_job_that_the_scheduler_requeues_is_only_left() -> None:
    tape = training()
    tape.at(50.0, TERM)
    tape.at(50.1, JobTold("requeue", requeued=True))
    over(tape, 51.0, -15)
    assert left_by_all(tape, 51.5) == [Finish(0)]


def test_a_requeue_before_agents_start_names_the_prolog_and_not_a_user() -> None:
    tape = job()
    tape.at(1.0, TERM)
    tape.at(1.1, JobTold("requeue", requeued=True))
    tape.at(1.2, LauncherEnded(-15))
    assert "no agent had started on" in tape.saved.reason and "prolog" in tape.saved.reason
    assert "scontrol requeue" not in tape.saved.reason


# --- ranks that continue ---


def test_the_next_job_of_a_chain_waits_from_the_start_without_bad_nodes() -> None:
    tape = training(CHAIN, end_at=100.0)
    tape.machine._state_keeper.exclude(("n9",))
    tape.at(50.0, NOTICE)
    tape.at(50.1, JobTold("", WALL + 100.0))
    over(tape, 55.0, 0, Progressed(0, 5, 5, True))
    assert tape.saved.reason == f"{LIMIT}; the run goes on in job 8"
    assert left_by_all(tape, 55.5) == [ExcludeNext(("n9",)), Finish(0)]


def test_a_run_that_ends_cancels_the_waiting_job() -> None:
    tape = training(CHAIN)
    over(tape, 55.0)
    assert left_by_all(tape, 55.5) == [DropNext(), Finish(0)]


def test_a_cancelled_run_cancels_the_waiting_job_at_once() -> None:
    tape = training(CHAIN)
    tape.at(50.0, TERM)
    assert tape.does(50.1, JobTold("cancelled")) == [DropNext(), *STOPPED]
    tape = training(CHAIN)
    assert tape.does(50.0, CancelAsked()) == [DropNext(), *STOPPED]


def test_a_job_that_is_queued_after_the_runs_end_is_cancelled() -> None:
    tape = job(CHAIN)
    join(tape, 1.0)
    train(tape, 1.0)
    over(tape, 6.0)
    assert tape.does(6.2, NextQueued("8")) == [DropNext()]


def test_a_next_job_that_could_not_be_queued_is_tried_again_and_at_last() -> None:
    tape = job(CHAIN)
    join(tape, 1.0)
    train(tape, 1.0)
    tape.at(4.0, NextQueued("", "the controller is away"))
    assert "the controller is away" in tape.state(4.5).warnings[0]
    assert tape.does(5.0) == [QueueNext(()), AskJob()]
    tape.at(5.1, JobTold("", WALL + 200.0), NextQueued("", "the controller is away"))
    assert tape.does(65.1)[-2:] == [QueueNext(()), AskJob()]
    tape.at(65.2, NextQueued("", "still"), JobTold("preemption", WALL + 200.0))
    tape.at(70.0, TERM)
    tape.at(70.1, JobTold("preemption"))
    tape.at(72.1)
    over(tape, 72.2, -15)
    assert left_by_all(tape, 72.5) == [QueueNext(())]
    assert tape.does(73.0, NextQueued("", "away")) == [Finish(1)]
    assert (tape.saved.state, tape.saved.reason) == (
        State.PREEMPTED,
        f"{PREEMPTED}; it could not go on: away",
    )


def test_another_job_is_queued_if_a_requeue_is_refused() -> None:
    tape = stopped_by_the_limit()
    assert left_by_all(tape, 97.5) == [Requeue(())]
    assert tape.does(98.0, HandedOver("it is disabled")) == [QueueNext(())]
    assert tape.does(99.0, NextQueued("9")) == [Finish(0)]


def test_a_scheduler_that_never_answers_keeps_no_job_alive() -> None:
    tape = stopped_by_the_limit()
    left_by_all(tape, 97.5)
    assert tape.does(247.5) == [Finish(143)]
    assert (tape.saved.state, tape.saved.reason) == (
        State.TIMEOUT,
        f"{LIMIT}; it could not go on: the scheduler did not answer",
    )


def test_a_controller_that_is_away_at_the_end_of_a_job_is_waited_for() -> None:
    away = HandedOver("the program exited with code 1: Unable to contact slurm controller (connect failure)")
    tape = stopped_by_the_limit()
    assert left_by_all(tape, 97.5) == [Requeue(())]
    assert tape.does(98.0, away) == []
    assert tape.does(99.0) == [Requeue(())]
    assert tape.does(99.5, away) == []
    assert tape.does(101.5) == [Requeue(())]
    assert tape.does(102.0, HandedOver()) == [Finish(0)]
    assert tape.saved.state is State.PENDING


@pytest.mark.parametrize("cause, outcome, option", [
    ("time-limit", "TIMEOUT", "--max-time-limits"), ("preemption", "PREEMPTED", "--max-preemptions"),
])  # fmt: skip
def test_a_budget_that_is_used_up_ends_the_run(cause: str, outcome: str, option: str) -> None:
    used = tuple(Attempt(n, "", ("n0",), 1.0, 2.0, outcome, cause=cause) for n in range(2))
    tape = job(earlier=used)
    tape.at(2.0, TERM)
    tape.at(2.1, JobTold(cause))
    assert tape.saved.state.value == outcome
    assert tape.saved.reason.endswith(f"; {option} 2 is used up")


def test_a_job_that_begins_with_its_budget_exceeded_starts_nothing() -> None:
    used = tuple(Attempt(n, "", ("n0",), 1.0, 2.0, "PREEMPTED", cause="preemption") for n in range(2))
    tape = job(earlier=used, cause="node", max_restarts=1)
    assert LaunchAgents() in tape.began
    tape = job(earlier=used, cause="preemption")
    assert tape.began == [Finish(1)]
    assert (tape.saved.state, tape.saved.reason) == (State.PREEMPTED, "3 preemptions; --max-preemptions is 2")


def test_one_lost_coordinator_too_many_ends_the_run() -> None:
    used = (Attempt(0, "", ("n0",), 1.0), Attempt(1, "", ("n0",), 2.0, cause="coordinator"))
    tape = job(earlier=used, cause="coordinator", max_restarts=1)
    assert tape.began == [Finish(1)]
    text = "the coordinator of the last attempt was lost; --max-restarts is 1"
    assert (tape.saved.state, tape.saved.reason) == (State.FAILED, text)


def test_the_run_continues_where_possible_if_the_batch_steps_first_process_is_killed() -> None:
    tape = training(CHAIN, max_restarts=1)
    assert tape.does(50.0, SupervisorGone()) == FAILED
    over(tape, 51.0, -15)
    assert tape.saved.state is State.PENDING
    tape = training(CHAIN, max_restarts=0)
    tape.at(50.0, SupervisorGone())
    over(tape, 51.0, -15)
    assert tape.saved.state is State.NODE_FAIL
    tape = training(Survival())
    tape.at(50.0, SupervisorGone())
    over(tape, 51.0, -15)
    assert (tape.saved.state, "--requeue" in tape.saved.reason) == (State.FAILED, True)


def test_a_coordinator_that_was_superseded_touches_no_job_that_waits() -> None:
    from clusterrun.coordinator.events import Superseded

    tape = training(CHAIN)
    tape.at(50.0, Superseded(1))
    over(tape, 51.0, -15)
    assert left_by_all(tape, 51.5) == [Finish(1)]


# --- an owner who ends a run that was to go on ---


def test_a_cancelled_run_queues_no_other_job_while_its_ranks_end() -> None:
    tape = training(CHAIN, end_at=9_000.0)
    assert tape.does(8_939.0, CancelAsked()) == [DropNext(), *STOPPED]
    assert tape.does(8_941.0) == [AskJob()]


def test_a_next_job_that_is_queued_after_the_cancel_is_cancelled_at_once() -> None:
    tape = job(CHAIN)
    join(tape, 1.0)
    train(tape, 1.0)
    assert tape.does(2.0, CancelAsked()) == STOPPED
    assert tape.does(2.1, NextQueued("8")) == [DropNext()]


@pytest.mark.parametrize("cancel", [(CancelAsked(),), (TERM, JobTold("cancelled"))])
def test_a_cancel_while_ranks_end_for_the_time_limit_ends_the_run(cancel: tuple[Any, ...]) -> None:
    tape = training(CHAIN, end_at=100.0)
    tape.at(50.0, NOTICE)
    tape.at(50.1, JobTold("", WALL + 100.0))
    assert tape.does(77.0)[:2] == STOPPED
    assert DropNext() in tape.does(78.0, *cancel)
    over(tape, 79.0, -15)
    assert (tape.saved.state, tape.saved.attempts[-1].outcome) == (State.CANCELLED, "TIMEOUT")
    assert left_by_all(tape, 79.5)[-1] == Finish(tape.saved.exit_code)


@pytest.mark.parametrize("survival", [REQUEUE, CHAIN])
def test_a_cancel_after_the_handover_was_announced_cancels_the_next_job(survival: Survival) -> None:
    tape = stopped_by_the_limit(survival)
    assert tape.saved.state is State.PENDING
    assert tape.does(97.1, CancelAsked()) == ([DropNext()] if survival is CHAIN else [])
    assert (tape.saved.state, tape.saved.reason) == (State.CANCELLED, "cancelled by request")
    assert left_by_all(tape, 97.5) == [Finish(130)]


def test_a_cancel_while_the_controller_is_away_waits_for_it_no_longer() -> None:
    tape = stopped_by_the_limit()
    left_by_all(tape, 97.5)
    tape.at(98.0, HandedOver("the program exited with code 1: Unable to contact slurm controller"))
    assert tape.does(98.5, CancelAsked()) == [Finish(130)]
    assert tape.saved.state is State.CANCELLED


def test_a_cancel_during_a_requeue_queues_no_other_job() -> None:
    tape = stopped_by_the_limit()
    assert left_by_all(tape, 97.5) == [Requeue(())]
    assert tape.does(98.0, CancelAsked()) == []
    assert tape.does(98.5, HandedOver("it is disabled")) == [Finish(130)]
    assert tape.saved.state is State.CANCELLED


# --- after a coordinator that was killed ---


def test_only_the_agents_lease_is_awaited_after_a_killed_coordinator() -> None:
    tape = Job(Coordinator(replace(ORDERS, max_restarts=1), "login", 42))
    tape.at(30.0)
    first = Attempt(0, "first start", ("n0", "n1"), WALL + 1.0, job_id="7")
    tape.at(30.0, EpochClaimed(1, (first,), False, cause="coordinator", dead_since=20.0))
    join(tape, 31.0)
    assert tape.does(42.9) == []
    assert [type(a) for a in tape.does(43.0)] == [Send]
    assert not isinstance(tape.does(43.0), ClaimEpoch)


# --- a signal to some agents only ---


def signalled(number: int, *nodes: int) -> list[MessageCame]:
    return [MessageCame(node, SignalSeen(number)) for node in nodes]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("message", [JobTold("", WALL + 9_000.0), JobTold("unknown"), None])
def test_a_signal_to_one_agent_costs_its_node_and_ends_no_run(number, message) -> None:
    tape = training(end_at=9_000.0, max_restarts=1)
    assert tape.does(50.0, *signalled(number, 1)) == [AskJob()]
    time = 50.1 if message else 53.5
    assert tape.does(time, *([message] if message else [])) == [DropLink(1)]
    assert [a for a in tape.does(time + 0.3) if isinstance(a, Send)] == FAILED[:1]
    tape.at(54.0, MessageCame(0, RanksGone(0)))
    for second in range(54, 80):
        tape.at(float(second), MessageCame(0, Beat(second)))
    name = signal.Signals(number).name
    text = f"n1 (node 1) was lost: its agent got {name}, and the scheduler does not end the job"
    assert tape.saved.state is State.RUNNING
    assert (tape.saved.attempts[0].outcome, tape.saved.attempts[0].failure.why) == ("NODE_FAIL", text)
    assert tape.does(80.0, EpochClaimed(1)) != []


@pytest.mark.parametrize("more", [signalled(signal.SIGTERM, 0), [SignalCame(signal.SIGTERM)]])
@pytest.mark.parametrize("before_the_answer", [True, False])
def test_a_term_to_all_agents_or_to_the_coordinator_too_still_cancels(more, before_the_answer) -> None:
    tape = training(end_at=9_000.0, max_restarts=1)
    tape.at(50.0, *signalled(signal.SIGTERM, 1), *(more if before_the_answer else []))
    tape.at(50.1, JobTold("", WALL + 9_000.0))
    if not before_the_answer:
        tape.at(50.2, *more)
        tape.at(50.3, JobTold("", WALL + 9_000.0))
    tape.at(52.0, MessageCame(0, RanksGone(0)), MessageCame(1, RanksGone(0)))
    for second in range(52, 80):
        tape.at(float(second), MessageCame(0, Beat(second)))
    assert tape.saved.state is State.CANCELLED


def test_a_signal_to_one_agent_of_an_ending_job_means_what_the_scheduler_answers() -> None:
    for message, state in ((JobTold("cancelled"), State.CANCELLED), (JobTold("time-limit"), State.PENDING)):
        tape = training(end_at=9_000.0, max_restarts=1)
        tape.at(50.0, *signalled(signal.SIGTERM, 1))
        tape.at(50.1, message)
        tape.at(53.0)
        over(tape, 54.0, -15)
        assert tape.saved.state is state


@pytest.mark.parametrize("is_halted", [True, False])
def test_nodes_that_are_all_silent_are_lost_unless_slurm_stopped_the_job(is_halted: bool) -> None:
    tape = training(Survival())

    def silence(begin: float, end: float) -> list[Any]:
        """Return the actions of half-second ticks. The scheduler answers at once."""
        actions: list[Any] = []
        for half in range(int(begin * 2), int(end * 2)):
            acted = tape.at(half / 2, Tick())
            if AskJob() in acted:
                tape.at(half / 2, JobTold("", WALL + 1000.0, halted=is_halted))
            actions += acted
        return actions

    acted = silence(5.0, 60.0)
    assert acted.count(AskJob()) == (4 if is_halted else 1)
    assert (DropLink(0) in acted, DropLink(1) in acted) == (not is_halted, not is_halted)
    if is_halted:
        tape.at(60.0, MessageCame(0, Beat(1)), MessageCame(1, Beat(1)))
        assert DropLink(0) not in silence(60.5, 71.0)
