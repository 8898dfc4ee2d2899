"""Which runs a list shows: those that were named, or the live and newest ones, or what a filter leaves.

Ended runs stand in one index file, so that a list of thousands opens none of them; losing it loses nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from clusterrun.model import contract
from clusterrun.model.document import decode, encode
from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen
from clusterrun.model.nearest import did_you_mean
from clusterrun.model.record import RunStatus
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.operations.find_run import describing_foreign_jobs
from clusterrun.operations.status import StatusQuery
from clusterrun.runs.private_files import DiskRefused, own_content, private_folder, write_whole
from clusterrun.runs.store import Store

WORTH_WRITING = 16
"""Runs that were read and are not in the file: below this it is not written again."""
SETTLED_SECONDS = 5.0
"""What changed within the last seconds may change again within the same tick of a file system's clock."""

Key = tuple[int, int, int]
"""When the run directory changed, when its state did, and the size of that; nanoseconds and bytes."""


class EndedIndex:
    """The statuses of ended runs below one home; one holds while the files of its run are as they were."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._path = os.path.join(store.cache, "ended.json")
        self._entries: dict[str, Any] = {}
        self._keys: dict[str, Key] = {}

    def known(self, ids: Iterable[str]) -> dict[str, RunStatus]:
        """The statuses of those of ``ids`` that have ended and have not changed since they were noted."""
        self._entries = self._read()
        self._keys = {one: key for one in ids if (key := self._key(one))}
        found = {}
        for one, key in self._keys.items():
            entry = self._entries.get(one)
            try:
                if entry and tuple(entry["key"]) == key:
                    found[one] = decode(RunStatus, entry["status"])
            except (TypeError, KeyError, ClusterrunError):
                continue
        return found

    def keep(self, statuses: Iterable[RunStatus], now: float) -> None:
        """Note what was read again, as it was before it was read; runs that are gone are let go."""
        settled = now - SETTLED_SECONDS
        new = {
            status.run_id: {"key": self._keys[status.run_id], "status": encode(status)}
            for status in statuses
            if status.state.ended and (key := self._keys.get(status.run_id)) and max(key[:2]) / 1e9 < settled
        }
        if len(new) < WORTH_WRITING:
            return
        there = set(self._store.ids())
        runs = {one: entry for one, entry in {**self._entries, **new}.items() if one in there}
        text = json.dumps({"format": contract.FORMAT, "runs": runs}, separators=(",", ":"))
        with suppress(DiskRefused):  # it is a convenience
            private_folder(self._store.cache)
            write_whole(self._path, text, sync=False)

    def _key(self, run_id: str) -> Key | None:
        paths = self._store.paths(run_id)
        try:
            folder, state = os.lstat(paths.run_dir), os.lstat(paths.state)
        except OSError:
            return None
        return folder.st_mtime_ns, state.st_mtime_ns, state.st_size

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(own_content(self._path) or b"{}")
            same = isinstance(found, dict) and found.get("format") == contract.FORMAT
            runs = found.get("runs") if same else {}
            return runs if isinstance(runs, dict) else {}
        except (OSError, ValueError, RecursionError):
            return {}


RECENT = 20
"""How many of the newest runs are shown beside the live ones."""
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
_GROUPS = {
    "LIVE": tuple(state for state in State if not state.ended),
    "ENDED": tuple(state for state in State if state.ended),
}


@frozen
class Filter:
    """What a run must be like to be listed; ``since`` (seconds since the epoch) is when it was submitted."""

    states: tuple[State, ...] = ()
    name: str = ""
    since: float = 0.0

    def may_want(self, run_id: str) -> bool:
        """Whether a run could pass, from its id alone: that tells when it was submitted."""
        if not self.since:
            return True
        import calendar  # with what it needs, 3 ms that few calls are worth

        try:
            return calendar.timegm(time.strptime(run_id[:15], "%Y%m%d-%H%M%S")) >= self.since - 1
        except ValueError:
            return True

    def wants(self, status: RunStatus) -> bool:
        if self.name:
            import fnmatch  # for this filter alone

            if not fnmatch.fnmatchcase(status.name, self.name):
                return False
        return (not self.states or status.state in self.states) and status.submitted_at >= self.since


EVERYTHING = Filter()


def runs_named(context: Context, words: Sequence[str]) -> list[str]:
    """The ids of the runs that ``words`` mean, a sweep standing for all its runs. Raises ``NoSuchRun``."""
    if not words:
        return []
    from clusterrun.runs.sweep_records import Sweeps  # a bare `status` needs none

    known = Sweeps(context.store)
    ids: dict[str, None] = {}
    for word in words:
        with describing_foreign_jobs(context, word):
            ids.update(dict.fromkeys(known.runs_of(word)))
    return list(ids)


class RunList:
    """The runs that a command line asks for: ``words`` are RUNs, ``chosen`` filters them, or all runs."""

    def __init__(self, context: Context, words: Sequence[str], chosen: Filter, every: bool) -> None:
        self._context = context
        self._chosen = chosen
        self._every = every or chosen != EVERYTHING
        self.named = runs_named(context, words)

    def look(self, inquiry: StatusQuery, oldest: float = 0.0) -> list[RunStatus]:
        """The statuses now, newest run first or as named; what Slurm says may be ``oldest`` seconds old."""
        if self.named:
            found = inquiry.statuses(self.named, oldest=oldest)
        elif self._every:
            found = self._all(inquiry, oldest)
        else:
            found = inquiry.statuses(self._context.store.current(RECENT), oldest=oldest, gone=True)
        return [status for status in found if self._chosen.wants(status)]

    def older(self, shown: int) -> int:
        """How many runs a list of the live and newest ones leaves out."""
        return 0 if self.named or self._every else len(self._context.store.ids()) - shown

    def _all(self, inquiry: StatusQuery, oldest: float) -> list[RunStatus]:
        ids = [one for one in self._context.store.ids() if self._chosen.may_want(one)]
        register = EndedIndex(self._context.store)
        known = register.known(ids)
        read = inquiry.statuses([one for one in ids if one not in known], oldest=oldest, gone=True)
        register.keep(read, self._context.clock.now())
        found = known | {status.run_id: status for status in read}
        return [found[one] for one in ids if one in found]


def states(words: Sequence[str]) -> tuple[State, ...]:
    """The states in ``RUNNING,failed``, with ``live`` and ``ended`` for all such. Raises ``BadInput``."""
    found: list[State] = []
    for word in filter(None, (one.strip().upper() for text in words for one in text.split(","))):
        if word in _GROUPS:
            found += _GROUPS[word]
        elif word in State.__members__:
            found.append(State[word])
        else:
            names = [*State.__members__, *_GROUPS]
            hint = " ".join(filter(None, (did_you_mean(word, names), f"there are {', '.join(names)}")))
            raise BadInput(f"there is no state {word!r}", hint)
    return tuple(dict.fromkeys(found))


def since(text: str, now: float) -> float:
    """The moment that ``1d``, ``90m``, ``2026-11-20`` or ``2026-11-20 09:30`` means. Raises ``BadInput``."""
    for form in _DATES:
        try:
            return time.mktime(time.strptime(text.strip(), form))
        except (ValueError, OverflowError):
            continue
    try:
        return now - parse(text)
    except BadInput as error:
        seen = f"{text!r} is neither a duration nor a date"
        raise BadInput(seen, "write 90m, 2h, 1d12h, 1w, or 2026-11-20, 2026-11-20T09:30") from error
