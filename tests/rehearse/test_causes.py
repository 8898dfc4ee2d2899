"""The cause of a bad restart is what differs first; what nothing explains is named by nobody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.frozen import replace
from clusterrun.rehearse import causes, control_runs
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, Severity
from clusterrun.rehearse.faults import (
    FAULTS,
    cases_of,
    rank_orders,
    runs_of,
    schedule,
    schedule_faults,
    select_faults,
)
from clusterrun.rehearse.file_copies import twin_kinds
from clusterrun.rehearse.rank_files import two_writers
from clusterrun.rehearse.rank_trace import RankTrace, SavedFile, Start, Step, kind_of, parsed
from clusterrun.rehearse.rehearsal import Result, combined, unstruck
from clusterrun.rehearse.resumption import joined, reference, resumed
from clusterrun.rehearse.sample_order import counted

LAST, SAVED, KILLED = 30, 10, 13
PATH = "/data/checkpoints/step-{}.pt"


def step(n: int, rank: int = 0, **changed: Any) -> Step:
    """Return the ``n``-th step as every undisturbed run takes it."""
    right = Step(
        n=n,
        optimizer=0,
        parameters=1000 + n,
        state=2000 + n,
        buffers=3000 + n,
        averages=(4000 + n,),
        rates=[[0.1 / n]],
        schedulers=[n],
        scalers=[None],
        random={"python": 5, "torch": 6000 + n},
        rows=tuple(rank * 10_000 + n * 10 + place for place in range(4)),
        batches=(),
        loss=1.0 / n,
        hears=False,
        at=float(n),
    )
    return replace(right, **changed)


def saved(n: int, rank: int = 0, **changed: Any) -> SavedFile:
    return replace(
        SavedFile(n, rank, PATH.format(n), PATH.format(n) + ".part", 100, 0.1, "train.py:61"), **changed
    )


def trace(first: int, last: int, rank: int = 0, **changed: Any) -> RankTrace:
    """Return the trace of a rank that continues after ``first`` up to ``last`` and counts from 1 again."""
    steps = tuple(replace(step(n, rank), n=n - first) for n in range(first + 1, last + 1))
    state = 2000 + first if first else 0
    created = RankTrace(rank, {0: (1000 + first, state)}, steps)
    return replace(created, **changed)


def life(first: int, last: int, ranks: int = 2, **changed: Any) -> Start:
    return Start({rank: trace(first, last, rank, **changed) for rank in range(ranks)})


def with_ranks(start: Start, **changed: Any) -> Start:
    """Return the same start with changed fields of every rank."""
    return Start({rank: replace(entry, **changed) for rank, entry in start.ranks.items()})


def with_steps(start: Start, change: Callable[[Step, int], Step] | None = None, **changed: Any) -> Start:
    """Return the same start with every step as ``change(step, rank)`` returns it, or with these fields."""
    change = change or (lambda step, rank: replace(step, **changed))
    return Start(
        {
            rank: replace(entry, steps=tuple(change(each, rank) for each in entry.steps))
            for rank, entry in start.ranks.items()
        }
    )


CONTROL = life(0, LAST)
BEFORE = life(0, KILLED, saves=(saved(5), saved(SAVED)))
READ = ((PATH.format(SAVED), "train.py:75"),)


def after(first: int = SAVED, **changed: Any) -> Start:
    """Return the restarted ranks with changed fields of every step."""
    return with_steps(life(first, LAST, loads=READ), **changed)


def shifted(by: int) -> Start:
    """Return a restart in which every step gets the samples of another one."""
    return with_steps(
        after(), lambda s, rank: replace(s, rows=step(s.n + SAVED + by, rank).rows, parameters=1)
    )


def started(parameters: int, state: int, loads: Any = READ, first: int = SAVED) -> Start:
    """Return restarted ranks that begin with other weights or another state."""
    right = life(first, LAST, loads=loads, before={0: (parameters, state)})
    return with_steps(right, parameters=1)


def judged(last: Start, fault: str = "kill", differs: str = "", **more: Any) -> list[tuple[str, str]]:
    observed = FaultRun(fault, (BEFORE, last), KILLED, **more)
    return [(entry.level.value, entry.cause.value) for entry in causes.judge(CONTROL, differs, observed)]


def first_finding(last: Start, before: Start = BEFORE, control: Start = CONTROL) -> Discovery:
    """Return the first finding about a restart after a kill."""
    return causes.judge(control, "", FaultRun("kill", (before, last), KILLED))[0]


@pytest.mark.parametrize("steps, causes_found", [((LAST,), [Cause.NO_CHECKPOINT]), ((SAVED, LAST), [])])
def test_a_save_at_the_last_step_alone_is_no_checkpoint(
    steps: tuple[int, ...], causes_found: list[Cause]
) -> None:
    entry = life(0, LAST, ranks=1, saves=tuple(map(saved, steps)), end="exit")
    assert [found.cause for found in control_runs.files(entry)] == causes_found


def test_a_restart_that_trains_past_the_undisturbed_end_is_reported() -> None:
    control = life(0, LAST, end="exit")
    for last, ends, cause in (
        (LAST + SAVED, "exit", Cause.END),
        (LAST, "exit", Cause.NONE),
        (LAST + SAVED, "limit", Cause.NONE),
    ):
        observed = FaultRun("kill", (BEFORE, life(SAVED, last, loads=READ)), KILLED)
        (entry,) = causes.judge(control, "", observed, life(0, LAST, end=ends))
        assert entry.cause is cause, entry.message


def test_steps_after_a_notice_count_as_lost() -> None:
    before = life(0, LAST, saves=(saved(5), saved(LAST)))
    observed = FaultRun(
        "time-limit", (before, life(5, LAST, loads=((PATH.format(5), ""),))), KILLED, until=9.0
    )
    (entry,) = causes.judge(CONTROL, "", observed)
    assert (entry.cause, "25 steps done again" in entry.message) == (Cause.TOO_FAR_BACK, True), entry.message


@pytest.mark.parametrize(
    "last, expected",
    [
        (after(), [("ok", "")]),
        (life(0, LAST), [("FAIL", "never-resumed")]),
        (life(5, LAST, loads=((PATH.format(5), ""),)), [("FAIL", "resumed-too-far-back")]),
        (started(7, 2000 + SAVED), [("FAIL", "parameters-not-restored")]),
        (started(1000 + SAVED, 0), [("FAIL", "optimizer-not-restored")]),
        (after(rates=[[9.0]], parameters=1), [("FAIL", "learning-rate-not-restored")]),
        (after(schedulers=[1]), [("FAIL", "scheduler-not-restored")]),
        (after(scalers=[[1.0, 0.0]]), [("FAIL", "scaler-not-restored")]),
        (after(averages=(1,)), [("FAIL", "averages-not-restored")]),
        (after(buffers=1), [("FAIL", "buffers-not-restored")]),
        (after(random={"python": 5, "torch": 1}, parameters=1), [("FAIL", "random-state-not-restored")]),
        (shifted(-2), [("FAIL", "data-order-not-restored")]),
        (shifted(2), [("FAIL", "data-order-not-restored")]),
    ],
)
def test_the_cause_is_the_first_difference(last: Start, expected: list[tuple[str, str]]) -> None:
    assert judged(last) == expected


@pytest.mark.parametrize("by_thread", [True, False])
@pytest.mark.parametrize("last", [started(7, 2000 + SAVED), after(averages=(1,)), after(buffers=1)])
def test_a_thread_that_wrote_while_training_went_on_gets_its_own_remedy(last: Start, by_thread: bool) -> None:
    before = life(0, KILLED, saves=(saved(SAVED, by_thread=by_thread),))
    assert ("(copy.deepcopy)" in first_finding(last, before).remedy) is by_thread


def with_random(parameters: int = 0, **states: int) -> Start:
    """Return restarted ranks with other random states; ``parameters``: and other weights."""
    return with_steps(
        after(),
        lambda s, rank: replace(s, random={**s.random, **states}, parameters=parameters or s.parameters),
    )


@pytest.mark.parametrize(
    "last",
    [
        after(parameters=1),
        with_random(parameters=1, python=1),  # a generator that nobody draws from explains nothing
        started(7, 99, ()),  # the weights are of no step, and no file was seen read
        with_ranks(after(), before={}, steps=()),
        life(SAVED, SAVED, loads=READ),
    ],
)
def test_an_unexplained_difference_is_undetermined(last: Start) -> None:
    assert judged(last) == [("unknown", "undetermined")]


@pytest.mark.parametrize(
    "last",
    [
        with_random(torch=1),  # restored or not, it changed nothing
        Start({0: after().ranks[0], 1: after(averages=(1,), buffers=1).ranks[1]}),  # rank 1's own, never read
        life(SAVED + 1, LAST, loads=READ),  # a save that nobody saw
        Start({0: after().ranks[0], 1: trace(SAVED, SAVED, 1)}),  # ended before the first step of its own
        life(SAVED, LAST, loads=READ, before={0: (1000 + SAVED, 77)}),  # a state, laid out in another way
    ],
)
def test_an_unchanged_result_accuses_nobody(last: Start) -> None:
    assert judged(last) == [("ok", "")]


def averaged(first: int, last: int, **changed: Any) -> Start:
    """Return a script that changes weights after a step: those of step SAVED are 9 when it saves them."""
    right = life(first, last, loads=READ if first else (), **changed)
    ranks = {
        rank: replace(entry, before={0: (9, 2000 + first)} if first else entry.before)
        for rank, entry in right.ranks.items()
    }
    return Start({**ranks, 0: replace(ranks[0], moved=() if first else ((SAVED, 0, 9),))})


def test_weights_that_the_script_changes_after_a_step_are_of_that_step_on_every_rank() -> None:
    observed = FaultRun("kill", (averaged(0, KILLED, saves=(saved(SAVED),)), averaged(SAVED, LAST)), KILLED)
    (entry,) = causes.judge(averaged(0, LAST), "", observed)
    assert (entry.level, entry.step) == (Severity.OK, SAVED), entry.message
    (entry,) = causes.judge(CONTROL, "", replace(observed, lives=(BEFORE, averaged(SAVED, LAST))))
    assert entry.cause.value == "parameters-not-restored"


def test_the_scripts_changes_are_read_and_joined() -> None:
    message = '{"t": "moved", "n": 3, "o": 5, "p": 8}'
    assert parsed(0, [message]).moved == ((3, 5, 8),)
    both = joined(CONTROL, (life(0, 8, moved=((5, 0, 9), (8, 0, 7))), life(5, LAST, moved=((2, 0, 6),))))
    assert both.ranks[0].moved == ((5, 0, 9), (7, 0, 6))


def with_calls(last: Start, *calls: tuple[str, str, str], **changed: Any) -> Start:
    return with_ranks(last, calls=calls, **changed)


@pytest.mark.parametrize("first", [SAVED, 0])
def test_weights_under_names_that_the_model_lacks_are_not_loaded(first: int) -> None:
    partial = ("train.py:26", 4, 3, "module.0.weight")
    last = with_calls(started(7, 2000 + SAVED) if first else life(0, LAST, loads=READ), partial=partial)
    observed = FaultRun("kill", (BEFORE, last), KILLED)
    (entry,) = causes.judge(CONTROL, "", observed)
    assert entry.cause.value == "parameters-not-restored" and "strict=False) at train.py:26" in entry.message
    begun = with_ranks(BEFORE, partial=partial)
    (entry,) = causes.judge(CONTROL, "", replace(observed, lives=(begun, last)))
    assert "strict=False" not in entry.message  # so it begins each time


def test_a_scheduler_of_a_later_step_beside_the_first_weights_accuses_the_weights() -> None:
    last = life(0, LAST, loads=READ, calls=(("scheduler", "load_state_dict", "train.py:28"),))
    last = with_steps(last, rates=[[9.0]], parameters=1)
    cut = FaultRun("disk-full", (BEFORE, last), KILLED, damaged=(PATH.format(5), PATH.format(SAVED)))
    (entry, *_) = causes.judge(CONTROL, "", replace(cut, damaged=()))
    assert entry.cause.value in ("never-resumed", "parameters-not-restored")
    lone = replace(cut, lives=(life(0, KILLED), last), damaged=())
    (entry,) = causes.judge(CONTROL, "", lone)
    assert entry.cause.value == "parameters-not-restored" and "those of step 0" in entry.message


def drawn_by_hand(*calls: tuple[str, str, str]) -> Start:
    """Return a restart with other samples of the control's data, and another state of the generator."""
    other = tuple(step(n).rows[0] for n in (3, 7, 11, 15))
    last = after(rows=other, parameters=1, random={"python": 5, "torch": 1})
    return with_calls(last, *calls)


def test_a_generator_with_a_set_state_is_not_blamed_for_other_samples() -> None:
    assert judged(drawn_by_hand()) == [("FAIL", "random-state-not-restored")]
    assert judged(drawn_by_hand(("python", "set", "train.py:5"))) == [("FAIL", "random-state-not-restored")]
    assert judged(drawn_by_hand(("torch", "set", "train.py:5"))) == [("FAIL", "data-order-not-restored")]


def test_a_set_state_that_was_drawn_from_before_the_step_is_reported() -> None:
    last = with_calls(with_random(parameters=1, torch=1), ("torch", "set", "train.py:5"))
    entry = first_finding(last)
    assert entry.cause.value == "random-state-not-restored"
    assert "it was set at train.py:5" in entry.message and "validation" in entry.remedy


def with_target(first: int, last: int, **changed: Any) -> Start:
    """Return a copy of the weights that is renewed after step 16, beside an average that each step moves."""
    right = life(first, last, loads=READ if first else ())
    steps = tuple(
        replace(entry, averages=(1 + (first + entry.n > 16), *entry.averages))
        for entry in right.ranks[0].steps
    )
    steps = tuple(replace(entry, **changed) for entry in steps)
    return Start({0: replace(right.ranks[0], steps=steps)})


@pytest.mark.parametrize(
    "changed, cause",
    [
        ({"averages": (5, 4011), "parameters": 1, "loss": 3.0}, "averages-not-restored"),
        ({"averages": (5, 4011), "parameters": 1}, "undetermined"),  # the loss does not hang on the copy
        ({"parameters": 1, "loss": 3.0}, "undetermined"),
    ],
)
def test_a_copy_of_the_weights_of_which_the_loss_is_computed_is_named(changed: Any, cause: str) -> None:
    before = Start({0: replace(with_target(0, KILLED).ranks[0], saves=(saved(SAVED),))})
    observed = FaultRun("kill", (before, with_target(SAVED, LAST, **changed)), KILLED)
    (entry, *_) = causes.judge(with_target(0, LAST), "", observed)
    assert entry.cause.value == cause, entry.message


@pytest.mark.parametrize(
    "loss, message, remedy",
    [(0.0, "the loss is the same", "gradients"), (5.0, "the loss is 5 instead of", "a hidden state")],
)
def test_an_unexplained_difference_has_a_hint(loss: float, message: str, remedy: str) -> None:
    last = with_steps(after(parameters=1), lambda s, rank: replace(s, loss=loss or s.loss))
    entry = first_finding(last)
    assert entry.cause.value == "undetermined" and message in entry.message and remedy in entry.remedy


def test_a_rate_that_is_right_at_first_hangs_on_counters() -> None:
    def plain(start: Start, late: bool = False) -> Start:
        """Return ranks without a scheduler of torch; ``late``: later steps have another rate."""
        ranks = {}
        for rank, right in start.ranks.items():
            steps = [replace(each, schedulers=[]) for each in right.steps]
            steps[3:] = [replace(each, rates=[[9.0]], parameters=1) if late else each for each in steps[3:]]
            ranks[rank] = replace(right, steps=tuple(steps))
        return Start(ranks)

    observed = FaultRun("kill", (plain(BEFORE), plain(after(), late=True)), KILLED)
    (start,) = causes.judge(plain(CONTROL), "", observed)
    assert start.cause.value == "learning-rate-not-restored" and "right before this step" in start.message
    assert "counters" in start.remedy


def test_runs_that_differ_by_themselves_are_compared_with_their_own_past() -> None:
    assert judged(after(parameters=1), differs="parameters") == [("ok", "")]
    assert judged(started(1000 + SAVED, 0), differs="parameters") == [("FAIL", "optimizer-not-restored")]
    assert judged(shifted(-2), differs="data") == [("ok", "")]


def test_ranks_that_continue_after_different_steps_are_named() -> None:
    last = Start({0: after().ranks[0], 1: life(5, LAST).ranks[1]})
    assert judged(last) == [("FAIL", "ranks-resume-at-different-steps")]


def test_files_of_two_saves_differ_from_a_state_changed_after_loading() -> None:
    paths = ("/data/model.pt", "/data/optim.pt")
    saves = tuple(saved(n, path=path) for n in (5, SAVED) for path in paths)
    before = life(0, KILLED, saves=saves)
    loads = tuple((path, "train.py:75") for path in paths)
    finding = first_finding(started(1000 + SAVED, 2005, loads), before)
    assert finding.cause is Cause.TORN
    assert f"resumed at step {SAVED} with the optimizer's state of step 5" in finding.message
    assert "(model.pt, optim.pt)" in finding.message
    assert first_finding(started(1000 + SAVED, 2005, loads[:1]), before).cause is Cause.OPTIMIZER
    assert first_finding(started(1000 + SAVED, 1, loads), before).cause is Cause.OPTIMIZER
    counter = with_ranks(shifted(5 - SAVED), loads=loads)
    for fault, cause in (("mid-save", Cause.TORN), ("kill", Cause.DATA)):
        finding = causes.judge(CONTROL, "", FaultRun(fault, (before, counter), KILLED))[0]
        assert (finding.cause, "samples of step 5" in finding.message) == (cause, cause is Cause.TORN)


def test_the_first_rank_that_raised_is_named() -> None:
    ended = ("train.py:9", "RuntimeError", "Connection closed by peer")
    ranks = {
        0: trace(0, 0, before={}, error=ended, failed_at=20.0),
        1: trace(
            0, 0, 1, before={}, error=("train.py:5", "IndexError", "list index out of range"), failed_at=19.9
        ),
    }
    (entry,) = causes.judge(CONTROL, "", FaultRun("more", (BEFORE, Start(ranks)), KILLED, elastic=True))
    assert (entry.cause.value, entry.lines) == ("restart-fails", ("train.py:5 raises it",))
    line = parsed(0, ['{"t": "error", "n": 0, "what": "IndexError", "text": "x", "line": "a:1", "at": 7.5}'])
    assert (line.error, line.failed_at) == (("a:1", "IndexError", "x"), 7.5)


def test_the_first_start_after_the_fault_that_took_a_step_is_judged() -> None:
    struck = Start({0: replace(trace(SAVED, SAVED + 1), struck=True)})
    nothing = Start({0: replace(trace(SAVED, SAVED), before={})})
    observed = FaultRun("twice", (BEFORE, struck, nothing, after(), started(7, 7)), KILLED)
    assert observed.restarted == after()
    assert FaultRun("kill", (BEFORE, nothing, nothing), KILLED).restarted == nothing


def test_a_restart_that_fails_after_some_steps_is_no_good_restart() -> None:
    error = ("train.py:9", "FileExistsError", "last.pt")
    ranks = {0: replace(trace(SAVED, SAVED + 3), loads=READ, error=error)}
    failed = FaultRun("kill", (BEFORE, Start(ranks)), KILLED)
    (entry,) = causes.judge(CONTROL, "", failed)
    assert (entry.cause.value, entry.lines) == ("restart-fails", ("train.py:9 raises it",))
    finished = Start({**ranks, 1: trace(SAVED, SAVED + 3, 1, loads=READ, end="limit")})
    (entry,) = causes.judge(CONTROL, "", replace(failed, lives=(BEFORE, finished)))
    assert entry.level.value == "ok"
    ended_by_a_fault = Start({0: replace(ranks[0], struck=True)})
    (entry,) = causes.judge(CONTROL, "", replace(failed, lives=(BEFORE, unstruck(ended_by_a_fault))))
    assert entry.level.value == "ok"
    assert unstruck(Start(ranks)).errors


def test_a_restart_that_is_killed_again_proves_the_first_kill() -> None:
    again = life(SAVED, SAVED + 3, loads=READ, struck=True)
    assert again.struck and not unstruck(again).struck
    once = FaultRun("kill", (BEFORE, unstruck(again)), KILLED)
    twice = FaultRun("twice", (joined(CONTROL, (BEFORE, again)), after(rates=[[9.0]])), KILLED)
    results = [[entry.level.value for entry in causes.judge(CONTROL, "", entry)] for entry in (once, twice)]
    assert results == [["ok"], ["FAIL"]]


def test_starts_of_one_run_are_read_as_one() -> None:
    again = life(SAVED, SAVED + 8, saves=(saved(0), saved(5)))
    past = joined(CONTROL, (BEFORE, again, life(SAVED + 5, LAST)))
    assert past == life(
        0,
        LAST,
        saves=(
            saved(5),
            saved(SAVED),
            replace(saved(SAVED + 5), path=PATH.format(5), temp=PATH.format(5) + ".part"),
        ),
    )


def test_faults_share_a_run_where_each_restart_can_meet_the_next() -> None:
    def names(names_of_faults: str, *saves: int) -> list[str]:
        plan = schedule(life(0, LAST, saves=tuple(map(saved, saves))), 0)
        runs = runs_of(select_faults(names_of_faults.split(), True), plan)
        return [" ".join(fault.name for fault in run) for run in runs]

    inside = "after-save kill mid-save disk-full"
    alone = ["damaged", "twice", "fewer", "more"]
    assert names("", 5, 10, 15, 20) == [inside, "time-limit preemption node", *alone]
    assert names("", 5, 10, 25) == [
        "after-save kill",
        "mid-save disk-full",
        "time-limit preemption node",
        *alone,
    ]
    assert names("node kill", 5, 10, 15, 20) == ["kill", "node"]


def test_self_restarts_of_ranks_are_read_in_order() -> None:
    plan = schedule(life(0, LAST, saves=tuple(map(saved, (5, 10, 15, 20)))), 0)
    (run, *_) = runs_of(select_faults((), False), plan)
    results = [
        (
            schedule_fault.fault.name,
            schedule_fault.first,
            [(each["attempt"], each["kind"], each["step"]) for each in schedule_fault.orders],
        )
        for schedule_fault in schedule_faults(run, plan)
    ]
    assert results == [
        ("after-save", 0, [(0, "kill-before", 10)]),
        ("kill", 1, [(1, "kill", 11)]),
        ("mid-save", 2, [(2, "torn", 15)]),
        ("disk-full", 3, [(3, "full", 15), (3, "kill", 16)]),
    ]
    (alone,) = schedule_faults(select_faults(("twice",), False), plan)
    assert (alone.first, alone.last) == (0, 1)
    (first, second) = schedule_faults(select_faults(("mid-save", "disk-full"), False), plan)
    assert [schedule_fault.orders[0]["step"] for schedule_fault in (first, second)] == [10, 10]


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({"parameters": 1}, "ok"),  # the forward was the same: the sum of four gradients has no one order
        ({"parameters": 1, "loss": 0.5}, "unknown"),
        ({"parameters": 1, "rates": [[9.0]]}, "FAIL"),
        ({"parameters": 1, "random": {"torch": 1, "python": 5}}, "ok"),
        ({"parameters": 1, "random": {"torch": 1, "python": 5}, "loss": 0.5}, "FAIL"),
    ],
)
def test_the_sum_of_more_than_two_ranks_may_differ_by_rounding(
    changed: dict[str, Any], expected: str
) -> None:
    control, before = life(0, LAST, 4), life(0, KILLED, 4, saves=(saved(SAVED),))
    first = first_finding(with_steps(life(SAVED, LAST, 4, loads=READ), **changed), before, control)
    assert first.level.value == expected, first


def test_an_exception_after_the_restart_is_reported_although_sums_are_rounded() -> None:
    control, before = life(0, LAST, 4), life(0, KILLED, 4, saves=(saved(SAVED),))
    error = ("train.py:25", "FileExistsError", "checkpoints/step_10")
    restart = with_steps(life(SAVED, LAST, 4, loads=READ, error=error), parameters=1)
    assert first_finding(restart, before, control).cause is Cause.CRASH


def in_turns(first: int, last: int, **wrong: tuple[int, int]) -> Start:
    """Return two optimizers, each for weights of its own. The second takes every even step."""
    steps = tuple(
        replace(step(n), n=n - first, optimizer=7 + n % 2 * -2, rates=[[0.1]])
        for n in range(first + 1, last + 1)
    )
    before = {5: (1000 + first - 1, 2000 + first - 1) if first else (1, 0)}
    steps = tuple(replace(entry, parameters=1) for entry in steps) if wrong else steps
    before[7] = wrong.get("second", (1000 + first, 2000 + first) if first else (2, 0))
    at = {5: "train.py:8", 7: "train.py:9"}
    return Start({0: replace(trace(first, last), steps=steps, before=before, stepped_at=at, loads=READ)})


@pytest.mark.parametrize(
    "second, cause, arguments",
    [
        (None, "", "equal to the last bit"),
        (
            (1000 + SAVED, 0),
            "optimizer-not-restored",
            "of the optimizer that steps at train.py:9 begins anew",
        ),
        (
            (2, 2000 + SAVED),
            "parameters-not-restored",
            "of the optimizer that steps at train.py:9 begin anew",
        ),
        ((77, 2000 + SAVED), "parameters-not-restored", "are of another step, or of none"),
    ],
)
def test_every_optimizer_is_looked_at(second: tuple[int, int] | None, cause: str, arguments: str) -> None:
    wrong = {"second": second} if second else {}
    observed = FaultRun("kill", (in_turns(0, KILLED), in_turns(SAVED, LAST, **wrong)), KILLED)
    (entry, *_) = causes.judge(in_turns(0, LAST), "", observed)
    assert (entry.cause.value, arguments in entry.message) == (cause, True), entry.message


def test_a_replaced_optimizer_is_recognised() -> None:
    """The head is trained first, then all of it, by another optimizer; a restart begins with the second."""

    def phases(first: int, last: int) -> Start:
        right = trace(first, last, loads=READ)
        steps = tuple(replace(s, optimizer=5 if first + s.n <= 8 else 7) for s in right.steps)
        before = {7: (1000 + first, 2000 + first)} if first else {5: (1, 0), 7: (1008, 0)}
        return Start({0: replace(right, steps=steps, before=before, shared=(7,))})

    observed = FaultRun("kill", (phases(0, KILLED), phases(SAVED, LAST)), KILLED)
    (entry,) = causes.judge(phases(0, LAST), "", observed)
    assert (entry.level, entry.step) == (Severity.OK, SAVED), entry.message


def files_of(n: int, name: str, **changed: Any) -> SavedFile:
    return saved(n, path=f"/data/sets/{n:05d}/{name}", temp="", **changed)


@pytest.mark.parametrize(
    "saves, damaged, expected",
    [
        ((files_of(10, "rank0.pt"), files_of(10, "rank1.pt")), ("/data/sets/00010/rank0.pt",), ""),
        ((saved(10, path="/data/a.pt", temp=""), saved(10, path="/data/b.pt")), ("/data/a.pt",), ""),
        ((saved(10, path="/data/.part/a.pt", temp=""),), (), ""),  # it was never given its name
        ((saved(10, path="/data/last.pt", line="train.py:61"),), (), "resumed-too-far-back"),
        ((saved(10, path="/data/last.pt", line="train.py:62"),), (), ""),  # the weights alone?
        ((saved(10, path="/data/last.pt", size=90),), (), ""),
    ],
)
def test_a_newer_complete_checkpoint_of_the_same_kind_counts(
    saves: tuple[SavedFile, ...], damaged: tuple[str, ...], expected: str
) -> None:
    """One that was read is of step 5: in a folder for each, or under a name of its own."""
    best = saved(5, path="/data/best.pt", temp="/data/.part/a.pt")
    first = (files_of(5, "rank0.pt"),) if "sets" in saves[0].path else (best,)
    message = life(0, KILLED, 1, saves=(*first, *saves))
    last = life(5, LAST, 1, loads=((first[0].path, "train.py:75"),))
    (entry,) = causes.judge(life(0, LAST, 1), "", FaultRun("kill", (message, last), KILLED, damaged=damaged))
    assert entry.cause.value == expected, entry.message


@pytest.mark.parametrize("damaged, new", [((PATH.format(10),), "step-10.pt"), ((), "the next checkpoint")])
def test_removing_the_old_checkpoint_before_the_new_one_is_complete_loses_all(
    damaged: tuple[str, ...], new: str
) -> None:
    """The new one is cut off under its name, or under a temporary one."""
    message = life(0, KILLED, 1, saves=(saved(5, is_removed=True),))
    observed = FaultRun("mid-save", (message, life(0, LAST, 1)), KILLED, damaged=damaged)
    (entry,) = causes.judge(life(0, LAST, 1), "", observed)
    assert (entry.cause.value, entry.message) == (
        "torn-checkpoint-loaded",
        f"step-5.pt was removed before {new} was whole: all work is lost",
    )
    line = (
        '{"t": "%s", "n": 5, "path": "/5", "temp": "", "size": 1, "secs": 0, "line": "", "nth": 1, "sure": 1}'
    )
    again = [
        parsed(0, [line % kind for kind in kinds]).saves[-1].is_removed
        for kinds in (("save", "remove"), ("save", "remove", "save"))
    ]
    assert again == [True, False]


@pytest.mark.parametrize("last", [started(7, 7), started(1000 + SAVED, 0)])
def test_a_script_that_continues_with_part_of_a_file_is_reported(last: Start) -> None:
    """As torch's distributed checkpoints load: in place, tensor by tensor, until one cannot be read."""
    observed = FaultRun("mid-save", (BEFORE, last), KILLED, damaged=(PATH.format(SAVED),))
    (entry,) = causes.judge(CONTROL, "", observed)
    assert (entry.cause.value, "trains on with what it read" in entry.message) == (
        "torn-checkpoint-loaded",
        True,
    )
    both = Start({rank: replace(t, loads=(*READ, (PATH.format(5), ""))) for rank, t in last.ranks.items()})
    (other, *_) = causes.judge(CONTROL, "", replace(observed, lives=(BEFORE, both)))
    assert other.cause.value in ("parameters-not-restored", "optimizer-not-restored")


LAST_PT = "/data/checkpoints/last.pt"


def cut_last(fault: str, **changed: Any) -> FaultRun:
    """Return a start that reads a cut-off `last.pt`. `step-10.pt` was written before it and is whole."""
    saves = [saved(n, **more) for n in (5, SAVED) for more in ({"temp": ""}, {"path": LAST_PT, "temp": ""})]
    past = life(0, KILLED, 1, saves=tuple(saves))
    error = ("train.py:75", "EOFError", "cut")
    restart = Start({0: replace(trace(0, 0), before={}, loads=((LAST_PT, "train.py:75"),), error=error)})
    created = FaultRun(fault, (past, restart), KILLED, damaged=(LAST_PT,), damaged_step=SAVED)
    return replace(created, **{"twins": ("/data/checkpoints/step-#.pt",), **changed})


@pytest.mark.parametrize("fault", ["mid-save", "disk-full", "damaged"])
def test_a_cut_file_that_every_restart_reads_fails_despite_a_complete_copy(fault: str) -> None:
    (entry,) = causes.judge(CONTROL, "", cut_last(fault))
    assert (entry.cause, "step-10.pt is whole" in entry.message) == (Cause.TORN, True), entry.message
    (entry,) = causes.judge(CONTROL, "", cut_last(fault, twins=()))
    assert entry.cause is (Cause.ONLY_ONE if fault == "damaged" else Cause.TORN)
    assert "step-10.pt" not in entry.message  # nothing shows that it holds the same


@pytest.mark.parametrize("fault", ["mid-save", "disk-full"])
@pytest.mark.parametrize("is_read", [True, False])
def test_a_temporary_file_is_of_the_kind_of_its_final_name(fault: str, is_read: bool) -> None:
    """A save that failed left its temporary file; the restart takes it for the newest, or gives up."""
    temporary = PATH.format(SAVED) + ".part"
    failed = (saved(SAVED, path=temporary, temp=""),) if fault == "disk-full" else ()
    past = life(0, KILLED, saves=(saved(5), *failed))
    last = life(0, LAST, loads=((temporary, "train.py:75"),) if is_read else ())
    observed = FaultRun(fault, (past, last), KILLED, damaged_step=SAVED)
    (entry,) = causes.judge(CONTROL, "", observed)
    expected = (Cause.TORN, "step-5.pt is whole") if is_read else (Cause.NEVER_RESUMED, "step-5.pt of step 5")
    assert (entry.cause, expected[1] in entry.message) == (expected[0], True), entry.message


@pytest.mark.parametrize("names, cause", [(("a",), Cause.TORN), (("a", "b"), Cause.NEVER_RESUMED)])
def test_only_a_save_with_files_of_all_kinds_counts_if_none_was_read(
    names: tuple[str, ...], cause: Cause
) -> None:
    """The cut file may be the one that a restart needs."""
    older = [files_of(5, f"{name}.pt") for name in names]
    newer = [files_of(SAVED, f"{name}.pt") for name in ("a", "b")]
    past, last = life(0, KILLED, 1, saves=(*older, *newer)), life(0, LAST, 1)
    observed = FaultRun("disk-full", (past, last), KILLED, damaged=(newer[1].path,), damaged_step=SAVED)
    (entry,) = causes.judge(life(0, LAST, 1), "", observed)
    assert entry.cause is cause, entry.message


def test_an_older_companion_file_is_a_whole_copy() -> None:
    older, newer = (
        saved(n, path=f"/data/checkpoint-{n}/state.json", temp="", sure=False, text=True) for n in (5, SAVED)
    )
    checkpoints = [saved(n, path=f"/data/checkpoint-{n}/model.pt", temp="") for n in (5, SAVED)]
    past = life(0, KILLED, 1, saves=(*checkpoints, older, newer))
    error = ("train.py:9", "JSONDecodeError", "cut")
    restart = Start({0: replace(trace(0, 0), before={}, loads=((newer.path, "train.py:9"),), error=error)})
    cut = {"damaged": (newer.path,), "damaged_step": SAVED, "of_companion": True}
    (entry,) = causes.judge(CONTROL, "", FaultRun("mid-save", (past, restart), KILLED, **cut))
    names = ("checkpoint-10/state.json is cut off", "although checkpoint-5/state.json is whole")
    assert all(name in entry.message for name in names), entry.message


def test_the_older_file_of_the_same_rank_is_named() -> None:
    files = [files_of(n, f"rank{rank}.pt", rank=rank) for n in (5, SAVED) for rank in (0, 1)]
    past = life(0, KILLED, saves=tuple(files))
    error = ("train.py:9", "EOFError", "cut")
    restart = Start({0: replace(trace(0, 0), before={}, loads=((files[3].path, "train.py:9"),), error=error)})
    observed = FaultRun("damaged", (past, restart), KILLED, damaged=(files[3].path,), damaged_step=SAVED)
    (entry,) = causes.judge(CONTROL, "", observed)
    assert "00010/rank1.pt is cut off" in entry.message and "00005/rank1.pt is whole" in entry.message


def test_each_kind_of_file_of_a_save_is_damaged_in_turn() -> None:
    saves = [
        saved(n, path=f"/w/control-1/{name}", temp="", size=size, nth=nth)
        for n in (5, 10, 20)
        for nth, (name, size) in enumerate(((f"a/step-{n}.pt", 100), ("last.pt", 90)), 1)
    ]
    best = saved(5, path="/w/control-1/best.pt", size=80)
    plan = schedule(life(0, LAST, saves=(best, *saves)), 0, "/w/control-1")
    assert plan.targets == ("a/step-#.pt", "last.pt", "best.pt")
    fault = next(fault for fault in FAULTS if fault.name == "mid-save")
    placed = schedule_faults(cases_of(fault, plan), plan)
    struck = [
        (entry.fault.target, entry.orders[0]["attempt"], entry.orders[0]["step"], entry.orders[0]["file"])
        for entry in placed
    ]
    assert struck == [("a/step-#.pt", 0, 10, 1), ("last.pt", 1, 10, 2), ("best.pt", 2, 5, 1)]
    kill = next(fault for fault in FAULTS if fault.name == "kill")
    assert cases_of(kill, plan) == (kill,)
    rows = [
        Result("mid-save", "", (finding,), 1.0) for finding in (Discovery(Cause.NONE, "well"), TORN, TORN)
    ]
    whole = combined(fault, cases_of(fault, plan), rows)
    assert (whole.level, [entry.message for entry in whole.findings], whole.seconds) == (
        Severity.FAIL,
        ["cut; the same with best.pt"],
        3.0,
    )


def test_a_save_of_several_ranks_is_cut_off_in_the_first_and_in_the_last_of_them() -> None:
    saves = tuple(
        saved(n, rank, path=f"/w/step-{n}/shard-{rank}.pt") for n in (5, 10, 20) for rank in range(3)
    )
    before = life(0, LAST, 3, saves=saves)
    plan = schedule(before, 0, "/w")
    fault = next(fault for fault in FAULTS if fault.name == "mid-save")
    placed = schedule_faults(cases_of(fault, plan), plan)
    orders = [entry.orders[0] for entry in placed]
    assert [(order["rank"], order["step"], "pause" in order) for order in orders] == [
        (2, 10, True),
        (0, 10, True),
    ]
    error = ("t.py:8", "FileNotFoundError", "No such file or directory: 'step-20/shard-2.pt'")
    ended = with_ranks(life(0, 0, 3), before={}, steps=(), error=error)
    (finding,) = causes.judge(life(0, LAST, 3), "", FaultRun("mid-save", (before, ended), 20))
    assert (finding.cause, "barrier()" in finding.remedy) == (Cause.TORN, True)
    torn = "/w/step-10/shard-2.pt"
    ended = with_ranks(ended, error=("t.py:8", "OSError", "Invalid argument"), loads=((torn, "t.py:8"),))
    cut = FaultRun("mid-save", (before, ended), 20, damaged=(torn,), damaged_step=10)
    (finding,) = causes.judge(life(0, LAST, 3), "", cut)
    assert (finding.cause, "barrier()" in finding.remedy) == (Cause.TORN, True)


TORN = Discovery(Cause.TORN, "cut")
META = "/data/checkpoints/meta.json"


def test_a_file_that_is_written_beside_a_checkpoint_is_cut_off_too() -> None:
    """Not one that lies elsewhere, that is empty, or that is written at other steps."""
    text = {"sure": False, "text": True, "size": 30, "temp": ""}
    others = [
        saved(n, path=f"/w/{path}", nth=nth, **{**text, **more})
        for n in (4, 10, 20)
        for nth, (path, more) in enumerate(
            (
                ("meta.json", {}),
                ("whole.json", {"temp": "/w/whole.new"}),
                ("../elsewhere.json", {}),
                ("empty", {"size": 0}),
                ("raw", {"text": False}),
            ),
            2,
        )
    ]
    checkpoints = [saved(n, path="/w/last.pt", temp="") for n in (10, 20)]
    others = [replace(save, path=os.path.normpath(save.path)) for save in others]
    plan = schedule(life(0, LAST, saves=(*checkpoints, *others)), 0, "/w")
    assert [step for step, _ in plan.saves] == [10, 20]
    assert (plan.targets, plan.companion_kinds) == (("last.pt",), ("meta.json", "raw", "whole.json"))
    cases = {fault.name: cases_of(fault, plan) for fault in FAULTS}
    of_companions = tuple(case for case in cases["mid-save"] if case.of_companion)
    assert [case.target for case in of_companions] == ["meta.json", "raw", "whole.json"]
    assert runs_of([*cases["kill"], *cases["mid-save"]], plan)[-1] == of_companions
    assert [case.target for case in cases["disk-full"]] == ["last.pt", "meta.json", "raw", "whole.json"]
    assert [case.target for case in cases["damaged"]] == ["last.pt"]
    (order,), *_ = (placed.orders for placed in schedule_faults(of_companions, plan))
    assert (order["step"], order["file"], order["size"]) == (20, 2, 15)


@pytest.mark.parametrize(
    "restart, expected",
    [
        (life(SAVED, LAST, loads=((META, ""), *READ)), ("ok", "")),
        (life(5, LAST, loads=((META, ""), (PATH.format(5), ""))), ("ok", "")),
        (life(0, LAST, loads=((META, "train.py:75"),)), ("FAIL", "torn-checkpoint-loaded")),
        (
            Start(
                {0: replace(trace(0, 0), before={}, loads=((META, ""),), error=("t.py:7", "ValueError", "x"))}
            ),
            ("FAIL", "torn-checkpoint-loaded"),
        ),
    ],
)
def test_a_cut_companion_file_must_not_end_or_restart_training(
    restart: Start, expected: tuple[str, str]
) -> None:
    cut = {"damaged": (META,), "damaged_step": SAVED, "of_companion": True}
    assert judged(restart, "mid-save", **cut) == [expected]


def test_kinds_of_files_with_the_same_content_are_found(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"w": torch.arange(9.0)}
    for name, value in (("a/step_4.pt", state), ("last.pt", state), ("other.pt", {"w": torch.ones(9)})):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        torch.save(value, tmp_path / name)
    (tmp_path / "raw.bin").write_bytes(b"x" * 100)
    (tmp_path / "raw-copy.bin").write_bytes(b"x" * 100)
    names = ("a/step_4.pt", "last.pt", "other.pt", "raw.bin", "raw-copy.bin", "gone.pt")
    twins = twin_kinds([saved(4, path=str(tmp_path / name)) for name in names], str(tmp_path))
    assert {kind: others for kind, others in twins.items() if others} == {
        "a/step_#.pt": ("last.pt",),
        "last.pt": ("a/step_#.pt",),
        "raw.bin": ("raw-copy.bin",),
        "raw-copy.bin": ("raw.bin",),
    }


def ranks_of_nodes(reads: tuple[int, ...]) -> FaultRun:
    """Return ranks that each wrote a file and read that of the rank in ``reads``."""
    path = "/data/rank{}.pt"
    past = Start({r: trace(0, KILLED, r, saves=(saved(SAVED, r, path=path.format(r)),)) for r in range(4)})
    last = {
        r: replace(
            trace(SAVED, LAST, r, loads=((path.format(other), "train.py:7"),)),
            steps=tuple(
                replace(
                    step(n, r), n=n - SAVED, parameters=step(n).parameters + (other != r), rows=(n + other,)
                )
                for n in range(SAVED + 1, LAST + 1)
            ),
        )
        for r, other in enumerate(reads)
    }
    return FaultRun("kill", (past, Start(last)), KILLED)


def test_ranks_that_read_the_file_of_another_rank_are_named_with_it() -> None:
    (entry,) = causes.judge(life(0, LAST, 4), "", ranks_of_nodes((0, 1, 0, 1)))
    assert entry.cause is Cause.OTHER_RANK and "LOCAL_RANK" in entry.remedy
    assert "rank 2 read rank0.pt, which rank 0 wrote, not its own rank2.pt" in entry.message
    assert "rank 3 read rank1.pt" in entry.message and "rank 1 read" not in entry.message
    (entry, *_) = causes.judge(life(0, LAST, 4), "", ranks_of_nodes((0, 1, 2, 3)))
    assert entry.cause is not Cause.OTHER_RANK


def test_two_ranks_that_move_one_temporary_file_are_two_writers() -> None:
    line = '{"t": "lost", "n": 5, "path": "/c/last.pt", "temp": "/c/last.tmp", "line": "train.py:9"}'
    lost = parsed(1, [line]).lost
    first = trace(0, LAST, 0, saves=(saved(5, path="/c/last.pt", temp="/c/last.tmp"),))
    finding = two_writers(Start({0: first, 1: replace(trace(0, 5, 1), lost=lost)}))
    assert finding is not None and finding.cause is Cause.TWO_WRITERS
    assert "ranks 0 and 1 write the same file last.pt as last.tmp at step 5" in finding.message
    assert two_writers(Start({0: first, 1: trace(0, LAST, 1)})) is None
    empty = replace(first, saves=(replace(first.saves[0], size=0),))
    result = control_runs.files(Start({0: empty, 1: replace(trace(0, 5, 1), lost=lost)}))
    assert [entry.cause for entry in result] == [Cause.TWO_WRITERS]


@pytest.mark.parametrize(
    "changed, arguments",
    [
        ({"parameters": 1}, "use_deterministic_algorithms"),
        ({"parameters": 1, "rows": (99, 98)}, "a seed for these changes nothing"),
        ({"parameters": 1, "rows": (99, 98), "random": {"python": 1, "torch": 2}}, "seed all generators"),
    ],
)
def test_the_remedy_for_different_runs_fits_the_difference(changed: dict[str, Any], arguments: str) -> None:
    steps = tuple(replace(s, **changed) if s.n == 7 else s for s in CONTROL.ranks[0].steps)
    (first, *_) = control_runs.control(CONTROL, Start({0: replace(CONTROL.ranks[0], steps=steps)}))
    assert arguments in first.remedy, first
    assert ("seed" in first.remedy) == ("rows" in changed)


@pytest.mark.parametrize(
    "read, newest, arguments",
    [("best.pt", "last.pt", "instead of best.pt"), ("step-5.pt", "step-10.pt", "as numbers")],
)
def test_the_remedy_for_an_older_checkpoint_fits_the_file_that_was_read(
    read: str, newest: str, arguments: str
) -> None:
    saves = (saved(5, path=f"/data/{read}"), saved(SAVED, path=f"/data/{newest}"))
    last = life(5, LAST, 1, loads=((f"/data/{read}", "train.py:75"),))
    (entry,) = causes.judge(
        life(0, LAST, 1), "", FaultRun("kill", (life(0, KILLED, 1, saves=saves), last), KILLED)
    )
    assert (entry.cause, arguments in entry.remedy) == (Cause.TOO_FAR_BACK, True), entry.remedy


def test_a_new_rank_needs_no_step() -> None:
    observed = FaultRun("more", (BEFORE, life(SAVED, LAST, 3, loads=READ)), KILLED, elastic=True)
    (entry,) = causes.judge(CONTROL, "", observed)
    assert (entry.level, entry.message) == (Severity.OK, f"resumed at step {SAVED} on 3 ranks")


def test_averages_beside_other_weights_are_not_accused() -> None:
    """Copies that an optimizer's own step makes, as DeepSpeed's, differ wherever the weights do."""
    last = after(averages=(1,), parameters=1)
    entry = first_finding(last)
    assert entry.level is Severity.UNKNOWN


def test_averages_that_do_not_exist_yet_are_not_accused() -> None:
    assert judged(after(averages=()))[0][0] == "ok"


@pytest.mark.parametrize(
    "fault, level", [("mid-save", Severity.OK), ("disk-full", Severity.OK), ("kill", Severity.FAIL)]
)
def test_the_set_before_is_right_where_a_save_was_cut_off_between_its_files(
    fault: str, level: Severity
) -> None:
    """Rank 0's file of the newest set never got its name, so rank 1's is of no whole checkpoint."""
    files = [
        saved(n, rank, path=f"/data/step_{n}/rank_{rank}.pt") for n, rank in ((5, 0), (5, 1), (SAVED, 1))
    ]
    read = ((files[0].path, "train.py:58"),)
    past, last = life(0, KILLED, saves=tuple(files)), life(5, LAST, loads=read)
    verdict = causes.judge(CONTROL, "", FaultRun(fault, (past, last), KILLED))
    assert verdict[0].level is level, verdict


def test_a_cut_save_before_the_first_complete_one_accuses_no_loading() -> None:
    """Another file with the weights alone is no proof that it should have been read."""
    message = life(
        0, KILLED, 1, saves=(saved(4, path="/data/best.pt"), saved(6, path="/data/q.tmp", temp=""))
    )
    observed = FaultRun("mid-save", (message, life(0, LAST, 1)), KILLED)
    (entry,) = causes.judge(life(0, LAST, 1), "", observed)
    assert entry.cause.value == "", entry.message


def test_a_learning_rate_that_no_scheduler_sets_is_put_down_to_the_script() -> None:
    entry = first_finding(after(rates=[[9.0]], schedulers=[], parameters=1))
    assert entry.cause.value == "learning-rate-not-restored" and "no scheduler of torch's" in entry.message
    assert "number of the step that was loaded" in entry.remedy
    beside = after(rates=[[0.1, 0.0]], parameters=1)
    control, before = ((after(rates=[[0.1, 0.5]])), BEFORE)
    whole_run = Start(
        {
            r: replace(
                entry,
                steps=(*CONTROL.ranks[r].steps[:SAVED], *(replace(s, n=s.n + SAVED) for s in entry.steps)),
            )
            for r, entry in control.ranks.items()
        }
    )
    whole_run = Start(
        {r: replace(entry, before=CONTROL.ranks[r].before) for r, entry in whole_run.ranks.items()}
    )
    message = Start(
        {r: replace(entry, steps=whole_run.ranks[r].steps[:KILLED]) for r, entry in before.ranks.items()}
    )
    (entry,) = causes.judge(whole_run, "", FaultRun("kill", (message, beside), KILLED))
    assert "is as it was, but momentum, betas or weight decay is 0.0 instead of 0.5" in entry.message


def test_samples_accumulated_before_the_checkpoint_are_lost() -> None:
    right = after(parameters=1)
    ranks = {
        rank: replace(entry, steps=(replace(entry.steps[0], rows=entry.steps[0].rows[2:]), *entry.steps[1:]))
        for rank, entry in right.ranks.items()
    }
    entry = first_finding(Start(ranks))
    assert entry.cause.value == "data-order-not-restored" and "only the last 2 of 4 samples" in entry.message
    assert "optimizer.step()" in entry.remedy


@pytest.mark.parametrize(
    "changed, expected",
    [
        ({}, "ok"),
        ({"loss": 0.9}, "unknown"),
        ({"rates": [[9.0]]}, "FAIL"),
        ({"random": {"torch": 1, "python": 5}}, "FAIL"),
    ],
)
def test_a_restart_from_rounded_weights_is_not_compared_by_bits(
    changed: dict[str, Any], expected: str
) -> None:
    """As after a notice: no start has taken the steps after that save, and the control has other weights."""

    def parted(first: int, last: int, **more: Any) -> Start:
        right = life(first, last, 4, loads=READ)
        return with_steps(right, lambda s, rank: replace(s, parameters=s.parameters + 7, **more))

    control = life(0, LAST, 4)
    past = joined(control, (life(0, KILLED, 4, saves=(saved(SAVED),)), parted(SAVED, 20)))
    last = parted(20, LAST, **{"loss": 1e-4, **changed})
    last = with_ranks(last, before={0: (1027, 2020)})
    (first, *_) = causes.judge(control, "", FaultRun("preemption", (past, last), 20))
    assert first.level.value == expected, first


def test_a_restart_may_have_used_a_file_beside_the_cut_one() -> None:
    read = ((PATH.format(SAVED), "train.py:33"), (PATH.format("old"), "train.py:33"))
    last = life(SAVED, LAST, loads=read)
    other = Start(
        {
            rank: replace(entry, steps=after(parameters=1).ranks[rank].steps)
            for rank, entry in last.ranks.items()
        }
    )
    observed = FaultRun("damaged", (BEFORE, other), KILLED, damaged=(PATH.format(SAVED),))
    assert causes.judge(CONTROL, "", observed)[0].cause is Cause.UNDETERMINED


def test_random_numbers_that_nobody_draws_are_others_in_each_process() -> None:
    """The fault comes right after the save: the next step is known from the control's process alone."""
    own = with_steps(BEFORE, lambda s, rank: replace(s, random={**s.random, "python": 7}))
    past = Start({rank: replace(entry, steps=entry.steps[:SAVED]) for rank, entry in own.ranks.items()})
    last = after(parameters=1, random={"python": 9, "torch": 1})
    verdict = causes.judge(CONTROL, "", FaultRun("after-save", (past, last), SAVED))
    assert "(torch)" in verdict[0].message and "python" not in verdict[0].message


def test_repeated_and_skipped_samples_are_counted() -> None:
    uninterrupted = reference(CONTROL, BEFORE)
    assert counted(uninterrupted, shifted(-2), SAVED) == (16, 16)
    assert counted(uninterrupted, after(), SAVED) == (0, 0)


CRASHED = Start({0: replace(trace(0, 0), before={}, loads=READ, error=("train.py:75", "EOFError", "cut"))})


@pytest.mark.parametrize(
    "fault, damaged, expected",
    [
        ("kill", (), ("FAIL", "restart-fails")),
        ("mid-save", (PATH.format(SAVED),), ("FAIL", "torn-checkpoint-loaded")),
        ("damaged", (PATH.format(SAVED),), ("FAIL", "torn-checkpoint-loaded")),
        ("damaged", (PATH.format(SAVED), PATH.format(5)), ("note", "only-one-checkpoint")),
    ],
)
def test_a_restart_that_raises_is_attributed_to_the_file_that_it_read(
    fault: str, damaged: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert judged(CRASHED, fault, damaged=damaged) == [expected]


@pytest.mark.parametrize(
    "end, damaged, expected",
    [
        ("exit", (PATH.format(SAVED),), ("FAIL", "torn-checkpoint-loaded")),
        ("exit", (), ("unknown", "undetermined")),
        ("", (PATH.format(SAVED),), ("unknown", "undetermined")),
    ],
)
def test_a_restart_whose_exception_a_library_caught_is_attributed_to_its_file(
    end: str, damaged: tuple[str, ...], expected: tuple[str, str]
) -> None:
    """As under hydra, which prints the exception and ends with exit code 1."""
    caught = Start({0: replace(CRASHED.ranks[0], error=("", "", ""), end=end)})
    assert judged(caught, "mid-save", damaged=damaged) == [expected]


@pytest.mark.parametrize(
    "first, hears, took, expected",
    [
        (KILLED, True, 1.2, ("ok", "")),
        (KILLED, True, None, ("ok", "")),
        (SAVED, False, None, ("note", "notice-unheard")),
        (SAVED, True, 1.2, ("FAIL", "notice-without-save")),
        (SAVED, True, None, ("FAIL", "save-slower-than-notice")),
    ],
)
def test_a_notice_is_judged_by_the_loss(
    first: int, hears: bool, took: float | None, expected: tuple[str, str]
) -> None:
    steps = tuple(step(n, hears=hears) for n in range(1, KILLED + 1))
    message = Start({0: replace(trace(0, KILLED), steps=steps, saves=(saved(5), saved(SAVED)))})
    observed = FaultRun(
        "time-limit", (message, life(first, LAST, 1, loads=READ)), KILLED, until=120.0, took=took
    )
    assert expected in [
        (entry.level.value, entry.cause.value) for entry in causes.judge(life(0, LAST, 1), "", observed)
    ]


def test_a_state_that_a_restart_does_not_load_is_not_attributed_to_the_notice() -> None:
    steps = tuple(step(n, hears=True) for n in range(1, KILLED + 1))
    message = Start({0: replace(trace(0, KILLED), steps=steps, saves=(saved(5), saved(KILLED)))})
    observed = FaultRun("time-limit", (message, life(0, LAST, 1)), KILLED, until=120.0, took=1.2)
    verdict = causes.judge(life(0, LAST, 1), "", observed)
    assert [(entry.level.value, entry.cause.value) for entry in verdict] == [("FAIL", "never-resumed")]


def test_the_control_tells_how_checkpoints_are_written() -> None:
    def expected(*saves: SavedFile) -> list[str]:
        entry = life(0, LAST, 1, saves=saves)
        return [each.cause.value for each in control_runs.control(entry, entry)]

    assert expected() == ["", "no-checkpoint"]
    assert expected(saved(5), saved(10), saved(15)) == [""]
    assert expected(saved(5), saved(10), saved(15), saved(20)) == ["", "never-dropped"]
    assert expected(saved(5, temp=""), saved(5, 1, temp="")) == ["", "two-writers"]
    assert expected(saved(5, path="/a/0.pt", temp=""), saved(5, 1, path="/a/1.pt", temp="")) == [""]


def test_checkpoints_in_a_folder_that_is_removed_are_dropped() -> None:
    saves = tuple(saved(n, path=f"/a/checkpoint-{n}/optimizer.pt", temp="") for n in (5, 10, 15, 20))

    def expected(*removes: str) -> list[str]:
        entry = life(0, LAST, 1, saves=saves, removes=removes)
        return [each.cause.value for each in control_runs.control(entry, entry)]

    assert expected("/a/checkpoint-5") == [""]
    assert expected("/a/checkpoint-50") == ["", "never-dropped"]


def test_two_different_runs_have_the_place_of_the_difference() -> None:
    other = Start({0: replace(CONTROL.ranks[0], steps=tuple(map(changed_at_7, CONTROL.ranks[0].steps)))})
    (first, *_) = control_runs.control(CONTROL, other)
    assert (first.level, first.cause.value, first.step) == (Severity.NOTE, "not-deterministic", 7)

    assert "from step 7 on, rank 0: the arithmetic (samples and random numbers are the same" in first.message


def noisy(right: Start, apart: float) -> Start:
    """Return the same run with other losses and weights, as inexact arithmetic gives."""
    return with_steps(
        right,
        lambda s, rank: replace(
            s, loss=s.loss and s.loss + apart * (-1) ** s.n, parameters=s.parameters + int(apart * 1e6)
        ),
    )


@pytest.mark.parametrize(
    "second, restart, level, arguments",
    [
        (0.01, 0.002, "ok", "12 losses are within 4 times the spread of undisturbed runs"),
        (0.01, 0.03, "ok", "12 losses are within 4 times the spread of undisturbed runs"),
        (
            0.01,
            0.5,
            "unknown",
            "the losses of 12 steps lie 0.49 from those of the undisturbed runs, which lie 0.01",
        ),
        (1e-7, 1e-4, "ok", "12 losses are within 5% of undisturbed runs"),
        (1e-7, 0.02, "unknown", "what was not restored cannot be named while undisturbed runs differ"),
    ],
)
def test_losses_are_compared_by_their_spread_if_undisturbed_runs_differ(
    second: float, restart: float, level: str, arguments: str
) -> None:
    observed = FaultRun("kill", (BEFORE, noisy(after(), restart)), KILLED)
    (entry,) = causes.judge(CONTROL, "parameters", observed, noisy(CONTROL, second))
    assert (entry.level.value, arguments in entry.message) == (level, True), entry.message


def test_too_few_losses_have_no_spread() -> None:
    short = Start({rank: replace(entry, steps=entry.steps[:3]) for rank, entry in after().ranks.items()})
    (entry,) = causes.judge(
        CONTROL, "parameters", FaultRun("kill", (BEFORE, noisy(short, 9.0)), KILLED), noisy(CONTROL, 0.01)
    )
    assert (entry.level.value, "losses" in entry.message) == ("ok", False), entry.message


def changed_at_7(start: Step) -> Step:
    return replace(start, parameters=1) if start.n >= 7 else start


def test_weights_show_the_step_at_which_a_rank_continues() -> None:
    uninterrupted = reference(CONTROL)
    assert [resumed(uninterrupted, life(n, LAST, 1)) for n in (0, 1, 17)] == [{0: 0}, {0: 1}, {0: 17}]
    assert resumed(uninterrupted, life(3, LAST, 1, before={0: (5, 5)})) == {0: None}


def unmoved(start: Start, *still: int) -> Start:
    """Return the same start, with no change of weights in these steps (counted from the first start)."""

    def kept(trace: RankTrace) -> RankTrace:
        first = trace.before[0][0] - 1000
        went = {n: n - sum(each <= n for each in still) for n in range(LAST + 1)}
        steps = tuple(replace(s, parameters=1000 + went[first + s.n], state=0) for s in trace.steps)
        return replace(trace, before={0: (1000 + went[first], 0)}, steps=steps)

    return Start({rank: kept(trace) for rank, trace in start.ranks.items()})


@pytest.mark.parametrize("still", [(1,), (SAVED + 1,), (SAVED,), (SAVED + 1, SAVED + 2)])
@pytest.mark.parametrize("at", [0, SAVED])
def test_a_step_without_a_change_of_weights_is_not_taken_for_another(at: int, still: tuple[int, ...]) -> None:
    """A learning rate of 0, with an optimizer that keeps no state; one rank saw a step more than another."""
    before = Start({0: BEFORE.ranks[0], 1: trace(0, KILLED - 1, 1)})
    observed = FaultRun("kill", (unmoved(before, *still), unmoved(life(at, LAST), *still)), KILLED)
    (entry,) = causes.judge(unmoved(CONTROL, *still), "", observed)
    assert (entry.cause.value, entry.step) == (("never-resumed", 0) if at == 0 else ("", at))


def test_resuming_is_not_judged_if_no_step_changes_the_weights() -> None:
    every = range(1, LAST + 1)
    last = Start({0: trace(SAVED, LAST), 1: trace(SAVED, LAST - 1, 1)})
    observed = FaultRun("kill", (unmoved(BEFORE, *every), unmoved(last, *every)), KILLED)
    (entry,) = causes.judge(unmoved(CONTROL, *every), "", observed)
    assert entry.level is Severity.UNKNOWN and "no step changes the weights" in entry.message


def epochs(first: int, last: int, skip: int = 0) -> RankTrace:
    """Return a model called by keywords: only the loader's batches are seen, one ahead; 10 steps an epoch.

    A loader of other data is read before the first step of the run, and after every epoch.
    """

    def batch(n: int) -> Any:
        return ("Rows:40", (n + skip,), (n + skip,))

    drawn = {n: [batch(n + 1)] if n % 10 else [] for n in range(1, last + 1)}
    for n in {first + 1, *(n for n in drawn if n % 10 == 1)}:
        other = [("Held out:8", (7,), (7,))] * 3 if n != first + 1 or not first else []
        drawn[n] = [*other, batch(n), *drawn[n]]
    wrong = 5 if skip else 0
    steps = tuple(
        replace(step(n), n=n - first, rows=(), batches=tuple(drawn[n]), parameters=1000 + n + wrong)
        for n in range(first + 1, last + 1)
    )
    return replace(trace(first, last), steps=steps)


@pytest.mark.parametrize("differs", ["", "parameters"])
@pytest.mark.parametrize("skip, expected", [(0, ("ok", "")), (-3, ("FAIL", "data-order-not-restored"))])
@pytest.mark.parametrize("at", [8, 9, 10, 11])
def test_a_loader_that_is_a_batch_ahead_is_followed_into_the_next_epoch(
    at: int, skip: int, expected: tuple[str, str], differs: str
) -> None:
    """As Accelerate's, which asks for a batch more than it gives: but not at the end of an epoch."""
    control, before = Start({0: epochs(0, LAST)}), Start({0: epochs(0, KILLED)})
    observed = FaultRun("kill", (before, Start({0: epochs(at, LAST, skip)})), KILLED)
    (entry, *_) = causes.judge(control, differs, observed)
    assert (entry.level.value, entry.cause.value) == expected, entry.message


@pytest.mark.parametrize("fault, damaged", [("mid-save", True), ("preemption", False)])
def test_a_folder_that_was_not_written_to_its_end_is_named(fault: str, damaged: bool) -> None:
    """Cut off by the fault, or by the end of the run in the middle of a save."""
    path = "/data/out/checkpoint-10/optimizer.pt"
    message = Start({0: trace(0, KILLED, saves=(saved(5), saved(SAVED, path=path, temp="")))})
    error = ("train.py:23", "FileNotFoundError", "no file: 'out/checkpoint-10/trainer_state.json'")
    last = Start({0: replace(CRASHED.ranks[0], loads=(), error=error)})
    (entry,) = causes.judge(CONTROL, "", FaultRun(fault, (message, last), KILLED, damaged=(path,) * damaged))
    assert entry.cause.value == "torn-checkpoint-loaded" and "checkpoint-10 is unfinished" in entry.message


def test_the_remedy_fits_where_the_samples_come_from() -> None:
    def remedy(batches: Any) -> str:
        last = with_steps(shifted(-2), batches=batches)
        entry = first_finding(last)
        assert entry.cause.value == "data-order-not-restored"
        return entry.remedy

    assert (
        "count steps on" in remedy(())
        and "get_rng_state" in remedy(())
        and "set_epoch" in remedy((("Points:40", (), ()),))
    )


def test_only_reads_of_the_scripts_own_files_are_named() -> None:
    loads = (("/data/meta.pkl", "train.py:5"), *READ)
    last = with_ranks(shifted(-2), loads=loads)
    entry = first_finding(last)
    assert [line for line in entry.lines if "reads" in line] == ["train.py:75 reads it"]


def test_a_checkpoint_just_before_a_notice_that_nobody_hears_is_luck() -> None:
    message = life(0, KILLED, 1, saves=(saved(5), saved(KILLED)))
    observed = FaultRun("preemption", (message, life(KILLED, LAST, 1)), KILLED, until=2.0)
    verdict = causes.judge(life(0, LAST, 1), "", observed)
    assert [(entry.level.value, entry.cause.value) for entry in verdict] == [
        ("ok", ""),
        ("note", "notice-unheard"),
    ]


def test_faults_come_around_the_second_checkpoint() -> None:
    plan = schedule(life(0, LAST, saves=(saved(5), saved(10), saved(20))), 0)
    assert (plan.saved_at, plan.between, plan.steps) == (10, 13, 30)
    created = {fault.name: rank_orders(fault, plan) for fault in FAULTS}
    assert created["kill"] == [{"attempt": 0, "kind": "kill", "rank": 1, "step": 13}]
    assert created["after-save"] == [{"attempt": 0, "kind": "kill-before", "rank": 1, "step": 10}]
    assert created["mid-save"] == [
        {"attempt": 0, "rank": 0, "step": 10, "file": 1, "kind": "torn", "size": 50}
    ]
    assert created["node"] == [{"attempt": 0, "kind": "hold", "step": 13}]
    assert created["twice"] == [*created["kill"], {"attempt": 1, "kind": "kill", "rank": 0, "step": 21}]
    often = schedule(life(0, LAST, saves=tuple(saved(n) for n in range(1, LAST))), 0)
    assert rank_orders(FAULTS[-1], often)[1]["step"] == 4
    last = schedule(life(0, LAST, saves=(saved(5), saved(10))), 0)
    assert rank_orders(FAULTS[-1], last)[1]["step"] == 18


@pytest.mark.parametrize("epoch, saved_at", [(12, 15), (18, 20), (22, 10), (4, 10)])
def test_faults_come_in_the_second_epoch_if_the_control_reaches_it(epoch: int, saved_at: int) -> None:
    control = life(0, LAST, saves=tuple(map(saved, (5, 10, 15, 20, 25))))
    control = with_steps(
        control, lambda s, rank: replace(s, rows=step(1 + (s.n - 1) % (epoch - 1), rank).rows)
    )
    assert schedule(control, 0).saved_at == saved_at


def test_a_cut_line_of_a_trace_is_ignored() -> None:
    lines = (
        '{"t": "before", "n": 0, "o": 0, "p": 1, "s": 2, "line": "a.py:3"}',
        '{"t": "limit", "n": 3}',
        '{"t": "e',
    )
    assert parsed(4, lines) == RankTrace(4, {0: (1, 2)}, (), stepped_at={0: "a.py:3"})


@pytest.mark.parametrize(
    "path, other",
    [
        ("/a/step-10.pt", "/a/step-200.pt"),
        ("/a/step-5.a0.3fe1c09b52d4aa07.pt", "/a/step-60.a1.000000009b52d4ff.pt"),
        ("/a/epoch_3/model.pt", "/a/epoch_12/model.pt"),
    ],
)
def test_checkpoints_of_one_kind_differ_in_numbers_only(path: str, other: str) -> None:
    assert kind_of(path) == kind_of(other) != kind_of("/a/best.pt")
