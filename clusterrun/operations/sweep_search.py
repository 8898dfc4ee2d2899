"""Run a sweep whose points Optuna chooses. This process talks to Optuna; the ranks do not.

Trial n of the study is point n of the sweep. Both are on disk before a run is queued, so a later process
continues the sweep without a duplicate trial.
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
# Number of failed runs without a success after which the search stops, since their values are not the cause.
FIRST = 10


def new_search(spec: JobSpec, search: SweepSearch, context: Context) -> SweepRecord:
    """Return a sweep without points. No file is made. Raise ``BadInput``."""
    if not search.by:
        raise BadInput("--optuna needs --by NAME", "the name that the script gives to report(): --by loss")
    _optuna()
    names: Point = tuple((axis.name, "") for axis in search_space(search.sets))
    sweep = new_sweep(spec, [names], 0, context)
    return replace(sweep, points=(), search=replace(search, at_once=search.at_once or AT_ONCE))


def foreseen(sweep: SweepRecord) -> SweepRecord:
    """Return ``sweep`` with points that Optuna might choose first."""
    assert sweep.search is not None
    study = _optuna().create_study(sampler=_optuna().samplers.TPESampler(seed=0))
    count = min(sweep.search.at_once, sweep.search.trials)
    points = [_point(study.ask(), sweep.search) for _ in range(count)]
    return replace(sweep, points=tuple(map(SweepPoint, points)))


def searched(sweep: SweepRecord, context: Context, tell: Tell) -> SweepRecord:
    """Queue points and report their results to Optuna until every requested point has ended."""
    assert sweep.search is not None
    with _alone(Sweeps(context.store).paths(sweep.sweep_id).run_dir, sweep.name):
        return _SearchLoop(sweep, sweep.search, context, tell).run()


class _SearchLoop:
    def __init__(self, sweep: SweepRecord, search: SweepSearch, context: Context, tell: Tell) -> None:
        self._sweep, self._search = replace(sweep, cancelled=False), search
        self._context, self._tell = context, tell
        self._sweeps = Sweeps(context.store)
        self._storage = _storage(self._sweeps.paths(sweep.sweep_id).run_dir)
        sampler = _optuna().samplers.TPESampler(constant_liar=True)
        options = {"study_name": sweep.sweep_id, "storage": self._storage, "load_if_exists": True}
        direction = "maximize" if search.largest else "minimize"
        self._study = _optuna().create_study(sampler=sampler, direction=direction, **options)
        self._failed = 0
        self._good = False

    def run(self) -> SweepRecord:
        """Keep ``at_once`` runs alive until the study has all its trials."""
        self._sweeps.save(self._sweep)
        while not self._sweeps.read(self._sweep.sweep_id).cancelled:
            live = self._report_ended()
            room = min(self._search.at_once - len(live), self._search.trials - len(self._sweep.points))
            if room > 0 or self._sweep.waiting:
                self._ask(max(room, 0))
            elif not live:
                break
            else:
                on_slurm = live[0].cluster == Cluster.SLURM.value
                self._context.clock.sleep(WAVE_SECONDS if on_slurm else LOOK_EVERY)
        return self._sweeps.read(self._sweep.sweep_id)

    def _report_ended(self) -> list[RunStatus]:
        """Report the ended runs to the study. Return the live runs."""
        trials = self._study.get_trials(deepcopy=False)
        places = {
            point.run_id: place
            for place, point in enumerate(self._sweep.points)
            if point.run_id and not trials[place].state.is_finished()
        }
        live = []
        for status in self._context.inquiry(self._tell).statuses(list(places), skip_missing=True):
            if status.state.ended:
                self._report_result(places[status.run_id], status)
            else:
                live.append(status)
        if not self._good and self._failed >= max(FIRST, self._search.at_once):
            name, then = self._sweep.name, f"clusterrun sweep continue {self._sweep.name}"
            message = f"all {self._failed} runs of {name} that have ended reported no {self._search.by}"
            remedy = f"clusterrun diagnose {self._sweep.run_ids[-1]}; after the repair: {then}"
            raise ClusterrunError(message, remedy)
        return live

    def _report_result(self, place: int, status: RunStatus) -> None:
        """Report the result of an ended run, or its failure, to the study."""
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
        rank = "the best so far" if best.number == place else others
        self._tell(f"{name}: {by}={value:.6g} ({rank})")

    def _ask(self, count: int) -> None:
        """Queue ``count`` points: first the trials that are not queued yet, then new ones."""
        count_before = len(self._sweep.points)
        unqueued = self._study.get_trials(deepcopy=False)[count_before:]
        study = self._storage.get_study_id_from_name(self._sweep.sweep_id)
        ids = [
            self._storage.get_trial_id_from_study_id_trial_number(study, trial.number) for trial in unqueued
        ]
        before = [_optuna().trial.Trial(self._study, trial_id) for trial_id in ids]
        trials = [*before, *(self._study.ask() for _ in range(count - len(before)))]
        values = [_point(trial, self._search) for trial in trials]
        cancelled = self._sweeps.read(self._sweep.sweep_id).cancelled
        points = (*self._sweep.points, *map(SweepPoint, values))
        grown = replace(self._sweep, points=points, cancelled=cancelled)
        self._sweep = start(grown, self._context, self._tell)


def _point(trial: Any, search: SweepSearch) -> Point:
    """Return the values of a trial. Values that it has already do not change."""
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
    empty_file(path)  # before Optuna makes it with the mode of the umask
    return JournalStorage(JournalFileBackend(path))


def _optuna() -> Any:
    """Return the module ``optuna``. Raise ``BadInput`` if it cannot be imported."""
    try:
        import optuna
    except ImportError as error:
        message = f"--optuna needs the package optuna, which cannot be imported ({error})"
        raise BadInput(message, "pip install 'clusterrun[optuna]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _alone(folder: str, name: str) -> AbstractContextManager[None]:
    """Lock the search in ``folder``.

    Raise ``BadInput`` if another process holds it, since it would add trials.
    """
    private_folder(folder)

    def refused(error: OSError) -> BadInput:
        message = f"another process asks for the points of {name} ({error.strerror})"
        return BadInput(message, f"clusterrun status {name} shows its runs")

    return alone(os.path.join(folder, "asking"), refused)
