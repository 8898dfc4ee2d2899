"""Which clusterrun runs on the cluster, known from the last look; the look itself is in `client_install`."""

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
    """What of sh starts clusterrun there; it is installed first where that is needed."""
    mark = _mark(connection)
    note = connection.path("client")
    known = own_content(note)
    if known:
        try:
            kept = json.loads(known)
            if kept["mark"] == mark:
                return str(kept["prefix"])
        except (ValueError, KeyError, TypeError):
            pass  # of another version: look again
    from clusterrun.remote.client_install import found_or_installed  # once for a cluster: it is slow to load

    found = found_or_installed(connection)
    write_whole(note, json.dumps({"mark": mark, "prefix": found}), sync=False)
    return found


def forget(connection: SharedConnection) -> None:
    """Look again at the next use."""
    atomic_file.remove(connection.path("client"))


def _mark(connection: SharedConnection) -> str:
    """Changes with the code here, and with what is asked of the cluster."""
    digest = hashlib.sha256(f"{VERSION} {connection.host.python}".encode())
    for folder in _scan(os.path.dirname(os.path.abspath(clusterrun.__file__))):
        digest.update(folder.encode())
    return digest.hexdigest()[:16]


def _scan(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for one in sorted(entries, key=lambda entry: entry.name):
            if one.name.endswith(".py"):
                found = one.stat()
                yield f"{one.name} {found.st_size} {found.st_mtime_ns}"
            elif one.is_dir(follow_symlinks=False) and one.name != "__pycache__":
                yield from _scan(one.path)
