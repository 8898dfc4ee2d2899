"""A network that is partitioned, or slow between groups of nodes: what is said of it; decides nothing."""

from __future__ import annotations

from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.session.state import NodeFinding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterrun.preflight.session.state import SessionState

    Parts = Sequence[Sequence[int]]

_SWITCHES = "look at what connects them: the uplink of a switch, a VLAN, an InfiniBand partition"
_SIZES = "compare the MTU of nodes, switches and tunnels between them: ping -M do -s 1472"
_KEPT = (
    "open the ephemeral ports between the nodes of a job (nft list ruleset, access lists of the switches); "
    "see job.out and the file system that Python lies on"
)
_UPLINKS = "look at the uplinks of the switches between them: ibstat, ethtool, ip -s link"


def write(state: SessionState, source: str, parts: Sequence[tuple[int, ...]], seen: str) -> None:
    """The network is partitioned: no node is to blame, and only one part can train. No parts: it is not."""
    state.parts[source] = tuple(parts)
    state.write(f"parts by {source}", [NodeFinding(None, _parted(state, parts, seen))] if parts else [])


def _parted(state: SessionState, parts: Parts, seen: str, how: str = "is partitioned") -> Finding:
    choice = state.choice()
    said = f"the network {how} between {_between(state, parts)}: {seen}; no node of them is to blame"
    if choice.whole:
        return Finding("network", Grade.WARN, said, _SWITCHES)
    best = _names(state, state.chosen_part())
    more = f"the largest part alone: --nodes {len(state.chosen_part())} --nodelist {best}"
    return Finding("network", Grade.FAIL, f"{said}; {_SWITCHES}; {more}", _SWITCHES)


def write_silent(state: SessionState, here: Sequence[int], silent: Sequence[int]) -> None:
    """Several nodes, absent or lost, answer none of those that are here: cut off, or all of them down."""
    state.parts["joining"] = (tuple(here), tuple(silent)) if silent else ()
    if not silent:
        state.write("parts by joining", [])
        return
    there = _names(state, silent)
    best = max((here, silent), key=len)
    said = (
        f"{there} answer none of {_names(state, here)}:"
        " the network is partitioned between them, or those are down"
    )
    lives = f"if sinfo -N -n {there} says that they live, {_SWITCHES}"
    more = f"the larger part alone: --nodes {len(best)} --nodelist {_names(state, best)}"
    grade = Grade.WARN if state.choice().whole else Grade.FAIL
    found = Finding("network", grade, f"{said}; {lives}; {more}", _SWITCHES)
    state.write("parts by joining", [NodeFinding(None, found)])


def write_apart(state: SessionState, apart: Sequence[int], seen: str) -> None:
    """Larger groups fail with each of these nodes: they are to blame, or what connects them to the others."""
    rest = tuple(one.node for one in state.subjects.values() if not one.unfit and one.node not in apart)
    state.parts["groups"] = (rest, tuple(apart))
    said = f"{seen}: those nodes are at fault, or what connects them to the others, which cannot be told"
    more = f"the others alone: --nodes {len(rest)} --nodelist {_names(state, rest)}"
    left_out = state.choice().whole and not {*apart} & {*state.choice().nodes}
    found = Finding("network", Grade.WARN if left_out else Grade.FAIL, f"{said}; {more}", _SWITCHES)
    state.write("parts by groups", [NodeFinding(None, found)])


def write_small(
    state: SessionState, here: Sequence[int], small: Sequence[int], ways: str = "from {} to {}"
) -> None:
    """Several nodes that did not join, or fell silent, get or send no large packets."""
    state.parts["sizes"] = (tuple(here), tuple(small)) if small else ()
    if not small:
        state.write("parts by sizes", [])
        return
    there, best = _names(state, small), max((here, small), key=len)
    said = (
        f"large packets {ways.format(_names(state, here), there)} get lost, small ones arrive: the network "
        f"is partitioned between them for large packets, or all of {there} have a wrong MTU; {_SIZES}; "
        f"the larger part alone: --nodes {len(best)} --nodelist {_names(state, best)}"
    )
    grade = Grade.WARN if state.choice().whole else Grade.FAIL
    state.write("parts by sizes", [NodeFinding(None, Finding("network", grade, said, _SIZES))])


def write_kept_away(state: SessionState, here: Sequence[int], away: Sequence[int]) -> None:
    """Several nodes did not join, their machines answer, and the launcher knows of nothing."""
    there = _names(state, away)
    said = (
        f"the agents of {there} did not join, nothing says why, and their machines answer "
        f"{_names(state, here)}: a firewall between them drops connections to some ports, or these nodes "
        f"share something slow or missing"
    )
    grade = Grade.WARN if state.choice().whole else Grade.FAIL
    found = [NodeFinding(None, Finding("network", grade, said, _KEPT))] if away else []
    state.write("parts by agents", found)


def write_lossy(state: SessionState, parts: Sequence[tuple[int, ...]], seen: str, grade: Grade) -> None:
    """What goes between these groups gets lost, what stays inside does not: one part trains if need be."""
    state.parts["loss"] = tuple(parts) if grade is Grade.FAIL else ()
    found = []
    if parts and grade is Grade.FAIL:
        found = [_parted(state, parts, seen, "loses packets")]
    elif parts:
        said = (
            f"the network loses packets between {_between(state, parts)}: {seen}; no node of them is to blame"
        )
        found = [Finding("network", grade, said, _SWITCHES)]
    state.write("parts by loss", [NodeFinding(None, one) for one in found])


def write_slow(state: SessionState, parts: Parts, inside: float, between: float) -> None:
    """Links between these groups are slow alike, those inside are not: one uplink, or one switch."""
    said = (
        f"the network is slow between {_between(state, parts)}: {between:.3g} GB/s at the median, "
        f"{inside:.3g} inside them; no node of them is to blame; {_UPLINKS}"
    )
    state.write(
        "slow parts of the network",
        [NodeFinding(None, Finding("network", Grade.WARN, said, _UPLINKS))] if parts else [],
    )


def _between(state: SessionState, parts: Parts) -> str:
    return " and ".join(_names(state, one) for one in parts)


def _names(state: SessionState, nodes: Sequence[int]) -> str:
    return fold([state.subjects[node].name for node in nodes])
