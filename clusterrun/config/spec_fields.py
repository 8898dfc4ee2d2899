"""Convert written options to the fields of a spec. A wrong value is `BadInput` with the option's name."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from clusterrun.config.settings import read_value
from clusterrun.model import gpu_request, node_range
from clusterrun.model.duration import parse
from clusterrun.model.errors import BadInput
from clusterrun.model.option_table import CONFIGURABLE, DURATIONS, Option
from clusterrun.model.run_words import shadowed_by
from clusterrun.model.spec import Cluster, JobSpec, OnUnfit

# Fields that hold a member of an enumeration.
WORDS = {"cluster": Cluster, "on_unfit": OnUnfit}


def spec_of(
    command: Sequence[str],
    cwd: str,
    options: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> JobSpec:
    """Return a spec from options as people write them: text for times, mappings for variables.

    ``more`` are further fields of the spec. Raise ``BadInput``.
    """
    values = {**fields(options, environ or {}), **more}
    spec = JobSpec(command=command_words(command), cwd=os.path.abspath(cwd), **values)
    if shadow := shadowed_by(spec.name):
        message = f"--name {spec.name} names a run that no command could find: {spec.name} means {shadow}"
        raise BadInput(message, f"give another name, for example --name run-{spec.name}")
    return spec


def fields(options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a spec for ``options``. Variables without a value take it from ``environ``."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        option = CONFIGURABLE.get(name.replace("_", "-"))
        if value is None or (option and option.choices and value == option.default):
            continue
        if name in ("env", "environment"):
            values["environment"] = _pairs(value, "env", "KEY=VALUE", partial(_variable, environ))
        elif name == "preflight_limit":
            values[name] = _pairs(value, name, "NAME=NUMBER", _limit)
        elif name == "gpus":
            values["gpus"], values["gpu_type"] = gpu_request.read(str(_plain(name, value)), name)
        elif name == "nodes":
            values["nodes"], values["min_nodes"] = node_range.read(str(_plain(name, value)), name)
        else:
            values[name] = _plain(name, value)
    return values


def command_words(arguments: Iterable[Any]) -> tuple[str, ...]:
    """Return the arguments of a command, with paths as texts. Raises ``BadInput``."""
    texts = tuple(os.fspath(word) if isinstance(word, os.PathLike) else word for word in arguments)
    wrong = [word for word in texts if not isinstance(word, str)]
    if wrong:
        problem = f"{wrong[0]!r} is not a word of a command"
        raise BadInput(problem, 'give texts one by one: submit("train.py", "--lr", "0.1")')
    return texts


def _plain(name: str, value: Any) -> Any:
    option = CONFIGURABLE.get(name.replace("_", "-"))
    if option is None:  # ``after``, and options that are not in the table
        return _texts(name, value) if name == "after" else value
    if option.kind == "list":
        return _texts(name, value)
    if option.kind in DURATIONS:
        return _seconds(option, name, value)
    if name in WORDS:
        return WORDS[name](read_value(option, getattr(value, "value", value), name))
    return read_value(option, _primitive(value), name)


def _primitive(value: Any) -> Any:
    """Return paths as texts, and integers of other libraries as int."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    try:
        return operator.index(value)
    except TypeError:
        return value


def _seconds(option: Option, name: str, value: Any) -> int:
    seconds = value.total_seconds() if hasattr(value, "total_seconds") else _primitive(value)
    if isinstance(seconds, str):
        try:
            return parse(seconds, DURATIONS[option.kind]) if seconds not in ("", "off") else 0
        except BadInput as error:
            raise BadInput(f"--{option.name} {error.seen}", error.remedy) from error
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise BadInput(f"{name}: {value!r} is not a duration", "give seconds, or text as '90m' or '2h'")
    return math.ceil(seconds)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    items = [value] if isinstance(value, (str, os.PathLike)) or hasattr(value, "run_id") else value
    if not isinstance(items, Iterable) or isinstance(items, (bytes, Mapping)):
        raise BadInput(f"{name}: {value!r} is not a list of strings", f"give {name}=['…']")
    texts = tuple(_text(item) for item in items)
    if not all(isinstance(text, str) for text in texts):
        raise BadInput(f"{name}: {value!r} is not a list of strings", f"give {name}=['…']")
    return texts


def _text(item: Any) -> Any:
    """Return a path as text, a run as its id."""
    return os.fspath(item) if isinstance(item, os.PathLike) else getattr(item, "run_id", item)


def _pairs(
    value: Any, name: str, form: str, read: Callable[[str, Any], tuple[str, Any]]
) -> tuple[tuple[str, Any], ...]:
    """Return pairs from a mapping, from texts like ``form``, or from pairs.

    The last value of a name counts.
    """
    items = value.items() if isinstance(value, Mapping) else [value] if isinstance(value, str) else value
    if not isinstance(items, Iterable) or isinstance(items, bytes):
        raise BadInput(f"{name}: {value!r} is not a mapping", f"give {name}={{…: …}}, or a list of {form}")
    pairs: dict[str, str] = {}
    for item in items:
        if isinstance(item, str):
            key, equals, text = item.partition("=")
            name_and_value = read(key, text if equals else None)
        elif isinstance(item, (tuple, list)) and len(item) == 2 and isinstance(item[0], str):
            name_and_value = read(item[0], item[1])
        else:
            raise BadInput(f"{name}: {item!r} is not a name and a value", f"give {form}")
        pairs.update([name_and_value])
    return tuple(pairs.items())


def _variable(environ: Mapping[str, str], name: str, value: Any) -> tuple[str, str]:
    if value is None:
        if name not in environ:
            problem = f"--env {name}: the variable {name} is not set"
            raise BadInput(problem, f"give its value: --env {name}=VALUE")
        return name, environ[name]
    if isinstance(value, bool) or not isinstance(value, (str, os.PathLike, int, float)):
        problem = f"env: the value of {name} is {value!r}, not text"
        raise BadInput(problem, f"give text: env={{{name!r}: '…'}}")
    return name, str(value)


def _limit(name: str, value: Any) -> tuple[str, float]:
    try:
        return name, float(value)
    except (TypeError, ValueError) as error:
        text = name if value is None else f"{name}={value}"
        problem = f"--preflight-limit {text!r} has no number"
        raise BadInput(problem, "write NAME=NUMBER: --preflight-limit slow_fail=0.4") from error
