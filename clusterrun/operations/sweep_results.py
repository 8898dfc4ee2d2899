"""Collect the reported results of the runs of a sweep, best first. Nothing is changed."""

from __future__ import annotations

import json
import math
from typing import Any

from clusterrun.atomic_file import end_of
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell
from clusterrun.runs.private_files import names_in
from clusterrun.runs.sweep_records import SweepRecord

# Bytes of the output of rank 0 that are read. A result in a line of JSON is near the end.
LAST_BYTES = 65536
MOST_BYTES = 1 << 20

# A JSON scalar.
Value = Any


@frozen
class SweepResult:
    """The result of one point."""

    name: str
    run_id: str
    state: str
    point: tuple[tuple[str, str], ...]  # names and values of the point
    reported: tuple[tuple[str, Value], ...] = ()  # names and values that the run reported
    reason: str = ""  # why the run is in that state; '' if it completed


@frozen
class SweepResults:
    """All points of a sweep, best first."""

    sweep_id: str
    by: str  # name of the result that they are sorted by; '': none
    largest: bool  # whether the largest result is the best
    results: tuple[SweepResult, ...]

    @property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for result in self.results for name, _ in result.reported))

    @property
    def heads(self) -> list[str]:
        """Return the titles of the columns. The last column is the reason, unless every run completed."""
        names = ["run", "state", *(name for name, _ in self.results[0].point), *self._names]
        return [*names, "reason"] if self._has_reasons else names

    @property
    def _has_reasons(self) -> bool:
        return any(result.reason for result in self.results)

    def rows(self) -> list[list[str]]:
        """Return the cells of the table, one row for each point."""
        rows = []
        for result in self.results:
            reported = dict(result.reported)
            row = [result.run_id or result.name, result.state, *(value for _, value in result.point)]
            row += [_shown(reported.get(name)) for name in self._names]
            rows.append([*row, result.reason] if self._has_reasons else row)
        return rows


def gathered(sweep: SweepRecord, context: Context, by: str, largest: bool, tell: Tell) -> SweepResults:
    """Return the results of all points. Raise ``BadInput`` if no run reported ``by``."""
    statuses = {
        status.run_id: status for status in context.inquiry(tell).statuses(sweep.run_ids, skip_missing=True)
    }
    results = []
    for index, point in enumerate(sweep.points):
        status = statuses.get(point.run_id)
        result = SweepResult(f"{sweep.name}.{index}", point.run_id, "NOT QUEUED", point.values)
        if status:
            values = tuple(reported(context.store.paths(point.run_id)).items())
            reason = "" if status.state is State.COMPLETED else status.reason
            if reason and status.error not in reason:
                reason = f"{reason}; {status.error}"
            result = replace(result, state=status.state.value, reported=values, reason=reason)
        elif point.run_id:
            result = replace(result, state="REMOVED")
        results.append(result)
    names = list(
        dict.fromkeys(name for result in results for name, value in result.reported if is_number(value))
    )
    if by and by not in names:
        remedy = "report numbers: clusterrun.training.report(loss=…)"
        remedy = f"there are {', '.join(names)}" if names else remedy
        raise BadInput(f"--by {by}: no run of {sweep.name} has reported such a number", remedy)
    by = by or (names[0] if names else "")
    results.sort(key=lambda result: _place(dict(result.reported).get(by), largest))
    return SweepResults(sweep.sweep_id, by, largest, tuple(results))


def reported(paths: RunPaths) -> dict[str, Value]:
    """Return the last results of the newest attempt with results, from ``report`` or from a line of JSON."""
    attempts = sorted((int(name) for name in names_in(paths.attempts) if name.isdecimal()), reverse=True)
    for attempt in attempts:
        files = paths.attempt(attempt)
        values = _object(end_of(files.results, MOST_BYTES)[0]).get("values")
        if isinstance(values, dict) and (result := _plain(values)):
            return result
        for line in reversed(end_of(files.out(0), LAST_BYTES)[0].split(b"\n")):
            if line.strip()[:1] == b"{" and (result := _plain(_object(line))):
                return result
    return {}


def _object(text: bytes) -> dict[str, Value]:
    try:
        document = json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _plain(values: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if not isinstance(value, (dict, list))}


def is_number(value: Value) -> bool:
    """Return whether runs can be sorted by ``value``. NaN sorts last."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _place(value: Value, largest: bool) -> tuple[bool, float]:
    """Return the sort key of a result. NaN and values that are not numbers sort last."""
    if not is_number(value) or math.isnan(value):
        return True, 0.0
    return False, -float(value) if largest else float(value)


def _shown(value: Value) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
