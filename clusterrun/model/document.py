"""Convert frozen values to JSON and back, with a check of every field."""

from __future__ import annotations

import enum
import sys

from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")
    Reader = Callable[[Any], Any]


class BadDocument(ClusterrunError):
    """A document is damaged, from a newer version, or of another kind."""


MUST_UNDERSTAND = "must_understand"
# A class attribute: the former name of a field by its name. For one release documents have both.
FORMER = "FORMER_NAMES"
_AS_IT_IS = frozenset((str, int, float, bool, type(None)))


def encode(value: object) -> Any:
    """Return ``value`` for ``json``: objects for frozen values, lists for tuples, values for enum members."""
    return _encoded(value, fields)


def encode_set(value: object) -> Any:
    """Return ``value`` as ``encode`` does, without default fields.

    A version without such a field can read the rest.
    """
    return _encoded(value, _set_fields)


def _set_fields(value: object) -> dict[str, Any]:
    defaults: dict[str, Any] = value.__defaults_of_fields__  # type: ignore[attr-defined]
    return {
        name: item
        for name, item in fields(value).items()
        if name == "format" or name not in defaults or item != defaults[name]
    }


def _encoded(value: object, chosen: Callable[[object], dict[str, Any]]) -> Any:
    if value.__class__ in _AS_IT_IS:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return [_encoded(item, chosen) for item in value]
    if isinstance(value, dict):
        return {name: _encoded(item, chosen) for name, item in value.items()}
    document = {
        name: item if item.__class__ in _AS_IT_IS else _encoded(item, chosen)
        for name, item in chosen(value).items()
    }
    for name, former in getattr(value, FORMER, {}).items():
        if name in document:
            document[former] = document[name]
    return document


class _Wrong(Exception):
    """A mistake in a part of a document. Each level above prepends its name to the place."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = place


# For each class: the reader of each field, and the type whose values need no conversion. Computed once.
_READERS: dict[type, dict[str, tuple[type | None, Reader]]] = {}


def decode(cls: type[T], data: Any, where: str = "") -> T:
    """Return a ``cls`` from ``data``. Absent fields take their defaults, unknown ones are ignored.

    A newer version lists under ``must_understand`` the fields that change the meaning of others. An unknown
    field in that list is refused. Raises ``BadDocument`` with the field's name.
    """
    try:
        return _object(cls, data)
    except _Wrong as wrong:
        raise BadDocument(f"{where or cls.__name__}{wrong.place}: {wrong.problem}") from wrong


def _dict(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise _Wrong(f"expected an object, found {_shown(data)}")
    return data


def _object(cls: type[T], data: Any) -> T:
    data = _dict(data)
    for name, former in getattr(cls, FORMER, {}).items():
        if former in data:
            data = {name: data[former], **data}
    readers = _READERS.get(cls) or _readers(cls)
    unknown = data.keys() - readers.keys()
    if unknown:
        needed = data.get(MUST_UNDERSTAND, ())
        names = needed if isinstance(needed, (list, tuple)) else [MUST_UNDERSTAND]
        if missing := [name for name in names if name in unknown]:
            raise _Wrong(f"field {missing[0]!r} is of a newer clusterrun and changes what the others mean")
    values = {}
    for name, item in data.items():
        if name not in unknown:
            as_it_is, read = readers[name]
            try:
                values[name] = item if item.__class__ is as_it_is else read(item)
            except _Wrong as wrong:
                wrong.place = f".{name}{wrong.place}"
                raise
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise _Wrong(str(error)) from error


def _readers(cls: type) -> dict[str, tuple[type | None, Reader]]:
    kinds: dict[str, str] = cls.__dict__.get("__annotations__", {})
    plain = {kind: types[0] for kind, types in _PLAIN.items()}
    readers = {name: (plain.get(kind.split(" | ")[0]), _reader(kind, cls)) for name, kind in kinds.items()}
    return _READERS.setdefault(cls, readers)


def _reader(kind: str, owner: type) -> Reader:
    if kind.endswith(" | None"):
        read = _reader(kind[: -len(" | None")], owner)
        return lambda data: None if data is None else read(data)
    if kind.startswith("tuple["):
        return _tuple_reader(kind[len("tuple[") : -1], owner)
    if kind in _PLAIN:
        return lambda data: _plain(kind, data)
    if kind.startswith("dict[str, "):
        read_value = _reader(kind[len("dict[str, ") : -1], owner)
        return lambda data: {name: read_value(value) for name, value in _dict(data).items()}
    named = getattr(sys.modules[owner.__module__], kind)
    if issubclass(named, enum.Enum):
        return lambda data: _member(named, data)
    return lambda data: _object(named, data)


def _member(kind: type[enum.Enum], data: Any) -> enum.Enum:
    try:
        return kind(data)
    except ValueError as error:
        raise _Wrong(str(error)) from error


def _tuple_reader(inner: str, owner: type) -> Reader:
    if inner.endswith(", ..."):
        read_item = _reader(inner[: -len(", ...")], owner)
        return lambda data: tuple(_items(read_item, _list(data)) if data else _list(data))
    kinds = [_reader(kind, owner) for kind in inner.split(", ")]

    def read(data: Any) -> tuple[Any, ...]:
        if len(_list(data)) != len(kinds):
            raise _Wrong(f"expected {len(kinds)} items, found {len(data)}")
        return tuple(kind(item) for kind, item in zip(kinds, data))

    return read


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise _Wrong(f"expected a list, found {_shown(data)}")
    return data


def _items(read: Reader, data: list[Any]) -> list[Any]:
    items: list[Any] = []
    try:
        items.extend(map(read, data))  # keeps the items before a wrong one
    except _Wrong as wrong:
        wrong.place = f"[{len(items)}]{wrong.place}"
        raise
    return items


_PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int), "bool": (bool,)}


def _plain(kind: str, data: Any) -> Any:
    if type(data) not in _PLAIN[kind]:
        raise _Wrong(f"expected {kind}, found {_shown(data)}")
    return float(data) if kind == "float" else data


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."
