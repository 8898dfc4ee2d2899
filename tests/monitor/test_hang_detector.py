"""The detector's laws, on tapes of digests and answers; time is an argument."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterrun.diagnosis.evidence import Collected, Digest, Group, Pulse, RankSnapshot
from clusterrun.diagnosis.explain_rank import STEP_REMEDY
from clusterrun.diagnosis.solo_ranks import SILENCE
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model import contract
from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Orders, WatchOrders
from clusterrun.monitor.hang_detector import AskObserver, EndAttempt, HangDetector, Save, TakeBack, Warn
from clusterrun.runtime.machine_events import Now
from tests.diagnosis.ranks import LOOP, MEETING, NOW, RECV, rank, record, waiter

WALL = 5000.0
NODES = [(0, "n0"), (2, "n2")]
"""The second node of the world is the third of the allocation."""


def make_detector(hang: float = 60.0, on_hang: str = "report") -> HangDetector:
    watch = WatchOrders(on=True, hang_seconds=hang, on_hang=on_hang)
    return HangDetector(Orders("r", "r", 2, 2, 0, 1, ("x",), "/", watch=watch), NODES, 0.0)


def pulse(number: int, **changes: Any) -> Pulse:
    values = {"seconds": 1.0, "output": 10, "answered": True, "torch": True, "size": 4, "begun": 5}
    return Pulse(number, 100 + number, **{"state": "S", **values, **changes})


def digest(detector: HangDetector, at: float, node: int, *pulses: Pulse, killed: int = 0) -> list[Any]:
    body = json.dumps({"digest": encode(Digest(pulses, killed))})
    return detector.on_answer(Now(at, WALL + at), node, 0, body)


def all_same(detector: HangDetector, at: float, **changes: Any) -> list[Any]:
    """Send digests of both nodes without changes, except ``changes`` of every rank."""
    first = digest(detector, at, 0, pulse(0, **changes), pulse(1, **changes))
    return first + digest(detector, at, 2, pulse(2, **changes), pulse(3, **changes))


def answer(detector: HangDetector, at: float, node: int, number: int, *observed: RankSnapshot) -> list[Any]:
    body = json.dumps({"collected": encode(Collected(f"n{node}", WALL + at, observed))})
    return detector.on_answer(Now(at, WALL + at), node, number, body)


def hangs(detector: HangDetector, at: float, number: int) -> list[Any]:
    """Let rank 1 sleep in a line of its own while the others wait for it."""
    sleeping = rank(1, stack=LOOP)
    first = answer(detector, at, 0, number, waiter(0, node="n0"), sleeping)
    return first + answer(detector, at, 2, number, waiter(2, node="n2"), waiter(3, node="n2"))


def saved(actions: list[Any]) -> dict[str, Diagnosis]:
    files = [action for action in actions if isinstance(action, Save)]
    return {file.name: decode(Diagnosis, json.loads(file.text)) for file in files}


def others(actions: list[Any]) -> list[Any]:
    return [action for action in actions if not isinstance(action, Save)]


def quiet_until(detector: HangDetector, end: float) -> None:
    """Send a digest without changes every ten seconds."""
    at = 10.0
    while at < end:
        assert all_same(detector, at) == []
        assert detector.tick(Now(at, WALL + at)) == []
        at += 10.0


def test_an_event_that_may_still_come_is_looked_for_again_and_other_requests_wait() -> None:
    """Rank 1 saves for three seconds so far: after ten seconds that would be a hang."""
    detector = make_detector()
    detector.on_request(Now(1.0, WALL), "diagnose-1", "{}")

    def looks(at: float, number: int, waited: float) -> list[Any]:
        def snapshot(n: int) -> RankSnapshot:
            records = tuple(record(k, done=k < 11, at=NOW - waited - 11 + k) for k in range(1, 12))
            of_waiter = waiter(n, node=f"n{n // 2 * 2}", records=records)
            return of_waiter if n != 1 else rank(1, records=records[:-1], stack=LOOP)

        return answer(detector, at, 0, number, snapshot(0), snapshot(1)) + answer(
            detector, at, 2, number, snapshot(2), snapshot(3)
        )

    assert looks(2.0, 1, 3.0) == []
    assert detector.wakes_at() == pytest.approx(3.5)
    assert detector.on_request(Now(3.0, WALL), "diagnose-2", "{}") == []
    assert detector.tick(Now(3.2, WALL)) == []
    asks = detector.tick(Now(3.5, WALL))
    assert [(ask.node, ask.number) for ask in asks] == [(0, 2), (2, 2)]
    named = saved(looks(9.5, 2, 10.5))
    assert {name: [c.rank for c in diagnosis.culprits] for name, diagnosis in named.items()} == {
        "diagnose-1.json": [1],
        "diagnose-2.json": [1],
    }


def test_a_rank_that_computes_and_never_answers_does_not_hide_a_hang_of_the_group_that_it_is_in() -> None:
    for size, is_reported in ((4, True), (0, False)):
        detector, at = make_detector(hang=30.0), 0.0
        while not detector.tick(Now(at, WALL + at)) and at < 100.0:
            busy = pulse(0, seconds=at, answered=False, torch=False, size=0, begun=-1)
            digest(detector, at, 0, busy, pulse(1, size=size, begun=5 if size else -1))
            digest(detector, at, 2, *(pulse(rank, size=size, begun=5 if size else -1) for rank in (2, 3)))
            at += 5.0
        assert (at <= 40.0) is is_reported


def test_a_question_is_put_to_every_node_and_answered_when_all_have_looked() -> None:
    detector = make_detector()
    asks = detector.on_request(Now(1.0, WALL), "diagnose-1", "{}")
    assert [(ask.node, ask.number, "collect" in json.loads(ask.body)) for ask in asks] == [
        (0, 1, True),
        (2, 1, True),
    ]
    diagnoses = saved(hangs(detector, 2.0, 1))
    assert list(diagnoses) == ["diagnose-1.json"]
    assert diagnoses["diagnose-1.json"].verdict is Verdict.NEVER_ARRIVED
    assert diagnoses["diagnose-1.json"].at == WALL + 2.0


def test_questions_that_come_meanwhile_get_the_same_answer() -> None:
    detector = make_detector()
    detector.on_request(Now(1.0, WALL), "a", "{}")
    assert detector.on_request(Now(1.5, WALL), "b", "{}") == []
    assert sorted(saved(hangs(detector, 2.0, 1))) == ["a.json", "b.json"]


def test_a_node_that_does_not_answer_in_time_is_named() -> None:
    detector = make_detector()
    detector.on_request(Now(1.0, WALL), "a", "{}")
    assert answer(detector, 2.0, 0, 1, waiter(0, node="n0"), waiter(1, node="n0")) == []
    wakes_at = detector.wakes_at()
    assert wakes_at == 12.0
    assert detector.tick(Now(11.9, WALL)) == []
    diagnosis = saved(detector.tick(Now(wakes_at, WALL)))["a.json"]
    assert [(c.node, c.why) for c in diagnosis.culprits] == [("n2", "no answer within 11 s")]


def test_a_node_with_a_lost_observer_is_not_awaited() -> None:
    detector = make_detector()
    detector.on_request(Now(1.0, WALL), "a", "{}")
    answer(detector, 2.0, 0, 1, waiter(0, node="n0"), waiter(1, node="n0"))
    diagnosis = saved(detector.lost(Now(3.0, WALL), 2, "it was killed"))["a.json"]
    assert [(c.node, c.why) for c in diagnosis.culprits] == [("n2", "it was killed")]
    assert saved(detector.on_request(Now(4.0, WALL), "b", "{}")) == {}, "the other node is asked"
    detector.lost(Now(5.0, WALL), 0, "killed too")
    assert saved(detector.on_request(Now(6.0, WALL), "c", "{}"))["c.json"].verdict is Verdict.UNDETERMINED


def test_an_event_that_may_still_come_gets_a_second_longer_look() -> None:
    detector = make_detector()
    detector.on_request(Now(1.0, WALL), "a", "{}")
    pausing = [rank(n, stack=LOOP, quiet=0.5, records=()) for n in range(4)]
    again = answer(detector, 2.0, 0, 1, *pausing[:2]) + answer(detector, 2.0, 2, 1, *pausing[2:])
    assert [(type(ask), ask.number) for ask in again] == [(AskObserver, 2), (AskObserver, 2)]
    assert json.loads(again[0].body)["collect"]["seconds"] > 5.0
    assert answer(detector, 2.5, 0, 1, *pausing[:2]) == [], "an answer to the first question is too late"
    last = answer(detector, 8.0, 0, 2, *pausing[:2]) + answer(detector, 8.0, 2, 2, *pausing[2:])
    assert saved(last)["a.json"].verdict is Verdict.NOTHING


def test_a_stalled_run_is_looked_at_once_without_a_request() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    quiet_until(detector, 61.0)
    asks = detector.tick(Now(61.0, WALL + 61))
    assert [type(ask) for ask in asks] == [AskObserver, AskObserver]
    actions = hangs(detector, 62.0, 1)
    why = "it waits in user code at train.py:33 (work)"
    assert list(saved(actions)) == ["diagnosis.json"]
    message = f"nothing has moved for 61 s: rank 1 on n0 never came to all_reduce (call 11 of group 0): {why}"
    assert others(actions) == [Warn(message, hangs=True)]
    assert (detector.wakes_at(), detector.tick(Now(500.0, WALL))) == (None, [])


@pytest.mark.parametrize(
    ("hang", "timeouts", "due"),
    [
        (600.0, (600.0, 1800.0), 300.0),
        (30.0, (30.0, 30.0), 15.0),
        (60.0, (0.0, 0.0), 60.0),
        (60.0, (2.0, 9.0), 4.0),
    ],
)
def test_a_hang_is_called_at_half_of_the_smallest_time_out_of_the_groups(
    hang: float, timeouts: tuple[float, float], due: float
) -> None:
    detector = make_detector(hang)
    digest(detector, 1.0, 0, pulse(0, timeout=timeouts[0]), pulse(1, timeout=timeouts[1]))
    digest(detector, 1.0, 2, pulse(2), pulse(3))
    assert detector.wakes_at() == 1.0 + due


def of_timeout(seconds: float, looks: tuple[RankSnapshot, ...]) -> list[RankSnapshot]:
    """Return the same ranks in a group that ends them after ``seconds``."""
    return [
        replace(detector, groups=tuple(replace(g, timeout=seconds) for g in detector.groups))
        for detector in looks
    ]


LOOPS = (waiter(0, node="n0"), rank(1, stack=LOOP, busy=1.0), waiter(2, node="n2"), waiter(3, node="n2"))


def looked_at(detector: HangDetector, at: float, number: int, timeout: float) -> list[Any]:
    snapshots = of_timeout(timeout, LOOPS)
    return answer(detector, at, 0, number, *snapshots[:2]) + answer(detector, at, 2, number, *snapshots[2:])


@pytest.mark.parametrize("on_hang", ["report", "restart", "kill"])
def test_a_hang_that_is_called_early_is_acted_on_when_it_was_ordered(on_hang: str) -> None:
    detector = make_detector(60.0, on_hang)
    all_same(detector, 1.0, timeout=60.0)
    assert [type(ask) for ask in detector.tick(Now(31.0, WALL))] == [AskObserver, AskObserver]
    early = looked_at(detector, 32.0, 1, 60.0)
    assert saved(early)["diagnosis.json"].culprits[0].rank == 1
    assert [type(action) for action in others(early)] == [Warn]
    if on_hang == "report":
        assert detector.wakes_at() is None
        return
    assert detector.wakes_at() == 61.0
    assert all_same(detector, 55.0, timeout=60.0) == []
    assert [type(ask) for ask in detector.tick(Now(61.0, WALL))] == [AskObserver, AskObserver]
    (wish,) = others(looked_at(detector, 62.0, 2, 60.0))
    assert (type(wish), wish.what) == (EndAttempt, on_hang)
    assert detector.wakes_at() is None


def test_the_time_out_of_a_group_that_nobody_waits_in_calls_no_hang() -> None:
    """One small group has a short time-out; the ranks wait in the one of all, whose time-out is longer."""
    detector = make_detector(600.0)
    all_same(detector, 1.0, timeout=20.0)
    detector.tick(Now(11.0, WALL))
    assert looked_at(detector, 12.0, 1, 100.0) == []
    assert detector.wakes_at() == 51.0
    assert all_same(detector, 45.0, timeout=20.0) == []
    detector.tick(Now(51.0, WALL))
    assert list(saved(looked_at(detector, 52.0, 2, 100.0))) == ["diagnosis.json"]


def test_observers_that_go_silent_after_an_early_call_are_asked_no_more_often() -> None:
    detector = make_detector(60.0, "kill")
    all_same(detector, 1.0, timeout=60.0)
    detector.tick(Now(31.0, WALL))
    looked_at(detector, 32.0, 1, 60.0)
    assert detector.tick(Now(61.0, WALL)) == []
    wakes_at = detector.wakes_at()
    assert wakes_at is not None
    assert wakes_at > 61.0


def test_restart_and_kill_are_wished_for_where_they_were_ordered() -> None:
    for on_hang in ("restart", "kill"):
        detector = make_detector(60.0, on_hang)
        all_same(detector, 1.0)
        quiet_until(detector, 61.0)
        detector.tick(Now(61.0, WALL))
        (wish,) = others(hangs(detector, 62.0, 1))
        assert (type(wish), wish.what) == (EndAttempt, on_hang)
        assert wish.why.startswith("nothing has moved for 61 s: rank 1 on n0 never came to all_reduce")


def test_a_stall_in_which_nothing_is_wrong_is_reported_and_ends_nothing() -> None:
    detector = make_detector(60.0, "kill")
    all_same(detector, 1.0)
    quiet_until(detector, 61.0)
    detector.tick(Now(61.0, WALL))
    busy = [rank(n, stack=LOOP, busy=1.0) for n in range(4)]
    actions = answer(detector, 62.0, 0, 1, *busy[:2]) + answer(detector, 62.0, 2, 1, *busy[2:])
    assert others(actions) == [Warn("nothing has moved for 61 s: ranks 0-3 compute", hangs=True)]


def test_every_kind_of_movement_puts_the_stall_off() -> None:
    for changes in ({"output": 11}, {"begun": 6}, {"size": 0, "begun": -1}):
        detector = make_detector(60.0)
        all_same(detector, 1.0)
        all_same(detector, 50.0, **changes)
        assert detector.wakes_at() == 110.0, changes


def test_computing_counts_only_where_nobody_counts_collectives() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    all_same(detector, 50.0, seconds=50.0)
    assert detector.wakes_at() == 61.0
    alone = make_detector(60.0)
    all_same(alone, 1.0, size=0, begun=-1)
    all_same(alone, 50.0, size=0, begun=-1, seconds=50.0)
    assert alone.wakes_at() == 110.0


def test_a_rank_that_falls_silent_has_not_moved() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    all_same(detector, 50.0, answered=False, torch=False, size=0, begun=-1)
    assert detector.wakes_at() == 61.0


def test_a_rank_that_ends_has_moved() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    digest(detector, 50.0, 0, pulse(0), pulse(1, state=""))
    assert detector.wakes_at() == 110.0


def test_a_run_that_progresses_during_the_look_does_not_hang() -> None:
    detector = make_detector(60.0, "kill")
    all_same(detector, 1.0)
    quiet_until(detector, 61.0)
    detector.tick(Now(61.0, WALL))
    all_same(detector, 61.5, begun=6)
    assert hangs(detector, 62.0, 1) == []
    assert detector.wakes_at() == 121.5


def test_a_hang_that_ends_is_reported_and_may_return() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    quiet_until(detector, 61.0)
    detector.tick(Now(61.0, WALL))
    hangs(detector, 62.0, 1)
    assert all_same(detector, 100.0, begun=6) == [Warn("the ranks that hung continue")]
    assert detector.wakes_at() == 160.0


def test_retries_in_a_rendezvous_are_no_movement() -> None:
    detector = make_detector(60.0)
    for at in (1.0, 20.0, 40.0):
        all_same(detector, at, size=0, begun=0, meets=True, output=int(at))
    assert detector.wakes_at() == 61.0
    all_same(detector, 50.0, size=0, begun=0, output=50)
    assert detector.wakes_at() == 110.0


def test_ranks_whose_observer_left_with_them_have_ended() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    for at in (20.0, 40.0, 60.0):
        digest(detector, at, 0, pulse(0), pulse(1))
    queried = [action.node for action in detector.tick(Now(61.0, WALL)) if isinstance(action, AskObserver)]
    assert queried == [0, 2], "a silent observer is asked as well"
    detector.lost(Now(61.1, WALL), 2, contract.NO_RANKS)
    waiting = [waiter(number, node="n0") for number in (0, 1)]
    diagnosis = saved(answer(detector, 62.0, 0, 1, *waiting))["diagnosis.json"]
    assert [culprit.rank for culprit in diagnosis.culprits] == [2, 3]
    assert not any("no answer" in line for line in diagnosis.evidence)


def test_ranks_that_are_killed_in_their_hang_have_not_progressed() -> None:
    for on_hang in ("report", "restart"):
        detector = make_detector(60.0, on_hang)
        all_same(detector, 1.0)
        quiet_until(detector, 61.0)
        detector.tick(Now(61.0, WALL))
        hangs(detector, 62.0, 1)
        assert all_same(detector, 63.0, state="") == []


def test_the_time_since_a_rank_moved_counts_only_while_observers_report() -> None:
    detector = make_detector(hang=600.0)
    for at in (10.0, 90.0):
        all_same(detector, at)
    assert (detector.stalled(100.0), detector.stalled(150.0)) == (90.0, 0.0)
    all_same(detector, 160.0, output=7)
    assert detector.stalled(180.0) == 0.0


def test_silent_observers_are_no_stall() -> None:
    detector = make_detector(60.0)
    all_same(detector, 1.0)
    assert detector.tick(Now(61.0, WALL)) == []
    assert detector.wakes_at() == 121.0


def test_nothing_stalls_before_the_observers_start_and_one_look_runs_per_limit() -> None:
    detector = make_detector(8.0)
    assert (detector.wakes_at(), detector.tick(Now(8.0, WALL)), detector.wakes_at()) == (8.0, [], 16.0)


def test_no_hang_is_detected_without_a_limit() -> None:
    detector = make_detector(0.0)
    all_same(detector, 1.0)
    assert (detector.wakes_at(), detector.tick(Now(10_000.0, WALL))) == (None, [])


def test_a_node_that_ran_out_of_memory_is_reported_once() -> None:
    detector = make_detector()
    all_same(detector, 1.0)
    warnings = [Warn("out of memory on n2: the kernel ended a process there")]
    assert digest(detector, 5.0, 2, pulse(2), killed=1) == warnings
    assert digest(detector, 6.0, 2, pulse(2), killed=1) == []


def test_ranks_whose_srun_waits_for_the_jobs_own_resources_are_named_until_it_starts() -> None:
    detector = make_detector()
    all_same(detector, 1.0)

    def heard(node: int, *blocked: int) -> list[Any]:
        body = json.dumps({"digest": encode(Digest((pulse(node),), blocked=blocked))})
        return [getattr(action, "text", "") for action in detector.on_answer(Now(5.0, WALL), node, 0, body)]

    assert heard(0, 0) == [f"an srun cannot start in rank 0: {STEP_REMEDY}"]
    assert heard(0, 0) == []
    assert heard(2, 2) == ["", f"an srun cannot start in ranks 0 and 2: {STEP_REMEDY}"]
    assert (heard(0), heard(2)) == (["", f"an srun cannot start in rank 2: {STEP_REMEDY}"], [""])


def test_unreadable_messages_end_nothing() -> None:
    detector = make_detector()
    for body in ("", "[]", "{}", '{"digest": 3}', '{"digest": {"ranks": [{}]}}', "\0", "[" * 100_000):
        assert all(isinstance(action, Warn) for action in detector.on_answer(Now(1.0, WALL), 0, 0, body))
    detector.on_request(Now(1.0, WALL), "a", "{}")
    assert detector.on_answer(Now(1.5, WALL), 0, 1, '{"collected": {"node": 3}}')[0].text.startswith(
        "the observer on n0"
    )
    assert list(saved(hangs(detector, 2.0, 1))) == ["a.json"]


def test_a_request_for_samples_reaches_the_observers_unchanged() -> None:
    assert make_detector().on_request(Now(1.0, WALL), "top-1", '{"sample": {}}') == [
        AskObserver(0, 0, '{"sample": {}}'),
        AskObserver(2, 0, '{"sample": {}}'),
    ]


def test_ranks_that_train_alone_are_reported_while_they_run_or_at_the_end() -> None:
    detector = make_detector()
    all_same(detector, 2.0, size=1, begun=3)
    actions = all_same(detector, 5.0, size=1, begun=4)
    assert [type(action) for action in actions] == [Warn]
    assert detector.over(9.0, True) == []
    short = make_detector()
    all_same(short, 2.0, size=1, begun=3)
    digest(short, 4.0, 0, pulse(0, state="", alone=True, size=1))
    assert short.over(5.0, False) == []
    assert short.over(5.0, True) == [
        Warn(f"training alone: at least rank 0 ended without joining the others{SILENCE}")
    ]


def prepares(detector: HangDetector, until: float) -> list[Any]:
    """Let ranks compute in no group, with a digest every ten seconds."""
    actions = []
    for step in range(1, int(until / 10) + 1):
        actions += all_same(detector, 10.0 * step, size=0, begun=0, seconds=10.0 * step, output=step)
    return actions


def test_the_warning_about_training_alone_is_withdrawn_when_they_form_one_group() -> None:
    detector = make_detector(600.0)
    (warning,) = prepares(detector, 200.0)
    assert warning.text.startswith("training alone: 4 ranks work, and none has called init_process_group")
    taken = all_same(detector, 210.0, begun=50)
    assert [(type(action), action.beginning) for action in taken] == [(TakeBack, "training alone")]
    assert all_same(detector, 220.0, begun=60) == []
    assert detector.over(230.0, True) == []


def test_only_the_most_exact_warning_is_shown() -> None:
    detector = make_detector(600.0)
    prepares(detector, 120.0)
    all_same(detector, 130.0, size=1, begun=3)
    took, warning = all_same(detector, 140.0, size=1, begun=4)
    assert took == TakeBack("training alone", "")
    assert warning.text.startswith("training alone: each rank is in a group of its own")
    digest(detector, 150.0, 0, pulse(0, state="", alone=True, size=1))
    assert detector.over(160.0, True) == []


def test_ranks_that_are_independent_by_design_are_not_warned_about() -> None:
    watch = WatchOrders(on=True, hang_seconds=600.0)
    environment = (("CLUSTERRUN_INDEPENDENT", "1"),)
    orders = Orders("r", "r", 2, 2, 0, 1, ("x",), "/", environment=environment, watch=watch)
    detector = HangDetector(orders, NODES, 0.0)
    assert prepares(detector, 200.0) == []
    assert detector.over(210.0, True) == []


def test_launchers_that_number_ranks_equally_on_each_node_hide_no_group() -> None:
    """``torchrun --standalone`` on each of two nodes: two worlds of two, both with ranks 0 and 1."""
    watch = WatchOrders(on=True, hang_seconds=600.0)
    detector = HangDetector(Orders("r", "r", 2, 2, 0, 1, ("x",), "/", per_node=True, watch=watch), NODES, 0.0)
    actions = []
    for at in (5.0, 10.0, 15.0):
        for place, node in enumerate((0, 2)):
            both = [Pulse(n, 10 * place + n, "S", at, 1, True, True, 2, int(at)) for n in (0, 1)]
            actions += digest(detector, at, node, *both)
    (warning,) = actions
    assert "the ranks form several groups, the largest has 2 of 4 ranks" in warning.text


def launched(detector: HangDetector, at: float, *inner_ranks: tuple[int, int, str]) -> list[Any]:
    """Send a digest of the first node: pulses of two ranks of a world of four, and the process tree."""
    pulses = (pulse(0, size=0, begun=-1, seconds=at), pulse(1, size=0, begun=-1, seconds=at))
    body = json.dumps({"digest": encode(Digest(pulses, 0, inner_ranks))})
    return detector.on_answer(Now(at, WALL + at), 0, 0, body)


def test_a_launcher_below_every_rank_is_reported_once_and_not_withdrawn() -> None:
    detector = make_detector()
    launched(detector, 2.0)
    (warning,) = launched(
        detector, 5.0, *((starter, inner, "a:1") for starter in (0, 1) for inner in range(4))
    )
    assert isinstance(warning, Warn)
    assert warning.text.startswith("training alone: launchers inside the ranks (torchrun, ")
    # Each world has the size of the run: by their groups they look like one.
    assert all_same(detector, 10.0, begun=50) == []
    assert detector.over(20.0, True) == []


def test_two_launchers_below_one_rank_are_reported() -> None:
    (warning,) = launched(make_detector(), 5.0, (0, 0, "a:1"), (0, 1, "a:1"), (0, 0, "a:2"), (0, 1, "a:2"))
    assert "make at least 2 worlds" in warning.text


@pytest.mark.parametrize(
    "inner_ranks",
    [
        ((0, 0, "a:1"), (1, 1, "a:1")),  # a shell script around the Python of each rank
        ((0, 0, "a:1"), (0, 0, "a:1")),  # a shell script that starts a second Python beside it
        # A launcher below each rank, all joined in one world.
        ((0, 0, "a:1"), (0, 1, "a:1"), (1, 2, "a:1"), (1, 3, "a:1")),
    ],
)
def test_children_of_one_world_are_no_separate_worlds(inner_ranks: tuple[tuple[int, int, str], ...]) -> None:
    detector = make_detector()
    assert [launched(detector, at, *inner_ranks) for at in (5.0, 10.0)] == [[], []]


@pytest.mark.parametrize("wish", [{"per_node": True}, {"environment": (("CLUSTERRUN_INDEPENDENT", "1"),)}])
def test_worlds_that_are_meant_are_not_reported_as_launchers_in_ranks(wish: dict[str, Any]) -> None:
    orders = Orders("r", "r", 2, 2, 0, 1, ("x",), "/", watch=WatchOrders(on=True, hang_seconds=60.0), **wish)
    detector = HangDetector(orders, NODES, 0.0)
    assert launched(detector, 5.0, (0, 0, "a:1"), (1, 0, "a:1")) == []


def test_a_hang_below_launchers_that_start_more_ranks_than_we_know_of_is_seen() -> None:
    """Two ranks below the launcher of each node, one known: the second of each is another process."""
    watch = WatchOrders(on=True, hang_seconds=60.0, on_hang="report")
    detector = HangDetector(Orders("r", "r", 2, 1, 0, 1, ("x",), "/", per_node=True, watch=watch), NODES, 0.0)
    for at in range(10, 90, 10):
        digest(detector, at, 0, pulse(0), pulse(1))
        digest(detector, at, 2, pulse(2), pulse(3))
    assert detector.tick(Now(80.0, WALL + 80.0)) != []


def computing(detector: HangDetector, at: float, number: int) -> list[Any]:
    """Let all ranks compute in their group."""
    snapshots = [rank(n, node=f"n{n // 2 * 2}", stack=LOOP, busy=0.9) for n in range(4)]
    return answer(detector, at, 0, number, *snapshots[:2]) + answer(detector, at, 2, number, *snapshots[2:])


def test_ranks_that_compute_after_a_short_hang_after_are_warned_about_after_a_minute_only() -> None:
    """Warming up in the group, or compiling: nothing is printed, and nothing hangs."""
    detector = make_detector(10.0, "kill")
    all_same(detector, 1.0)
    all_same(detector, 9.0)
    assert detector.tick(Now(11.5, WALL + 11.5))
    assert others(computing(detector, 12.5, 1)) == []
    assert detector.wakes_at() == 61.0
    all_same(detector, 60.0)
    assert detector.tick(Now(61.5, WALL + 61.5))
    assert others(computing(detector, 62.5, 2)) == [
        Warn("nothing has moved for 62 s: ranks 0-3 compute", hangs=True)
    ]


def test_a_collective_that_was_begun_since_the_last_digest_is_movement() -> None:
    """Seen under load: "nothing has moved for 11 s" of ranks that had been in a collective for one second."""
    detector = make_detector(10.0, "kill")
    all_same(detector, 1.0)
    all_same(detector, 9.0)
    assert detector.tick(Now(11.5, WALL + 11.5))

    def snapshot(n: int) -> RankSnapshot:
        begun = (record(1, done=False, at=WALL + 11.0),)
        late = rank(1, begun=0, stack=LOOP)
        return late if n == 1 else waiter(n, node=f"n{n // 2 * 2}", records=begun)

    actions = answer(detector, 11.5, 0, 1, snapshot(0), snapshot(1)) + answer(
        detector, 11.5, 2, 1, snapshot(2), snapshot(3)
    )
    assert actions == []
    assert detector.wakes_at() == 21.0


def of_server(detector: HangDetector, at: float, **changes: Any) -> dict[str, Diagnosis]:
    """Query ranks of which rank 0 receives from any rank and the others pause. Neither has records."""
    detector.on_request(Now(at, WALL + at), "diagnose-1", "{}")
    snapshots = [rank(0, begun=0, stack=RECV), *(rank(number, begun=0, stack=LOOP) for number in (1, 2, 3))]
    snapshots = [replace(snapshot, node=f"n{snapshot.rank // 2 * 2}", **changes) for snapshot in snapshots]
    answer(detector, at + 1, 0, 1, *snapshots[:2])
    return saved(answer(detector, at + 1, 2, 1, *snapshots[2:]))


@pytest.mark.parametrize("news", [{"begun": 6}, {"begun": 5, "size": 3}])
def test_a_call_that_began_after_the_record_postpones_blame(news: dict[str, int]) -> None:
    """Sends and receives have no records: when they were last begun only the digests tell."""

    def ask(at: float) -> dict[str, Diagnosis]:
        detector = make_detector()
        all_same(detector, 1.0)
        all_same(detector, 20.0, **news)
        return of_server(detector, at)

    assert ask(22.0) == {}  # looked at again, when it would be too long
    assert [culprit.rank for culprit in ask(40.0)["diagnose-1.json"].culprits] == [1, 2, 3]


@pytest.mark.parametrize("before", [{"size": 0, "begun": -1}, {"begun": 5}])
def test_a_call_that_no_digest_reported_began_after_the_last_digest(before: dict[str, int]) -> None:
    """The ranks have just made their group, or sent something, and the next digest is still to come."""
    detector = make_detector()
    all_same(detector, 20.0, **before)
    assert of_server(detector, 34.0, groups=(Group("0", 4, 7, True, "gloo", "0-3"),)) == {}


@pytest.mark.parametrize("digests", [0, 1])
def test_ranks_that_no_two_digests_tell_of_may_have_begun_since_they_are_watched(digests: int) -> None:
    """Seen: when the ranks had just met and not sent anything yet; nothing had been printed."""
    detector = make_detector()
    for _ in range(digests):
        all_same(detector, 4.0, begun=0)
    assert of_server(detector, 19.0, groups=(Group("0", 4, 0, True, "gloo", "0-3"),)) == {}


def stalled(detector: HangDetector) -> list[Any]:
    """Send digests without progress for a minute, so that both nodes are queried."""
    all_same(detector, 0.0)
    quiet_until(detector, 60.0)
    return detector.tick(Now(60.0, WALL + 60.0))


@pytest.mark.parametrize(
    ("now", "hung"), [({"state": ""}, False), ({"groups": (Group("0", 4, 5, True, "gloo", "0-3"),)}, True)]
)
def test_a_rank_that_has_ended_since_the_last_digest_has_moved(now: dict[str, Any], hung: bool) -> None:
    detector = make_detector(on_hang="kill")
    (ask, *_) = stalled(detector)
    sleeping = rank(1, stack=LOOP, **now)
    first = answer(detector, 61.0, 0, ask.number, waiter(0, node="n0"), sleeping)
    then = answer(detector, 61.0, 2, ask.number, waiter(2, node="n2"), waiter(3, node="n2"))
    assert any(isinstance(action, EndAttempt) for action in first + then) is hung


def test_ended_ranks_below_a_living_launcher_are_no_hang_for_a_minute() -> None:
    ended = {"state": "", "groups": (), "records": (), "answered": False}
    snapshots = [
        [rank(number, node=node, **ended) for number in numbers]
        for node, numbers in (("n0", (0, 1)), ("n2", (2, 3)))
    ]
    for hang, ends in ((10.0, False), (70.0, True)):
        detector, at = make_detector(hang=hang, on_hang="kill"), 0.0
        while not (asks := detector.tick(Now(at, WALL + at))):
            all_same(detector, at, state="")
            at += 2.0
        acts = answer(detector, at, 0, asks[0].number, *snapshots[0]) + answer(
            detector, at, 2, asks[0].number, *snapshots[1]
        )
        assert any(isinstance(action, EndAttempt) for action in acts) is ends


def test_a_rank_without_a_group_is_not_blamed_in_the_first_minute() -> None:
    for quiet, named in ((20.0, []), (70.0, [1])):
        detector = make_detector()
        detector.on_request(Now(quiet, WALL + quiet), "diagnose-1", "{}")
        fresh = {"groups": (), "records": (), "stack": LOOP, "quiet": quiet}
        meets = {"groups": (), "records": (), "stack": MEETING, "quiet": quiet}
        at, actions = quiet, list[Any]()
        for number in range(1, 5):
            actions = answer(detector, at, 0, number, rank(0, node="n0", **meets), rank(1, **fresh))
            actions += answer(detector, at, 2, number, *(rank(n, node="n2", **meets) for n in (2, 3)))
            if saved(actions):
                break
            at = detector.wakes_at() or at
            detector.tick(Now(at, WALL + at))
        (diagnosis,) = saved(actions).values()
        assert [culprit.rank for culprit in diagnosis.culprits] == named


@pytest.mark.parametrize(("answers", "verdict"), [(True, Verdict.NOTHING), (False, Verdict.UNDETERMINED)])
def test_ranks_that_start_slowly_and_silently_are_no_hang(answers: bool, verdict: Verdict) -> None:
    """On a crowded node three still make the group, one is in it; the look itself gets no answer of them."""
    detector, at = make_detector(), 0.0
    while at < 30.0:
        all_same(detector, at, answered=answers, torch=False, size=0, begun=-1, seconds=1.0 + 0.2 * at)
        at += 2.0
    detector.on_request(Now(30.0, WALL + 30.0), "diagnose-1", "{}")
    mute = {"groups": (), "records": (), "answered": False, "quiet": 30.0}
    snapshots = [rank(n, node="n0" if n < 2 else "n2", stack=MEETING, **mute) for n in range(4)]
    actions = []
    for number in range(1, 5):
        actions = answer(detector, 31.0, 0, number, *snapshots[:2]) + answer(
            detector, 31.0, 2, number, *snapshots[2:]
        )
        if saved(actions):
            break
    (diagnosis,) = saved(actions).values()
    assert (diagnosis.verdict, diagnosis.culprits) == (verdict, ())


def graph_replays(make_detector: HangDetector, at: float, *works: bool | None) -> None:
    """Send digests of nodes that begin no collective. ``works``: whether the GPUs of each node work."""
    for (node, _), gpus_work in zip(NODES, works, strict=True):
        pulses = tuple(pulse(2 * (node // 2) + local) for local in range(2))
        body = json.dumps({"digest": encode(Digest(pulses, gpus_work=gpus_work))})
        make_detector.on_answer(Now(at, WALL + at), node, 0, body)


@pytest.mark.parametrize(
    ("works", "looks"),
    [
        ((True, True), False),  # whole-step CUDA graphs
        ((True, False), True),  # the GPUs of one node wait for the other node
        ((False, False), True),  # every GPU waits in a collective
        ((True, None), True),  # one node does not report it
        ((None, None), True),
    ],
)
def test_ranks_that_begin_nothing_hang_unless_the_gpus_of_all_nodes_work(works, looks) -> None:
    watched = make_detector(60.0)
    for at in range(10, 120, 10):
        graph_replays(watched, float(at), *works)
        if watched.tick(Now(float(at), WALL + at)):
            assert looks
            return
    assert not looks


def test_a_run_whose_gpus_stop_working_hangs_from_that_time() -> None:
    watched = make_detector(60.0)
    for at in range(10, 130, 10):
        graph_replays(watched, float(at), True, True)
        assert watched.tick(Now(float(at), WALL + at)) == []
    for at in range(130, 190, 10):  # the first node reports before the second one does
        graph_replays(watched, float(at), True, False)
        assert watched.tick(Now(float(at), WALL + at)) == []
    assert watched.tick(Now(190.0, WALL + 190.0)) != []
