"""Values that several tests of the context start from."""

from __future__ import annotations

from typing import Any

from clusterrun.model.frozen import replace
from clusterrun.model.record import Attempt, Failure, RunRecord, RunState
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import Phase, State
from clusterrun.slurm.queries import JobRow

NOW = 1_800_000_000.0
ID = "20270115-080000-0000-train"
SPEC = JobSpec(command=("train.py",), cwd="/home/me", name="train", nodes=2, gpus=4)
RECORD = RunRecord(ID, "train", "slurm", "token", SPEC, NOW - 100, "41", host="login")
FAILURE = Failure(3, "n1", 7, NOW - 5, "rank 3 on n1 exited with code 7", ("last words",))
ATTEMPT = Attempt(0, "first start", ("n0", "n1"), NOW - 50)
STATE = RunState(ID, 0, State.RUNNING, Phase.TRAINING, "", "n0", 12, NOW - 2, (ATTEMPT,), NOW - 50)
ROW = JobRow("41", "RUNNING", "None", "n[0-1]", NOW - 60, NOW + 3600, "train", f"clusterrun:{ID}:token", 2)


def state(word: State = State.RUNNING, **changes: Any) -> RunState:
    """Return ``STATE`` in another state, ended if the state is an end."""
    ends = {"phase": Phase.ENDED, "ended_at": NOW - 4, "exit_code": 0} if word.ended else {}
    return replace(STATE, **{"state": word, **ends, **changes})


def row(word: str = "RUNNING", **changes: Any) -> JobRow:
    """Return ``ROW`` in another state."""
    return replace(ROW, word=word, **changes)
