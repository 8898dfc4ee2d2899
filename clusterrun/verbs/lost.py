"""Nodes that Slurm took out of a job while the run was on them; decides from values alone."""

from __future__ import annotations

from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.record import RunState
from clusterrun.model.states import State
from clusterrun.slurm.queries import JobRow


def words(state: RunState | None, row: JobRow) -> str:
    """Which nodes the job of a run has lost whose coordinator never said its end; '' where none."""
    nodes = _lost(state, row) if state is not None and state.state is State.RUNNING else []
    if not nodes or state is None:
        return ""
    said = f"node {nodes[0]} was lost" if len(nodes) == 1 else f"nodes {fold(nodes)} were lost"
    return f"{said}, with the coordinator of the run" if _host(state) in nodes else said


def of_running(state: RunState | None, row: JobRow) -> str:
    """The same of a job that runs, with what to do where no agent is left to give it back."""
    nodes = _nodes(row)
    if state is None or not nodes or _host(state) in nodes:
        return words(state, row) if state else ""
    # Before its first attempt is formed nothing but the coordinator's own host is known.
    formed = bool(state.attempts and state.attempts[-1].nodes)
    gone = "" if formed else f"{_host(state)}, where it was, is none of the job's nodes"
    said = words(state, row) or gone
    return (
        said and f"{said}: the agents that are left give the job back; if not, scontrol requeue {row.job_id}"
    )


def first_of(row: JobRow) -> str:
    """The node of a job's script; empty where it has none yet, or no list that can be read."""
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
