"""Write what happened to a run: as a JSON document for programs, and as a short text for people; pure."""

from __future__ import annotations

import shlex

from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import spoken
from clusterrun.model.frozen import Any, frozen
from clusterrun.model.phrases import count_of, shortened
from clusterrun.model.record import Attempt, Failure, RunState
from clusterrun.model.states import State
from clusterrun.model.visible import visible

STARTED, RESTARTED, FAILED, HUNG, ENDED = "started", "restarted", "failed", "hung", "ended"
# ``wait --notify`` sends it for a job that Slurm will never start as it is.
CANNOT_START = "cannot_start"
EVENTS = (STARTED, RESTARTED, FAILED, HUNG, ENDED, CANNOT_START)
# Characters of a line, and of a name in the subject. Error messages may be long.
LONGEST_LINE, LONGEST_NAME = 300, 60


@frozen
class EventMessage:
    """A text for people. No character of it can forge a line, a header or a terminal's control."""

    subject: str  # one line
    lines: tuple[str, ...]  # further lines

    @property
    def text(self) -> str:
        return "\n".join((self.subject, *self.lines))


def is_for_people(event: str, state: RunState, is_handover: bool = False) -> bool:
    """Return whether ``--notify`` sends a message about ``event``.

    A failure that ends the run is part of the message about the end. A restart is reported only after a
    handover: the message about a failure has reported all others.
    """
    if event == FAILED:
        return state.state is State.RUNNING
    return is_handover if event == RESTARTED else event in (HUNG, ENDED)


def event_document(
    event: str, state: RunState, name: str, job_id: str, run_dir: str, at: float, reason: str = ""
) -> dict[str, Any]:
    """Return the document about ``event``. Times are seconds since the epoch."""
    attempt = state.attempts[-1] if state.attempts else None
    return {
        "event": event,
        "run_id": state.run_id,
        "name": name,
        "job_id": job_id,
        "attempt": state.epoch,
        "state": state.state.value,
        "reason": reason or state.reason,
        "nodes": attempt.nodes if attempt else (),
        "failure": _failure(attempt),
        "exit_code": state.exit_code,
        "started_at": state.started_at,
        "run_dir": run_dir,
        "at": at,
    }


def _failure(attempt: Attempt | None) -> dict[str, Any] | None:
    failure: Failure | None = attempt.failure if attempt else None
    if failure is None:
        return None
    return {
        "rank": failure.rank,
        "node": failure.node,
        "why": failure.why,
        "error": failure.error or failure.last_line,
        "place": failure.place,
    }


def message_of(document: dict[str, Any]) -> EventMessage:
    """Return the message about an event: the run, what happened, the first failure, the next command."""
    run_id, reason, state = document["run_id"], document["reason"], document["state"]
    what_happened = {
        STARTED: "has started",
        RESTARTED: f"continues in job {document['job_id']}",
        FAILED: f"failed; {reason}",
        HUNG: "hangs",
        ENDED: f"has ended: {state}",
        CANNOT_START: "cannot start",
    }[document["event"]]
    lines = [] if reason in what_happened else [reason]
    failure = document["failure"] if document["event"] in (FAILED, ENDED) else None
    if failure:
        lines += [failure["why"]] if failure["why"] not in reason else []
        lines += [failure["error"]] if failure["error"] not in " ".join(lines) else []
        lines += [f"at {failure['place']}"] if failure["place"] else []
    job = f", job {document['job_id']}" if document["job_id"] else ""
    nodes = len(document["nodes"])
    size = f", {count_of(nodes, 'node')}" if nodes else ""
    took = ""
    if document["started_at"]:
        took = f", {spoken(document['at'] - document['started_at'])} after its start"
    lines.append(f"run {run_id}{job}{size}{took}")
    command, failure = "status", document["failure"]
    calm = (State.COMPLETED.value, State.CANCELLED.value)
    if document["exit_code"] == ExitCode.UNFIT and (failure is None or failure["rank"] < 0):
        command = "report"
    elif document["event"] == HUNG or (document["event"] == ENDED and document["state"] not in calm):
        command = "diagnose"
    lines.append(f"next: clusterrun {command} {shlex.quote(run_id)}")
    return EventMessage(
        _line(f"{document['name'][:LONGEST_NAME]} {what_happened}"), tuple(_line(line) for line in lines)
    )


def _line(text: str) -> str:
    """Return ``text`` as one line without control characters."""
    return shortened(visible(" ".join(text.split())), LONGEST_LINE)
