"""The program of the nodes, packed once for all tests that start it themselves."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from clusterrun.script.pack import agent_program

_FOLDER = tempfile.TemporaryDirectory(prefix="clusterrun-program-")


@cache
def packed_once() -> Path:
    """Return the packed program. Packing takes most of a second, so this process packs it once."""
    return Path(agent_program(_FOLDER.name))
