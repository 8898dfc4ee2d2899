"""The sweeps below one home, with the run of each point.

``$CLUSTERRUN_HOME/sweeps/<sweep id>/`` holds ``sweep.json``, the script of each queued array, and the copy of
the code if a snapshot was requested. The runs are ordinary runs.
"""

from __future__ import annotations

import json
import os

from clusterrun.model import contract
from clusterrun.model.document import BadDocument, encode_set
from clusterrun.model.errors import ClusterrunError, NoSuchRun
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.runs.private_files import names_in, private_folder, refusal, trust, write_whole
from clusterrun.runs.run_documents import read_document
from clusterrun.runs.store import Store, file_name, name_of


@frozen
class SweepPoint:
    """A point of a sweep."""

    values: tuple[tuple[str, str], ...]  # names and values
    run_id: str = ""  # its run; '': not queued
    earlier: tuple[str, ...] = ()  # its earlier runs


@frozen
class SweepRecord:
    """``sweep.json``. Its mode is 0600, since it holds the environment."""

    sweep_id: str
    name: str
    spec: JobSpec  # as requested; its command has the placeholders
    points: tuple[SweepPoint, ...]
    submitted_at: float
    at_most: int = 0  # number of runs that may live at once; 0: no limit
    job_id: str = ""  # the newest array
    cancelled: bool = False  # no further point is queued until the sweep is continued
    format: int = contract.FORMAT

    @property
    def run_ids(self) -> list[str]:
        return [point.run_id for point in self.points if point.run_id]

    @property
    def waiting(self) -> list[int]:
        return [index for index, point in enumerate(self.points) if not point.run_id]


class Sweeps:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = os.path.join(store.home, "sweeps")

    def paths(self, sweep_id: str) -> RunPaths:
        """Return the paths of a sweep. Its files have the same names as those of a run."""
        return RunPaths(os.path.join(self._folder, sweep_id))

    def _document(self, sweep_id: str) -> str:
        return os.path.join(self._folder, sweep_id, "sweep.json")

    def save(self, sweep: SweepRecord) -> None:
        """Write ``sweep.json`` whole. Raise ``DiskRefused``."""
        private_folder(os.path.join(self._folder, sweep.sweep_id))
        text = json.dumps(encode_set(sweep), separators=(",", ":")) + "\n"
        write_whole(self._document(sweep.sweep_id), text)

    def read(self, sweep_id: str) -> SweepRecord:
        """Return the record of a sweep. Raise ``NoSuchRun``, ``BadDocument`` and ``DiskRefused``."""
        path = self._document(sweep_id)
        if not os.path.lexists(path):
            message = f"there is no sweep {sweep_id!r}"
            raise NoSuchRun(message, "clusterrun sweep list shows the sweeps there are")
        trust(os.path.dirname(path), links=False)
        sweep = read_document(SweepRecord, path)
        if sweep is None or sweep.sweep_id != sweep_id:
            message = f"{path} is not the record of that sweep"
            raise BadDocument(message, "its runs are known: clusterrun status")
        return sweep

    def remove_empty(self) -> None:
        """Remove the sweeps without runs and without waiting points. Raise ``DiskRefused``."""
        import shutil  # only this method needs it

        present_ids = set(self._store.ids())
        for sweep in filter(None, map(self._readable, self.ids())):
            if sweep.run_ids and not sweep.waiting and present_ids.isdisjoint(sweep.run_ids):
                path = self.paths(sweep.sweep_id).run_dir
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    raise refusal(path, error) from error

    def ids(self) -> list[str]:
        return sorted(names_in(self._folder), reverse=True)

    def find(self, word: str) -> SweepRecord | None:
        """Return the sweep with this id, this name (the newest), or this number of its newest array."""
        for sweep_id in self.ids():
            if word in (sweep_id, "last") or name_of(sweep_id) == file_name(word):
                return self._readable(sweep_id)
        if not word.isdecimal():
            return None
        sweeps = filter(None, map(self._readable, self.ids()))
        return next((sweep for sweep in sweeps if sweep.job_id == word), None)

    def _readable(self, sweep_id: str) -> SweepRecord | None:
        try:
            return self.read(sweep_id)
        except ClusterrunError:
            return None

    def called_off(self, word: str) -> list[str]:
        """Return the runs to end for ``word``. No further points of a sweep are queued from now on."""
        ids, sweep = self.runs_of(word), self.find(word)
        if sweep and ids == sweep.run_ids and sweep.waiting:
            self.save(replace(sweep, cancelled=True))
        return ids

    def runs_of(self, word: str) -> list[str]:
        """Return the runs that ``word`` means: a run, or all runs of a sweep. Raise ``NoSuchRun``.

        If a run and a sweep have the same name, the newer counts. ``last`` is the whole sweep if the newest
        run belongs to a sweep.
        """
        try:
            run_id = self._store.find(word)
        except NoSuchRun:
            sweep = self.find(word)
            if sweep is None or not sweep.run_ids:
                raise
            return sweep.run_ids
        if word == run_id:
            return [run_id]
        sweep = self.find(word)
        if word == "last":
            return sweep.run_ids if sweep and run_id in sweep.run_ids else [run_id]
        return sweep.run_ids if sweep and sweep.sweep_id > run_id else [run_id]
