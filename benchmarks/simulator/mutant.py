"""Define a planted bug."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """Replaces ``old`` by ``new`` in one file. The file must contain ``old`` exactly once."""

    name: str
    module: str
    old: str
    new: str
