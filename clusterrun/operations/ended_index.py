"""The ended runs in one file, so that a list of thousands opens none of them; losing it loses nothing.

An entry holds only while the run directory and its ``state.json`` are as they were when it was read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from clusterrun.model import contract
from clusterrun.model.document import decode, encode
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.record import RunStatus
from clusterrun.runs.private_files import DiskRefused, own_content, private_folder, write_whole
from clusterrun.runs.store import Store

WORTH_WRITING = 16
"""Runs that were read and are not in the file: below this it is not written again."""
SETTLED_SECONDS = 5.0
"""What changed within the last seconds may change again within the same tick of a file system's clock."""

Key = tuple[int, int, int]
"""When the run directory changed, when its state did, and the size of that; nanoseconds and bytes."""


class EndedIndex:
    """The statuses of ended runs below one home, as they were when last read."""

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
