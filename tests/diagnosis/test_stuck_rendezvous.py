"""Ranks that wait for each other in init_process_group because one of them asks for something else."""

from __future__ import annotations

import pytest

from clusterrun.diagnosis.decide import decide
from clusterrun.diagnosis.evidence import Group, RankSnapshot, Record
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from tests.diagnosis.ranks import (
    ALL_REDUCE,
    BARRIER,
    LIBRARY,
    LOOP,
    MEETING,
    case,
    changed,
    history,
    rank,
    record,
    waiter,
)

HERE, THERE = "10.0.0.1:29500", "10.0.0.9:29500"
OTHER_PORT = "10.0.0.1:29999"


def meets(number: int, store: str = HERE, asks: int | None = None) -> RankSnapshot:
    """Return a rank in init_process_group."""
    requested = number if asks is None else asks
    return rank(number, started=4, world=4, groups=(), records=(), stack=MEETING, store=store, asks=requested)


def verdict(*observed: RankSnapshot) -> Diagnosis:
    return decide(case(*observed, stalled=60.0)).diagnosis


@pytest.mark.parametrize(
    ("stores", "wrong"),
    [
        ((HERE, HERE, OTHER_PORT, HERE), [2]),
        ((OTHER_PORT, HERE, HERE, HERE), [0]),
        ((HERE, HERE, THERE, THERE.replace("9:", "8:")), [2, 3]),
        ((HERE, HERE, HERE, THERE), [3]),
    ],
)
def test_the_rank_with_an_unusual_address_of_rank_0_is_named(
    stores: tuple[str, ...], wrong: list[int]
) -> None:
    result = verdict(*(meets(number, store) for number, store in enumerate(stores)))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, wrong)
    why = f"it looks for rank 0 at {stores[wrong[0]]}, where the others look at {HERE}; it is at train.py:5"
    assert result.culprits[0].why == why
    assert "MASTER_ADDR" in result.remedy


@pytest.mark.parametrize(
    ("host", "wrong"),
    [("localhost", [(2, "n1"), (3, "n1")]), ("127.0.0.1", [(2, "n1"), (3, "n1")]), ("n1", [])],
)
def test_ranks_that_look_for_rank_0_on_their_own_node_are_named_unless_all_look_there(
    host: str, wrong: list[tuple[int, str]]
) -> None:
    """On loopback rank 1 is past the store: it has met rank 0 there."""
    looks = (f"{LIBRARY}/torch/distributed/rendezvous.py:199 _create_c10d_store", *MEETING)
    ranks = [
        changed(
            meets(number, f"{host}:29500"), node=f"n{number // 2}", stack=MEETING if number == 1 else looks
        )
        for number in range(4)
    ]
    result = verdict(*ranks)
    assert [(culprit.rank, culprit.node) for culprit in result.culprits] == wrong
    assert (result.verdict, "rank 0 is on n0" in result.message) == (Verdict.MISMATCH, True)
    assert result.remedy.startswith("leave MASTER_ADDR")


@pytest.mark.parametrize("hosts", [("localhost",) * 4, ("n0", "n0", "n0", "n1")])
def test_an_address_in_the_script_is_the_remedy_and_not_the_environment(hosts: tuple[str, ...]) -> None:
    rendezvous = f"{LIBRARY}/torch/distributed/rendezvous.py"
    looks = (f"{rendezvous}:199 _create_c10d_store", f"{rendezvous}:232 _tcp_rendezvous_handler", *MEETING)
    ranks = [
        changed(meets(number, f"{host}:{29500 + number}"), node=f"n{number // 2}", stack=looks)
        for number, host in enumerate(hosts)
    ]
    remedy = verdict(*ranks).remedy
    assert remedy.startswith("init_process_group at train.py:5 has an address of its own")
    assert "name n0 " in remedy


@pytest.mark.parametrize(
    ("host", "is_wrong"), [("n9", True), ("10.0.0.9", True), ("n0", False), ("head", False)]
)
def test_an_address_where_no_rank_runs_is_named_if_rank_0_looks_there_too(host: str, is_wrong: bool) -> None:
    looks = (f"{LIBRARY}/torch/distributed/rendezvous.py:199 _create_c10d_store", *MEETING)
    ranks = [
        changed(meets(number, f"{host}:29500"), node=f"n{number // 2}", stack=looks) for number in range(4)
    ]
    result = verdict(*ranks)
    assert result.culprits == ()
    assert (result.verdict is Verdict.MISMATCH, "rank 0 is on n0" in result.message) == (is_wrong, is_wrong)


def test_a_master_address_that_the_script_may_not_use_blames_nobody() -> None:
    ranks = [changed(meets(number, "localhost:29500"), node=f"n{number // 2}") for number in range(4)]
    assert verdict(*ranks).culprits == ()


def test_ranks_that_meet_at_two_files_get_a_hint_about_the_shared_file_system() -> None:
    paths = ("file:/home/me/meet", "file:/home/me/meet", "file:/scratch/meet", "file:/scratch/meet")
    result = verdict(*(meets(number, path) for number, path in enumerate(paths)))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "shared file system" in result.remedy and "at train.py:5" in result.message


@pytest.mark.parametrize(
    "stores",
    [
        (HERE, HERE, HERE, HERE),
        ("localhost:29500", HERE, HERE, HERE),  # the machine of rank 0 has several names
        ("n0:29500", "localhost:29500", HERE, HERE),
        ("", HERE, THERE, HERE),  # one of them does not say
    ],
)
def test_addresses_of_unknown_correctness_blame_nobody(stores: tuple[str, ...]) -> None:
    result = verdict(*(meets(number, store) for number, store in enumerate(stores)))
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())


def test_either_of_two_equal_halves_may_look_at_the_wrong_address() -> None:
    result = verdict(*(meets(number, store) for number, store in enumerate((HERE, HERE, THERE, THERE))))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())


def test_of_two_ports_of_one_host_the_one_that_rank_0_opens_is_right() -> None:
    result = verdict(*(meets(number, f"n0:{29500 + number // 2}") for number in range(4)))
    assert [culprit.rank for culprit in result.culprits] == [2, 3]


def test_both_addresses_of_equal_halves_are_reported() -> None:
    result = verdict(*(meets(number, (HERE, THERE)[number // 2]) for number in range(4)))
    assert result.message.endswith(f"ranks 0-1 at {HERE}; ranks 2-3 at {THERE}")


def test_an_address_is_not_judged_while_somebody_else_has_not_come() -> None:
    late = rank(3, groups=(), records=(), stack=("/home/me/train.py:3 load", "/home/me/train.py:9 <module>"))
    result = verdict(meets(0), meets(1), meets(2, OTHER_PORT), late)
    assert [culprit.rank for culprit in result.culprits] == [3]


@pytest.mark.parametrize(
    ("requested", "wrong"),
    [((0, 1, 2, 2), [3]), ((1, 1, 2, 3), [0]), ((0, 0, 0, 3), [1, 2]), ((0, 3, 3, 1), [1, 2])],
)
def test_a_rank_that_claims_another_rank_is_named(requested: tuple[int, ...], wrong: list[int]) -> None:
    result = verdict(*(meets(number, asks=asks) for number, asks in enumerate(requested)))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, wrong)
    assert (
        result.culprits[0].why
        == f"it waits in init_process_group at train.py:5 as rank {requested[wrong[0]]}"
    )


def test_ranks_that_are_renumbered_by_design_are_no_mistake() -> None:
    result = verdict(*(meets(number, asks=3 - number) for number in range(4)))
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())


def test_the_one_rank_that_passed_the_key_has_not_set_it() -> None:
    waits = [rank(number, call="store", stack=("/home/me/train.py:7 ready",)) for number in (0, 1, 3)]
    result = verdict(waits[0], waits[1], waiter(2), waits[2])
    assert (result.verdict, [(culprit.rank, culprit.why) for culprit in result.culprits]) == (
        Verdict.MISMATCH,
        [
            (
                2,
                "it is in all_reduce at train.py:11 (step) and has not set the key of the store that "
                "rank 3 waits for at train.py:7 (ready)",
            )
        ],
    )


def test_the_waiting_ones_of_several_possible_setters_are_reported() -> None:
    wait = rank(3, call="store", stack=("/home/me/train.py:7 ready", "/home/me/train.py:9 <module>"))
    result = verdict(waiter(0), waiter(1), waiter(2), wait)
    assert [culprit.rank for culprit in result.culprits] == [3]
    assert "it waits for a key of the store at train.py:7 (ready)" in result.message
    with_key = verdict(waiter(0), waiter(1), waiter(2), changed(wait, key="seed/3"))
    assert "it waits for the key seed/3 of the store at train.py:7 (ready)" in with_key.message


def test_ranks_that_all_wait_for_a_key_blame_nobody() -> None:
    result = verdict(
        *(rank(number, call="store", stack=("/home/me/train.py:7 <module>",)) for number in range(4))
    )
    assert (result.verdict, result.culprits) == (Verdict.WAITING, ())


NEW_GROUP = (
    f"{LIBRARY}/torch/distributed/distributed_c10d.py:6056 _new_group_with_tag",
    f"{LIBRARY}/torch/distributed/distributed_c10d.py:5863 new_group",
    "/home/me/train.py:14 groups",
)
PAIRS = (((0, 1), (2, 3)), ((0, 2), (1, 3)))


def makes(number: int, ranks: str, *before: str, made: int = 0) -> RankSnapshot:
    """Return a rank that makes a group of ``ranks``, after those of ``before``, each ``NAME=RANKS``."""
    groups = tuple(Group(entry.partition("=")[0], 2, 0, ranks=entry.partition("=")[2]) for entry in before)
    world = Group("0", 4, 10, True, "gloo", "0-3")
    name = str(made or len(before) + 1)
    return rank(
        number, groups=(world, *groups), stack=NEW_GROUP, makes=(name, ranks), made=int(name) + 1, busy=0.0
    )


def test_the_rank_that_makes_groups_in_another_order_is_named() -> None:
    """Rank 2 of four made its data groups before its tensor groups."""
    result = verdict(
        makes(0, "0,2", "1=0-1", made=3),
        makes(1, "1,3", "1=0-1", made=4),
        makes(2, "2-3", "1=0,2", made=4),
        makes(3, "2-3", made=2),
    )
    assert (result.verdict, [(culprit.rank, culprit.why) for culprit in result.culprits]) == (
        Verdict.MISMATCH,
        [
            (
                2,
                "its group 1 is of ranks 0 and 2, where that of rank 0 is of ranks 0-1; it is at "
                "train.py:14 (groups)",
            )
        ],
    )


def test_the_rank_that_has_passed_a_group_without_making_it_is_named() -> None:
    """A device mesh of another shape: its groups are others, and it is in a collective already."""
    others = [makes(number, ranks, made=1) for number, ranks in ((0, "0,2"), (1, "1,3"), (3, "1,3"))]
    others[1] = makes(1, "1,3", made=2)
    others[2] = makes(3, "1,3", made=2)
    result = verdict(others[0], others[1], waiter(2, made=3), others[2])
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [2])
    assert "it made no group 1 with itself in it" in result.message


def test_two_contradicting_ranks_are_both_reported_without_blame() -> None:
    result = verdict(makes(0, "0,2", "1=0-1", made=3), makes(1, "2-3", "1=1-2", made=3))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message.endswith("group 1 of rank 0 has ranks 0-1, that of rank 1 ranks 1-2")


def in_own_group(number: int, ranks: str, backend: str = "gloo") -> RankSnapshot:
    """Return a rank that waits in the first call of its group 1, with all members of the group."""
    groups = (Group("0", 4, 10, True, "gloo", "0-3"), Group("1", 2, 1, False, backend, ranks))
    call = record(1, done=False, operation="all_gather", group="1")
    return rank(number, groups=groups, records=(*history(10), call), stack=ALL_REDUCE)


def test_ranks_that_made_only_their_own_groups_get_a_hint_about_new_group() -> None:
    result = verdict(*(in_own_group(n, "0-1" if n < 2 else "2-3") for n in range(4)))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message.endswith("group 1 of rank 0 has ranks 0-1, that of rank 2 ranks 2-3")
    assert "every rank call new_group for all groups" in result.remedy


def test_the_parts_of_a_group_that_nccl_splits_share_a_number() -> None:
    result = verdict(*(in_own_group(n, "0-1" if n < 2 else "2-3", "nccl") for n in range(4)))
    assert "new_group" not in result.remedy


@pytest.mark.parametrize("destroyed", [(), (2,), (0, 3)])
def test_groups_in_one_order_contradict_nobody(destroyed: tuple[int, ...]) -> None:
    """Each is at another group of the same list; some have destroyed their first one."""
    observed = []
    for number in range(4):
        first = next(pair for pair in PAIRS[0] if number in pair)
        second = next(pair for pair in PAIRS[1] if number in pair)
        before = [] if number in destroyed else [f"{PAIRS[0].index(first) + 1}={first[0]}-{first[1]}"]
        created = PAIRS[1].index(second) + 3
        observed.append(makes(number, f"{second[0]},{second[1]}", *before, made=created))
    result = verdict(*observed)
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())


@pytest.mark.parametrize(
    ("meeting", "named"), [((0, 1, 3), [2]), ((2,), [2]), ((0, 1), []), ((1, 2, 3), [0])]
)
def test_the_minority_of_ranks_in_new_group_and_in_a_collective_is_named(
    meeting: tuple[int, ...], named: list[int]
) -> None:
    observed = [rank(n, stack=NEW_GROUP) if n in meeting else waiter(n) for n in range(4)]
    result = verdict(*observed)
    assert [culprit.rank for culprit in result.culprits] == named
    assert result.remedy
    if not named:
        assert result.message == (
            "ranks 0-1 wait in new_group at train.py:14 (groups) for ranks 2-3, and they are in all_reduce "
            "at train.py:11 (step): nothing shows which of the two is wrong"
        )


def test_the_rank_outside_new_group_and_collectives_is_named_alone() -> None:
    result = verdict(rank(0, stack=NEW_GROUP), rank(1, stack=NEW_GROUP), waiter(2), rank(3, stack=LOOP))
    assert [culprit.rank for culprit in result.culprits] == [3]


@pytest.mark.parametrize(("meeting", "named"), [((0, 1, 2), [3]), ((0, 1), []), ((0,), [])])
def test_the_rank_outside_is_named_if_most_ranks_make_a_group_after_collectives(
    meeting: tuple[int, ...], named: list[int]
) -> None:
    observed = [rank(number, stack=NEW_GROUP if number in meeting else LOOP) for number in range(4)]
    result = decide(case(*observed, stalled=60.0)).diagnosis
    assert [culprit.rank for culprit in result.culprits] == named


@pytest.mark.parametrize("records", [(), history(10)])
def test_ranks_in_different_calls_that_torch_did_not_record_are_shown_with_their_lines(
    records: tuple[Record, ...],
) -> None:
    """torch's checks with TORCH_DISTRIBUTED_DEBUG=DETAIL wait before the collective is recorded."""
    stacks = (BARRIER, BARRIER, ALL_REDUCE, ALL_REDUCE)
    observed = [rank(number, stack=stack, records=records) for number, stack in enumerate(stacks)]
    result = decide(case(*observed, stalled=60.0)).diagnosis
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "ranks 0-1 wait in barrier at train.py:20 (step)" in result.message
    assert "clusterrun submit" not in result.remedy


@pytest.mark.parametrize(
    ("world", "mute", "message"),
    [(4, (), True), (3, (), False), (4, (("n1", "no answer within 11 s"),), False)],
)
def test_a_rank_without_a_trace_is_reported_if_all_others_meet(
    world: int, mute: tuple[tuple[str, str], ...], message: bool
) -> None:
    """It had ended with exit code 0, below a pipe, before anybody looked."""
    observed = [changed(meets(number), world=world, started=world) for number in (0, 2, 3)]
    result = decide(case(*observed, size=4, stalled=60.0, mute=mute)).diagnosis
    assert ("for rank 1 as well, which had already ended" in result.message) is message
    assert result.culprits == ()


@pytest.mark.parametrize("stalled", [0.0, 60.0])
def test_ranks_that_print_retries_in_a_rendezvous_wait_for_the_rank_outside(stalled: float) -> None:
    retrying = [changed(meets(number), printed=True, quiet=1.0) for number in (1, 2, 3)]
    outside = rank(0, groups=(), records=(), stack=LOOP, quiet=100.0)
    result = decide(case(outside, *retrying, stalled=stalled, since_begun=100.0)).diagnosis
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.NEVER_ARRIVED, [0])
