"""A network that is partitioned, or slow between groups of nodes: what is said of it; decides nothing."""

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


def write(state: SessionState, source: str, parts: Parts, seen: str, how: str = "is partitioned") -> None:
    """The network is partitioned: no node is to blame, and only one part can train. No parts: it is not."""
    state.parts[source] = tuple(map(tuple, parts))
    said = f"the network {how} between {_between(state, parts)}: {seen}; no node of them is to blame"
    if not state.choice().whole:
        best = state.largest_fit_partition()
        said += f"; {_SWITCHES}; the largest part alone: {_alone(state, best)}"
    _tell(state, f"parts by {source}", parts, said, _SWITCHES)


def _tell(
    state: SessionState, source: str, parts: object, said: str, remedy: str, grade: Grade | None = None
) -> None:
    """Write it where there are such ``parts``; without another ``grade`` it fails where too few can train."""
    grade = grade or (Grade.WARN if state.choice().whole else Grade.FAIL)
    state.write(source, [NodeFinding(None, Finding("network", grade, said, remedy))] if parts else [])


def write_silent(state: SessionState, here: Sequence[int], silent: Sequence[int]) -> None:
    """Several nodes, absent or lost, answer none of those that are here: cut off, or all of them down."""
    state.parts["joining"] = (tuple(here), tuple(silent)) if silent else ()
    names = _names(state, silent)
    message = (
        f"{names} answer none of {_names(state, here)}: the network is partitioned between them, or those "
        f"are down; if sinfo -N -n {names} shows that they run, {_SWITCHES}; "
        f"{_known_part(state, here, silent)}"
    )
    _tell(state, "parts by joining", silent, message, _SWITCHES)


def write_apart(state: SessionState, apart: Sequence[int], seen: str) -> None:
    """Larger groups fail with each of these nodes: they are to blame, or what connects them to the others."""
    rest = tuple(one.node for one in state.subjects.values() if not one.unfit and one.node not in apart)
    state.parts["groups"] = (rest, tuple(apart))
    said = f"{seen}: those nodes are at fault, or what connects them to the others, which cannot be told"
    said += f"; the others alone: {_alone(state, rest)}"
    left_out = state.choice().whole and not {*apart} & {*state.choice().nodes}
    _tell(state, "parts by groups", apart, said, _SWITCHES, Grade.WARN if left_out else Grade.FAIL)


def write_small(
    state: SessionState, here: Sequence[int], small: Sequence[int], ways: str = "from {} to {}"
) -> None:
    """Several nodes that did not join, or fell silent, get or send no large packets."""
    state.parts["sizes"] = (tuple(here), tuple(small)) if small else ()
    there = _names(state, small)
    said = (
        f"large packets {ways.format(_names(state, here), there)} get lost, small ones arrive: the network "
        f"is partitioned between them for large packets, or all of {there} have a wrong MTU; {_SIZES}; "
        f"{_known_part(state, here, small)}"
    )
    _tell(state, "parts by sizes", small, said, _SIZES)


def write_kept_away(state: SessionState, here: Sequence[int], away: Sequence[int]) -> None:
    """Several nodes did not join, their machines answer, and the launcher knows of nothing."""
    said = (
        f"the agents of {_names(state, away)} did not join, nothing says why, and their machines answer "
        f"{_names(state, here)}: a firewall between them drops connections to some ports, or these nodes "
        f"share something slow or missing"
    )
    _tell(state, "parts by agents", away, said, _KEPT)


def write_lossy(state: SessionState, parts: Parts, seen: str, grade: Grade) -> None:
    """What goes between these groups gets lost, what stays inside does not: one part trains if need be."""
    if grade is Grade.FAIL:
        write(state, "loss", parts, seen, "loses packets")
        return
    state.parts["loss"] = ()
    said = f"the network loses packets between {_between(state, parts)}: {seen}; no node of them is to blame"
    _tell(state, "parts by loss", parts, said, _SWITCHES, grade)


def write_slow(state: SessionState, parts: Parts, inside: float, between: float) -> None:
    """Links between these groups are slow alike, those inside are not: one uplink, or one switch."""
    said = (
        f"the network is slow between {_between(state, parts)}: {between:.3g} GB/s at the median, "
        f"{inside:.3g} inside them; no node of them is to blame; {_UPLINKS}"
    )
    _tell(state, "slow parts of the network", parts, said, _UPLINKS, Grade.WARN)


def _known_part(state: SessionState, here: Sequence[int], others: Sequence[int]) -> str:
    """Offer the nodes that reach each other. The others may be several parts, which nobody sees."""
    offer = f"these work together: {_alone(state, here)}"
    if len(others) > len(here):
        offer += f"; the others may be several parts: clusterrun check {_alone(state, others)}"
    return offer


def _alone(state: SessionState, nodes: Sequence[int]) -> str:
    return f"--nodes {len(nodes)} --nodelist {_names(state, nodes)}"


def _between(state: SessionState, parts: Parts) -> str:
    return " and ".join(_names(state, one) for one in parts)


def _names(state: SessionState, nodes: Sequence[int]) -> str:
    return fold([state.subjects[node].name for node in nodes])
