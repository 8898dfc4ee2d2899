"""Ranks that began sends and receives together: the list that does not fit, or between whom it lies."""

from __future__ import annotations

import pytest

from clusterrun.diagnosis.decide import decide
from clusterrun.diagnosis.evidence import Group, PostedOp, RankSnapshot
from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from tests.diagnosis.ranks import BARRIER, LIBRARY, LOOP, case, rank, waiter

STACK = ("/home/me/train.py:16 ring", "/home/me/train.py:30 <module>")
SIZE = 4


def posts(number: int, *listed: PostedOp, before: int = 20) -> RankSnapshot:
    """Return a rank that waits for its posted calls, after ``before`` sends and receives."""
    groups = (Group("0", SIZE, 10 + before + len(listed), True, "gloo", f"0-{SIZE - 1}"),)
    return rank(number, SIZE, call="wait", posts=listed, groups=groups, stack=STACK)


def ring(number: int, to: int = 1, tag: int = 0, before: int = 20) -> RankSnapshot:
    """Return a rank that sends to the rank at distance ``to``, and receives from the one before."""
    sent = PostedOp("send", (number + to) % SIZE, tag)
    return posts(number, sent, PostedOp("recv", (number - 1) % SIZE), before=before)


def verdict(*observed: RankSnapshot) -> Diagnosis:
    return decide(case(*observed, stalled=60.0)).diagnosis


@pytest.mark.parametrize(
    ("odd", "listed"),
    [
        (ring(1, to=2), "send to rank 3, recv from rank 0"),
        (posts(1, PostedOp("recv", 0)), "recv from rank 0"),
        (posts(1, PostedOp("send", 2)), "send to rank 2"),
        (ring(1, tag=5), "send to rank 2 (tag 5), recv from rank 0"),
    ],
)
def test_the_rank_of_a_ring_with_a_different_list_is_named(odd: RankSnapshot, listed: str) -> None:
    result = verdict(ring(0), odd, ring(2), ring(3))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [1])
    assert result.culprits[0].why.startswith(f"it posts {listed} at train.py:16 (ring), which does not fit")


def test_the_rank_that_fits_neither_of_two_is_named_without_a_pattern() -> None:
    star = [posts(number, PostedOp("send", 0), PostedOp("recv", 0)) for number in (1, 2)]
    result = verdict(posts(0, PostedOp("send", 3), PostedOp("recv", 3)), *star, waiter(3))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [0])


def test_two_ranks_with_mismatched_lists_are_both_reported_without_blame() -> None:
    result = verdict(waiter(0), ring(1, to=2), ring(2), waiter(3))
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
    assert result.message == (
        "rank 2 waits for a recv from rank 1, which has posted no other half of it: "
        "the list of one of ranks 1-2 is wrong"
    )
    assert result.evidence[:2] == (
        "rank 1 posts send to rank 3, recv from rank 0",
        "rank 2 posts send to rank 3, recv from rank 1",
    )


@pytest.mark.parametrize("behind", [0, 18, 22])
def test_a_rank_in_another_turn_may_have_answered_before(behind: int) -> None:
    result = verdict(ring(0), ring(1, to=2, before=behind), ring(2), waiter(3))
    assert not any("post" in culprit.why for culprit in result.culprits)
    assert "posted" not in result.message


def test_lists_that_fit_blame_nobody() -> None:
    result = verdict(*(ring(number) for number in range(SIZE)))
    assert (result.verdict, result.culprits) == (Verdict.UNDETERMINED, ())
    assert result.message == "ranks 0-3 wait for a send or receive that is not answered at train.py:16 (ring)"


def test_a_rank_that_has_not_come_is_named_whatever_the_others_posted() -> None:
    late = rank(3, SIZE, stack=("/home/me/train.py:9 load", "/home/me/train.py:30 <module>"))
    result = verdict(ring(0), ring(1, to=2), waiter(2), late)
    assert [culprit.rank for culprit in result.culprits] == [3]


def end(number: int, call: str, peer: int, line: int = 8) -> RankSnapshot:
    stack = (f"{LIBRARY}/torch/distributed/distributed_c10d.py:2753 {call}", f"/home/me/train.py:{line} swap")
    return rank(number, SIZE, call=call, peer=peer, stack=stack)


@pytest.mark.parametrize("call", ["send", "recv"])
def test_ranks_that_all_send_first_are_named_and_none_that_waits_for_them(call: str) -> None:
    result = verdict(waiter(0, stack=BARRIER), end(1, call, 2), end(2, call, 1), waiter(3, stack=BARRIER))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, [1, 2])
    first, second = ("send", "receive") if call == "send" else ("receive", "send")
    assert f"each {first}s before it {second}s" in result.message


def test_a_ring_of_senders_names_no_single_rank() -> None:
    result = verdict(*(end(number, "send", (number + 1) % SIZE) for number in range(SIZE)))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert "each sends before it receives" in result.message


@pytest.mark.parametrize(
    ("ends", "culprits"),
    [
        # The last rank of a pipeline receives from another one than sends to it.
        ((("send", 1, 8), ("send", 2, 8), ("send", 3, 8), ("recv", 1, 7)), [3]),
        # The first rank sends to the last one.
        ((("send", 3, 7), ("recv", 0, 8), ("recv", 1, 8), ("recv", 2, 8)), [0]),
        # Nothing shows whether rank 0 or rank 3 names the wrong one.
        ((("send", 3, 7), ("recv", 0, 8), ("recv", 0, 8), ("recv", 1, 9)), []),
    ],
)
def test_the_rank_with_another_peer_than_its_line_has_is_named(
    ends: tuple[tuple[str, int, int], ...], culprits: list[int]
) -> None:
    result = verdict(*(end(number, *call) for number, call in enumerate(ends)))
    assert (result.verdict, [culprit.rank for culprit in result.culprits]) == (Verdict.MISMATCH, culprits)


def test_ranks_that_receive_in_different_lines_are_reported_without_blame() -> None:
    """One of them has left out a send."""
    result = verdict(end(0, "recv", 1), end(1, "send", 2, 9), end(2, "recv", 3), end(3, "recv", 2, 7))
    assert (result.verdict, result.culprits) == (Verdict.MISMATCH, ())
    assert result.message.startswith("ranks 2-3 wait for each other: each receives before it sends")


def test_sends_to_a_rank_outside_are_no_circle() -> None:
    result = verdict(end(0, "send", 1), end(1, "send", 2), end(2, "send", 3), rank(3, stack=LOOP))
    assert [culprit.rank for culprit in result.culprits] == [3]
