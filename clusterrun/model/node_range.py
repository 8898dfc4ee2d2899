"""Parse node counts of users: a number, or the least and the most."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput

_WORDS = r"(?a)(?P<least>-?\d{1,18})(?:-(?P<most>\d{1,18}))?"


def read(text: str, where: str = "--nodes") -> tuple[int, int]:
    """Return the most nodes, and the least (0: exactly as many), in ``4`` or ``1-4``. Raises ``BadInput``."""
    match = re.fullmatch(_WORDS, text.strip())
    if match is None:
        remedy = "give how many, or the least and the most: --nodes 4, --nodes 1-4"
        raise BadInput(f"{where} {text!r}: not a number of nodes", remedy)
    least, most = int(match["least"]), int(match["most"] or match["least"])
    if match["most"] and not 0 < least <= most:
        raise BadInput(f"{where} {text!r}: the least comes first, and is 1 or more", "give --nodes 1-4")
    return most, least if least < most else 0


def as_text(most: int, least: int) -> str:
    return f"{least}-{most}" if least else str(most)
