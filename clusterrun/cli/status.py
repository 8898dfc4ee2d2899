"""`clusterrun status`: many runs as a table, one in detail, or JSON; decides nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from clusterrun.cli.boundary import say
from clusterrun.cli.completing import runs
from clusterrun.cli.terminal import iso, table
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import spoken
from clusterrun.model.frozen import fields
from clusterrun.model.record import RunStatus
from clusterrun.model.states import State
from clusterrun.verbs.desk import Desk
from clusterrun.workflow import statuses

_TIMES = ("submitted_at", "started_at", "ended_at")
_COLOURS = {State.RUNNING: "green", State.PENDING: "yellow", State.COMPLETED: "", State.UNKNOWN: "magenta"}


@click.command()
@click.option("--all", "everything", is_flag=True, help="All runs, not only the live and newest ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.argument("wanted", metavar="[RUN]...", nargs=-1, shell_complete=runs)
def status(wanted: tuple[str, ...], everything: bool, as_json: bool) -> int:
    """Show the live and the newest runs, or one RUN in detail.

    \b
    Examples:
      clusterrun status
      clusterrun status last
      clusterrun status --json
    """
    desk = Desk()
    found = statuses(tuple(desk.store.ids()) if everything else wanted, desk, say)
    if as_json:
        print(json.dumps(document(found)))
    elif len(wanted) == 1:
        from clusterrun.cli.detail import show

        show(desk, found[0])
    elif found:
        _show(found)
        _tell_older(desk, found, bool(wanted))
    else:
        say("there are no runs yet: clusterrun submit train.py starts one")
    return ExitCode.DONE


def document(found: list[RunStatus]) -> dict[str, Any]:
    """What ``--json`` prints: times in ISO 8601 with zone, or null."""
    return {"runs": [_entry(status) for status in found]}


def _entry(status: RunStatus) -> dict[str, Any]:
    entry = {**fields(status), "state": status.state.value, "phase": status.phase.value}
    return {**entry, **{name: iso(entry[name] or None) for name in _TIMES}}


def _show(found: list[RunStatus]) -> None:
    now = time.time()
    rows = [
        [s.run_id, s.job_id, s.state.value, s.phase.value, f"{s.nodes}×{_each(s)}", _time(s, now), s.reason]
        for s in found
    ]
    heads = ("RUN", "JOB", "STATE", "PHASE", "NODES", "TIME", "REASON")
    styles = [_COLOURS.get(s.state, "red") for s in found]
    table(heads, rows, styles, spare=("PHASE", "JOB", "NODES", "TIME"))


def _each(status: RunStatus) -> int:
    return status.world_size // status.nodes if status.nodes else 0


def _time(status: RunStatus, now: float) -> str:
    """How long it has run, or has waited."""
    began = status.started_at or status.submitted_at
    ended = status.ended_at or now
    return spoken(max(0.0, ended - began)) if began else ""


def _tell_older(desk: Desk, found: list[RunStatus], named: bool) -> None:
    older = len(desk.store.ids()) - len(found)
    if older > 0 and not named:
        say(f"{older} older {'run' if older == 1 else 'runs'}: clusterrun status --all")
