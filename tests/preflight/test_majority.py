"""The odd one out is named where the others agree, and nobody where they do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterrun.preflight.majority import Vote, outlier_findings, vote
from tests.preflight.checks.values import FAIL, PASS, WARN


def test_one_of_three_deviates_and_one_of_two_does_not() -> None:
    assert vote({"n1": "a", "n2": "a", "n3": "b"}) == Vote(
        "a", ("n3",), (("a", ("n1", "n2")), ("b", ("n3",)))
    )
    assert vote({"n1": "a", "n2": "b"}) == Vote("", (), (("a", ("n1",)), ("b", ("n2",))))


def test_three_of_twelve_are_odd_also_when_they_differ_among_themselves() -> None:
    values = {f"n{i:02}": "a" for i in range(12)} | {"n03": "b", "n07": "c", "n11": "b"}
    assert vote(values).outliers == ("n03", "n07", "n11")


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from("abc"), max_size=12))
def test_at_most_a_third_deviates_and_the_rest_has_the_usual_value(values) -> None:
    result = vote(values)
    assert 3 * len(result.outliers) <= len(values)
    assert all(values[node] != result.majority for node in result.outliers)
    assert not result.outliers or {values[node] for node in values.keys() - set(result.outliers)} == {
        result.majority
    }


def test_a_note_stays_a_note_where_nobody_can_be_named() -> None:
    halves = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    assert [(node, value.verdict) for node, value in outlier_findings("c", "w", halves, PASS, "")] == [
        ("", PASS)
    ]
    assert [(node, value.verdict) for node, value in outlier_findings("c", "w", halves, FAIL, "")] == [
        ("", WARN)
    ]
