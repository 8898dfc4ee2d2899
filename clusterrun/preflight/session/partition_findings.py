"""Write the findings about a network that is partitioned or slow between nodes. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.session.state import NodeFinding, SessionState

Parts = Sequence[Sequence[int]]

_SWITCHES = "look at what connects them: the uplink of a switch, a VLAN, an InfiniBand partition"
_SIZES = "compare the MTU of nodes, switches and tunnels between them: ping -M do -s 1472"
_KEPT = (
    "open the ephemeral ports between the nodes of a job (nft list ruleset, access lists of the switches); "
    "see job.out and the file system that Python lies on"
)
_UPLINKS = "look at the uplinks of the switches between them: ibstat, ethtool, ip -s link"


def write(state: SessionState, source: str, parts: Parts, observed: str, how: str = "is partitioned") -> None:
    """Report a partitioned network, in which one part can train. Remove the report if ``parts`` is empty."""
    state.parts[source] = tuple(map(tuple, parts))
    message = f"the network {how} between {_between(state, parts)}: {observed}; no node of them is to blame"
    if not state.choice().whole:
        best = state.largest_fit_partition()
        message += f"; {_SWITCHES}; the largest part alone: {_alone(state, best)}"
    _tell(state, f"parts by {source}", parts, message, _SWITCHES)


def _tell(
    state: SessionState, source: str, parts: object, message: str, remedy: str, grade: Grade | None = None
) -> None:
    """Write the finding if ``parts`` is not empty. The default grade is FAIL if too few nodes can train."""
    grade = grade or (Grade.WARN if state.choice().whole else Grade.FAIL)
    state.write(source, [NodeFinding(None, Finding("network", grade, message, remedy))] if parts else [])


def write_silent(state: SessionState, present: Sequence[int], silent: Sequence[int]) -> None:
    """Report several nodes that answer none of the present nodes: they are cut off, or all down."""
    state.parts["joining"] = (tuple(present), tuple(silent)) if silent else ()
    names = _names(state, silent)
    message = (
        f"{names} answer none of {_names(state, present)}: the network is partitioned between them, or those "
        f"are down; if sinfo -N -n {names} shows that they run, {_SWITCHES}; "
        f"{_offer(state, present, silent)}"
    )
    _tell(state, "parts by joining", silent, message, _SWITCHES)


def write_apart(state: SessionState, apart: Sequence[int], observed: str) -> None:
    """Report nodes that make larger groups fail: they, or their connections to the others, are at fault."""
    rest = tuple(node.node for node in state.nodes.values() if not node.unfit and node.node not in apart)
    state.parts["groups"] = (rest, tuple(apart))
    message = (
        f"{observed}: those nodes are at fault, or what connects them to the others, which cannot be told"
    )
    message += f"; the others alone: {_alone(state, rest)}"
    left_out = state.choice().whole and not {*apart} & {*state.choice().nodes}
    _tell(state, "parts by groups", apart, message, _SWITCHES, Grade.WARN if left_out else Grade.FAIL)


def write_small(
    state: SessionState, present: Sequence[int], small: Sequence[int], ways: str = "from {} to {}"
) -> None:
    """Report several absent or silent nodes that get or send no large packets."""
    state.parts["sizes"] = (tuple(present), tuple(small)) if small else ()
    names = _names(state, small)
    message = (
        f"large packets {ways.format(_names(state, present), names)} get lost, small ones arrive: the "
        f"network is partitioned between them for large packets, or all of {names} have a wrong MTU; "
        f"{_SIZES}; {_offer(state, present, small)}"
    )
    _tell(state, "parts by sizes", small, message, _SIZES)


def write_kept_away(state: SessionState, present: Sequence[int], away: Sequence[int]) -> None:
    """Report several nodes that did not join without a reason, although their machines answer."""
    message = (
        f"the agents of {_names(state, away)} did not join, nothing says why, and their machines answer "
        f"{_names(state, present)}: a firewall between them drops connections to some ports, or these nodes "
        f"share something slow or missing"
    )
    _tell(state, "parts by agents", away, message, _KEPT)


def write_lossy(state: SessionState, parts: Parts, observed: str, grade: Grade) -> None:
    """Report groups of nodes that lose packets only between each other. One group can train alone."""
    if grade is Grade.FAIL:
        write(state, "loss", parts, observed, "loses packets")
        return
    state.parts["loss"] = ()
    message = (
        f"the network loses packets between {_between(state, parts)}: {observed}; no node of them is to blame"
    )
    _tell(state, "parts by loss", parts, message, _SWITCHES, grade)


def write_slow(state: SessionState, parts: Parts, inside: float, between: float) -> None:
    """Report groups of nodes whose links are slow only between each other: an uplink or a switch."""
    message = (
        f"the network is slow between {_between(state, parts)}: {between:.3g} GB/s at the median, "
        f"{inside:.3g} inside them; no node of them is to blame; {_UPLINKS}"
    )
    _tell(state, "slow parts of the network", parts, message, _UPLINKS, Grade.WARN)


def _offer(state: SessionState, present: Sequence[int], others: Sequence[int]) -> str:
    """Return the offer to train on the nodes that reach each other. The others may be several parts."""
    offer = f"these work together: {_alone(state, present)}"
    if len(others) > len(present):
        offer += f"; the others may be several parts: clusterrun check {_alone(state, others)}"
    return offer


def _alone(state: SessionState, nodes: Sequence[int]) -> str:
    return f"--nodes {len(nodes)} --nodelist {_names(state, nodes)}"


def _between(state: SessionState, parts: Parts) -> str:
    return " and ".join(_names(state, part) for part in parts)


def _names(state: SessionState, nodes: Sequence[int]) -> str:
    return fold([state.nodes[node].name for node in nodes])
