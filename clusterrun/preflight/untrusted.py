"""Read values from the untrusted data of a node. A missing value or a wrong type gives None or empty."""

from __future__ import annotations

import math

from clusterrun.model.phrases import shortened

_MOST = 200


def number(value: object, *path: str) -> float | None:
    item = _at(value, path)
    if not isinstance(item, (int, float)) or isinstance(item, bool):
        return None
    return float(item) if abs(item) < 1e300 and math.isfinite(item) else None


def text(value: object, *path: str) -> str:
    """Return the text at ``path`` in printable characters, shortened, or '' if there is none."""
    item = _at(value, path)
    if not isinstance(item, str):
        return ""
    if len(item) <= _MOST and item.isprintable():
        return item.strip()
    plain = "".join(sign if sign.isprintable() else " " for sign in item[: 4 * _MOST]).strip()
    return shortened(plain, _MOST)


def entries(value: object, *path: str) -> dict[str, object]:
    item = _at(value, path)
    return item if isinstance(item, dict) else {}


def rows(value: object, *path: str) -> list[dict[str, object]]:
    return [item for item in _list_at(value, path) if isinstance(item, dict)]


def strings(value: object, *path: str) -> list[str]:
    return [text(item) for item in _list_at(value, path) if isinstance(item, str)]


def pairs(value: object, *path: str) -> dict[str, object]:
    """Return the (name, value) pairs in the list at ``path`` as a dictionary."""
    entries_by_name: dict[str, object] = {}
    for item in _list_at(value, path):
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
            entries_by_name[item[0]] = item[1]
    return entries_by_name


def _list_at(value: object, path: tuple[str, ...]) -> list[object]:
    item = _at(value, path)
    return item if isinstance(item, list) else []


def _at(value: object, path: tuple[str, ...]) -> object:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
