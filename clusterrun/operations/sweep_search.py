"""A sweep whose points Optuna asks for: asked and told here, queued as runs; ranks know nothing of it.

Trial n of the study is point n of the sweep. Both are on disk before a run is queued, so whoever continues
later finds what was asked, and asks for nothing twice.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Any

from clusterrun.config.sweep_points import Axis, Point, search_space
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunStatus
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.sweep import LOOK_EVERY, WAVE_SECONDS, new_sweep, run_name, start
from clusterrun.operations.sweep_results import is_number, reported
from clusterrun.runs.private_files import alone, empty_file, private_folder
from clusterrun.runs.sweep_records import SweepPoint, SweepRecord, Sweeps, SweepSearch

AT_ONCE = 4
FIRST = 10
"""So many runs, or as many as are at once, that all failed: not their values alone are at fault."""


def new_search(spec: JobSpec, search: SweepSearch, context: Context) -> SweepRecord:
    """A sweep of which no point is asked yet; makes no file. Raises ``BadInput``."""
    if not search.by:
        raise BadInput("--optuna needs --by NAME", "the name that the script gives to report(): --by loss")
    _optuna()
    names: Point = tuple((axis.name, "") for axis in search_space(search.sets))
    made = new_sweep(spec, [names], 0, context)
    return replace(made, points=(), search=replace(search, at_once=search.at_once or AT_ONCE))


def foreseen(sweep: SweepRecord) -> SweepRecord:
    """``sweep`` with points that Optuna might ask for first."""
    assert sweep.search is not None
    study = _optuna().create_study(sampler=_optuna().samplers.TPESampler(seed=0))
    count = min(sweep.search.at_once, sweep.search.trials)
    asked = [_point(study.ask(), sweep.search) for _ in range(count)]
    return replace(sweep, points=tuple(map(SweepPoint, asked)))


def searched(sweep: SweepRecord, context: Context, tell: Tell) -> SweepRecord:
    """Ask, queue and tell until every point that is wanted has ended. Raises ``ClusterrunError``."""
    assert sweep.search is not None
    with _alone(Sweeps(context.store).paths(sweep.sweep_id).run_dir, sweep.name):
        return _SearchLoop(sweep, sweep.search, context, tell).run()


class _SearchLoop:
    def __init__(self, sweep: SweepRecord, search: SweepSearch, context: Context, tell: Tell) -> None:
        self._sweep, self._search = replace(sweep, cancelled=False), search
        self._context, self._tell = context, tell
        self._known = Sweeps(context.store)
        self._storage = _storage(self._known.paths(sweep.sweep_id).run_dir)
        sampler = _optuna().samplers.TPESampler(constant_liar=True)
        known = {"study_name": sweep.sweep_id, "storage": self._storage, "load_if_exists": True}
        direction = "maximize" if search.largest else "minimize"
        self._study = _optuna().create_study(sampler=sampler, direction=direction, **known)
        self._failed = 0
        self._good = False

    def run(self) -> SweepRecord:
        """Keep as many runs alive as are wanted at once, as long as points are wanted."""
        self._known.save(self._sweep)
        while not self._known.read(self._sweep.sweep_id).cancelled:
            live = self._report_ended()
            room = min(self._search.at_once - len(live), self._search.trials - len(self._sweep.points))
            if room > 0 or self._sweep.waiting:
                self._ask(max(room, 0))
            elif not live:
                break
            else:
                there = live[0].cluster == Cluster.SLURM.value
                self._context.clock.sleep(WAVE_SECONDS if there else LOOK_EVERY)
        return self._known.read(self._sweep.sweep_id)

    def _report_ended(self) -> list[RunStatus]:
        """Tell the study which runs have ended; those that have not."""
        trials = self._study.get_trials(deepcopy=False)
        places = {
            point.run_id: place
            for place, point in enumerate(self._sweep.points)
            if point.run_id and not trials[place].state.is_finished()
        }
        live = []
        for status in self._context.inquiry(self._tell).statuses(list(places), gone=True):
            if status.state.ended:
                self._report_result(places[status.run_id], status)
            else:
                live.append(status)
        if not self._good and self._failed >= max(FIRST, self._search.at_once):
            name, then = self._sweep.name, f"clusterrun sweep continue {self._sweep.name}"
            seen = f"all {self._failed} runs of {name} that have ended reported no {self._search.by}"
            remedy = f"clusterrun diagnose {self._sweep.run_ids[-1]}; when it is mended: {then}"
            raise ClusterrunError(seen, remedy)
        return live

    def _report_result(self, place: int, status: RunStatus) -> None:
        by, name = self._search.by, run_name(self._sweep, place)
        value = reported(self._context.store.paths(status.run_id)).get(by)
        if not is_number(value):
            self._failed += 1
            self._study.tell(place, state=_optuna().trial.TrialState.FAIL)
            self._tell(f"{name}: {status.state.value}, reported no {by}")
            return
        self._good = True
        self._study.tell(place, value)
        best = self._study.best_trial
        others = f"best: {best.value:.6g}, {run_name(self._sweep, best.number)}"
        told = "the best so far" if best.number == place else others
        self._tell(f"{name}: {by}={value:.6g} ({told})")

    def _ask(self, count: int) -> None:
        """Queue what was asked before and is not queued, and ``count`` new points."""
        known = len(self._sweep.points)
        there = self._study.get_trials(deepcopy=False)[known:]
        study = self._storage.get_study_id_from_name(self._sweep.sweep_id)
        ids = [self._storage.get_trial_id_from_study_id_trial_number(study, one.number) for one in there]
        before = [_optuna().trial.Trial(self._study, one) for one in ids]
        trials = [*before, *(self._study.ask() for _ in range(count - len(before)))]
        asked = [_point(trial, self._search) for trial in trials]
        cancelled = self._known.read(self._sweep.sweep_id).cancelled
        points = (*self._sweep.points, *map(SweepPoint, asked))
        grown = replace(self._sweep, points=points, cancelled=cancelled)
        self._sweep = start(grown, self._context, self._tell)


def _point(trial: Any, search: SweepSearch) -> Point:
    """The values of a trial; those that it has already stay what they are."""
    return tuple((axis.name, str(_value(trial, axis))) for axis in search_space(search.sets))


def _value(trial: Any, axis: Axis) -> Any:
    if axis.kind == "any":
        return trial.suggest_categorical(axis.name, axis.values)
    if axis.kind == "int":
        return trial.suggest_int(axis.name, *map(int, axis.values))
    low, high = map(float, axis.values)
    return trial.suggest_float(axis.name, low, high, log=axis.kind == "log")


def _storage(folder: str) -> Any:
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    path = os.path.join(folder, "study.journal")
    empty_file(path)  # before Optuna makes it with the mode that the umask leaves
    return JournalStorage(JournalFileBackend(path))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        seen = f"--optuna needs the package optuna, which cannot be imported ({error})"
        raise BadInput(seen, "pip install 'clusterrun[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _alone(folder: str, name: str) -> AbstractContextManager[None]:
    """Two that ask for the points of one study would ask for twice as many. Raises ``BadInput``."""
    private_folder(folder)

    def refused(error: OSError) -> BadInput:
        seen = f"another process asks for the points of {name} ({error.strerror})"
        return BadInput(seen, f"clusterrun status {name} shows its runs")

    return alone(os.path.join(folder, "asking"), refused)
