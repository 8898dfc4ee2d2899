"""Declare once how people and programs see a value: table columns, JSON and its schema.

A ``View`` lists the fields of a value. A field with a ``header`` is a column of the table. A field with a
``kind`` is a member of the JSON document, and its ``doc`` describes it in the schema.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.model.frozen import Any, frozen
from clusterrun.model.visible import visible


def iso(moment: float | None) -> str | None:
    """Return seconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    if moment is None:
        return None
    milliseconds = round(moment * 1000)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
    return f"{seconds}.{milliseconds % 1000:03d}+00:00"


class Kind:
    """How a value is encoded in JSON, and the schema of the encoded value."""

    def __init__(self, schema: Mapping[str, Any], encode: Callable[[Any], Any]) -> None:
        self.schema = schema
        self.encode = encode


def _plain(name: str) -> Kind:
    return Kind({"type": name}, lambda value: value)


TEXT, INTEGER, NUMBER, BOOLEAN, OBJECT = map(_plain, ("string", "integer", "number", "boolean", "object"))
TIME = Kind({"type": "string", "format": "date-time"}, iso)


def any_of(*names: str) -> Kind:
    """Return the kind of an unchanged value that has one of these JSON types."""
    return Kind({"type": list(names)}, lambda value: value)


def one_of(members: Iterable[Any]) -> Kind:
    """Return the kind of a value from a list of strings or from an enumeration."""
    return Kind(
        {"enum": [getattr(member, "value", member) for member in members]},
        lambda value: getattr(value, "value", value),
    )


def optional(kind: Kind, absent: Callable[[Any], bool] = lambda value: value is None) -> Kind:
    """Return a kind that encodes as ``kind``, or as null if ``absent`` holds for the value."""
    schema = dict(kind.schema)
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    else:
        schema["type"] = [schema["type"], "null"]
    return Kind(schema, lambda value: None if absent(value) else kind.encode(value))


def many(kind: Kind, doc: str = "") -> Kind:
    """Return the kind of a list of ``kind``. ``doc`` describes an item."""
    items = {**kind.schema, **({"description": doc} if doc else {})}
    return Kind({"type": "array", "items": items}, lambda values: [kind.encode(value) for value in values])


def by_name(kind: Kind) -> Kind:
    """Return the kind of an object whose members have any names."""
    return Kind(
        {"type": "object", "additionalProperties": dict(kind.schema)},
        lambda values: {name: kind.encode(value) for name, value in values.items()},
    )


# The value of a field whose member is absent from the document.
ABSENT = object()


@frozen
class ViewField:
    """A field of a view. It is a column if it has a header, and a member of the document if it has a kind."""

    name: str  # of the member in JSON, and of the attribute
    doc: str = ""
    kind: Kind | None = TEXT
    read: Callable[[Any], Any] | None = None  # reads the value; None: read the attribute or key ``name``
    header: str = ""
    cell: Callable[[Any, float], str] | None = (
        None  # returns the column's text from the value and the current time
    )
    spare: int = 0  # a narrow terminal omits the smallest number first; 0: never omitted
    is_required: bool = True  # False: the member may be missing
    former: str = ""  # the member's name in the release before; the document has both names for one release

    def value(self, of: Any) -> Any:
        if self.read is not None:
            return self.read(of)
        if isinstance(of, Mapping):
            return of.get(self.name, ABSENT)
        return getattr(of, self.name, ABSENT)

    def text(self, of: Any, now: float) -> str:
        return visible(self.cell(of, now) if self.cell else str(self.value(of)))


class View(Kind):
    """The fields that a command shows of a value. Within another document it is the kind of an object."""

    def __init__(self, doc: str, *fields: ViewField) -> None:
        self.fields = fields
        self.columns = [field for field in fields if field.header]
        members = [field for field in fields if field.kind]
        properties = {
            field.name: {**field.kind.schema, "description": field.doc} for field in members if field.kind
        }
        for field in fields:
            if field.former and field.kind:
                description = f"The former name of `{field.name}`. The next release omits it."
                properties[field.former] = {
                    **field.kind.schema,
                    "description": description,
                    "deprecated": True,
                }
        required = [field.name for field in members if field.is_required]
        schema = {"type": "object", "description": doc, "properties": properties, "required": required}
        super().__init__(schema, self.document)

    def document(self, value: Any) -> dict[str, Any]:
        """Return the JSON document of ``value``. Raise ``KeyError`` if it lacks a required member."""
        document = {}
        for field in self.fields:
            if field.kind is None:
                continue
            member = field.value(value)
            if member is not ABSENT:
                document[field.name] = field.kind.encode(member)
                if field.former:
                    document[field.former] = document[field.name]
            elif field.is_required:
                raise KeyError(field.name)
        return document

    def json(self, value: Any) -> str:
        """Return the JSON document as text."""
        return json.dumps(self.document(value))

    def cells(self, values: Iterable[Any], now: float = 0.0) -> list[list[str]]:
        """Return the rows of the table. The first row holds the headers."""
        rows = [[field.text(value, now) for field in self.columns] for value in values]
        return [[field.header for field in self.columns], *rows]

    def details(self, value: Any, now: float = 0.0) -> list[str]:
        """Return a line for each line of each column's text, after the column's header."""
        lines = []
        for field in self.columns:
            text = field.cell(value, now) if field.cell else str(field.value(value))
            lines += [f"{field.header:<10} {visible(line)}" for line in text.split("\n") if line]
        return lines

    @property
    def spare(self) -> Sequence[str]:
        """Return the headers of columns that a narrow terminal omits, first omitted first."""
        spare = sorted((field for field in self.columns if field.spare), key=lambda field: field.spare)
        return [field.header for field in spare]
