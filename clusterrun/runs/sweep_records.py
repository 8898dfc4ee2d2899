"""The sweeps below one home: which runs their points have become.

``$CLUSTERRUN_HOME/sweeps/<sweep id>/`` holds ``sweep.json``, the script of each array that was queued, and
the copy of the code where one was asked for. The runs are ordinary ones.
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
    """One point: its values, the run that it is now ('': not queued), and the runs that it was before."""

    values: tuple[tuple[str, str], ...]
    run_id: str = ""
    earlier: tuple[str, ...] = ()


@frozen
class SweepSearch:
    """What Optuna is asked for: ``sets`` as `--set` had them, to make ``by`` small, or ``largest``."""

    sets: tuple[str, ...]
    trials: int
    by: str
    largest: bool = False
    at_once: int = 0


@frozen
class SweepRecord:
    """``sweep.json``, 0600: it holds the environment. ``spec`` is as asked, its command with the places.

    ``at_most`` runs are to live at once (0: as many as the cluster takes). ``job_id`` is the newest array.
    ``cancelled``: no point is queued any more unless somebody asks again. With ``search`` more points come.
    """

    sweep_id: str
    name: str
    spec: JobSpec
    points: tuple[SweepPoint, ...]
    submitted_at: float
    at_most: int = 0
    job_id: str = ""
    cancelled: bool = False
    search: SweepSearch | None = None
    format: int = contract.FORMAT

    @property
    def run_ids(self) -> list[str]:
        return [point.run_id for point in self.points if point.run_id]

    @property
    def waiting(self) -> list[int]:
        return [place for place, point in enumerate(self.points) if not point.run_id]

    @property
    def unasked(self) -> int:
        return max(0, self.search.trials - len(self.points)) if self.search else 0


class Sweeps:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._folder = os.path.join(store.home, "sweeps")

    def paths(self, sweep_id: str) -> RunPaths:
        """Its script, the output of its arrays and its copy of the code have the names of a run's."""
        return RunPaths(os.path.join(self._folder, sweep_id))

    def _document(self, sweep_id: str) -> str:
        return os.path.join(self._folder, sweep_id, "sweep.json")

    def save(self, sweep: SweepRecord) -> None:
        """Write ``sweep.json`` whole. Raises ``DiskRefused``."""
        private_folder(os.path.join(self._folder, sweep.sweep_id))
        text = json.dumps(encode_set(sweep), separators=(",", ":")) + "\n"
        write_whole(self._document(sweep.sweep_id), text)

    def read(self, sweep_id: str) -> SweepRecord:
        """Raises ``NoSuchRun``, ``BadDocument`` and ``DiskRefused``."""
        path = self._document(sweep_id)
        if not os.path.lexists(path):
            seen = f"there is no sweep {sweep_id!r}"
            raise NoSuchRun(seen, "clusterrun sweep list shows the sweeps there are")
        trust(os.path.dirname(path), links=False)
        found = read_document(SweepRecord, path)
        if found is None or found.sweep_id != sweep_id:
            seen = f"{path} is not the record of that sweep"
            raise BadDocument(seen, "its runs are known: clusterrun status")
        return found

    def remove_empty(self) -> None:
        """Remove the sweeps of which no run is left and no point waits. Raises ``DiskRefused``."""
        import shutil  # for this alone

        there = set(self._store.ids())
        for found in filter(None, map(self._readable, self.ids())):
            if found.run_ids and not found.waiting and there.isdisjoint(found.run_ids):
                path = self.paths(found.sweep_id).run_dir
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    raise refusal(path, error) from error

    def ids(self) -> list[str]:
        return sorted(names_in(self._folder), reverse=True)

    def find(self, word: str) -> SweepRecord | None:
        """The sweep that ``word`` means: its id, its name (the newest), or the number of its newest array."""
        for sweep_id in self.ids():
            if word in (sweep_id, "last") or name_of(sweep_id) == file_name(word):
                return self._readable(sweep_id)
        if not word.isdecimal():
            return None
        found = filter(None, map(self._readable, self.ids()))
        return next((one for one in found if one.job_id == word), None)

    def _readable(self, sweep_id: str) -> SweepRecord | None:
        try:
            return self.read(sweep_id)
        except ClusterrunError:
            return None

    def called_off(self, word: str) -> list[str]:
        """The runs that ``word`` means, to be ended; of a sweep no more points are queued from now on."""
        ids, found = self.runs_of(word), self.find(word)
        if found and ids == found.run_ids and (found.waiting or found.unasked):
            self.save(replace(found, cancelled=True))
        return ids

    def runs_of(self, word: str) -> list[str]:
        """The runs that ``word`` means: one, or all of a sweep; of two of one name the newer counts.

        ``last`` is the whole sweep where the newest run is of one. Raises ``NoSuchRun``.
        """
        try:
            run_id = self._store.find(word)
        except NoSuchRun:
            found = self.find(word)
            if found is None or not found.run_ids:
                raise
            return found.run_ids
        if word == run_id:
            return [run_id]
        found = self.find(word)
        if word == "last":
            return found.run_ids if found and run_id in found.run_ids else [run_id]
        return found.run_ids if found and found.sweep_id > run_id else [run_id]
