"""Files of a run's earlier jobs are read before they are overwritten, and its last report is kept."""

from __future__ import annotations

import threading
from pathlib import Path

from clusterrun.coordinator.io.run_directory import StateWriter
from clusterrun.coordinator.run_state import RunStateKeeper
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import Attempt, RunState
from clusterrun.model.states import Phase, State
from clusterrun.protocol.bootstrap import Timeouts
from clusterrun.runtime.event_loop import EventLoop
from clusterrun.runtime.machine_events import Now
from clusterrun.runtime.run_files import read_state


def test_a_coordinator_writes_no_state_before_it_knows_the_earlier_attempts() -> None:
    state_keeper, now = RunStateKeeper("r", "n1", 7, Timeouts(), ("41", 0)), Now(5.0, 1_800_000_000.0)
    assert state_keeper.due_at is None
    earlier = Attempt(0, "first start", ("n0",), 1.0, 2.0, "NODE_FAIL")
    state_keeper.remember((earlier,))
    state_keeper.open(now, 1, "started again", "node")
    assert state_keeper.due_at == 0.0
    saved = state_keeper.save(now)
    assert (saved.state.epoch, [a.epoch for a in saved.state.attempts]) == (1, [0, 1])


def test_the_last_word_of_a_run_waits_for_a_run_directory_that_is_away_for_a_while(tmp_path: Path) -> None:
    folder, away = tmp_path / "run", tmp_path / "away"
    folder.mkdir(mode=0o700)
    (folder / ".state.json.13").touch()  # of a coordinator whose node lost its power over it
    paths = RunPaths(str(folder))
    saver = StateWriter(EventLoop(), paths, lambda text: None)
    folder.rename(away)
    back = threading.Timer(1.0, away.rename, (folder,))
    back.start()
    saver.save(RunState("r", 0, State.COMPLETED, Phase.ENDED, "", "h", 1, 2.0))
    saver.finish()
    state = read_state(paths)
    assert state is not None and state.state is State.COMPLETED
    assert [path.name for path in folder.iterdir()] == ["state.json"]
