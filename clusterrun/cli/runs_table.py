"""Runs as lines for people: a table that fits its width, reasons below where there is no room."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from clusterrun.cli import terminal
from clusterrun.cli.terminal import aligned, coloured, columns
from clusterrun.model.duration import clock_time, spoken
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.model.visible import visible

_PAINT = {State.RUNNING: "green", State.PENDING: "yellow", State.COMPLETED: "", State.UNKNOWN: "magenta"}


def _size(status: RunStatus, now: float) -> str:
    return f"{status.nodes}×{status.world_size // status.nodes if status.nodes else 0}"


def reason_of(status: RunStatus, now: float) -> str:
    told = status.reason + (f" at {clock_time(status.failed_at, now)}" if status.failed_at else "")
    step = f"step {status.step}" if status.step >= 0 and status.phase is Phase.TRAINING else ""
    return "; ".join(filter(None, (status.point, told, step)))


def _time(status: RunStatus, now: float) -> str:
    began = status.started_at or status.submitted_at
    ended = status.ended_at or now
    return spoken(max(0.0, ended - began)) if began else ""


COLUMNS: dict[str, Callable[[RunStatus, float], str]] = {
    "RUN": lambda status, now: status.run_id,
    "JOB": lambda status, now: status.job_id,
    "STATE": lambda status, now: status.state.value,
    "PHASE": lambda status, now: status.phase.value,
    "NODES": _size,
    "TIME": _time,
    "REASON": reason_of,
}
"""Each head with what stands below it; the last one has the room that is left."""
SPARE = ("PHASE", "JOB", "NODES", "TIME")
"""What a terminal too narrow even without reasons does without, in this order."""


def plain(statuses: Sequence[RunStatus], now: float) -> list[str]:
    return aligned(_rows(statuses, now))


def fitted(statuses: Sequence[RunStatus], now: float, width: int, colours: bool) -> list[str]:
    """A table for a terminal ``width`` columns wide; no column is lost to a long reason."""
    styles = ["bold", *(_PAINT.get(status.state, "red") for status in statuses)]
    rows = terminal.narrowed(_rows(statuses, now), SPARE, width, room=-2)
    return terminal.fitted(rows, width, styles if colours else [], of="STATE")


def show(statuses: Sequence[RunStatus], now: float) -> None:
    table = sys.stdout.isatty()
    lines = fitted(statuses, now, columns(), coloured(sys.stdout)) if table else plain(statuses, now)
    print("\n".join(lines))


def _rows(statuses: Sequence[RunStatus], now: float) -> list[list[str]]:
    cells = [[visible(cell(status, now)) for cell in COLUMNS.values()] for status in statuses]
    return [list(COLUMNS), *cells]
