"""Runs as lines for people: a table that fits its width, reasons below where there is no room."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.cli.terminal import folded, padded, painted, width_of
from clusterrun.model.duration import clock_time, spoken
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase, State
from clusterrun.model.visible import visible

HEADS = ("RUN", "JOB", "STATE", "PHASE", "NODES", "TIME", "REASON")
SPARE = ("PHASE", "JOB", "NODES", "TIME")
"""What a terminal too narrow even without reasons does without, in this order."""
ROOM = 30
"""Columns that a reason should have beside the rest; else it stands below."""
INDENT = "    "
_STATE = HEADS.index("STATE")
_PAINT = {State.RUNNING: "green", State.PENDING: "yellow", State.COMPLETED: "", State.UNKNOWN: "magenta"}


def cells(status: RunStatus, now: float) -> list[str]:
    """One run as the cells of a row."""
    each = status.world_size // status.nodes if status.nodes else 0
    told = (
        status.run_id,
        status.job_id,
        status.state.value,
        status.phase.value,
        f"{status.nodes}×{each}",
        _time(status, now),
        reason_of(status, now),
    )
    return [visible(cell) for cell in told]


def reason_of(status: RunStatus, now: float) -> str:
    """Why it is as it is, or how far; of a failure also when it was."""
    told = status.reason + (f" at {clock_time(status.failed_at, now)}" if status.failed_at else "")
    step = f"step {status.step}" if status.step >= 0 and status.phase is Phase.TRAINING else ""
    return "; ".join(filter(None, (status.point, told, step)))


def _time(status: RunStatus, now: float) -> str:
    """How long it has run, or has waited."""
    began = status.started_at or status.submitted_at
    ended = status.ended_at or now
    return spoken(max(0.0, ended - began)) if began else ""


def plain(statuses: Sequence[RunStatus], now: float) -> list[str]:
    """A table for a pipe: every line whole."""
    rows = [list(HEADS), *(cells(status, now) for status in statuses)]
    widths = [max(map(width_of, column)) for column in zip(*rows)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def fitted(statuses: Sequence[RunStatus], now: float, width: int, colours: bool) -> list[str]:
    """A table for a terminal ``width`` columns wide; no column is lost to a long reason."""
    rows = [list(HEADS), *(cells(status, now) for status in statuses)]
    places = _places(rows, width)
    widths = [max(width_of(row[place]) for row in rows) for place in places]
    left = width - sum(widths) - 2 * len(widths)
    styles = ["bold", *(_PAINT.get(status.state, "red") for status in statuses)]
    lines = []
    for number, (row, style) in enumerate(zip(rows, styles)):
        shown = [
            painted(padded(row[place], wide), style if colours and (not number or place == _STATE) else "")
            for place, wide in zip(places, widths)
        ]
        lines += _with_reason(shown, row[-1], left, width, style if colours and not number else "")
    return lines


def _places(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns but the reason's, without those for which there is no room at all."""
    places = list(range(len(HEADS) - 1))
    for head in SPARE:
        if sum(max(width_of(row[p]) for row in rows) + 2 for p in places) - 2 <= width:
            break
        places.remove(HEADS.index(head))
    return places


def _with_reason(shown: Sequence[str], reason: str, left: int, width: int, style: str) -> list[str]:
    line = "  ".join(shown)
    if left >= ROOM:
        first, *more = folded(reason, left)
        return [f"{line}  {painted(first, style)}".rstrip(), *(" " * (width - left) + part for part in more)]
    below = [] if style or reason == HEADS[-1] else folded(reason, width - len(INDENT))
    return [line.rstrip(), *(INDENT + part for part in below if part)]
