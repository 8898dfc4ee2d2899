"""Describe nodes that Slurm took out of a job while the run used them. Reads no files."""

from __future__ import annotations

from clusterrun.model.duration import spoken
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.record import OrphanReport, RunState
from clusterrun.model.states import State
from clusterrun.slurm.queries import JobRow

# Seconds within which a dead or hung coordinator is started again on its node. It writes its state at once.
BEGUN_AGAIN_SECONDS = 120.0


def removed_nodes(state: RunState | None, row: JobRow) -> list[str]:
    """Return the nodes of the newest attempt, and spares, that Slurm took out of the job (``--no-kill``)."""
    remaining = _nodes(row)
    if state is None or not state.attempts or not remaining:
        return []
    newest = state.attempts[-1]
    if newest.job_id not in ("", row.job_id):
        return []
    return [name for name in (*newest.nodes, *state.spares) if name not in remaining]


def describe_lost_nodes(state: RunState | None, row: JobRow) -> str:
    """Return which nodes the job lost, if its coordinator never recorded an end; '' if it lost none."""
    nodes = removed_nodes(state, row)
    if state is None or state.state is not State.RUNNING or not nodes:
        return ""
    message = f"node {nodes[0]} was lost" if len(nodes) == 1 else f"nodes {fold(nodes)} were lost"
    return f"{message}, with the coordinator of the run" if _host(state) in nodes else message


def describe_silent_run(
    state: RunState | None,
    row: JobRow,
    last_message: OrphanReport | None,
    silent: float,
    now: float,
    goes_on: str,
) -> str:
    """Describe a run whose coordinator has been silent for ``silent`` seconds, and what to type.

    ``last_message`` is the newest message of its agents.
    """
    lost = describe_lost_nodes(state, row) if state else ""
    out = state is not None and bool(_nodes(row)) and _host(state) not in _nodes(row)
    if out and not lost and state is not None:
        # Only the coordinator's own host is known before the first attempt starts.
        lost = f"{_host(state)}, where it ran, is not a node of the job"
    mine = last_message
    if mine is not None and (mine.job_id != row.job_id or now - mine.at >= silent):
        mine = None  # it is about another job, or older than the silence
    if mine is None and not out and silent < BEGUN_AGAIN_SECONDS:
        return lost  # it may still be started again on its node
    if mine is not None and mine.released:
        return "; ".join(part for part in (lost, f"{mine.node} gave the job back: {mine.why}") if part)
    report = f"{mine.node} reported {spoken(now - mine.at)} ago: {mine.why}" if mine else ""
    agents = report or "no agent has reported that it gives the job back"
    alive = "" if out or mine else "where its ranks print nothing either (clusterrun logs): "
    remedy = f"to end it, type scancel {row.job_id}"
    if goes_on == "requeue":
        remedy = f"to start it again, type scontrol requeue {row.job_id}; {remedy}"
    elif goes_on == "chain":
        remedy = f"to continue in the next job, or to end the run if no job waits, type scancel {row.job_id}"
    return "; ".join(part for part in (lost, agents, alive + remedy) if part)


def why_released(state: RunState | None, last_message: OrphanReport | None, row: JobRow) -> str:
    """Return why an agent ended this job after its coordinator died; '' if none did."""
    if last_message is None or not last_message.released or last_message.job_id != row.job_id:
        return ""
    if state is not None and state.updated_at > last_message.at:
        return ""  # the coordinator has written since
    return f"{last_message.node} ended the job, whose coordinator was gone: {last_message.why}"


def first_of(row: JobRow) -> str:
    """Return the node of a job's script; '' if it has no node yet, or if its node list cannot be read."""
    nodes = _nodes(row)
    return nodes[0] if nodes else ""


def _host(state: RunState) -> str:
    return state.host.partition(".")[0]


def _nodes(row: JobRow) -> tuple[str, ...]:
    try:
        return expand(row.nodelist)
    except BadInput:
        return ()
