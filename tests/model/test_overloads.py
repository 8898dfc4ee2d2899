"""An overload of a quarter of a wait excuses it. A limit gets five times its length more at most."""

from __future__ import annotations

import pytest

from clusterrun.model.overloads import Overloads, is_excused


@pytest.mark.parametrize(
    "reports, since, now, excused",
    [
        ([], 0.0, 20.0, False),
        ([(10.0, 5.0)], 0.0, 20.0, True),  # from 5 to 15: it lasts until the next report can show its end
        ([(10.0, 5.0)], 0.0, 41.0, False),
        ([(10.0, 5.0)], 15.0, 20.0, False),
        ([(10.0, 5.0)], 12.0, 20.0, True),
        ([(5.0, 5.0), (40.0, 5.0)], 0.0, 80.0, True),
        ([(5.0, 5.0), (40.0, 5.0)], 0.0, 81.0, False),
        ([(5.0, 5.0), (10.0, 5.0), (15.0, 5.0)], 0.0, 80.0, True),  # overlapping spans count once
        ([(5.0, 5.0), (10.0, 5.0), (15.0, 5.0)], 0.0, 81.0, False),
        ([(10.0, 5.0)], 20.0, 20.0, False),
    ],
)
def test_an_overload_excuses_a_wait(
    reports: list[tuple[float, float]], since: float, now: float, excused: bool
) -> None:
    machine = Overloads()
    for at, seconds in reports:
        machine.add(at, seconds)
    assert machine.excuse(since, now) == excused


def test_a_limit_gets_five_times_its_length_more_and_no_longer() -> None:
    machine = Overloads()
    for at in range(0, 1000, 5):
        machine.add(float(at), 5.0)
    assert [machine.extend(100.0, 20.0, now) for now in (120.0, 219.0, 220.0)] == [True, True, False]


def test_the_excusing_share_of_overloads_is_one_quarter() -> None:
    assert [is_excused(overloaded, 10.0) for overloaded in (2.4, 2.5, 10.0)] == [False, True, True]
