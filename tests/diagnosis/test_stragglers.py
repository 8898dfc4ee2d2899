"""The rank that arrives last is reported only if this is no chance and costs time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from clusterrun.diagnosis.evidence import RankSnapshot
from clusterrun.diagnosis.stragglers import Straggler
from clusterrun.diagnosis.stragglers import find_straggler as straggler_of
from tests.diagnosis.ranks import LIBRARY, case, changed, rank, record

STEPS = 40


def find_straggler(observed: Sequence[RankSnapshot], offsets: Mapping[str, float]) -> Straggler | None:
    return straggler_of(case(*observed, offsets=tuple(offsets.items())))


def ranks(arrivals: list[list[float]], nodes: list[str] | None = None) -> list[RankSnapshot]:
    """Return a rank for each list of times at which it came to its collectives."""
    size = len(arrivals)
    return [
        rank(
            n,
            size,
            STEPS,
            node=(nodes or ["n0"] * size)[n],
            records=tuple(record(i, at=1000.0 + at) for i, at in enumerate(times)),
        )
        for n, times in enumerate(arrivals)
    ]


def test_the_rank_at_half_speed_is_reported_with_its_cost() -> None:
    slow = [0.2 * i for i in range(STEPS)]
    quick = [at - 0.1 for at in slow]
    result = find_straggler(ranks([quick, quick, slow, quick]), {})
    assert result is not None
    assert (result.rank, result.last, result.of) == (2, 20, 20)
    assert 0.45 < result.share < 0.55


def test_jittering_ranks_of_equal_speed_have_no_slowest() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        jitter = [[0.2 * i + chance.uniform(0.0, 0.1) for i in range(STEPS)] for _ in range(4)]
        assert find_straggler(ranks(jitter), {}) is None


def test_a_rank_that_is_last_by_little_is_not_slow() -> None:
    steps = [0.2 * i for i in range(STEPS)]
    assert find_straggler(ranks([steps, [at + 0.01 for at in steps]]), {}) is None


def test_a_known_clock_offset_makes_no_slow_rank() -> None:
    steps = [0.2 * i for i in range(STEPS)]
    ahead = ranks([steps, [at + 30.0 for at in steps]], ["n0", "n1"])
    assert find_straggler(ahead, {"n0": 0.0, "n1": 30.0}) is None


def test_overlapping_buckets_are_awaited_once() -> None:
    """Five collectives begun within a step, all of them late by the same half step."""
    slow = [0.2 * (i // 5) + 0.001 * (i % 5) for i in range(STEPS)]
    result = find_straggler(ranks([[at - 0.1 for at in slow], slow]), {})
    assert result is not None
    assert result.rank == 1
    assert result.share < 0.7


def test_too_few_collectives_tell_nothing() -> None:
    few = [[0.2 * i for i in range(8)], [0.2 * i + 0.1 for i in range(8)]]
    assert find_straggler(ranks(few), {}) is None


def test_groups_of_one_have_no_waiting_rank() -> None:
    assert find_straggler([rank(0, 1)], {}) is None
    assert Straggler(0, 1, 1, 0.5, 1.0).rank == 0


@pytest.mark.parametrize("each", [1, 2, 5, 12])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_slow_rank_is_reported_for_any_number_of_collectives_and_equal_ranks_never(
    size: int, each: int
) -> None:
    for seed in range(6):
        slow = seed % size
        result = find_straggler(_steps(random.Random(seed), size, each, slow), {})
        assert result is not None
        assert result.rank == slow
        assert find_straggler(_steps(random.Random(seed), size, each, None), {}) is None


def _steps(chance: random.Random, size: int, each: int, slow: int | None) -> list[RankSnapshot]:
    """Return ranks with jittering steps that end with ``each`` collectives. ``slow`` takes twice as long."""
    times: list[list[float]] = [[] for _ in range(size)]
    now = 0.0
    for _ in range(60):
        arrivals = [now + 0.1 * chance.uniform(0.8, 1.2) * (2 if n == slow else 1) for n in range(size)]
        for _ in range(each):
            for n in range(size):
                times[n].append(arrivals[n])
            met = max(arrivals) + 0.002
            arrivals = [met + chance.uniform(0.0, 0.001) for _ in range(size)]
        now = max(arrivals)
    return [
        rank(n, size, len(at), node="n0", records=tuple(record(i, at=1000.0 + t) for i, t in enumerate(at)))
        for n, at in enumerate(newest[-256:] for newest in times)
    ]


def test_a_rank_that_was_slow_in_an_earlier_phase_is_not_called_slow_now() -> None:
    for quick in (70, 100, 150):
        slow = [0.3 * i for i in range(100)]
        then = [slow[-1] + 0.001 * (i + 1) for i in range(quick)]
        steady = [then[-1] + 0.5 * (i + 1) for i in range(4)]
        late_then = slow + then + steady
        before = [at - 0.2 for at in slow] + then + steady
        assert find_straggler(_ranks_of([before, before, late_then, before]), {}) is None


JOINED = (
    f"{LIBRARY}/torch/distributed/distributed_c10d.py:3252 all_reduce",
    f"{LIBRARY}/torch/distributed/algorithms/join.py:308 _notify_procs_to_terminate",
    f"{LIBRARY}/torch/distributed/algorithms/join.py:252 __exit__",
    "/home/me/train.py:12 <module>",
)
ASKS = (
    f"{LIBRARY}/torch/distributed/algorithms/join.py:330 notify_join_context",
    f"{LIBRARY}/torch/nn/parallel/distributed.py:1690 forward",
    "/home/me/train.py:14 <module>",
)
"""A rank that has data says so to the others at each step."""


@pytest.mark.parametrize(("joined", "slow"), [((), 3), ((0,), 3), ((0, 1), 3), ((0, 1, 2), None)])
def test_a_rank_that_still_has_data_is_not_slow(joined: tuple[int, ...], slow: int | None) -> None:
    observed = _steps(random.Random(1), 4, 3, 3)
    result = find_straggler(
        [changed(entry, stack=JOINED if entry.rank in joined else ASKS) for entry in observed], {}
    )
    assert (result.rank if result else None) == slow


def _ranks_of(arrivals: list[list[float]]) -> list[RankSnapshot]:
    return [
        rank(
            n,
            len(arrivals),
            len(at),
            node="n0",
            records=tuple(record(i, at=1000.0 + t) for i, t in enumerate(at)),
        )
        for n, at in enumerate(arrivals)
    ]


@pytest.mark.parametrize(("pause", "named"), [(0.05, None), (0.2, 2)])
def test_a_rank_that_lags_by_a_fifth_is_reported_after_five_seconds(pause: float, named: int | None) -> None:
    lags = [pause * i for i in range(STEPS)]
    result = find_straggler(
        ranks([[at - 0.2 * pause for at in lags] if n != 2 else lags for n in range(4)]), {}
    )
    assert (result and result.rank) == named
