"""A disk that remembers what was done to one folder, and what of it a power cut may take back."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from clusterrun.training import files


@dataclass
class Disk:
    """Watches the calls that make files. Call number ``fail_at`` fails with ``code``.

    Each call is noted as (kind, name, more): `write` with the content so far, `sync` of a file or
    of the folder (""), `rename`, `unlink`.
    """

    folder: Path
    fail_at: int = -1
    code: int = 0
    calls: int = 0
    done: list[tuple[str, str, object]] = field(default_factory=list)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with (
            mock.patch.object(os, "open", self._call(os.open, self._opened)),
            mock.patch.object(os, "fsync", self._call(os.fsync, self._synced)),
            mock.patch.object(os, "replace", self._call(os.replace, self._renamed)),
            mock.patch.object(os, "unlink", self._note(os.unlink, self._unlinked)),
            mock.patch.object(
                files.ChecksummedFile, "write", self._call(files.ChecksummedFile.write, self._written)
            ),
        ):
            yield

    def _call(self, real, note):
        def called(*arguments, **options):
            number, self.calls = self.calls, self.calls + 1
            if number == self.fail_at:
                raise OSError(self.code, os.strerror(self.code))
            return self._note(real, note)(*arguments, **options)

        return called

    def _note(self, real, note):
        def called(*arguments, **options):
            result = real(*arguments, **options)
            note(*arguments)
            return result

        return called

    def _opened(self, path, *_) -> None:
        if not os.path.isdir(path):
            self.done.append(("write", os.path.basename(path), b""))

    def _written(self, summed, data) -> None:
        _, name, before = next(entry for entry in reversed(self.done) if entry[0] == "write")
        self.done.append(("write", name, before + bytes(data)))

    def _synced(self, handle) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        self.done.append(("sync", "" if os.path.isdir(path) else os.path.basename(path), None))

    def _renamed(self, source, target) -> None:
        self.done.append(("rename", os.path.basename(source), os.path.basename(target)))

    def _unlinked(self, path) -> None:
        self.done.append(("unlink", os.path.basename(path), None))

    def crash_states(self, began: Path) -> Iterator[dict[str, bytes]]:
        """Yield every possible folder after a power cut, as name → content.

        Renames and removals since the last sync of the folder may have happened or not, each for
        itself; of what was written to a file since its last sync any beginning may be there. A file
        whose content is durable may still have no name.
        """
        start = {path.name: path.read_bytes() for path in began.iterdir()}
        for moment in range(len(self.done) + 1):
            yield from self._after(start, self.done[:moment])

    def _after(self, start, completed) -> Iterator[dict[str, bytes]]:
        settled = max(
            (place for place, value in enumerate(completed) if value[:2] == ("sync", "")), default=-1
        )
        names = [value for value in completed if value[0] in ("rename", "unlink")]
        loose = [value for value in completed[settled + 1 :] if value[0] in ("rename", "unlink")]
        contents = {name: content for kind, name, content in completed if kind == "write"}
        synced: set[str] = set()
        for kind, name, _ in completed:  # a later write is not durable before the next sync
            if kind == "write":
                synced.discard(name)
            elif kind == "sync":
                synced.add(name)
        for retained in itertools.product((True, False), repeat=len(loose)):
            lost = [value for value, stays in zip(loose, retained, strict=True) if not stays]
            for share in (0.0, 0.5, 1.0):
                state = dict(start)
                for name, content in contents.items():
                    whole = name in synced
                    state[name] = content if whole else content[: int(len(content) * share)]
                for value in names:
                    if value not in lost:
                        self._apply(state, *value)
                yield state
                # The new name was never made durable: the file itself may be missing.
                if any(name in state for name in contents):
                    yield {name: content for name, content in state.items() if name not in contents}

    @staticmethod
    def _apply(state, kind, name, target) -> None:
        if name in state:
            content = state.pop(name)
            if kind == "rename":
                state[target] = content
