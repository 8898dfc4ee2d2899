"""Parses the shapes of a run: ``4x8 2x8,time=8h``. The first shape that starts is kept."""

from __future__ import annotations

from clusterrun.model import duration, gpu_request, node_range
from clusterrun.model.errors import BadInput
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = tuple[tuple[str, Any], ...]

# More jobs of one run would crowd out the user's other jobs.
MOST = 9
_MAY_DIFFER = {option.name: option for option in CONFIGURABLE.values() if option.shaped}
_FORM = 'give --shapes "4x8 2x8,time=8h": nodes x GPUs, then what else differs, shapes apart by a blank'


def read(text: str) -> tuple[tuple[str, Fields], ...]:
    """Return each shape as it was written, with its fields of a spec. Raises ``BadInput``."""
    shapes = text.split()
    if shapes and not 1 < len(shapes) <= MOST:
        raise BadInput(f"--shapes {text!r}: {len(shapes)} of them; a choice has 2 to {MOST}", _FORM)
    if twice := [word for word in shapes if shapes.count(word) > 1]:
        raise BadInput(f"--shapes: {twice[0]} is given twice", "leave one of them out")
    return tuple((word, _shape(word)) for word in shapes)


def _shape(word: str) -> Fields:
    size, *options = word.split(",")
    nodes, cross, gpus = size.partition("x")
    where = f"--shapes {word!r}: nodes"
    most, least = node_range.read(nodes, where)
    if most < 1:
        raise BadInput(f"{where} must be at least 1", _FORM)
    fields: dict[str, Any] = {"nodes": most, "min_nodes": least}
    if cross:
        fields["gpus"], fields["gpu_type"] = gpu_request.read(gpus, f"--shapes {word!r}:")
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not value or name not in _MAY_DIFFER:
            names = ", ".join(_MAY_DIFFER)
            raise BadInput(f"--shapes {word!r}: {option!r} is not one of {names}", _FORM)
        fields[_MAY_DIFFER[name].field] = _value(word, _MAY_DIFFER[name], value)
    return tuple(fields.items())


def _value(word: str, option: Option, value: str) -> Any:
    if option.kind in DURATIONS:
        return duration.parse(value, DURATIONS[option.kind])
    if option.kind != "number":
        return value
    if not (value.isascii() and value.isdecimal()):
        raise BadInput(f"--shapes {word!r}: {option.name} {value!r} is not a whole number", _FORM)
    return int(value)
