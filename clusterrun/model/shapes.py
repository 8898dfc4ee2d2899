"""Several shapes of a run, of which the first that starts is kept: ``4x8 2x8,time=8h``."""

from __future__ import annotations

from clusterrun.model import duration, gpu_request, node_range
from clusterrun.model.errors import BadInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Fields = tuple[tuple[str, Any], ...]

MOST = 9
"""More jobs of one run would crowd out the user's own."""
TEXTS = ("partition", "account", "qos", "constraint", "reservation", "mem")
TIMES = ("time", "time-min")
NUMBERS = ("ranks-per-node", "cpus-per-rank")
_FORM = 'give --shapes "4x8 2x8,time=8h": nodes x GPUs, then what else differs, shapes apart by a blank'


def read(text: str) -> tuple[tuple[str, Fields], ...]:
    """Each shape as it was written, and the fields of a spec that it says. Raises ``BadInput``."""
    words = text.split()
    if words and not 1 < len(words) <= MOST:
        raise BadInput(f"--shapes {text!r}: {len(words)} of them; a choice has 2 to {MOST}", _FORM)
    if twice := [word for word in words if words.count(word) > 1]:
        raise BadInput(f"--shapes: {twice[0]} stands there twice", "leave one of them out")
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
        if not equals or not value or name not in (*TEXTS, *TIMES, *NUMBERS):
            known = ", ".join((*TIMES, *TEXTS, *NUMBERS))
            raise BadInput(f"--shapes {word!r}: {option!r} is none of {known}", _FORM)
        found[name.replace("-", "_")] = _value(word, name, value)
    return tuple(found.items())


def _value(word: str, name: str, value: str) -> Any:
    if name in TEXTS:
        return value
    if name in TIMES:
        return duration.parse(value)
    if not (value.isascii() and value.isdecimal()):
        raise BadInput(f"--shapes {word!r}: {name} {value!r} is not a whole number", _FORM)
    return int(value)
