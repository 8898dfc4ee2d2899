"""Where a port of a run is: the node that has it, and whether something listens there for other machines."""

from __future__ import annotations

import socket

from clusterrun.model.frozen import frozen
from clusterrun.model.spec import Cluster
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.exec_in_job import ExecTarget, where

ANSWER_SECONDS = 3.0


@frozen
class NodePort:
    """A port of a run, as other machines of the cluster reach it; ``answers``: something listens there."""

    run_id: str
    node: str
    port: int
    answers: bool


def node_port(context: Context, run_id: str, wish: ExecTarget, port: int, tell: Tell) -> NodePort:
    """The port ``port`` of the node that ``wish`` means. Raises ``BadInput`` where the run has no nodes."""
    record, node = where(context, run_id, wish, tell)
    host = node if record.cluster == Cluster.SLURM.value else "127.0.0.1"
    return NodePort(run_id, host, port, _answers(host, port))


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_SECONDS):
            return True
    except OSError:
        return False
