"""Select the runs of a list: named runs, or live and recent runs, or the runs that pass a filter.

An index file holds the ended runs, so that a list of thousands need not open each of them. The file can be
deleted at any time.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from clusterrun.model import contract
from clusterrun.model.document import decode, encode
from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.nearest import did_you_mean
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.operations.context import Context
from clusterrun.operations.find_run import describing_foreign_jobs
from clusterrun.operations.status import StatusQuery
from clusterrun.runs.private_files import DiskRefused, own_content, private_folder, write_whole
from clusterrun.runs.store import Store, name_of

# The file is written again if at least this many runs were read that it does not hold.
WORTH_WRITING = 16
# Seconds. A file that changed later than this may change again in the same tick of a file system's clock.
SETTLED_SECONDS = 5.0

# Times of the last change of the run directory and of its state (ns), and the size of the state (bytes).
Key = tuple[int, int, int]


class EndedIndex:
    """The statuses of ended runs below one home.

    A status is valid while the files of its run do not change.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = os.path.join(store.cache, "ended.json")
        self._entries: dict[str, Any] = {}
        self._keys: dict[str, Key] = {}

    def unchanged(self, ids: Iterable[str]) -> dict[str, RunStatus]:
        """Return the noted statuses of the runs ``ids`` whose files have not changed since."""
        self._entries = self._read()
        self._keys = {run_id: key for run_id in ids if (key := self._key(run_id))}
        statuses = {}
        for run_id, key in self._keys.items():
            entry = self._entries.get(run_id)
            try:
                if entry and tuple(entry["key"]) == key:
                    statuses[run_id] = decode(RunStatus, entry["status"])
            except (TypeError, KeyError, ClusterrunError):
                continue
        return statuses

    def keep(self, statuses: Iterable[RunStatus], now: float) -> None:
        """Note the statuses of ended runs, and drop the runs that no longer exist.

        The keys are those from before the runs were read.
        """
        settled = now - SETTLED_SECONDS
        new = {}
        for status in statuses:
            key = self._keys.get(status.run_id)
            if status.state.ended and key and max(key[:2]) / 1e9 < settled:
                new[status.run_id] = {"key": key, "status": encode(status)}
        if len(new) < WORTH_WRITING:
            return
        present_ids = set(self._store.ids())
        runs = {run_id: entry for run_id, entry in {**self._entries, **new}.items() if run_id in present_ids}
        text = json.dumps({"format": contract.FORMAT, "runs": runs}, separators=(",", ":"))
        with suppress(DiskRefused):  # the file only saves time
            private_folder(self._store.cache)
            write_whole(self._path, text, sync=False)

    def _key(self, run_id: str) -> Key | None:
        """Return the present key of a run; None if it has no state."""
        paths = self._store.paths(run_id)
        try:
            folder, state = os.lstat(paths.run_dir), os.lstat(paths.state)
        except OSError:
            return None
        return folder.st_mtime_ns, state.st_mtime_ns, state.st_size

    def _read(self) -> dict[str, Any]:
        try:
            document = json.loads(own_content(self._path) or b"{}")
            same = isinstance(document, dict) and document.get("format") == contract.FORMAT
            runs = document.get("runs") if same else {}
            return runs if isinstance(runs, dict) else {}
        except (OSError, ValueError, RecursionError):
            return {}


# The number of newest runs that are shown in addition to the live runs.
RECENT = 20
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
_GROUPS = {
    "LIVE": tuple(state for state in State if not state.ended),
    "ENDED": tuple(state for state in State if state.ended),
}


@frozen
class Filter:
    """The conditions for a run to be listed."""

    states: tuple[State, ...] = ()  # none: any state
    name: str = ""  # a pattern of fnmatch; '': any name
    since: float = 0.0  # submitted at this time or later, in seconds since the epoch

    def may_want(self, run_id: str) -> bool:
        """Return whether a run could pass, from the time of submission in its id."""
        if not self.since:
            return True
        import calendar  # imported here: it takes 3 ms, and few calls need it

        try:
            return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S")) >= self.since - 1
        except ValueError:
            return True

    def wants(self, status: RunStatus) -> bool:
        """Return whether a run passes the filter."""
        if self.name:
            import fnmatch  # only this filter needs it

            if not fnmatch.fnmatchcase(status.name, self.name):
                return False
        return (not self.states or status.state in self.states) and status.submitted_at >= self.since


EVERYTHING = Filter()


def runs_named(context: Context, selectors: Sequence[str]) -> list[str]:
    """Return the ids of the runs that ``selectors`` name. A sweep means all its runs. Raise ``NoSuchRun``."""
    if not selectors:
        return []
    from clusterrun.runs.sweep_records import Sweeps  # a bare `status` does not need it

    sweeps = Sweeps(context.store)
    ids: dict[str, None] = {}
    for word in selectors:
        with describing_foreign_jobs(context, word):
            ids.update(dict.fromkeys(sweeps.runs_of(word)))
    return list(ids)


class RunList:
    """The runs that ``selectors`` (the RUN arguments) name and that pass the filter ``chosen``.

    ``every`` lists all runs if no run is named.
    """

    def __init__(self, context: Context, selectors: Sequence[str], chosen: Filter, every: bool) -> None:
        self._context = context
        self._chosen = chosen
        self._every = every or chosen != EVERYTHING
        self.named = runs_named(context, selectors)

    def look(self, inquiry: StatusQuery, oldest: float = 0.0) -> list[RunStatus]:
        """Return the statuses now, newest run first or in the order of the names.

        An answer of Slurm may be ``oldest`` seconds old.
        """
        if self.named:
            statuses = inquiry.statuses(self.named, oldest=oldest)
        elif self._every:
            ids = [run_id for run_id in self._context.store.ids() if self._chosen.may_want(run_id)]
            statuses = self._read(ids, inquiry, oldest)
        else:
            statuses = inquiry.statuses(self._context.store.current(RECENT), oldest=oldest, skip_missing=True)
        return [status for status in statuses if self._chosen.wants(status)]

    def _read(self, ids: Sequence[str], inquiry: StatusQuery, oldest: float = 0.0) -> list[RunStatus]:
        """Return the statuses of ``ids``. The index file holds those of ended runs that did not change."""
        register = EndedIndex(self._context.store)
        noted = register.unchanged(ids)
        read = inquiry.statuses(
            [run_id for run_id in ids if run_id not in noted], oldest=oldest, skip_missing=True
        )
        register.keep(read, self._context.clock.now())
        status_by_id = noted | {status.run_id: status for status in read}
        return [status_by_id[run_id] for run_id in ids if run_id in status_by_id]

    def folded(self, statuses: Sequence[RunStatus], inquiry: StatusQuery) -> list[RunStatus]:
        """Return ``statuses`` with one row for each sweep, at the place of its first run.

        A row counts the older runs of its sweep too, unless a filter selects the runs.
        """
        from clusterrun.runs.sweep_records import Sweeps  # few have sweeps

        sweeps = Sweeps(self._context.store)
        runs_by_sweep: dict[str, list[RunStatus]] = {}
        for status in statuses:
            runs_by_sweep.setdefault(status.sweep or status.run_id, []).append(status)
        rows = []
        for runs in runs_by_sweep.values():
            if not runs[0].sweep:
                rows.append(runs[0])
                continue
            sweep = sweeps.find(runs[0].sweep)
            if sweep and self._chosen == EVERYTHING:
                listed = {status.run_id for status in runs}
                runs += self._read([run_id for run_id in sweep.run_ids if run_id not in listed], inquiry)
            rows.append(_row(runs, len(sweep.waiting) if sweep else 0))
        return rows

    def older(self, listed: int) -> int:
        """Return how many runs are not in a list of ``listed`` live and recent runs."""
        return 0 if self.named or self._every else len(self._context.store.ids()) - listed


def states(texts: Sequence[str]) -> tuple[State, ...]:
    """Return the states in ``RUNNING,failed``. ``live`` and ``ended`` mean groups. Raise ``BadInput``."""
    chosen: list[State] = []
    for word in filter(None, (part.strip().upper() for text in texts for part in text.split(","))):
        if word in _GROUPS:
            chosen += _GROUPS[word]
        elif word in State.__members__:
            chosen.append(State[word])
        else:
            names = [*State.__members__, *_GROUPS]
            hint = " ".join(filter(None, (did_you_mean(word, names), f"there are {', '.join(names)}")))
            raise BadInput(f"there is no state {word!r}", hint)
    return tuple(dict.fromkeys(chosen))


def since(text: str, now: float) -> float:
    """Return the time that ``1d``, ``90m``, ``2026-11-20`` or ``2026-11-20 09:30`` means.

    Raise ``BadInput``.
    """
    for form in _DATES:
        try:
            return time.mktime(time.strptime(text.strip(), form))
        except (ValueError, OverflowError):
            continue
    try:
        return now - parse(text)
    except BadInput as error:
        message = f"{text!r} is neither a duration nor a date"
        raise BadInput(message, "write 90m, 2h, 1d12h, 1w, or 2026-11-20, 2026-11-20T09:30") from error


_LIVELIEST = (State.RUNNING, State.PENDING, State.UNKNOWN)


def tally(statuses: Sequence[RunStatus]) -> str:
    """Return the number of runs in each state: ``3 RUNNING, 997 PENDING``."""
    counts = Counter(status.state.value for status in statuses)
    return ", ".join(f"{count} {state}" for state, count in counts.most_common())


def _row(runs: Sequence[RunStatus], waiting: int) -> RunStatus:
    """Return the row of a sweep that has ``waiting`` unqueued points.

    It lives while a run lives, and has failed if a run has failed.
    """
    first = runs[0]
    states = {status.state for status in runs}
    worst = next((state for state in _LIVELIEST if state in states), None)
    worst = worst or next((state for state in State if state in states - {State.COMPLETED}), State.COMPLETED)
    phase = Phase.ENDED if worst.ended else Phase.QUEUED if worst is State.PENDING else Phase.TRAINING
    began = [status.started_at for status in runs if status.started_at]
    unqueued = f"; {waiting} points not queued" if waiting else ""
    ends = [status.ended_at or 0.0 for status in runs]
    return replace(
        first,
        run_id=first.sweep,
        job_id=first.job_id.partition("_")[0] if "_" in first.job_id else "",
        name=name_of(first.sweep),
        state=worst,
        phase=phase,
        reason=f"sweep: {tally(runs)}{unqueued}",
        point="",
        started_at=min(began, default=None),
        ended_at=max(ends) if worst.ended else None,
        failed_at=None,
        step=-1,
    )
