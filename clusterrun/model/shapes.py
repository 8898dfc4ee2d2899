"""Several shapes of a run, of which the first that starts is kept: ``4x8 2x8,time=8h``."""

from __future__ import annotations

from clusterrun.model import duration, gpu_request, node_range
from clusterrun.model.errors import BadInput
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = tuple[tuple[str, Any], ...]

MOST = 9
"""More jobs of one run would crowd out the user's own."""
_MAY_DIFFER = {option.name: option for option in CONFIGURABLE.values() if option.shaped}
_FORM = 'give --shapes "4x8 2x8,time=8h": nodes x GPUs, then what else differs, shapes apart by a blank'


def read(text: str) -> tuple[tuple[str, Fields], ...]:
    """Each shape as it was written, and the fields of a spec that it says. Raises ``BadInput``."""
    words = text.split()
    if words and not 1 < len(words) <= MOST:
        raise BadInput(f"--shapes {text!r}: {len(words)} of them; a choice has 2 to {MOST}", _FORM)
    if twice := [word for word in words if words.count(word) > 1]:
        raise BadInput(f"--shapes: {twice[0]} is given twice", "leave one of them out")
    return tuple((word, _shape(word)) for word in words)


def _shape(word: str) -> Fields:
    size, *options = word.split(",")
    nodes, cross, gpus = size.partition("x")
    where = f"--shapes {word!r}: nodes"
    most, least = node_range.read(nodes, where)
    if most < 1:
        raise BadInput(f"{where} must be at least 1", _FORM)
    found: dict[str, Any] = {"nodes": most, "min_nodes": least}
    if cross:
        found["gpus"], found["gpu_type"] = gpu_request.read(gpus, f"--shapes {word!r}:")
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or not value or name not in _MAY_DIFFER:
            known = ", ".join(_MAY_DIFFER)
            raise BadInput(f"--shapes {word!r}: {option!r} is not one of {known}", _FORM)
        found[_MAY_DIFFER[name].field] = _value(word, _MAY_DIFFER[name], value)
    return tuple(found.items())


def _value(word: str, option: Option, value: str) -> Any:
    if option.kind in DURATIONS:
        return duration.parse(value, DURATIONS[option.kind])
    if option.kind != "number":
        return value
    if not (value.isascii() and value.isdecimal()):
        raise BadInput(f"--shapes {word!r}: {option.name} {value!r} is not a whole number", _FORM)
    return int(value)
