"""Staying with a run to its end, and what is said about that end; decides nothing about the run."""

from __future__ import annotations

from clusterrun.cli.boundary import say
from clusterrun.model.contract import ExitCode
from clusterrun.model.duration import spoken
from clusterrun.model.record import Attempt, RunStatus
from clusterrun.model.states import State
from clusterrun.verbs.desk import Desk
from clusterrun.workflow import Run

LAST_LINES = 10


def accompany(desk: Desk, run: Run, follow: bool) -> int:
    """Follow or wait to the end of ``run``; Ctrl-C leaves it running. The exit code is 0 if it ended well."""
    try:
        if follow:
            from clusterrun.cli.logs import print_following
            from clusterrun.verbs.listening import Listening, Wanted

            print_following(Listening(desk, run.run_id, Wanted(), say))
        status = run.wait(tell=say)
    except KeyboardInterrupt:
        return detached(run.run_id, "logs -f" if follow else "wait")
    tell_end(desk, status)
    return ExitCode.DONE if status.state is State.COMPLETED else ExitCode.FAILED


def detached(run_id: str, verb: str) -> int:
    """Say that the run goes on without us, and how to come back to it."""
    say(f"\ndetached: the run goes on. Come back with\n  clusterrun {verb} {run_id}")
    return ExitCode.INTERRUPTED


def tell_end(desk: Desk, status: RunStatus) -> None:
    """How a run ended, on stderr: the first failure and its words, and what to type next."""
    took = ""
    if status.started_at and status.ended_at:
        took = f" after {spoken(max(0.0, status.ended_at - status.started_at))}"
    say(f"{status.name} ({status.run_id}) {status.state.value}{took}")
    if status.state is not State.COMPLETED:
        _tell_failure(desk, status)
    say(f"  look    clusterrun status {status.run_id}\n  logs    clusterrun logs {status.run_id}")


def _tell_failure(desk: Desk, status: RunStatus) -> None:
    if status.reason:
        say(f"  {status.reason}")
    state = desk.store.state(status.run_id)
    attempts = [a for a in state.attempts if a.failure] if state else []
    if not attempts or not attempts[-1].failure:
        if status.state is not State.CANCELLED:
            _tell_job_output(desk, status)
        return
    if attempts[-1].failure.why not in status.reason:
        say(f"  first failure: {attempts[-1].failure.why}")
    for line in words(attempts[-1]):
        say(line)
    if status.world_size > 1:
        say("  the other ranks were ended because of it: what they say after that is a consequence")


def words(attempt: Attempt) -> list[str]:
    """The traceback of the first failure where its program left one, else its last lines."""
    failure = attempt.failure
    if failure is None:
        return []
    told = failure.traceback.rstrip("\n").split("\n") if failure.traceback else list(failure.last_lines)
    name = "its traceback" if failure.traceback else "its last lines"
    shown = told if failure.traceback else told[-LAST_LINES:]
    return [f"  {name}:", *(f"    {line}" for line in shown)] if shown else []


def _tell_job_output(desk: Desk, status: RunStatus) -> None:
    """Where no rank failed, the batch step may have said why (a setup line, a missing Python)."""
    path = desk.store.paths(status.run_id).job_output
    try:
        with open(path, "rb") as file:
            told = file.read()[-4096:].decode("utf-8", "surrogateescape").splitlines()[-LAST_LINES:]
    except FileNotFoundError:
        return
    if not told and status.state is State.FAILED and status.started_at is None:
        say(
            f"  nothing was written to {path}: the first node of the job does not see that folder,\n"
            "  or a line of --setup ended the script"
        )
    if told:
        say("\n".join([f"  the end of {path}:", *(f"    {line}" for line in told)]))
