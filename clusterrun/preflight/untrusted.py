"""Takes apart what a node sent, without trust: what is not there or of another kind is None or empty."""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 200


def number(value: Any, *path: str) -> float | None:
    """The finite number at ``path``, or None."""
    found = _at(value, path)
    plain = isinstance(found, (int, float)) and not isinstance(found, bool)
    return float(found) if plain and abs(found) < 1e300 and math.isfinite(found) else None


def text(value: Any, *path: str) -> str:
    """The text at ``path`` in printable characters, shortened; empty where there is none."""
    found = _at(value, path)
    if not isinstance(found, str):
        return ""
    if len(found) <= _MOST and found.isprintable():
        return found.strip()
    plain = "".join(sign if sign.isprintable() else " " for sign in found[: 4 * _MOST]).strip()
    return plain if len(plain) <= _MOST else plain[: _MOST - 1] + "…"


def entries(value: Any, *path: str) -> dict[str, Any]:
    """The object at ``path``; empty where there is none."""
    found = _at(value, path)
    return found if isinstance(found, dict) else {}


def rows(value: Any, *path: str) -> list[dict[str, Any]]:
    """The objects in the list at ``path``; empty where there is none."""
    found = _at(value, path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def words(value: Any, *path: str) -> list[str]:
    """The texts in the list at ``path``; empty where there is none."""
    found = _at(value, path)
    return [text(item) for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
