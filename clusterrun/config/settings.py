"""Determine the value of each option from several sources, and which source wins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterrun.model import contract, gpu_request, node_range
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.nearest import nearest
from clusterrun.model.option_table import CONFIGURABLE, Option, Value
from clusterrun.model.sbatch_variables import OPTION_BY_VARIABLE, PASSED_ON, is_overridden, passed_on_entry

# The origin of a value that no source sets.
DEFAULT = "default"


@frozen
class Setting:
    name: str
    value: Value
    origin: str


@frozen
class Source:
    """One source of values: its name for messages, and its values by option name."""

    origin: str  # name for messages
    values: tuple[tuple[str, Value], ...]  # by option name


def settle(sources: Iterable[Source]) -> dict[str, Setting]:
    """Return every option with its value and origin.

    ``sources`` are strongest first; lists add up, weakest first.
    """
    strongest = list(sources)
    values_by_origin = [(source.origin, dict(source.values)) for source in strongest]
    settings = {}
    for name, option in CONFIGURABLE.items():
        values = [(chosen[name], origin) for origin, chosen in values_by_origin if name in chosen]
        if not values:
            settings[name] = Setting(name, option.default, DEFAULT)
        elif option.kind != "list":
            settings[name] = Setting(name, *values[0])
        else:
            items = tuple(item for value, _ in reversed(values) if isinstance(value, tuple) for item in value)
            settings[name] = Setting(name, items, " + ".join(origin for _, origin in reversed(values)))
    # Refuse ``no requeue`` of a source if it or a weaker one passes ``requeue`` on to sbatch. A stronger
    # source may pass it on: it overrides the other.
    whether = settings["requeue"]
    if not whether.value and whether.origin != DEFAULT:
        is_weaker = False
        for source in strongest:
            passed = [key for key in _passed_keys([source]) if key in ("requeue", "no-requeue")]
            is_weaker = is_weaker or source.origin == whether.origin
            if passed and (passed[-1] == "no-requeue" or not is_weaker):
                break
            if passed:
                problem = f"no requeue ({whether.origin}) and sbatch requeue ({source.origin})"
                raise BadInput(f"{problem} contradict each other", "leave one of them out")
    return {**settings, **_requeue_implied(settings, [source.origin for source in strongest])}


def _requeue_implied(settings: Mapping[str, Setting], origins: list[str]) -> dict[str, Setting]:
    """Let ``requeue-by`` imply ``requeue``, unless a stronger source says no.

    Raises ``BadInput`` for both.
    """
    whether, how = settings["requeue"], settings["requeue-by"]
    if not how.value or whether.value:
        return {}
    origin_index = origins.index(whether.origin) if whether.origin in origins else len(origins)
    way = origins.index(how.origin)
    if origin_index == way:
        problem = f"{how.origin}: requeue-by {how.value} and no requeue contradict each other"
        raise BadInput(problem, "leave one of them out")
    if origin_index < way:
        return {"requeue-by": Setting("requeue-by", "", whether.origin)}
    return {"requeue": Setting("requeue", True, how.origin)}


def from_environment(environ: Mapping[str, str]) -> list[Source]:
    """Return a source for each option in ``CLUSTERRUN_*`` variables. Lists have one item per line."""
    options = [option for option in CONFIGURABLE.values() if environ.get(option.variable)]
    return [
        Source(
            option.variable, ((option.name, read_value(option, environ[option.variable], option.variable)),)
        )
        for option in options
    ]


def from_sbatch_variables(environ: Mapping[str, str], stronger: Sequence[Source] = ()) -> list[Source]:
    """Return a source for each option that the user's shell sets for every sbatch.

    An option that is passed on has none if a ``stronger`` source sets it, or another option of its kind.
    """
    sources = []
    options_set = {name for source in stronger for name, _ in source.values} | set(_passed_keys(stronger))
    for variable, name in OPTION_BY_VARIABLE.items():
        if environ.get(variable):
            value = read_value(CONFIGURABLE[name], environ[variable], variable)
            sources.append(Source(variable, ((name, value),)))
    for variable in PASSED_ON:
        entry = passed_on_entry(variable, environ)
        if entry and not is_overridden(entry, options_set):
            sources.append(Source(variable, (("sbatch", (entry,)),)))
    return sources


def _passed_keys(sources: Iterable[Source]) -> list[str]:
    """Return the options in the ``sbatch`` entries of the sources."""
    lists = [value for source in sources for name, value in source.values if name == "sbatch"]
    entries = [entry for value in lists if isinstance(value, tuple) for entry in value]
    return [entry.removeprefix("--").partition("=")[0] for entry in entries]


def read_value(option: Option, raw_value: Any, where: str) -> Value:
    """Return ``raw_value`` (text, or a value from TOML) as a value of ``option``.

    Raises ``BadInput`` naming ``where``.
    """
    readers = {"list": _list, "switch": _switch, "number": _number}
    value = readers.get(option.kind, _text)(raw_value)
    if value is not None and option.kind in ("gpus", "nodes"):
        kind = gpu_request if option.kind == "gpus" else node_range
        count, unit_seconds = kind.read(value, where)
        value = kind.as_text(count, unit_seconds) if unit_seconds else count
    if value is None or (option.choices and value not in option.choices):
        expected = {
            "list": "a list of strings",
            "switch": "true or false",
            "number": "a whole number",
            "gpus": "a number of GPUs",
            "nodes": "a number of nodes",
        }
        choices = " or ".join(option.choices)
        raise BadInput(f"{where}: {raw_value!r} is not {choices or expected.get(option.kind, 'a string')}")
    return value


def _text(raw_value: Any) -> str | None:
    return None if isinstance(raw_value, (bool, list, dict)) else str(raw_value)


def _number(raw_value: Any) -> int | None:
    if isinstance(raw_value, int) and not isinstance(raw_value, bool):
        return raw_value
    text = raw_value.strip() if isinstance(raw_value, str) else ""
    return int(text) if text.lstrip("-").isdecimal() and text.isascii() else None


def _switch(raw_value: Any) -> bool | None:
    if isinstance(raw_value, bool):
        return raw_value
    word = raw_value.strip().lower() if isinstance(raw_value, str) else ""
    if word in ("1", "true", "yes", "on"):
        return True
    return False if word in ("0", "false", "no", "off") else None


def _list(raw_value: Any) -> tuple[str, ...] | None:
    if isinstance(raw_value, str):
        return tuple(line for line in raw_value.splitlines() if line)
    is_list_of_text = isinstance(raw_value, list) and all(isinstance(item, str) for item in raw_value)
    return tuple(raw_value) if is_list_of_text else None


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each ``CLUSTERRUN_*`` variable that looks like a misspelt one."""
    own_variables = {option.variable for option in CONFIGURABLE.values()} | {
        contract.HOME_VARIABLE,
        PROFILE_VARIABLE,
    }
    candidates = {*own_variables, contract.LAB_HOME_VARIABLE, contract.HOST_VARIABLE}
    of_a_run = {contract.NODE_VARIABLE} if contract.RUN_ID_VARIABLE in environ else set()
    notices = []
    for name in sorted(environ):
        if (
            name.startswith(contract.OPTION_VARIABLE_PREFIX)
            and name not in own_variables | RESERVED | of_a_run
        ):
            similar = nearest(name, candidates, alike=0.85)
            notices += [f"{name} is set but has no effect; did you mean {similar[0]}?"] if similar else []
    return notices


PROFILE_VARIABLE = contract.OPTION_VARIABLE_PREFIX + "PROFILE"
# Variables that clusterrun sets in the processes of a run, or that users set for scripts and labs.
RESERVED = {
    *contract.CODE_VARIABLES,
    *(contract.FIT_VARIABLE, contract.UNFIT_VARIABLE),
    contract.RUN_ID_VARIABLE,
    contract.RUN_NAME_VARIABLE,
    contract.RUN_DIR_VARIABLE,
    contract.ATTEMPT_VARIABLE,
    contract.MARKER_VARIABLE,
    contract.PATH_BEFORE_VARIABLE,
    contract.SUBMIT_DIR_VARIABLE,
    contract.NODE_NAME_VARIABLE,
    contract.INDEPENDENT_VARIABLE,
    contract.LAB_HOME_VARIABLE,
    contract.HOST_VARIABLE,
}


def home(environ: Mapping[str, str]) -> str:
    """Return ``$CLUSTERRUN_HOME``, or ``~/.clusterrun``, as an absolute path."""
    return os.path.abspath(os.path.expanduser(environ.get(contract.HOME_VARIABLE) or "~/.clusterrun"))
