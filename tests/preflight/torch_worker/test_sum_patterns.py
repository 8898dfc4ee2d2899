"""The laws of exact sums: what is right is right for every world, and each kind of wrong is seen."""

from __future__ import annotations

import pytest
import torch

from clusterrun.preflight.torch_worker import sum_patterns

WORLDS = [1, 2, 3, 16, 17, 64]
COUNT = 1000


def summed(kind: str, ranks: list[int]) -> torch.Tensor:
    return sum(
        (sum_patterns.contribution(rank, COUNT, kind) for rank in ranks[1:]),
        sum_patterns.contribution(ranks[0], COUNT, kind),
    )


@pytest.mark.parametrize("kind", sum_patterns.KINDS)
@pytest.mark.parametrize("world", WORLDS)
def test_the_sum_of_all_contributions_is_right(kind, world) -> None:
    assert sum_patterns.difference(summed(kind, list(range(world))), world, kind) == ""


def test_float_sums_of_fifty_thousand_ranks_are_exact() -> None:
    assert sum_patterns.total(50_000, 16384, "int64").abs().max() > 2**24
    whole = sum_patterns.total(50_000, 16384, "float32")
    assert whole.abs().max() < 2**24
    assert torch.equal(whole, whole.to(torch.int64).to(torch.float32))


@pytest.mark.parametrize("kind", sum_patterns.KINDS)
def test_one_wrong_bit_is_detected_with_its_place_and_values(kind) -> None:
    result = sum_patterns.total(4, COUNT, kind)
    right = result[777].item()
    result[777] += 1
    assert (
        sum_patterns.difference(result, 4, kind)
        == f"{kind} sum: element 777 is {result[777].item()} instead of {right}"
    )


@pytest.mark.parametrize("kind", sum_patterns.KINDS)
def test_a_missing_contribution_is_named(kind) -> None:
    message = sum_patterns.difference(summed(kind, [0, 1, 3]), 4, kind)
    assert message.startswith(f"{kind} sum: element 0 is ")
    assert message.endswith("(1000 of 1000 elements differ): what rank 2 gave is missing")


@pytest.mark.parametrize("kind", sum_patterns.KINDS)
def test_a_doubled_contribution_is_named(kind) -> None:
    assert sum_patterns.difference(summed(kind, [0, 1, 2, 2]), 3, kind).endswith(
        "what rank 2 gave is there twice"
    )


@pytest.mark.parametrize("kind", sum_patterns.KINDS)
def test_a_replaced_contribution_is_detected_without_a_name(kind) -> None:
    message = sum_patterns.difference(summed(kind, [0, 1, 1, 3]), 4, kind)
    assert message.startswith(f"{kind} sum: element 0 is ")
    assert "rank" not in message


@pytest.mark.parametrize("kind", sum_patterns.KINDS)
def test_elements_that_changed_places_are_seen(kind) -> None:
    result = sum_patterns.total(4, COUNT, kind).roll(1)
    assert sum_patterns.difference(result, 4, kind) != ""


def test_a_weight_that_several_ranks_have_names_none_of_them() -> None:
    ranks = list(range(32))
    ranks.remove(5)  # in floats rank 21 gives the same
    assert "rank" not in sum_patterns.difference(summed("float32", ranks), 32, "float32")
    assert sum_patterns.difference(summed("int64", ranks), 32, "int64").endswith(
        "what rank 5 gave is missing"
    )


def test_changed_contributions_of_a_gather_are_found_by_rank() -> None:
    provided = [sum_patterns.contribution(rank, COUNT, "int64") for rank in range(3)]
    assert sum_patterns.changed(provided, "int64") == {}
    provided[1][40] ^= 1
    provided[2][7] += 9
    assert sum_patterns.changed(provided, "int64") == {1: 40, 2: 7}
