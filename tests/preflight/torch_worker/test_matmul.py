"""The laws of the product: it is exact, a wrong element is found, its fingerprint stays the same."""

from __future__ import annotations

import pytest
import torch

from clusterrun.preflight.torch_worker import matmul

LEFT, RIGHT = matmul.operands(64)


def whole() -> torch.Tensor:
    return LEFT @ RIGHT


def test_operands_are_small_integers_of_both_signs() -> None:
    for entry in (LEFT, RIGHT):
        assert torch.equal(entry, entry.round())
        assert (entry.min().item(), entry.max().item()) == (-8, 8)


def test_sums_are_exact_in_float32_at_the_largest_size() -> None:
    assert 8 * 8 * max(matmul._SIZE.values()) < 2**24


def test_a_right_product_has_no_difference() -> None:
    assert matmul.difference(LEFT, RIGHT, whole()) == ""


@pytest.mark.parametrize(("row", "column"), [(0, 0), (17, 42), (63, 63)])
def test_a_wrong_element_is_found_by_its_row_and_column(row, column) -> None:
    result = whole()
    result[row, column] += 1
    message = matmul.difference(LEFT, RIGHT, result)
    assert message == f"product: wrong in row {row}, column {column} (1 rows and 1 columns are wrong)"


def test_two_errors_that_cancel_in_a_row_are_found_by_their_columns() -> None:
    result = whole()
    result[5, 1] += 1
    result[5, 2] -= 1
    message = matmul.difference(LEFT, RIGHT, result)
    assert message == "product: wrong in no row's sum, column 1 (0 rows and 2 columns are wrong)"


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.5])
def test_values_that_are_no_integers_are_wrong(bad) -> None:
    result = whole()
    result[1, 2] = bad
    assert matmul.difference(LEFT, RIGHT, result) != ""


def test_the_fingerprint_does_not_change_with_versions_of_torch_or_machines() -> None:
    assert matmul.fingerprint(torch.mm(*matmul.operands(384))) == "4bf170e4c991cefc"


def test_both_zeros_have_the_same_fingerprint() -> None:
    assert matmul.fingerprint(torch.tensor([0.0])) == matmul.fingerprint(torch.tensor([-0.0]))
