"""Describe a network that is partitioned, loses packets or is slow between nodes. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.session.explanation import NetworkFinding, Parts
from clusterrun.preflight.session.state import SessionState

_SWITCHES = "look at what connects them: the uplink of a switch, a VLAN, an InfiniBand partition"
_SIZES = "compare the MTU of nodes, switches and tunnels between them: ping -M do -s 1472"
_KEPT = (
    "open the ephemeral ports between the nodes of a job (nft list ruleset, access lists of the switches); "
    "see job.out, and check the file system that holds Python"
)
_UPLINKS = "look at the uplinks of the switches between them: ibstat, ethtool, ip -s link"


def of_parts(state: SessionState, parts: Parts, observed: str, how: str = "is partitioned") -> NetworkFinding:
    """Report a partitioned network, in which one part can train."""
    message = f"the network {how} between {_between(state, parts)}: {observed}; no node of them is to blame"
    if_too_few = f"; {_SWITCHES}; the largest part alone: {{}}"
    return NetworkFinding("network", message, _SWITCHES, parts, if_too_few)


def of_silent(state: SessionState, present: Sequence[int], silent: Sequence[int]) -> NetworkFinding:
    """Report several nodes that answer none of the present nodes: they are cut off, or all down."""
    names = _names(state, silent)
    message = (
        f"{names} answer none of {_names(state, present)}: the network is partitioned between them, or those "
        f"are down; if sinfo -N -n {names} shows that they run, {_SWITCHES}; "
        f"{_offer(state, present, silent)}"
    )
    return NetworkFinding("network", message, _SWITCHES, (present, silent))


def of_disputed(
    state: SessionState, rest: Sequence[int], disputed: Sequence[int], observed: str
) -> NetworkFinding:
    """Report nodes that make larger groups fail: they, or their connections to the others, are at fault."""
    message = (
        f"{observed}: those nodes are at fault, or what connects them to the others, which cannot be told"
        f"; the others alone: {alone(state, rest)}"
    )
    return NetworkFinding("network", message, _SWITCHES, (rest, disputed), disputed=tuple(disputed))


def of_small(
    state: SessionState, present: Sequence[int], small: Sequence[int], ways: str = "from {} to {}"
) -> NetworkFinding:
    """Report several absent or silent nodes that get or send no large packets."""
    names = _names(state, small)
    message = (
        f"large packets {ways.format(_names(state, present), names)} get lost, small ones arrive: the "
        f"network is partitioned between them for large packets, or all of {names} have a wrong MTU; "
        f"{_SIZES}; {_offer(state, present, small)}"
    )
    return NetworkFinding("network", message, _SIZES, (present, small))


def of_kept_away(state: SessionState, present: Sequence[int], away: Sequence[int]) -> NetworkFinding:
    """Report several nodes that did not join without a reason, although their machines answer."""
    message = (
        f"the agents of {_names(state, away)} did not join, nothing says why, and their machines answer "
        f"{_names(state, present)}: a firewall between them drops connections to some ports, or these nodes "
        f"share something slow or missing"
    )
    return NetworkFinding("network", message, _KEPT)


def of_lossy(state: SessionState, parts: Parts, observed: str, grade: Grade) -> Finding | NetworkFinding:
    """Report groups of nodes that lose packets only between each other. One group can train alone."""
    if grade is Grade.FAIL:
        return of_parts(state, parts, observed, "loses packets")
    message = (
        f"the network loses packets between {_between(state, parts)}: {observed}; no node of them is to blame"
    )
    return Finding("network", grade, message, _SWITCHES)


def of_slow(state: SessionState, parts: Parts, inside: float, between: float) -> Finding:
    """Report groups of nodes whose links are slow only between each other: an uplink or a switch."""
    message = (
        f"the network is slow between {_between(state, parts)}: {between:.3g} GB/s at the median, "
        f"{inside:.3g} inside them; no node of them is to blame; {_UPLINKS}"
    )
    return Finding("network", Grade.WARN, message, _UPLINKS)


def _offer(state: SessionState, present: Sequence[int], others: Sequence[int]) -> str:
    """Return the offer to train on the nodes that reach each other. The others may be several parts."""
    offer = f"these work together: {alone(state, present)}"
    if len(others) > 1:
        offer += f"; the others may be several parts: clusterrun check {alone(state, others)}"
    return offer


def _between(state: SessionState, parts: Parts) -> str:
    return " and ".join(_names(state, part) for part in parts)


def _names(state: SessionState, nodes: Sequence[int]) -> str:
    return fold([state.nodes[node].name for node in nodes])


def alone(state: SessionState, nodes: Sequence[int]) -> str:
    """Return the options of a run on these nodes alone."""
    return f"--nodes {len(nodes)} --nodelist {_names(state, nodes)}"
