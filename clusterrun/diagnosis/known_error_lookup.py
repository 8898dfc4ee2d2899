"""What a printed line means, if it is a known message; pure, reads no file."""

from __future__ import annotations

import re

from clusterrun.diagnosis.known_errors import ROWS, KnownError

_ANY = re.compile("|".join(f"(?:{row.pattern})" for row in ROWS))


def meaning(line: str) -> KnownError | None:
    """The first row that fits ``line``; None if nothing is known about it."""
    if not _ANY.search(line):
        return None
    return next((row for row in ROWS if re.search(row.pattern, line)), None)
