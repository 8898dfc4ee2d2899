"""The program of the nodes, packed once for all tests that start it themselves."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from clusterrun.script.pack import agent_program

_FOLDER = tempfile.TemporaryDirectory(prefix="clusterrun-program-")


@cache
def packed_once() -> Path:
    """Where it lies until this process ends: to pack it takes most of a second of a processor."""
    return Path(agent_program(_FOLDER.name))
