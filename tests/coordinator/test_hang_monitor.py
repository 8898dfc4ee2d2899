"""A finding of the hang monitor appears in the run's warnings, and disappears when it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.coordinator import hang_monitor
from clusterrun.coordinator.actions import Announce
from clusterrun.coordinator.failures import RunOutcome
from clusterrun.coordinator.run_part import Shared
from clusterrun.coordinator.run_state import RunStateKeeper
from clusterrun.model import contract
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Survival
from clusterrun.model.states import State
from clusterrun.monitor.hang_detector import TakeBack, Warn
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.runtime.machine_events import Note, Now
from tests.coordinator.tapes import ORDERS

NOW = Now(5.0, 1_800_000_000.0)


class Says:
    """A detector that says at each tick what was prepared."""

    def __init__(self, *ticks: list[Any]) -> None:
        self.ticks = list(ticks)

    def tick(self, now: Now) -> list[Any]:
        return self.ticks.pop(0)


def test_an_outdated_warning_is_dropped_and_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state_keeper, noted = RunStateKeeper("r", "n1", 7, Timeouts(), ("41", 0)), []
    again = TakeBack("training alone", "they train together now")
    detector = Says([Warn("training alone: 4 ranks"), Warn("out of memory on n2")], [again], [again])
    monkeypatch.setattr(hang_monitor, "HangDetector", lambda *arguments: detector)
    live: Any = SimpleNamespace(epoch=0)
    membership: Any = SimpleNamespace(world=())
    watching = hang_monitor.HangMonitor(Shared(ORDERS, membership, state_keeper, noted), live, NOW)
    watching.tick(NOW)
    assert state_keeper.state.warnings == ("training alone: 4 ranks", "out of memory on n2")
    watching.tick(NOW)
    watching.tick(NOW)
    assert state_keeper.state.warnings == ("out of memory on n2",)
    assert noted[2:] == [Note("they train together now")]


@pytest.mark.parametrize(
    ("end", "stalled", "is_reported"),
    [(State.TIMEOUT, 90.0, True), (State.TIMEOUT, 0.0, False), (State.CANCELLED, 90.0, False)],
)
def test_a_time_limit_of_a_run_that_hung_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch, end: State, stalled: float, is_reported: bool
) -> None:
    detector = SimpleNamespace(stalled=lambda now: stalled)
    monkeypatch.setattr(hang_monitor, "HangDetector", lambda *arguments: detector)
    live: Any = SimpleNamespace(epoch=0)
    membership: Any = SimpleNamespace(world=())
    shared = Shared(ORDERS, membership, RunStateKeeper("r", "n1", 7, Timeouts(), ("41", 0)), [])
    outcome = hang_monitor.HangMonitor(shared, live, NOW).explained(NOW, RunOutcome(end, "limit", 1))
    assert (f"limit{contract.STALLED}1 min 30 s" in outcome.reason) is is_reported


def test_a_hang_is_announced_with_its_diagnosis_if_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = [Warn("out of memory on n2"), Warn("nothing has moved for 600 s", hangs=True)]
    for survival, expected in ((Survival(), []), (Survival(notify=("mailto:a@b.org",)), ["hung"])):
        state_keeper, actions = RunStateKeeper("r", "n1", 7, Timeouts(), ("41", 0)), []
        monkeypatch.setattr(hang_monitor, "HangDetector", lambda *arguments: Says(warnings))
        live: Any = SimpleNamespace(epoch=0)
        membership: Any = SimpleNamespace(world=())
        shared = Shared(replace(ORDERS, survival=survival), membership, state_keeper, actions)
        hang_monitor.HangMonitor(shared, live, NOW).tick(NOW)
        announced = [action for action in actions if isinstance(action, Announce)]
        assert [action.event for action in announced] == expected
        assert all(action.reason == "nothing has moved for 600 s" for action in announced)
