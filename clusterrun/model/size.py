"""Amounts of memory as people read them; measures nothing."""

from __future__ import annotations

UNITS = ("B", "KiB", "MiB", "GiB")


def sized(count: float) -> str:
    """``count`` bytes in the unit of 1024 that suits, three digits at most: ``9.7 GiB``, ``503 GiB``."""
    for unit in UNITS:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def gibibytes(count: float) -> str:
    """``count`` bytes in GiB, so that two amounts can be compared digit by digit: ``1024.0 GiB``."""
    return f"{count / 2**30:.1f} GiB"
