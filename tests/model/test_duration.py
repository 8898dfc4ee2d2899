"""The laws of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterrun.model.duration import LONGEST, parse, slurm_form, spoken
from clusterrun.model.errors import BadInput


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("1-12:30:15", 131415),
        ("0-0:1", 60),
        ("90m", 5400),
        ("90min", 5400),
        ("2h", 7200),
        ("1d12h", 129600),
        ("1D", 86400),
        ("2w", 1209600),
        ("1w1d", 691200),
        ("45s", 45),
        ("1h30m15s", 5415),
        (" 2h ", 7200),
    ],
)
def test_slurms_forms_and_peoples_forms_are_read(text: str, seconds: int) -> None:
    assert parse(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0h", "-5", "1.5h", "h", "2h1d", "1:2:3:4", "1-", "1-2-3", "١", "2 h", "99999d", "ten"]
)
def test_a_wrong_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert (caught.value.seen, "90m" in caught.value.remedy) == (f"{text!r} is not a duration", True)


@pytest.mark.parametrize("text", ["UNLIMITED", "0", "0-00:00:00"])
def test_an_unlimited_duration_is_passed_to_slurm_and_never_invented(text: str) -> None:
    with pytest.raises(BadInput, match="--sbatch time=UNLIMITED"):
        parse(text)


@given(st.integers(1, LONGEST))
def test_slurms_form_of_a_length_is_read_back_as_the_same_length(seconds: int) -> None:
    assert parse(slurm_form(seconds)) == seconds


@pytest.mark.parametrize(
    "seconds, arguments",
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (5400, "1 h 30 min"),
        (129600, "1 d 12 h"),
        (90061, "1 d 1 h"),
        (3601, "1 h 1 s"),
    ],
)
def test_people_read_the_two_largest_units(seconds: float, arguments: str) -> None:
    assert spoken(seconds) == arguments
