"""The thresholds for slow nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model import limits as table
from clusterrun.model.frozen import fields, replace
from clusterrun.model.preflight_report import Grade
from clusterrun.preflight.thresholds import DEFAULTS, Thresholds, for_backend, line, median_of, outliers

LIMITS = DEFAULTS
rates = st.floats(0.001, 1e6)


def test_the_defaults_are_those_of_the_table() -> None:
    named = {entry.name: entry.default for entry in table.LIMITS}
    assert fields(LIMITS) == {name: named[name] for name in fields(LIMITS)}


def test_a_users_number_replaces_the_default() -> None:
    assert Thresholds.of_user([("slow_warn", 0.2)]) == replace(LIMITS, slow_warn=0.2)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (("slow", 1.0), "no limit is named slow"),
        (("z", -1.0), "limit z must be a number from 0 on, not -1.0"),
        (("z", float("nan")), "limit z must be a number from 0 on, not nan"),
        (("z", float("inf")), "limit z must be a number from 0 on, not inf"),
    ],
)
def test_a_limit_that_cannot_be_meant_is_refused(given_, message) -> None:
    with pytest.raises(ValueError, match=message):
        Thresholds.of_user([given_])


def test_every_limit_has_a_meaning_and_exists_once() -> None:
    assert all(entry.meaning and entry.unit and entry.default >= 0 for entry in table.LIMITS)
    assert len(table.BY_NAME) == len(table.LIMITS)


def test_only_the_share_counts_among_few_values() -> None:
    result = outliers({"a": 100.0, "b": 100.0, "c": 69.0, "d": 75.0}, LIMITS)
    assert {key: value.grade for key, value in result.items()} == {}
    result = outliers({"a": 100.0, "b": 100.0, "c": 100.0, "d": 69.0}, LIMITS)
    assert [(key, value.value, value.median, value.limit, value.grade) for key, value in result.items()] == [
        ("d", 69.0, 100.0, 70.0, Grade.WARN)
    ]


def test_a_tenth_below_the_median_is_a_warning_and_half_is_a_failure() -> None:
    values = dict(enumerate([100.0] * 30 + [89.0, 49.0]))
    assert {key: value.grade for key, value in outliers(values, LIMITS).items()} == {
        30: Grade.WARN,
        31: Grade.FAIL,
    }


def test_a_value_within_the_spread_is_no_outlier() -> None:
    values = dict(enumerate([100.0 + 2 * at for at in range(-15, 16)]))
    assert outliers(values, LIMITS) == {}


def test_a_floor_that_all_miss_draws_no_line() -> None:
    drawn = line([50.0] * 8, LIMITS, floor=80.0)
    assert drawn is not None
    assert drawn.slow == 45.0


def test_there_is_no_threshold_without_values() -> None:
    assert line([], LIMITS) is None
    assert outliers({}, LIMITS) == {}


def test_gloo_rates_may_vary_by_a_factor() -> None:
    assert for_backend(LIMITS, "nccl") == LIMITS
    wide = for_backend(LIMITS, "gloo")
    assert outliers(dict(enumerate([1.0, 0.9, 0.3, 0.5])), wide) == {}
    assert set(outliers(dict(enumerate([1.0, 0.9, 0.05, 1.1])), wide)) == {2}


@given(st.lists(rates, min_size=1, max_size=60))
def test_the_median_is_never_slow_and_slow_is_below_clear(values) -> None:
    drawn = line(values, LIMITS)
    assert drawn is not None
    assert 0 <= drawn.slow <= drawn.clear <= drawn.median


@given(st.lists(rates, min_size=1, max_size=60))
def test_at_most_half_are_outliers(values) -> None:
    assert len(outliers(dict(enumerate(values)), LIMITS)) <= len(values) // 2


@given(st.lists(rates, min_size=1, max_size=30), st.randoms())
def test_the_order_of_values_does_not_matter(values, luck) -> None:
    named = dict(enumerate(values))
    order = list(named)
    luck.shuffle(order)
    assert outliers({key: named[key] for key in order}, LIMITS) == outliers(named, LIMITS)


@given(st.lists(rates, min_size=1, max_size=20))
def test_half_the_values_are_not_above_the_median(values) -> None:
    middle = median_of(values)
    assert sum(value <= middle for value in values) * 2 >= len(values)
    assert sum(value >= middle for value in values) * 2 >= len(values)
