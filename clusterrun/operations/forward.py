"""Find the node of a run's port, and the command that relays connections to it."""

from __future__ import annotations

import socket
from pathlib import Path

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.spec import Cluster
from clusterrun.operations import port_relay
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.exec_in_job import ExecTarget, target_node, to_node

# Seconds for a node to accept a connection.
ANSWER_SECONDS = 3.0


@frozen
class NodePort:
    """A port of a run, as other machines of the cluster reach it."""

    run_id: str
    node: str
    port: int
    answers: bool  # whether a process accepts connections on it


def node_port(context: Context, run_id: str, wish: ExecTarget, port: int, tell: Tell) -> NodePort:
    """Return the port ``port`` of the node that ``wish`` means.

    Raise ``BadInput`` if the run has no nodes.
    """
    record, node = target_node(context, run_id, wish, tell)
    host = node if record.cluster == Cluster.SLURM.value else "127.0.0.1"
    try:
        with socket.create_connection((host, port), ANSWER_SECONDS):
            answers = True
    except OSError:
        answers = False
    return NodePort(run_id, host, port, answers)


def relay_argv(
    context: Context, run_id: str, wish: ExecTarget, port: int, tell: Tell
) -> tuple[tuple[str, ...], int]:
    """Return the command that relays connections to ``port`` over its streams, and the run's attempt."""
    record, node = target_node(context, run_id, wish, tell)
    front = to_node(context, record, node, terminal=False)
    attempt = context.inquiry().statuses([run_id])[0].attempt
    mark = f"{contract.MARKER_VARIABLE}={run_id}.{attempt}"
    text = Path(port_relay.__file__).read_text(encoding="utf-8")
    marked = ("env", mark) if front else ()
    return (*front, *marked, record.spec.python, "-I", "-S", "-c", text, str(port)), attempt


def carries_on(context: Context, run_id: str, attempt: int) -> bool:
    """Return whether the run is still in this attempt.

    srun does not notice by itself that its node is lost.
    """
    (status,) = context.inquiry().statuses([run_id])
    return not status.state.ended and status.attempt == attempt
