"""Points that Optuna asks for: so many at once, told once, and gone on with where somebody left off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import State
from clusterrun.operations import sweep_search
from clusterrun.operations.context import Context
from clusterrun.operations.sweep import retried
from clusterrun.operations.sweep_search import foreseen, new_search, searched
from clusterrun.runs.sweep_records import SweepRecord, Sweeps, SweepSearch

pytest.importorskip("optuna", reason="optuna is not installed: pip install 'clusterrun[optuna]'")
SETS = ("x=uniform(0,10)", "n=int(2,4)", "lr=log(1e-5,0.1)", "kind=a,b")
WORDS = ("train.py", "{x}", "{n}", "{lr}", "{kind}")


class Cluster:
    """Every run ends when it is looked at for the second time; ``leave_at``: Ctrl-C at that submission."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
        self.leave_at, self.fails = -1, False
        self.seen: dict[str, int] = {}
        self.batches: list[int] = []
        self.most = 0
        self.context = context
        monkeypatch.setattr(sweep_search, "start", self.start)
        monkeypatch.setattr(sweep_search, "reported", self.reported)
        monkeypatch.setattr(Context, "inquiry", lambda *_: self)
        monkeypatch.setattr(sweep_search, "LOOK_EVERY", 0.0)

    def start(self, sweep: SweepRecord, context: Context, tell: object) -> SweepRecord:
        Sweeps(context.store).save(sweep)
        self.batches.append(len(sweep.waiting))
        if len(self.batches) == self.leave_at:
            raise KeyboardInterrupt
        points = [
            replace(point, run_id=point.run_id or f"run-{place}") for place, point in enumerate(sweep.points)
        ]
        Sweeps(context.store).save(sweep := replace(sweep, points=tuple(points)))
        return sweep

    def statuses(self, ids: list[str], **_: object) -> list[Any]:
        self.most = max(self.most, len(ids))
        for run_id in ids:
            self.seen[run_id] = self.seen.get(run_id, 0) + 1
        return [
            type("Status", (), {
                "run_id": run_id, "cluster": "local",
                "state": State.COMPLETED if self.seen[run_id] > 1 else State.RUNNING,
            })
            for run_id in ids
        ]  # fmt: skip

    def reported(self, paths: RunPaths) -> dict[str, float]:
        place = int(paths.run_dir.rpartition("-")[2])
        return {} if self.fails or place % 3 == 1 else {"loss": float(place)}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    context = Context({"HOME": str(tmp_path), "CLUSTERRUN_HOME": str(tmp_path / "home"), "PATH": "/bin"})
    return Cluster(monkeypatch, context)


def search(cluster: Cluster, trials: int = 7, at_once: int = 2) -> SweepRecord:
    spec = JobSpec(WORDS, cluster.context.environ["HOME"], name="t")
    return new_search(spec, SweepSearch(SETS, trials, "loss", at_once=at_once), cluster.context)


def test_so_many_run_at_once_until_all_have_ended_and_the_study_knows_of_each(cluster: Cluster) -> None:
    messages: list[str] = []
    sweep = searched(search(cluster), cluster.context, messages.append)
    assert (len(sweep.points), sweep.waiting, sweep.unasked, cluster.most) == (7, [], 0, 2)
    assert [line.partition(" ")[0] for line in messages if "reported no" not in line] == [
        *("t.0:", "t.2:", "t.3:", "t.5:", "t.6:"),
    ]
    assert messages[0] == "t.0: loss=0 (the best so far)" and "t.1: COMPLETED, reported no loss" in messages
    for point in sweep.points:
        x, n, lr, kind = (value for _, value in point.values)
        assert 0 <= float(x) <= 10 and int(n) in (2, 3, 4) and 1e-5 <= float(lr) <= 0.1 and kind in "ab"


def test_what_was_asked_before_an_interruption_is_queued_and_nothing_is_asked_twice(cluster: Cluster) -> None:
    cluster.leave_at = 2
    with pytest.raises(KeyboardInterrupt):
        searched(search(cluster), cluster.context, str)
    interrupted = Sweeps(cluster.context.store).find("t")
    assert interrupted is not None and interrupted.waiting and interrupted.unasked
    values = [point.values for point in interrupted.points]
    sweep = searched(interrupted, cluster.context, str)
    assert [point.values for point in sweep.points][: len(values)] == values
    assert [point.run_id for point in sweep.points] == [f"run-{place}" for place in range(7)]
    more = replace(sweep, search=replace(sweep.search, trials=9)) if sweep.search else sweep
    assert len(searched(more, cluster.context, str).points) == 9


def test_a_script_that_never_reports_ends_it_and_so_does_cancel(cluster: Cluster) -> None:
    cluster.fails = True
    with pytest.raises(ClusterrunError, match="all 10 runs of t that have ended reported no loss"):
        searched(search(cluster, trials=40), cluster.context, str)
    sweeps = Sweeps(cluster.context.store)
    sweep = sweeps.find("t")
    assert sweep is not None and len(sweep.points) < 14
    with pytest.raises(BadInput, match="Optuna chose"):
        retried(sweep, cluster.context, str)
    cluster.fails = False

    def cancels(_: str) -> None:
        sweeps.called_off("t")

    assert len(searched(sweep, cluster.context, cancels).points) < 16


def test_two_do_not_ask_at_once_and_what_is_foreseen_touches_nothing(cluster: Cluster) -> None:
    sweep = search(cluster)
    assert len(foreseen(sweep).points) == 2 and cluster.batches == []
    assert not Path(cluster.context.store.home, "sweeps").exists()
    with (
        sweep_search._alone(Sweeps(cluster.context.store).paths(sweep.sweep_id).run_dir, "t"),
        pytest.raises(BadInput, match="another process asks"),
    ):
        searched(sweep, cluster.context, str)
