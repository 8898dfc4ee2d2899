"""Frozen values to JSON and back, checked field by field; knows no file and no meaning."""

from __future__ import annotations

import enum
import sys

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")


class BadDocument(ClusterrunError):
    """A document is damaged, from a newer version, or not what it should be."""


def encode(value: object) -> Any:
    """``value`` as what ``json`` can write: objects for frozen values, lists for tuples, enums by value."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float)) or value is None:
        return value
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return {name: encode(item) for name, item in fields(value).items()}


def decode(cls: type[T], data: Any, where: str = "") -> T:
    """A ``cls`` from ``data``; absent fields take their defaults, unknown ones are refused.

    Raises ``BadDocument`` naming the field.
    """
    where = where or cls.__name__
    if not isinstance(data, dict):
        raise BadDocument(f"{where}: expected an object, found {_shown(data)}")
    kinds: dict[str, str] = cls.__dict__.get("__annotations__", {})
    unknown = sorted(set(data) - set(kinds))
    if unknown:
        raise BadDocument(f"{where}: unknown field {unknown[0]!r}")
    values = {name: _read(kinds[name], item, cls, f"{where}.{name}") for name, item in data.items()}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise BadDocument(f"{where}: {error}") from error


def _read(kind: str, data: Any, owner: type, where: str) -> Any:
    if kind.endswith(" | None"):
        return None if data is None else _read(kind[: -len(" | None")], data, owner, where)
    if kind.startswith("tuple["):
        return _read_tuple(kind[len("tuple[") : -1], data, owner, where)
    if kind in _PLAIN:
        return _read_plain(kind, data, where)
    named = getattr(sys.modules[owner.__module__], kind)
    if issubclass(named, enum.Enum):
        try:
            return named(data)
        except ValueError as error:
            raise BadDocument(f"{where}: {error}") from error
    return decode(named, data, where)


def _read_tuple(inner: str, data: Any, owner: type, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise BadDocument(f"{where}: expected a list, found {_shown(data)}")
    if inner.endswith(", ..."):
        kind = inner[: -len(", ...")]
        return tuple(_read(kind, item, owner, f"{where}[{i}]") for i, item in enumerate(data))
    kinds = inner.split(", ")
    if len(kinds) != len(data):
        raise BadDocument(f"{where}: expected {len(kinds)} items, found {len(data)}")
    return tuple(_read(kind, item, owner, where) for kind, item in zip(kinds, data))


_PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,)}


def _read_plain(kind: str, data: Any, where: str) -> Any:
    wanted = _PLAIN[kind]
    if not isinstance(data, wanted) or (isinstance(data, bool) and kind != "bool"):
        raise BadDocument(f"{where}: expected {kind}, found {_shown(data)}")
    return float(data) if isinstance(data, int) and kind == "float" else data


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."
