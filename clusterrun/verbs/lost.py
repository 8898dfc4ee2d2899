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
    return f"{said}, with the coordinator of the run" if state.host.partition(".")[0] in nodes else said


def _lost(state: RunState, row: JobRow) -> list[str]:
    """A job keeps its nodes, but for those that died under it (`--no-kill`)."""
    newest = state.attempts[-1] if state.attempts else None
    if newest is None or not row.nodelist or newest.job_id not in ("", row.job_id):
        return []
    try:
        left = expand(row.nodelist)
    except BadInput:
        return []
    return [name for name in (*newest.nodes, *state.spares) if name not in left]
