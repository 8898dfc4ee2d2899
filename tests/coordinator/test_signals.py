"""The table of docs/signals.md: what each signal means, one test per row."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from clusterrun.coordinator.actions import AskJob, DropLink, Send
from clusterrun.coordinator.coordinator import Coordinator
from clusterrun.coordinator.events import CancelAsked, EpochClaimed, JobTold, LauncherEnded, MessageCame
from clusterrun.coordinator.lifecycle import Collaborators
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.states import State
from clusterrun.protocol.messages import (
    PortReserved,
    RankExited,
    RanksGone,
    RanksStarted,
    SignalRanks,
    SignalSeen,
    SignalTaken,
    StopRanks,
)
from clusterrun.runtime.machine_events import SignalCame
from tests.coordinator import test_termination as jobs
from tests.coordinator.tapes import ORDERS, WALL, agent, join, start, told, train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "signals.md"
END = [(0, StopRanks(0, 12.0)), (1, StopRanks(0, 12.0))]
USR1 = replace(jobs.REQUEUE, signal=int(signal.SIGUSR1))


def run(survival: Survival = jobs.REQUEUE, end_at: float = 900.0) -> jobs.Job:
    """Return a run in job 7 that trains since 1 s and ends at ``end_at``."""
    return jobs.training(survival, end_at=end_at)


def steps(number: int, *nodes: int) -> list[MessageCame]:
    """Return each agent's report of a signal that Slurm sends to the step."""
    return [MessageCame(node, SignalSeen(number)) for node in nodes or (0, 1)]


def passed(number: int) -> list[tuple[int, SignalRanks]]:
    return [(node, SignalRanks(0, number)) for node in (0, 1)]


def sent(actions: list[Any]) -> list[tuple[int, Any]]:
    return [(action.link, action.message) for action in actions if isinstance(action, Send)]


def ends(tape: jobs.Job, time: float, code: int, **more: Any) -> None:
    """End all ranks, and let the nodes report that nothing is left."""
    for rank in range(4):
        tape.at(time, MessageCame(rank // 2, RankExited(0, rank, code, WALL + time, **more)))
    tape.at(time, MessageCame(0, RanksGone(0)), MessageCame(1, RanksGone(0)))
    tape.at(time + 0.4)


def scancel() -> None:
    tape = run()
    tape.at(50.0, *steps(signal.SIGTERM), SignalCame(signal.SIGTERM))
    assert sent(tape.does(50.1, JobTold("cancelled"))) == END
    ends(tape, 60.0, 0, stopped=True)
    assert tape.saved.state is State.CANCELLED


def cancel() -> None:
    tape = run()
    assert sent(tape.does(50.0, CancelAsked())) == END
    assert sent(tape.does(51.0, CancelAsked(3.0))) == [
        (node, StopRanks(0, 3.0, sooner=True)) for node in (0, 1)
    ]
    ends(tape, 60.0, 0, stopped=True)
    assert (tape.saved.state, tape.saved.reason) == (State.CANCELLED, "cancelled by request")
    assert sent(run().does(50.0, CancelAsked(300.0))) == [(node, StopRanks(0, 300.0)) for node in (0, 1)]


def time_limit() -> None:
    tape = run(Survival(), end_at=100.0)
    tape.at(100.0, *steps(signal.SIGTERM), SignalCame(signal.SIGTERM))
    assert sent(tape.does(100.1, JobTold("time-limit"))) == END
    ends(tape, 110.0, -9, stopped=True, saving=True)
    text = "ranks 0-3 handled SIGTERM and were killed after 12 s, perhaps while saving"
    assert (tape.saved.state, tape.saved.reason) == (State.TIMEOUT, f"{jobs.LIMIT}; {text}")


def preemption_with_grace() -> None:
    """Let agents pass TERM on at once. Ranks that still run get another TERM from Slurm, and none before."""
    for tape in (run(), run(Survival())):
        tape.at(50.0, *steps(signal.SIGTERM))
        assert sent(tape.does(50.1, JobTold("preemption", WALL + 62.0))) == passed(signal.SIGUSR2)
        assert sent(tape.does(64.9)) == []
        tape.at(65.0, *steps(signal.SIGTERM), SignalCame(signal.SIGTERM))
        assert sent(tape.does(65.1, JobTold("preemption"))) == END
    tape = run(Survival())
    tape.at(50.0, *steps(signal.SIGTERM))
    tape.at(50.1, JobTold("preemption", WALL + 62.0))
    ends(tape, 55.0, 0)
    assert (tape.saved.state, len(tape.saved.warnings)) == (State.COMPLETED, 1)


def preemption_at_once() -> None:
    tape = run(Survival())
    tape.at(50.0, *steps(signal.SIGTERM), SignalCame(signal.SIGTERM))
    assert sent(tape.does(50.1, JobTold("preemption"))) == END
    ends(tape, 55.0, 0, stopped=True)
    assert tape.saved.state is State.PREEMPTED and "--requeue" in tape.saved.reason
    tape = run()
    tape.at(50.0, *steps(signal.SIGTERM), SignalCame(signal.SIGTERM))
    assert sent(tape.does(50.1, JobTold("preemption"))) == passed(signal.SIGUSR2)
    assert sent(tape.does(52.1)) == END


def preemption_with_users_signal() -> None:
    """Let Slurm send our notice and no TERM, as PreemptParameters=send_user_signal does."""
    tape = run()
    tape.at(50.0, SignalCame(signal.SIGUSR2))
    acted = sent(tape.does(50.1, JobTold("preemption", WALL + 90.0)))
    assert acted == passed(signal.SIGTERM) + passed(signal.SIGUSR2)
    tape = run(USR1)
    assert sent(tape.does(50.0, SignalCame(signal.SIGUSR1))) == passed(signal.SIGUSR1)
    assert sent(tape.does(50.1, JobTold("preemption", WALL + 90.0))) == passed(signal.SIGUSR2)


def requeue() -> None:
    tape = run()
    tape.at(50.0, *steps(signal.SIGTERM), SignalCame(signal.SIGTERM))
    assert sent(tape.does(50.1, JobTold("requeue", requeued=True))) == END
    ends(tape, 60.0, 0, stopped=True)
    assert tape.saved.state is State.PENDING


def notice() -> None:
    tape = run(end_at=120.0)
    tape.at(60.0, SignalCame(signal.SIGUSR2))
    assert sent(tape.does(60.1, JobTold("", WALL + 120.0))) == passed(signal.SIGUSR2)
    assert sent(tape.does(92.9)) == []
    assert sent(tape.does(93.0)) == END


def users_signal_to_batch() -> None:
    """Send the user's own signal to the ranks at once. With --requeue it is the notice too."""
    tape = run(replace(USR1, requeue=""), end_at=120.0)
    assert sent(tape.does(50.0, SignalCame(signal.SIGUSR1))) == passed(signal.SIGUSR1)
    assert sent(tape.does(50.1, JobTold("", WALL + 120.0))) == []
    tape = run(USR1, end_at=120.0)
    assert sent(tape.does(50.0, SignalCame(signal.SIGUSR1))) == passed(signal.SIGUSR1)
    assert sent(tape.does(50.1, JobTold("", WALL + 120.0))) == passed(signal.SIGUSR2)
    tape.at(50.2, MessageCame(0, SignalTaken(0, signal.SIGUSR1, 4)))
    ends(tape, 55.0, 0)
    assert (tape.saved.state, tape.saved.attempts[-1].outcome) == (State.PENDING, "TIMEOUT")


def users_signal_to_steps() -> None:
    tape = run(USR1, end_at=120.0)
    assert tape.does(50.0, *steps(signal.SIGUSR1)) == [AskJob()]
    assert sent(tape.does(50.1, JobTold("", WALL + 120.0))) == passed(signal.SIGUSR2)
    tape = run(Survival(signal=int(signal.SIGUSR1), notice=60.0), end_at=120.0)
    tape.at(50.0, *steps(signal.SIGUSR1), MessageCame(0, RankExited(0, 0, -signal.SIGUSR1, WALL + 50.0)))
    tape.at(50.1, JobTold("", WALL + 120.0))
    tape.at(50.5)
    ends(tape, 55.0, 0, stopped=True)
    assert tape.saved.state is State.FAILED and "--sbatch signal" in tape.saved.reason


def users_term() -> None:
    """Check that TERM is never a cancel, whether ranks end before Slurm answers or after."""
    for number in contract.TERMINATE_SIGNALS:
        for message in (JobTold("", WALL + 120.0), None):
            for arrived in (steps(number), [SignalCame(number)], [*steps(number), SignalCame(number)]):
                survival = replace(jobs.REQUEUE, signal=int(number))
                tape = run(survival, end_at=120.0)
                tape.at(50.0, *arrived)
                text = tape.does(50.1, message) if message else tape.does(53.5)
                assert sent(text) == passed(number) + passed(signal.SIGUSR2)
                tape.at(53.6, MessageCame(0, SignalTaken(0, number, 2)))
                ends(tape, 55.0, 0)
                assert (tape.saved.state, tape.saved.attempts[-1].outcome) == (State.PENDING, "TIMEOUT")
                tape = run(replace(survival, requeue=""), end_at=120.0)
                tape.at(50.0, *arrived)
                assert sent(tape.does(50.1, message) if message else tape.does(53.5)) == passed(number)
                ends(tape, 55.0, 0)
                assert tape.saved.state is State.COMPLETED


def sent_to_steps() -> None:
    """Let the agents pass a signal on. The coordinator has nothing to do."""
    for number in contract.USERS_SIGNALS:
        tape = run()
        assert tape.does(50.0, *steps(number)) == []
        ends(tape, 55.0, 0)
        assert tape.saved.state is State.COMPLETED


def sent_to_batch() -> None:
    for number in contract.USERS_SIGNALS:
        assert sent(run().does(50.0, SignalCame(number))) == passed(number)


def make_room() -> None:
    tape = run()
    tape.at(50.0, *steps(signal.SIGUSR2))
    assert sent(tape.does(50.1, JobTold("", WALL + 900.0))) == passed(signal.SIGUSR2)
    assert sent(tape.does(200.0)) == []
    # Slurm may send our own notice early, so a signal in the 90 s before it waits until it is due.
    tape = run(end_at=140.0)
    tape.at(50.0, *steps(signal.SIGUSR2))
    assert sent(tape.does(50.1, JobTold("", WALL + 140.0))) == []
    tape.at(80.1)
    assert sent(tape.does(80.2, JobTold("", WALL + 140.0))) == passed(signal.SIGUSR2)
    # Slurm sends no notice to a run without --requeue: near the time limit, too, it is the user's signal.
    tape = run(Survival(), end_at=100.0)
    tape.at(50.0, *steps(signal.SIGUSR2))
    assert sent(tape.does(50.1, JobTold("", WALL + 100.0))) == passed(signal.SIGUSR2)


def term_to_steps() -> None:
    tape = run()
    tape.at(50.0, *steps(signal.SIGTERM))
    assert sent(tape.does(50.1, JobTold("", WALL + 900.0))) == END
    ends(tape, 55.0, 0, stopped=True)
    assert tape.saved.state is State.CANCELLED


def cancelled_step() -> None:
    """Let Slurm kill the agents. Their nodes are not blamed."""
    tape = run()
    output = ("slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-26T10:06:53 ***",)
    tape.at(50.0, MessageCame(1, RanksGone(0)), LauncherEnded(137, output))
    tape.at(50.3)
    ends(tape, 51.0, -9, stopped=True)
    message = "step 7.0 was cancelled (scancel 7.0, or a signal to its srun), without time to save"
    assert (tape.saved.state, tape.saved.reason) == (State.FAILED, f"{message}, and the agents with it")


def interrupt() -> None:
    tape = run()
    batch = SignalCame(signal.SIGINT)
    for moment, events in (
        (50.0, steps(signal.SIGINT)),
        (60.0, [batch]),
        (62.0, [*steps(signal.SIGINT), batch]),
    ):
        tape.at(moment, *events)
        assert sent(tape.does(moment + 0.1, JobTold("", WALL + 900.0))) == passed(signal.SIGINT)
        assert tape.saved.state is State.RUNNING
    tape.at(63.0, *steps(signal.SIGINT))
    # The scheduler does not answer in time.
    assert sent(tape.does(66.5)) == passed(signal.SIGINT)
    ends(tape, 67.0, 0)
    assert tape.saved.state is State.COMPLETED


def term_to_one_agent() -> None:
    for number in contract.TERMINATE_SIGNALS:
        tape = run()
        tape.at(50.0, *steps(number, 1))
        for rank in (2, 3):
            tape.at(50.05, MessageCame(1, RankExited(0, rank, -15, WALL + 50.0)))
        tape.at(50.05, MessageCame(1, RanksGone(0)))
        assert sent(tape.does(50.06)) == []  # nobody knows yet what it means
        assert tape.does(50.1, JobTold("", WALL + 900.0)) == [DropLink(1)]
        assert sent(tape.does(50.4)) == [(0, StopRanks(0, 8.0))]


def local() -> jobs.Job:
    """Return a run on this machine."""
    tape = jobs.Job(Coordinator(ORDERS, "here", 42, collaborators=Collaborators()))
    tape.at(0.0)
    tape.at(0.0, EpochClaimed(0))
    join(tape, 1.0)
    train(tape, 1.0)
    return tape


def term_without_slurm() -> None:
    for number in contract.TERMINATE_SIGNALS:
        tape = local()
        assert sent(tape.does(50.0, SignalCame(number))) == END
        ends(tape, 55.0, 0, stopped=True)
        assert (tape.saved.state, tape.saved.exit_code) == (State.CANCELLED, 128 + number)


def terminal_lost() -> None:
    assert local().does(50.0, SignalCame(signal.SIGHUP)) == []
    assert sent(local().does(50.0, SignalCame(signal.SIGUSR1))) == passed(signal.SIGUSR1)


ROWS = {
    "`scancel JOB`": scancel,
    "`clusterrun cancel`": cancel,
    "time limit": time_limit,
    "preemption with `GraceTime`": preemption_with_grace,
    "preemption without `GraceTime`": preemption_at_once,
    "preemption with `send_user_signal`": preemption_with_users_signal,
    "`scontrol requeue JOB`": requeue,
    "`--requeue`: our notice, `B:USR2@120`": notice,
    "`--sbatch signal=B:USR1@60`": users_signal_to_batch,
    "`--sbatch signal=USR1@60`": users_signal_to_steps,
    "`--sbatch signal=B:TERM@60`, `TERM@60`, `INT@60`": users_term,
    "`scancel -s USR1 JOB`": sent_to_steps,
    "`scancel -b -s USR1 JOB`, `-f`": sent_to_batch,
    "`scancel -s USR2 JOB`": make_room,
    "`scancel -s TERM JOB`": term_to_steps,
    "`scancel JOB.STEP` of the agents": cancelled_step,
    "`scancel -s INT JOB`, `-b`, `-f`": interrupt,
    "TERM or INT to one agent": term_to_one_agent,
    "TERM or INT without Slurm, Ctrl-C in `clusterrun run`": term_without_slurm,
    "HUP without Slurm": terminal_lost,
}


@pytest.mark.parametrize("row", ROWS)
def test_a_signal_has_the_effect_of_its_row(row: str) -> None:
    ROWS[row]()


def test_ranks_that_handle_term_and_are_killed_after_a_failure_are_reported() -> None:
    """They may have hung in a collective, so the end does not mention a save."""
    tape = run(Survival())
    tape.at(50.0, MessageCame(0, RankExited(0, 0, 1, WALL + 50.0)))
    tape.at(50.3)
    ends(tape, 60.0, -9, stopped=True, saving=True)
    assert tape.saved.state is State.FAILED
    assert tape.saved.reason.endswith("; ranks 1-3 handled SIGTERM and were killed after 8 s")


def test_the_page_has_these_rows() -> None:
    table = PAGE.read_text().partition("| event |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (.+?) \| ", table, re.MULTILINE) == list(ROWS)


@pytest.mark.parametrize("answered_at", [10.1, 10.3])
def test_ranks_may_end_before_their_node_learns_that_a_signal_ends_nothing(answered_at: float) -> None:
    tape, node = run(), agent()
    node.at(1.0, start(), RanksStarted(0))
    node.at(10.0, SignalCame(signal.SIGINT))
    reports = told(node.at(10.2, RankExited(0, 0, 0), RankExited(0, 1, 0)))
    reports_of_1 = [RankExited(0, 2, 0), RankExited(0, 3, 0)]
    ends_of_ranks = [
        *(MessageCame(0, report) for report in (*reports, RanksGone(0))),
        *(MessageCame(1, report) for report in (*reports_of_1, RanksGone(0))),
    ]
    answer = [JobTold("", WALL + 900.0)]
    tape.at(10.0, *steps(signal.SIGINT))
    for time, events in sorted([(answered_at, answer), (10.2, ends_of_ranks)]):
        assert tape.saved.state is State.RUNNING
        tape.at(time, *events)
        tape.at(time)
    tape.at(10.6)
    assert (tape.saved.state, tape.saved.reason) == (State.COMPLETED, "every rank exited 0")


def test_a_signal_that_ends_nothing_while_ranks_are_being_started_hides_no_later_end() -> None:
    tape = jobs.job(Survival())
    join(tape, 1.0)
    tape.at(1.0, MessageCame(0, PortReserved(0, 29500)), MessageCame(0, RanksStarted(0)))
    tape.at(2.0, *steps(signal.SIGINT))
    tape.at(2.1, JobTold("", WALL + 900.0))
    tape.at(3.0, MessageCame(1, RanksStarted(0)))
    ends(tape, 4.0, 0)
    assert tape.saved.state is State.COMPLETED


@pytest.mark.parametrize("survival", [Survival(), USR1])
def test_a_users_signal_before_ranks_run_reaches_them_when_they_run(survival: Survival) -> None:
    tape = jobs.job(survival)
    join(tape, 1.0)
    tape.at(5.0)
    tape.at(5.0, JobTold("", WALL + 120.0))
    assert sent(tape.does(30.0, *steps(signal.SIGUSR1), SignalCame(signal.SIGUSR1))) == []
    tape.at(30.1, JobTold("", WALL + 120.0))
    assert tape.saved.state is State.RUNNING and "SIGUSR1" in tape.saved.warnings[0]
    train(tape, 31.0)
    held = [(node, SignalRanks(0, signal.SIGUSR1, is_held=True)) for node in (0, 1)]
    # A rank that imports for long has no handler yet, so the signal is repeated for some time.
    assert sent(tape.does(31.0)) == sent(tape.does(33.0)) == held
    tape.at(50.0)
    tape.at(151.0)
    assert held[0] not in sent(tape.does(153.0))


def test_a_notice_by_hand_before_ranks_run_reaches_them_when_they_run() -> None:
    tape = jobs.job(Survival())
    join(tape, 1.0)
    tape.at(2.0, SignalCame(signal.SIGUSR2))
    tape.at(2.1, JobTold("", WALL + 900.0))
    train(tape, 3.0)
    assert sent(tape.does(3.0)) == [(node, SignalRanks(0, signal.SIGUSR2, is_held=True)) for node in (0, 1)]
