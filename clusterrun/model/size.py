"""Parse and format amounts of memory and disk."""

from __future__ import annotations

import re

from clusterrun.model.errors import BadInput

UNITS = ("B", "KiB", "MiB", "GiB")


def sized(count: float) -> str:
    """Return ``count`` bytes in a suitable unit of 1024: ``9.7 GiB``, ``503 GiB``.

    The number has at most three digits.
    """
    for unit in UNITS:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def gibibytes(count: float) -> str:
    """Return ``count`` bytes in GiB, so that two amounts can be compared digit by digit: ``1024.0 GiB``."""
    return f"{count / 2**30:.1f} GiB"


def parse_size(text: str) -> int:
    """Return the bytes of ``500M``, ``1.5G``, ``2TiB`` (units of 1024, as in Slurm). Raises ``BadInput``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT])(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE)
    if not match:
        raise BadInput(f"{text!r} is not a size", "write 500M, 10G or 1T")
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1))
