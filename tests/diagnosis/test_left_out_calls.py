"""Calls that some make and others do not: who departs from what it did before, or whom most contradict."""

from __future__ import annotations

import pytest

from clusterrun.diagnosis.decide import decide
from clusterrun.diagnosis.evidence import Group, RankSnapshot, Record
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.frozen import replace
from tests.diagnosis.ranks import ALL_REDUCE, BARRIER, NOW, case, history, rank, record

HERE = ("/home/me/train.py:17 exchange", "/home/me/train.py:30 <module>")


def verdict(*observed: RankSnapshot) -> Diagnosis:
    return decide(case(*observed, stalled=60.0)).diagnosis


@pytest.mark.parametrize("has_ignored", [True, False])
def test_a_rank_whose_call_torch_ignored_for_its_group_is_the_one_that_left_it_out(has_ignored: bool) -> None:
    """Ranks 0 and 3 pass the group of their node, ranks 1 and 2 that of the other node."""
    ranks = []
    for number in range(4):
        pair = number // 2
        spans = (f"{2 * pair}-{2 * pair + 1}", "0-3")
        groups = (
            Group(str(pair + 1), 2, 0, False, "gloo", spans[0]),
            Group("0", 4, 3, True, "gloo", spans[1]),
        )
        is_member = number in (0, 3)
        open_call = record(1, False, group=str(pair + 1), sizes="[1]") if is_member else record(4, False)
        ignored = ("all_reduce",) if has_ignored and not is_member else ()
        records = (*history(3), open_call)
        ranks.append(rank(number, groups=groups, records=records, stack=ALL_REDUCE, ignored=ignored))
    result = verdict(*ranks)
    assert [culprit.rank for culprit in result.culprits] == [1, 2] * has_ignored


# --- sends and receives: gloo counts them with each barrier, as `op_id` of its records ---


def epochs(
    number: int, completed: list[int], now: int, waits: bool, call: str = "recv", peer: int = 0
) -> RankSnapshot:
    """Return one of two ranks, with its sends and receives before each barrier.

    It waits in a call or a barrier.
    """
    records, begun = [], 0
    for sequence, count in enumerate(completed, 1):
        begun += count + 1
        at = NOW - 100 + sequence
        records.append(Record("0", sequence, "barrier", "", "", True, at, begun))
    begun += now
    if not waits:
        begun += 1
        records.append(Record("0", len(completed) + 1, "barrier", "", "", False, NOW - 60, begun))
    changes = {"call": "recv", "peer": 0, "stack": HERE} if waits else {"stack": BARRIER}
    groups = (Group("0", 2, begun, True, "gloo", "0-1"),)
    return rank(number, 2, records=tuple(records), groups=groups, **changes)


@pytest.mark.parametrize(
    ("before", "sent", "received", "odd"),
    [
        ([4, 4], 4, 5, [1]),  # a recv too many
        ([4, 4], 3, 4, [0]),  # a send left out
        ([4, 4, 4, 4], 0, 1, [0]),
        ([0, 1, 1, 1, 1], 0, 1, [0]),  # the first call of all is no custom
        ([4, 3, 4, 3], 3, 4, []),  # both have done so before
        ([4], 4, 5, []),  # once is no custom
        ([], 11, 12, []),
        ([0, 0, 0], 0, 1, []),  # the first ones of all: something new
        ([4, 4], 5, 6, []),  # neither is as before
    ],
)
def test_the_rank_with_an_unusual_recv_is_named_or_both_are_reported(
    before: list[int], sent: int, received: int, odd: list[int]
) -> None:
    result = verdict(epochs(0, before, sent, waits=False), epochs(1, before, received, waits=True))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, odd)
    if odd == [1]:
        assert result.culprits[0].why == (
            "it waits in recv from rank 0 at train.py:17 (exchange) for rank 0, in barrier at train.py:20 "
            "(step): it came too early, or once too often"
        )
    elif odd == [0]:
        assert "it is in barrier at train.py:20 (step) and has not called send to rank 1" in result.message
    else:
        assert "either rank 0 left out send to rank 1, or rank 1 made a call too many" in result.message


@pytest.mark.parametrize(("retained", "numbered"), [(slice(1, None), True), (slice(None), False)])
def test_calls_outside_the_records_are_not_guessed(retained: slice, numbered: bool) -> None:
    """A long run keeps only its newest records. Old torch gives no number."""
    cut = [
        replace(
            entry,
            records=tuple(
                replace(record, begun=record.begun if numbered else 0) for record in entry.records[retained]
            ),
        )
        for entry in (epochs(0, [4, 4], 4, waits=False), epochs(1, [4, 4], 5, waits=True))
    ]
    assert verdict(*cut).culprits == ()


LINE = (1, 2, 2, 1)
"""How many each of four exchanges with its neighbours in a step: the first and the last have one."""


def of_line(number: int, now: int, steps: int) -> RankSnapshot:
    """Return a rank with steps of ``batch_isend_irecv`` and a collective; the last rank waits."""
    each, waits = LINE[number] + 1, number == 3
    result = [
        Record("0", step, "all_reduce", "[4]", "Float", True, NOW - 100 + step, each * step)
        for step in range(1, steps + 1)
    ]
    begun = each * steps + now + (not waits)
    last = Record("0", steps + 1, "all_reduce", "[4]", "Float", False, NOW - 60, begun)
    groups = (Group("0", 4, begun, True, "gloo", "0-3"),)
    if waits:
        return rank(number, records=tuple(result), groups=groups, call="wait", stack=HERE)
    return rank(number, records=(*result, last), groups=groups, stack=ALL_REDUCE)


@pytest.mark.parametrize(
    ("now", "steps", "odd"),
    [
        ((1, 2, 1, 1), 5, [2]),  # rank 2 sent nothing to rank 3, which waits
        ((1, 2, 2, 2), 5, [3]),  # rank 3 wants one more
        (LINE, 5, []),  # in number all as ever: to another rank, or with another tag
        ((1, 1, 1, 1), 5, []),
        ((1, 2, 1, 1), 1, []),  # too young for a custom
    ],
)
def test_the_list_with_an_unusual_number_is_named(now: tuple[int, ...], steps: int, odd: list[int]) -> None:
    result = verdict(*(of_line(number, count, steps) for number, count in enumerate(now)))
    assert [culprit.rank for culprit in result.culprits] == odd
    assert "rank 3 waits for a send or receive that is not answered" in result.message
    if not odd:
        assert result.verdict is Verdict.UNDETERMINED
        assert "is shown if a variable holds it" in result.remedy


# --- collectives of a group of some ranks, and of all ---


def trains(number: int, some: str, calls: str, size: int = 4) -> RankSnapshot:
    """Return a rank that made these calls in turn, ``w`` with all and ``s`` with ``some``.

    It waits in the last.
    """
    counts, records = {"w": 0, "s": 0}, []
    for place, call in enumerate(calls):
        counts[call] += 1
        result, at = place < len(calls) - 1, NOW - 100 + place
        records.append(
            Record({"w": "0", "s": "1"}[call], counts[call], "all_reduce", "[4]", "Float", result, at)
        )
    groups = [Group("0", size, counts["w"], True, "gloo", f"0-{size - 1}")]
    groups += (
        [Group("1", len(some), counts["s"], False, "gloo", ",".join(some))] if str(number) in some else []
    )
    return rank(number, size, records=tuple(records), groups=tuple(groups), stack=ALL_REDUCE)


def test_a_rank_that_enters_a_subgroup_before_the_world_leaves_its_usual_order() -> None:
    """Recorded: rank 3 reduced its loss before the gradients, in the seventh step."""
    step = "ws" * 6
    result = verdict(
        trains(0, "013", step + "w"),
        trains(1, "013", step + "w"),
        trains(2, "013", "w" * 7),
        trains(3, "013", step + "s"),
    )
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [3])
    assert "for ranks 0-1, in all_reduce at train.py:11 (step)" in result.message


@pytest.mark.parametrize("some", ["01", "012", "123"])
def test_a_rank_that_skips_a_subgroups_call_leaves_its_usual_order(some: str) -> None:
    step, last = "ws" * 5, int(some[-1])
    observed = [
        trains(number, some, step + ("ww" if number == last else "ws"))
        if str(number) in some
        else trains(number, some, "w" * 7)
        for number in range(4)
    ]
    result = verdict(*observed)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [last])


@pytest.mark.parametrize(
    ("calls", "odd"),
    [
        (("wwws" * 4 + "wwwww", "wwws" * 4 + "wwwww"), []),  # nobody is in it
        (("wwws" * 4 + "wwwwww", "wwws" * 4 + "wwwwws"), []),  # was never due there
        (("wwws" * 4 + "wwww", "wwws" * 4 + "wwws"), [0]),
        (("wwws" * 4 + "www", "wwws" * 4 + "wws"), []),  # nor by whom it is called too early
        (("wwws" + "wwww", "wwws" + "wwws"), []),  # too young for a custom
        (("wwwswswwws" + "wwww", "wwwswswwws" + "wwws"), []),  # no fixed turn
    ],
)
def test_the_rank_that_passes_its_periodic_call_is_named(calls: tuple[str, str], odd: list[int]) -> None:
    """The calls of all look alike: what comes before it tells nothing."""
    long = max(culprit.count("w") for culprit in calls)
    others = [trains(number, "01", "w" * long) for number in (2, 3)]
    result = verdict(trains(0, "01", calls[0]), trains(1, "01", calls[1]), *others)
    assert [culprit.rank for culprit in result.culprits] == odd


def test_one_additional_step_before_a_new_phase_is_no_habit() -> None:
    """Two of three evaluate for the first time; the third has a batch left, and calls as ever."""
    result = verdict(
        trains(0, "013", "w" * 9),
        trains(1, "013", "w" * 8 + "s"),
        trains(2, "013", "w" * 9),
        trains(3, "013", "w" * 8 + "s"),
    )
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [0])


@pytest.mark.parametrize(("sibling", "odd"), [(1, [3]), (0, [2])])
def test_the_rank_of_a_pair_that_differs_from_similar_pairs_is_named(sibling: int, odd: list[int]) -> None:
    """Ranks 2 and 3 are one of two pairs; rank 2 waits in a call of theirs that rank 3 has not made."""

    def of_pair(number: int, called: int, waits: bool) -> RankSnapshot:
        world, name, ranks = Group("0", 4, 9, True, "gloo", "0-3"), "12"[number // 2], ("0-1", "2-3")
        pair = Group(name, 2, called, False, "gloo", ranks[number // 2])
        own = (Record(name, 1, "barrier", "", "", not waits, NOW - 70, 0),) if called else ()
        last = () if waits else (Record("0", 9, "all_reduce", "[4]", "Float", False, NOW - 60, 0),)
        return rank(number, groups=(world, pair), records=(*own, *last), stack=ALL_REDUCE)

    result = verdict(
        of_pair(0, sibling, False), of_pair(1, sibling, False), of_pair(2, 1, True), of_pair(3, 0, False)
    )
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, odd)


# --- another peer ---


def of_four(number: int, before: list[int], now: int, call: str = "", peer: int = -1) -> RankSnapshot:
    """Return one of four ranks, with its sends and receives before each all_reduce.

    It waits in either call.
    """
    records, begun = [], 0
    for sequence, count in enumerate([*before, *([] if call else [now])], 1):
        begun += count + 1
        is_equal = sequence <= len(before)
        records.append(Record("0", sequence, "all_reduce", "", "", is_equal, NOW - 100 + sequence, begun))
    begun += now if call else 0
    groups = (Group("0", 4, begun, True, "gloo", "0-3"),)
    changes = {"call": call, "peer": peer, "stack": HERE} if call else {"stack": ALL_REDUCE}
    return rank(number, 4, records=tuple(records), groups=groups, **changes)


NEVER = ([0, 0, 0], 0)


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([NEVER, ([1, 1, 1], 1, "send", 2), ([1, 1, 1], 1, "recv", 0), NEVER], [2]),
        ([NEVER, ([1, 1, 1], 1, "recv", 2), ([1, 1, 1], 1, "send", 0), NEVER], [2]),
        # Rank 0 has been met before: it may have left its half out.
        ([([0, 1, 0], 0), ([1, 1, 1], 1, "send", 2), ([1, 2, 1], 1, "recv", 0), NEVER], []),
        # More than ever before: the call is new, so either rank may be wrong.
        ([NEVER, ([1, 1, 1], 1, "send", 2), ([1, 1, 1], 2, "recv", 0), NEVER], []),
        # No such call was made before.
        ([NEVER, ([], 1, "send", 2), ([], 1, "recv", 0), NEVER], []),
    ],
)
def test_a_rank_that_awaits_the_wrong_sender_is_named(
    calls: list[tuple[list[int], int] | tuple[list[int], int, str, int]], named: list[int]
) -> None:
    result = verdict(*(of_four(number, *how) for number, how in enumerate(calls)))
    messages = [culprit.rank for culprit in result.culprits if "names another rank" in result.message]
    assert messages == named
    assert named == [] or "which has never sent or received; rank 1 waits for it in" in result.message


# --- keys of a store that a rank did not set ---

SETS = "/home/me/train.py:15"


def keyed(number: int, key: str = "e2/shard3", own: str = "", **changes: object) -> RankSnapshot:
    """Return a rank that waits for a key of the store and set one of its own before."""
    stack = ("/home/me/train.py:17 collect", "/home/me/train.py:30 <module>")
    sets = (f"{SETS}\t{own or f'e2/shard{number}'}",)
    return rank(number, **{"call": "store", "key": key, "sets": sets, "stack": stack, **changes})


def test_the_only_rank_whose_code_sets_an_awaited_key_is_named() -> None:
    result = verdict(*map(keyed, range(4)))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [3])
    assert result.message == (
        "ranks 0-3 wait for a key of the store that rank 3 on n1 sets: "
        "it has not set the key e2/shard3 of the store, which train.py:15 sets"
    )
    others = [
        keyed(n, call="", key="", stack=BARRIER, records=(*history(10), record(11, False, "barrier")))
        for n in range(1, 4)
    ]
    ended = verdict(keyed(0), *others)
    assert [culprit.rank for culprit in ended.culprits] == [3]
    assert "though it has continued at train.py:20 (step)" in ended.message


def test_a_waiting_rank_is_not_the_setter_of_its_key_if_there_is_another() -> None:
    """All run the line that sets it, below ``if rank == 0``."""
    ended = keyed(
        0, call="", key="", own="ready", stack=BARRIER, records=(*history(10), record(11, False, "barrier"))
    )
    result = verdict(ended, *(keyed(number, "ready", "ready") for number in range(1, 4)))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [0])
    assert result.culprits[0].why == (
        "it has not set the key ready of the store, which train.py:15 sets, though it has continued at "
        "train.py:20 (step)"
    )


KEYS = "done/0, done/1, done/2, done/3"


@pytest.mark.parametrize(("passed", "odd"), [((2,), [2]), ((), []), ((1, 2), [])])
def test_the_rank_that_passed_its_own_key_is_named(passed: tuple[int, ...], odd: list[int]) -> None:
    keys = [f"done/{n}" + ("\tif shards:" if n in passed else "") for n in range(4)]
    result = verdict(*(keyed(number, KEYS, keys[number]) for number in range(4)))
    assert [culprit.rank for culprit in result.culprits] == odd
    if odd:
        assert result.culprits[0].why == (
            f"it has not set its key of the store (of {KEYS}), which train.py:15 sets under 'if shards:', "
            "which does not hold there"
        )


def test_the_only_rank_that_does_not_await_the_keys_of_all_is_named() -> None:
    ended = keyed(
        3, call="", key="", own="done/3", stack=BARRIER, records=(*history(10), record(11, False, "barrier"))
    )
    result = verdict(*(keyed(number, KEYS, f"done/{number}") for number in range(3)), ended)
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [3])


@pytest.mark.parametrize("own", ["e2/shard3", "e2/other"])
def test_nobody_is_named_if_several_ranks_or_none_set_a_key(own: str) -> None:
    result = verdict(*(keyed(number, own=own) for number in range(4)))
    assert result.culprits == ()


# --- ranks that wait for each other in several groups: who left its order ---


def mesh(number: int, called: list[str], waits: int = 1) -> RankSnapshot:
    """Return a rank of 2 × 2 that called ``all_reduce`` of its row (r) and its column (c) in this order."""
    row, column = (
        (f"r{number // 2}", f"{number // 2 * 2}-{number // 2 * 2 + 1}"),
        (f"c{number % 2}", f"{number % 2},{number % 2 + 2}"),
    )
    count: dict[str, int] = {}
    records = []
    for place, letter in enumerate(called):
        name = {"r": row, "c": column}[letter][0]
        count[name] = count.get(name, 0) + 1
        is_equal = place < len(called) - waits
        records.append(Record(name, count[name], "all_reduce", "[16]", "Float", is_equal, NOW - 100 + place))
    groups = tuple(Group(name, 2, count.get(name, 0), False, "gloo", ranks) for name, ranks in (row, column))
    return rank(number, groups=groups, records=tuple(records), stack=ALL_REDUCE)


def test_the_rank_that_left_its_order_of_several_groups_is_named() -> None:
    """Rank 2 called its column where its row was due; each waits for another one since."""
    since = ["rcr", "rc", "cc", "r"]
    result = verdict(*(mesh(number, list("rcrcrcrcrcrc" + since[number])) for number in range(4)))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [2])
    assert (
        "it called all_reduce of group c0 after all_reduce of group c0, where it had always" in result.message
    )
