"""Ranks that train alone are reported in time. Ranks that train together never are."""

from __future__ import annotations

from typing import Any

from clusterrun.diagnosis.evidence import Pulse
from clusterrun.diagnosis.solo_ranks import Together


def pulses(at: float, size: int = 4, **changes: Any) -> list[Pulse]:
    """Return the pulses of ranks that all work and print since time 0."""
    values = {
        "state": "R",
        "seconds": at,
        "output": int(at * 10),
        "answered": True,
        "torch": True,
        "begun": 0,
    }
    return [Pulse(rank=rank, pid=100 + rank, **{**values, **changes}) for rank in range(size)]


def told(times: list[float], size: int = 4, **changes: Any) -> list[tuple[float, str]]:
    """Return the messages with their times, for ranks that do not change."""
    together = Together(size, 0.0)
    messages = [(at, together.heard(at, pulses(at, size, **changes))) for at in times]
    return [(at, arguments) for at, arguments in messages if arguments]


EVERY_TEN = [10.0 * n for n in range(1, 60)]


def test_ranks_without_a_group_are_reported_once_after_two_minutes_of_work() -> None:
    ((at, arguments),) = told(EVERY_TEN)
    assert at == 120.0
    assert arguments.startswith("training alone: 4 ranks work, and none has called init_process_group")


def test_groups_of_one_are_reported_after_two_sightings() -> None:
    together = Together(4, 0.0)
    messages = [together.heard(at, [_in_group(pulse, 1) for pulse in pulses(at)]) for at in EVERY_TEN]
    assert [place for place, value in enumerate(messages) if value] == [1]
    assert messages[1].startswith("training alone: each rank is in a group of its own")


def test_several_groups_are_reported() -> None:
    together = Together(4, 0.0)
    messages = [together.heard(at, [_in_group(pulse, 2) for pulse in pulses(at)]) for at in (10.0, 20.0)]
    assert "the largest has 2 of 4 ranks" in messages[1]


def test_an_unused_group_of_working_ranks_is_reported() -> None:
    together = Together(4, 0.0)
    messages = [together.heard(at, [_in_group(pulse, 4) for pulse in pulses(at)]) for at in EVERY_TEN]
    (arguments,) = [entry for entry in messages if entry]
    assert "the group of 4 ranks exists, but they have exchanged nothing for 120 s" in arguments


def test_a_used_group_is_healthy() -> None:
    together = Together(4, 0.0)
    for at in EVERY_TEN:
        used = [_in_group(pulse, 4, begun=int(at)) for pulse in pulses(at)]
        assert together.heard(at, used) == ""
    assert together.over(600.0) == ""


def test_ranks_that_still_prepare_data_without_work_of_their_own_are_not_accused() -> None:
    assert told(EVERY_TEN, seconds=3.0) == []


def test_programs_without_torch_are_not_accused() -> None:
    assert told(EVERY_TEN, torch=False) == []


def test_a_single_rank_is_never_alone() -> None:
    assert told(EVERY_TEN, 1) == []


def test_a_short_run_is_reported_at_its_end_by_its_ranks_records() -> None:
    together = Together(2, 0.0)
    assert together.heard(5.0, pulses(5.0, 2, alone=True, state="")) == ""
    assert together.over(6.0) == (
        "training alone: ranks 0-1 ended without joining the others"
        "; --env CLUSTERRUN_INDEPENDENT=1 where ranks are meant to be independent"
    )


def test_a_short_run_without_records_is_not_accused() -> None:
    together = Together(2, 0.0)
    together.heard(5.0, pulses(5.0, 2))
    assert together.over(6.0) == ""


def _in_group(pulse: Pulse, size: int, begun: int = 0) -> Pulse:
    return Pulse(
        pulse.rank, pulse.pid, pulse.state, pulse.seconds, pulse.output, True, True, size=size, begun=begun
    )
