"""Ranks that wait for each other in init_process_group because one of them asks for something else."""

from __future__ import annotations

import pytest

from clusterrun.diagnosis.decide import decide
from clusterrun.diagnosis.evidence import RankSeen
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from tests.diagnosis.ranks import MEETING, case, rank, waiter

HERE, THERE = "10.0.0.1:29500", "10.0.0.9:29500"
OTHER_PORT = "10.0.0.1:29999"


def meets(number: int, store: str = HERE, asks: int | None = None) -> RankSeen:
    """A rank that stands in init_process_group."""
    asked = number if asks is None else asks
    return rank(number, started=4, world=4, groups=(), records=(), stack=MEETING, store=store, asks=asked)


def verdict(*seen: RankSeen) -> Diagnosis:
    return decide(case(*seen, stalled=60.0)).diagnosis


@pytest.mark.parametrize(
    ("stores", "wrong"),
    [
        ((HERE, HERE, OTHER_PORT, HERE), [2]),
        ((OTHER_PORT, HERE, HERE, HERE), [0]),
        ((HERE, HERE, THERE, THERE.replace("9:", "8:")), [2, 3]),
        ((HERE, HERE, HERE, THERE), [3]),
    ],
)
def test_who_looks_for_rank_0_at_another_address_than_most_is_named(
    stores: tuple[str, ...], wrong: list[int]
) -> None:
    found = verdict(*(meets(number, store) for number, store in enumerate(stores)))
    assert (found.verdict, [one.rank for one in found.culprits]) == (Verdict.MISMATCH, wrong)
    why = f"it looks for rank 0 at {stores[wrong[0]]}, where the others look at {HERE}"
    assert found.culprits[0].why == why


@pytest.mark.parametrize(
    "stores",
    [
        (HERE, HERE, HERE, HERE),
        ("localhost:29500", HERE, HERE, HERE),  # the machine of rank 0 has several names
        ("n0:29500", "localhost:29500", HERE, HERE),
        (HERE, HERE, THERE, THERE),  # of equal halves, either may be wrong
        ("", HERE, THERE, HERE),  # one of them does not say
    ],
)
def test_addresses_of_which_none_is_known_to_be_wrong_blame_nobody(stores: tuple[str, ...]) -> None:
    found = verdict(*(meets(number, store) for number, store in enumerate(stores)))
    assert (found.verdict, found.culprits) == (Verdict.UNDETERMINED, ())


def test_of_equal_halves_both_addresses_are_told() -> None:
    found = verdict(*(meets(number, (HERE, THERE)[number // 2]) for number in range(4)))
    assert found.said.endswith(f"ranks 0-1 at {HERE}; ranks 2-3 at {THERE}")


def test_an_address_is_not_judged_while_somebody_else_has_not_come() -> None:
    late = rank(3, groups=(), records=(), stack=("/home/me/train.py:3 load", "/home/me/train.py:9 <module>"))
    found = verdict(meets(0), meets(1), meets(2, OTHER_PORT), late)
    assert [one.rank for one in found.culprits] == [3]


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [((0, 1, 2, 2), [3]), ((1, 1, 2, 3), [0]), ((0, 0, 0, 3), [1, 2]), ((0, 3, 3, 1), [1, 2])],
)
def test_who_says_that_it_is_another_rank_is_named(asked: tuple[int, ...], wrong: list[int]) -> None:
    found = verdict(*(meets(number, asks=asks) for number, asks in enumerate(asked)))
    assert (found.verdict, [one.rank for one in found.culprits]) == (Verdict.MISMATCH, wrong)
    assert found.culprits[0].why == f"it waits in init_process_group at train.py:5 as rank {asked[wrong[0]]}"


def test_ranks_that_are_numbered_anew_by_design_are_no_mistake() -> None:
    found = verdict(*(meets(number, asks=3 - number) for number in range(4)))
    assert (found.verdict, found.culprits) == (Verdict.UNDETERMINED, ())


def test_the_one_rank_that_waits_for_no_key_and_has_gone_on_has_not_set_it() -> None:
    waits = [rank(number, call="store", stack=("/home/me/train.py:7 ready",)) for number in (0, 1, 3)]
    found = verdict(waits[0], waits[1], waiter(2), waits[2])
    assert (found.verdict, [(one.rank, one.why) for one in found.culprits]) == (
        Verdict.MISMATCH,
        [
            (
                2,
                "it is in all_reduce at train.py:11 (step) and has not set the key of the store that "
                "rank 3 waits for at train.py:7 (ready)",
            )
        ],
    )


def test_of_several_that_may_set_a_key_those_are_told_who_wait_for_it() -> None:
    wait = rank(3, call="store", stack=("/home/me/train.py:7 ready", "/home/me/train.py:9 <module>"))
    found = verdict(waiter(0), waiter(1), waiter(2), wait)
    assert [one.rank for one in found.culprits] == [3]
    assert "it waits in user code at train.py:7 (ready)" in found.said


def test_ranks_that_all_wait_for_a_key_blame_nobody() -> None:
    found = verdict(
        *(rank(number, call="store", stack=("/home/me/train.py:7 <module>",)) for number in range(4))
    )
    assert (found.verdict, found.culprits) == (Verdict.WAITING, ())
