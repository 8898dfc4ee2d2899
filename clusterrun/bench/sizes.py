"""Numbers with units as people write them: 7B parameters, 80GB."""

from __future__ import annotations

import math
import re

from clusterrun.model.errors import BadInput

_NUMBER = re.compile(r"([0-9.]+(?:[eE][+-]?\d+)?)\s*([A-Za-z/]*)")
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_BYTES = {
    "b": 1.0,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2.0**10,
    "mib": 2.0**20,
    "gib": 2.0**30,
}
_SHORT = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def count(text: str, what: str) -> float:
    """Return a number above 0 from ``7e9``, ``7B``, ``125M``. Raises ``BadInput`` naming ``what``."""
    return _read(text, what, _COUNTS, "write 7e9, 7B or 125M")


def size(text: str, what: str) -> float:
    """Bytes from ``80GB`` (10⁹), ``80GiB`` (2³⁰); a bare number is GB. Raises ``BadInput``."""
    return _read(text, what, {**_BYTES, **_SHORT, "": 1e9}, "write 80GB, 512MB or 40GiB")


def _read(text: str, what: str, units: dict[str, float], remedy: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    try:
        number = float(match[1]) * units[match[2].lower()] if match else 0.0
    except (ValueError, KeyError):
        number = 0.0
    if not 0 < number < math.inf:
        raise BadInput(f"{what} {text!r} is not an amount", remedy)
    return number
