"""Explain why nodes fell silent during the check: their packets, the coordinator's node or the network."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.causes.dials import ConnectTrouble
from clusterrun.preflight.observations import NodeGone
from clusterrun.preflight.session import connection_findings, partition_findings
from clusterrun.preflight.session.explanation import Explanation, NetworkFinding
from clusterrun.preflight.session.state import HOST, SessionState
from clusterrun.preflight.thresholds import WITNESSES

_SHARED = "look at their load, and at the file systems of the run directory and of Python"
_CUT_OFF = "look at its link: ip -s link, ethtool"


def of_silent(state: SessionState, explanation: Explanation) -> None:
    """Report at the end nodes that fell silent. The coordinator's node may be cut off instead."""
    lost = _lost_nodes(state) if state.has_ended else {}
    if not lost:
        return
    present = [node.node for node in state.present()]
    troubles = _large_packet_troubles(state, lost)
    if len(troubles) >= WITNESSES:
        small = list(troubles)
        explanation.network.append(partition_findings.of_small(state, present, small, "between {} and {}"))
        explanation.unreached += small
        explanation.excuse(small, f"large packets of {len(small)} nodes get lost")
        lost = {node: at for node, at in lost.items() if node not in troubles}
    else:
        for node, trouble in troubles.items():
            explanation.add(node, connection_findings.of_trouble(state, trouble))
    host = state.nodes.get(HOST)
    lost.pop(HOST, None)
    if host is None or host.gone or not lost:
        return
    at_once = len(lost) > 1 and max(lost.values()) - min(lost.values()) <= contract.LOST_SECONDS
    is_cut_off = at_once and all(state.dials.between(HOST, node) for node in present if node != HOST)
    if is_cut_off:
        message = f"{len(lost)} nodes fell silent at the same time, and it reaches no other: it is cut off"
        explanation.presence[HOST] = (Finding("agent", Grade.FAIL, message, _CUT_OFF),)
        explanation.cut_off.add(HOST)
    if is_cut_off or explanation.host_fails:
        reason = f"its connection ends at {host.name}, which is unfit"
        explanation.excuse(lost, reason, "let another node be the first")
        return
    refusing = {b for (_, b), way in state.knocks.ways.items() if way.refused}
    silent = [node for node in silent_together(state) if node not in refusing]
    if len(silent) >= WITNESSES:
        explanation.network.append(partition_findings.of_silent(state, present, silent))
        explanation.unreached += silent
        explanation.excuse(silent, f"{len(silent)} nodes fell silent at the same time, and answer nobody")


def of_late(state: SessionState, explanation: Explanation) -> None:
    """Report at the end a shared cause instead of each node if most nodes did not answer in time."""
    late = [
        loss.node for loss in state.log.of(NodeGone) if loss.findings and loss.findings[0].check == "examiner"
    ]
    if state.has_ended and len(late) >= WITNESSES and 2 * len(late) > len(state.nodes):
        explanation.excuse(late, "so did most nodes")
        message = f"{len(late)} of {len(state.nodes)} nodes did not answer in time: they are overloaded, or"
        message += f" share something slow; {_SHARED}"
        explanation.network.append(NetworkFinding("nodes", message, _SHARED))


def silent_together(state: SessionState) -> list[int]:
    """Return the nodes that fell silent at the same time, without the coordinator's.

    A node whose connection was closed is not cut off. Nor is a node that loses only large packets.
    """
    lost = _lost_nodes(state)
    troubles = _large_packet_troubles(state, lost)
    times = {
        node: at
        for node, at in lost.items()
        if node != HOST and node not in troubles and contract.NO_HEARTBEAT in state.nodes[node].gone
    }
    together = []
    for node, at in times.items():
        count = sum(abs(at - other_at) <= contract.LOST_SECONDS for other_at in times.values())
        if count >= WITNESSES:
            together.append(node)
    return together


def _lost_nodes(state: SessionState) -> dict[int, float]:
    """Return the nodes whose agents were lost during the check, with the time; steady clock.

    Nodes that an overload excuses are not among them.
    """
    lost = {loss.node: loss.at for loss in state.log.of(NodeGone) if loss.is_lost}
    return {node: lost[node] for node in state.nodes if node in lost and not state.nodes[node].is_excused}


def _large_packet_troubles(state: SessionState, lost: dict[int, float]) -> dict[int, ConnectTrouble]:
    """Return the lost nodes that fell silent because their large packets get lost, with the trouble."""
    listening = [node for node in lost if state.nodes[node].listens]
    if not listening:
        return {}
    present = [node.node for node in state.present()]
    return {
        trouble.nodes[0]: trouble
        for trouble in state.dials.troubles_among([*present, *listening])[0]
        if len(trouble.nodes) == 1 and trouble.symptom == "large" and trouble.nodes[0] in listening
    }
