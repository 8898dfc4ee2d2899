"""Compute the points of a sweep from ``--set`` and from files, and apply them to a command.

A point gives each name a text. It replaces ``{name}`` in the command and in values of ``--env``. In a
``--setup`` line it does so as one quoted word.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.nearest import nearest
from clusterrun.model.spec import JobSpec

# Each point is a run with files of its own.
MOST_POINTS = 10_000
EACH = "each point is a run with files of its own: sweep over parts of them in turn"
Point = tuple[tuple[str, str], ...]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
# ``${name}`` is a variable of a shell or of hydra.
_PLACE = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_.-]*)\}", re.ASCII)
# Searches write a span of numbers in this way. Its comma would make two meaningless values of it.
_SPAN = re.compile(r"(uniform|log|int)\([^()]*\)", re.ASCII)
_NUMBER = r"\s*(-?\d{1,9})\s*"
_RANGE = re.compile(rf"range\({_NUMBER}(?:,{_NUMBER})?(?:,{_NUMBER})?\)", re.ASCII)


def points(sets: Sequence[str], file: str = "") -> tuple[Point, ...]:
    """Return every combination of the values, the last name running fastest. Raises ``BadInput``."""
    axes = []
    for text in sets:
        name, equals, value_text = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise BadInput(f"--set {text!r} is not NAME=VALUES", "--set lr=0.1,0.01 or --set seed='range(5)'")
        if _SPAN.fullmatch(value_text.strip()):
            raise BadInput(f"--set {text!r}: a sweep needs each value", f"--set {name}=0.1,0.01")
        if match := _RANGE.fullmatch(value_text.strip()):
            first, second, step = (int(part) if part else None for part in match.groups())
            if step == 0 or not (values := range(*(n for n in (first, second, step) if n is not None))):
                remedy = "range(5) is 0,1,2,3,4; range(2, 10, 2) is 2,4,6,8"
                raise BadInput(f"--set {text!r} is an empty range", remedy)
            if len(values) > MOST_POINTS:
                problem = f"--set {name}: {len(values):,} points are more than {MOST_POINTS:,}"
                raise BadInput(problem, EACH)
            axes.append((name, [str(number) for number in values]))
            continue
        if value_text.strip().startswith("range("):
            raise BadInput(f"--set {text!r} is no range", "range(5) is 0,1,2,3,4; range(2, 10, 2) is 2,4,6,8")
        try:
            rows = list(csv.reader([value_text], strict=True))
        except csv.Error as error:
            raise BadInput(f"--set {text!r}: {error}", "put a value with commas in double quotes") from error
        texts = rows[0] if rows else []
        if not texts or "" in texts:
            raise BadInput(f"--set {text!r} has a point without a value", f"--set {name}=0.1,0.01")
        for value in texts if len(texts) > 1 else ():
            if any(value.count(opening) != value.count(closing) for opening, closing in ("()", "[]", "{}")):
                remedy = f"several values: --set {name}=0.1,0.01; one value that has a comma: --set "
                problem = f"--set {text!r}: a comma inside brackets separates values too"
                raise BadInput(problem, f"{remedy}'{name}=\"[1,2]\"'")
        axes.append((name, texts))
    listed = _read(file) if file else [{}]
    return combined(listed, axes, f"--points {file}" if file else "--set")


def combined(
    listed: Sequence[Mapping[str, Any]], axes: Sequence[tuple[str, Sequence[Any]]], where: str
) -> tuple[Point, ...]:
    """Return each point of ``listed`` with every combination of the values of ``axes``.

    Raises ``BadInput``.
    """
    count = len(listed) * math.prod(len(values) for _, values in axes)
    if count > MOST_POINTS:
        problem = f"{where}: {count:,} points are more than {MOST_POINTS:,}"
        raise BadInput(problem, EACH)
    names = [name for name, _ in axes]
    for name in (*names, *(listed[0] if listed else ())):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadInput(f"{where}: {name!r} is not a name", "a name is of letters, digits, _, . and -: lr")
    if twice := {name for name in names if names.count(name) > 1 or (listed and name in listed[0])}:
        raise BadInput(f"{where}: {', '.join(sorted(twice))} is given twice", "give all its values at once")
    points = [
        tuple((name, _text(value, where, name)) for name, value in (*point.items(), *zip(names, combination)))
        for point in listed
        for combination in itertools.product(*(values for _, values in axes))
    ]
    if not points or not points[0]:
        remedy = "clusterrun sweep --set lr=0.1,0.01 train.py --lr '{lr}'"
        raise BadInput(f"{where}: there is no point", remedy)
    first: dict[Point, int] = {}
    for index, point in enumerate(points):
        if [name for name, _ in point] != [name for name, _ in points[0]]:
            missing = sorted({name for name, _ in points[0]} ^ {name for name, _ in point})
            problem = f"{where}: point {index} and point 0 differ in {', '.join(missing) or 'their order'}"
            raise BadInput(problem, "give each point a value for every name, in one order")
        if (before := first.setdefault(point, index)) != index:
            problem = f"{where}: the points {before} and {index} are the same: {point_text(point)}"
            example = "--set trial='range(2)', and {trial} in the command"
            raise BadInput(problem, f"leave one out; to run each point twice: {example}")
    return tuple(points)


def point_text(point: Iterable[tuple[str, str]]) -> str:
    """Return a point as text: ``lr=0.1 seed=3``."""
    return " ".join(f"{name}={value}" for name, value in point)


def _text(value: Any, where: str, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)) and "\0" not in str(value):
        return str(value)
    problem = f"{where}: {name} has the value {repr(value)[:60]}, which is neither text nor a number"
    raise BadInput(problem, "give a text, a number, true or false")


def _read(path: str) -> list[dict[str, Any]]:
    """Return the points of a file.

    A ``.csv`` has names in its first line, a ``.toml`` has tables ``[[point]]``.
    """
    try:
        with open(path, "rb") as file:
            content = file.read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "").lower() if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInput(f"--points {path}: {why}", "give a .csv or .toml file") from error
    kind = os.path.splitext(path)[1].lower()
    if kind not in (".csv", ".toml"):
        raise BadInput(f"--points {path}: its name does not say what it is", "give a .csv or .toml file")
    rows = _table(content, path) if kind == ".csv" else _tables(content, path)
    if not rows:
        raise BadInput(f"--points {path}: there is no point in it", "clusterrun help sweeps shows such files")
    return rows


def _table(content: str, path: str) -> list[dict[str, Any]]:
    try:
        names, *rows = list(csv.reader(content.splitlines(keepends=True), strict=True)) or [[]]
    except csv.Error as error:
        raise BadInput(f"--points {path}: {error}", "write it as a spreadsheet does") from error
    names = [name.strip() for name in names]
    if len(set(names)) < len(names):
        raise BadInput(f"--points {path}: a name stands twice in the first line", "give each column its own")
    points = []
    for number, row in enumerate(rows, 2):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) != len(names) or "" in cells:
            missing = [name for name, cell in itertools.zip_longest(names, cells, fillvalue="") if not cell]
            what = f"no value for {', '.join(missing)}" if missing else f"{len(cells)} cells"
            raise BadInput(f"--points {path}: row {number} has {what}", f"its columns are {', '.join(names)}")
        points.append(dict(zip(names, cells)))
    return points


def _tables(content: str, path: str) -> list[dict[str, Any]]:
    from clusterrun.config.profiles import toml  # slow to import, so only for TOML files

    tables = toml(content.encode(), f"--points {path}")
    listed = tables.get("point")
    if set(tables) != {"point"} or not isinstance(listed, list):
        raise BadInput(f"--points {path}: its tables are not called [[point]]", "[[point]]\nlr = 0.1")
    for index, point in enumerate(listed):
        if missing := [name for name in listed[0] if name not in point]:
            problem = f"--points {path}: point {index} has no value for {', '.join(missing)}"
            raise BadInput(problem, "give each point a value for every name, in one order")
    return listed


def at(spec: JobSpec, point: Iterable[tuple[str, str]], name: str) -> JobSpec:
    """Return the run of one point."""
    values = dict(point)
    quoted = {name: shlex.quote(value) for name, value in values.items()}

    def filled(text: str, values: Mapping[str, str] = values) -> str:
        return _PLACE.sub(lambda match: values.get(match[1], match[0]), text)

    environment = tuple((key, filled(value)) for key, value in spec.environment)
    setup = tuple(filled(line, quoted) for line in spec.setup)
    command = tuple(map(filled, spec.command))
    return replace(spec, name=name, command=command, environment=environment, setup=setup)


def check_places(spec: JobSpec, point: Point) -> tuple[str, ...]:
    """Return a notice for each place of the command whose name is none of the point's.

    Raises ``BadInput`` for a name without a place, and for a place with a misspelt name.
    """
    texts = (*spec.command, *(value for _, value in spec.environment))
    places = {match for text in texts for match in _PLACE.findall(text)}
    in_setup = {match for line in spec.setup for match in _PLACE.findall(line)}
    names = [name for name, _ in point]
    if idle := [name for name in names if name not in places | in_setup]:
        problem = f"{', '.join(idle)} stands nowhere in the command: all its runs would be the same"
        place = f"{{{idle[0]}}}"
        raise BadInput(problem, f"write {place} where its value goes: train.py --{idle[0]} '{place}'")
    foreign_places = sorted(places - set(names))
    for place in foreign_places:
        if similar := nearest(place, names, alike=0.75):
            raise BadInput(f"{{{place}}} is not a name of this sweep", f"did you mean {{{similar[0]}}}?")
    values = f"(values: {', '.join(names)})"
    return tuple(f"{{{place}}} has no value and stays as it is {values}" for place in foreign_places)
