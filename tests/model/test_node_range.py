"""Nodes as people ask for them."""

from __future__ import annotations

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.model.node_range import as_text, read


@pytest.mark.parametrize(
    "text, most, least, again",
    [
        ("4", 4, 0, "4"),
        (" 4 ", 4, 0, "4"),
        ("1-4", 4, 1, "1-4"),
        ("4-4", 4, 0, "4"),
        ("0", 0, 0, "0"),
        ("-1", -1, 0, "-1"),
    ],
)
def test_a_number_or_the_least_and_the_most(text: str, most: int, least: int, again: str) -> None:
    assert read(text) == (most, least)
    assert as_text(most, least) == again


@pytest.mark.parametrize("text", ["", "many", "--1", "1-", "4-1", "0-4", "1-4-8", "1.5", "1:4", "1-4\n5"])
def test_a_wrong_number_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="--nodes"):
        read(text)
