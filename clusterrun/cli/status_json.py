"""Runs and their attempts as `--json` shows them: times in ISO 8601, null where none was said."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusterrun.cli.terminal import iso
from clusterrun.model.errors import ClusterrunError
from clusterrun.model.frozen import fields
from clusterrun.model.record import Attempt, Failure, RunStatus
from clusterrun.operations.context import Context

_COUNTS = ("step", "checkpoint")


def document(found: Iterable[RunStatus], context: Context | None = None) -> dict[str, Any]:
    """What ``--json`` prints; with a ``context`` each run has its attempts and its end report too."""
    return {"runs": [{**_entry(status), **(_more(context, status) if context else {})} for status in found]}


def _more(context: Context, status: RunStatus) -> dict[str, Any]:
    from clusterrun.cli import end_report
    from clusterrun.logs.tracker_links import tracker_links
    from clusterrun.operations.end_report import end_report as gathered

    return {
        "attempts": _attempts(context, status.run_id),
        "trackers": [fields(link) for link in tracker_links(context.store.paths(status.run_id))],
        "end_report": end_report.document(gathered(context, status)),
    }


def _entry(status: RunStatus) -> dict[str, Any]:
    entry = {**fields(status), "state": status.state.value, "phase": status.phase.value}
    del entry["failed_at"], entry["hopeless"]
    return _nulls(entry)


def _nulls(entry: dict[str, Any]) -> dict[str, Any]:
    """``entry`` with its times in words, and null for what was not told."""
    times = {name: iso(value or None) for name, value in entry.items() if name.endswith("_at")}
    return {**entry, **times, **{name: entry[name] if entry[name] >= 0 else None for name in _COUNTS}}


def _attempts(context: Context, run_id: str) -> list[dict[str, Any]]:
    """The lineage of a run; why it cannot be read stands in the reason."""
    try:
        state = context.store.state(run_id)
    except ClusterrunError:
        return []
    return [_attempt(one) for one in state.attempts] if state else []


def _attempt(attempt: Attempt) -> dict[str, Any]:
    failure = _failure(attempt.failure) if attempt.failure else None
    entry = {"attempt": attempt.epoch, **fields(attempt), "failure": failure}
    del entry["epoch"]
    return _nulls(entry)


def _failure(one: Failure) -> dict[str, Any]:
    rank = one.rank if one.rank >= 0 else None
    return {"rank": rank, "node": one.node, "code": one.code, "why": one.why, "at": iso(one.at)}
