"""Takes apart what a node sent, without trust: what is not there or of another kind is None or empty."""

from __future__ import annotations

import math

_MOST = 200


def number(value: object, *path: str) -> float | None:
    found = _at(value, path)
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return None
    return float(found) if abs(found) < 1e300 and math.isfinite(found) else None


def text(value: object, *path: str) -> str:
    """The text at ``path`` in printable characters, shortened; empty if there is none."""
    found = _at(value, path)
    if not isinstance(found, str):
        return ""
    if len(found) <= _MOST and found.isprintable():
        return found.strip()
    plain = "".join(sign if sign.isprintable() else " " for sign in found[: 4 * _MOST]).strip()
    return plain if len(plain) <= _MOST else plain[: _MOST - 1] + "…"


def entries(value: object, *path: str) -> dict[str, object]:
    found = _at(value, path)
    return found if isinstance(found, dict) else {}


def rows(value: object, *path: str) -> list[dict[str, object]]:
    found = _at(value, path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def words(value: object, *path: str) -> list[str]:
    found = _at(value, path)
    return [text(item) for item in found if isinstance(item, str)] if isinstance(found, list) else []


def pairs(value: object, *path: str) -> dict[str, object]:
    """The pairs of a name and something in the list at ``path``; empty if there is none."""
    found = _at(value, path)
    given = found if isinstance(found, list) else []
    both = [one for one in given if isinstance(one, list) and len(one) == 2]
    return {name: what for name, what in both if isinstance(name, str)}


def _at(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
