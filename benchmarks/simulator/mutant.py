"""What a planted bug is; plants none."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """``old`` becomes ``new`` in one file; ``old`` must stand there exactly once."""

    name: str
    module: str
    old: str
    new: str
