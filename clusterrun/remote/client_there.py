"""Remember which clusterrun to start on the cluster; `client_install` finds or installs it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

import clusterrun
from clusterrun import atomic_file
from clusterrun.model.contract import VERSION
from clusterrun.remote.connection import SharedConnection
from clusterrun.runs.private_files import own_content, write_whole


def prefix(connection: SharedConnection) -> str:
    """Return the sh text that starts clusterrun on the cluster. Install it first if needed."""
    mark = _mark(connection)
    note = connection.path("client")
    content = own_content(note)
    if content:
        try:
            stored = json.loads(content)
            if stored["mark"] == mark:
                return str(stored["prefix"])
        except (ValueError, KeyError, TypeError):
            pass  # another version wrote it: look again
    from clusterrun.remote.client_install import find_or_install  # once for a cluster: it is slow to load

    found_prefix = find_or_install(connection)
    write_whole(note, json.dumps({"mark": mark, "prefix": found_prefix}), sync=False)
    return found_prefix


def forget(connection: SharedConnection) -> None:
    """Forget the stored text. The next use looks at the cluster again."""
    atomic_file.remove(connection.path("client"))


def _mark(connection: SharedConnection) -> str:
    """Return a mark that changes with the local code, and with the configured Python of the cluster."""
    digest = hashlib.sha256(f"{VERSION} {connection.host.python}".encode())
    for folder in _scan(os.path.dirname(os.path.abspath(clusterrun.__file__))):
        digest.update(folder.encode())
    return digest.hexdigest()[:16]


def _scan(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for child in sorted(entries, key=lambda entry: entry.name):
            if child.name.endswith(".py"):
                status = child.stat()
                yield f"{child.name} {status.st_size} {status.st_mtime_ns}"
            elif child.is_dir(follow_symlinks=False) and child.name != "__pycache__":
                yield from _scan(child.path)
