"""Nodes that Slurm took out of a job while the run was on them; decides from values alone."""

from __future__ import annotations

from clusterrun.model.duration import spoken
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.record import LeftBehind, RunState
from clusterrun.model.states import State
from clusterrun.slurm.queries import JobRow

BEGUN_AGAIN_SECONDS = 120.0
"""A coordinator that died, or hung, is begun again on its node well within this time, and writes at once."""


def describe_lost_nodes(state: RunState | None, row: JobRow) -> str:
    """Which nodes the job lost, if its coordinator never recorded an end; '' if none."""
    nodes = _lost(state, row) if state is not None and state.state is State.RUNNING else []
    if not nodes or state is None:
        return ""
    said = f"node {nodes[0]} was lost" if len(nodes) == 1 else f"nodes {fold(nodes)} were lost"
    return f"{said}, with the coordinator of the run" if _host(state) in nodes else said


def describe_silent_run(
    state: RunState | None, row: JobRow, left: LeftBehind | None, silent: float, now: float, goes_on: str
) -> str:
    """What is known where the coordinator is ``silent``, and what to type; ``left``: its agents' word."""
    lost = describe_lost_nodes(state, row) if state else ""
    out = state is not None and bool(_nodes(row)) and _host(state) not in _nodes(row)
    if out and not lost and state is not None:
        # Before its first attempt is formed nothing but the coordinator's own host is known.
        lost = f"{_host(state)}, where it ran, is not a node of the job"
    mine = left if left is not None and left.job_id == row.job_id and now - left.at < silent else None
    if mine is None and not out and silent < BEGUN_AGAIN_SECONDS:
        return lost  # it may yet be begun again, on its node
    if mine is not None and mine.done:
        return "; ".join(part for part in (lost, f"{mine.node} gave the job back: {mine.why}") if part)
    told = f"{mine.node} said {spoken(max(0.0, now - mine.at))} ago: {mine.why}" if mine else ""
    agents = told or "no agent of it has said that it gives the job back"
    alive = "" if out or mine else "where its ranks print nothing either (clusterrun logs): "
    return "; ".join(part for part in (lost, agents, alive + _remedy(row.job_id, goes_on)) if part)


def _remedy(job_id: str, goes_on: str) -> str:
    again = {
        "requeue": f"to start it again, type scontrol requeue {job_id}; ",
        "chain": f"to continue in the next job, or to end the run if no job waits, type scancel {job_id}",
    }
    return again.get(goes_on, "") + (f"to end it, type scancel {job_id}" if goes_on != "chain" else "")


def given_back(state: RunState | None, left: LeftBehind | None, row: JobRow) -> str:
    """Why an agent ended this job whose coordinator was gone; '' where none did."""
    if left is None or not left.done or left.job_id != row.job_id:
        return ""
    if state is not None and state.updated_at > left.at:
        return ""  # it went on since
    return f"{left.node} ended the job, whose coordinator was gone: {left.why}"


def first_of(row: JobRow) -> str:
    """The node of a job's script; empty if it has none yet, or no list that can be read."""
    nodes = _nodes(row)
    return nodes[0] if nodes else ""


def _lost(state: RunState, row: JobRow) -> list[str]:
    """A job keeps its nodes, but for those that died under it (`--no-kill`)."""
    newest = state.attempts[-1] if state.attempts else None
    left = _nodes(row)
    if newest is None or not left or newest.job_id not in ("", row.job_id):
        return []
    return [name for name in (*newest.nodes, *state.spares) if name not in left]


def _host(state: RunState) -> str:
    return state.host.partition(".")[0]


def _nodes(row: JobRow) -> tuple[str, ...]:
    try:
        return expand(row.nodelist) if row.nodelist else ()
    except BadInput:
        return ()
