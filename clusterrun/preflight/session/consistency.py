"""Compare clocks and network interfaces of the nodes, and report the nodes that differ."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from clusterrun.model.phrases import some_of
from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import vote
from clusterrun.preflight.session.explanation import NodeFinding
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.tasks import Interface
from clusterrun.preflight.thresholds import MINORITY

_TIME_SERVICE = "start its time service: chronyc tracking; chronyc makestep"
_NETWORKS = ("device", "infiniband")


# --- clocks ---


def clocks(nodes: Sequence[NodeState], warn: float, fail: float) -> Iterator[NodeFinding]:
    """Report clocks that differ from the median by more than the time of the messages explains.

    A negative number is that of Slurm's controller, whose clock is compared but not reported.
    The limits are seconds from the median. Munge and Kerberos refuse a difference of 300 s.
    """
    timed = [node for node in nodes if node.latest < float("inf") and node.earliest > float("-inf")]
    if len(timed) < 2:
        return
    median = statistics.median(node.offset for node in timed)
    if len(timed) < MINORITY:
        first, second = timed
        apart = max(first.earliest - second.latest, second.earliest - first.latest)
        if apart > warn:
            yield _unknown_clock(f"the clocks of {first.name} and {second.name} differ by {apart:.1f} s")
        return
    # The smallest possible difference of each clock, with its sign; 0 if the clock may be right.
    differences = {
        node.node: node.earliest - median if node.earliest > median else min(0.0, node.latest - median)
        for node in timed
    }
    outliers = [node for node in timed if abs(differences[node.node]) > warn]
    if 2 * len(outliers) >= len(timed):
        widest = max(abs(seconds) for seconds in differences.values())
        yield _unknown_clock(f"the clocks of the nodes differ by {widest:.0f} s and more")
        return
    for node in outliers:
        if node.node < 0:
            continue
        seconds = node.offset - median
        direction = "ahead of" if seconds > 0 else "behind"
        has_failed = abs(differences[node.node]) > fail
        grade, limit = (Grade.FAIL, fail) if has_failed else (Grade.WARN, warn)
        message = f"its clock is {abs(seconds):.1f} s {direction} the others' (limit {limit:g} s)"
        yield NodeFinding(node.node, Finding("clock", grade, message, _TIME_SERVICE))


def _unknown_clock(difference: str) -> NodeFinding:
    message = f"{difference}; it is not known which is right"
    return NodeFinding(None, Finding("clock", Grade.WARN, message, "chronyc tracking on each node"))


# --- interfaces ---


def interfaces(nodes: Sequence[NodeState]) -> Iterator[NodeFinding]:
    """Report nodes whose MTU on the interface in use differs from the majority."""
    used = {node.name: (node.node, node.interface) for node in nodes if node.interface is not None}
    result = vote({name: str(interface.mtu) for name, (_, interface) in used.items()})
    for number, interface in (used[name] for name in result.outliers):
        message = f"MTU {interface.mtu} on {interface.name}; the others have {result.majority}"
        remedy = f"ip link set {interface.name} mtu {result.majority}"
        yield NodeFinding(number, Finding("interface", Grade.WARN, message, remedy))
    if not result.is_unanimous and not result.majority:
        groups = "; ".join(f"{value} on {some_of(members)}" for value, members in result.nodes_by_value)
        yield NodeFinding(None, Finding("interface", Grade.WARN, f"the MTU differs over nodes: {groups}"))


def common_interface(nodes: Sequence[NodeState]) -> str:
    """Return the name of the interface that all nodes use; '' if they differ or a name is unknown."""
    used = {node.interface.name if node.interface is not None else "" for node in nodes}
    return used.pop() if len(used) == 1 else ""


def speeds_of_common(nodes: Sequence[NodeState]) -> dict[str, int]:
    """Return the networks that all nodes have by name, in kernel order, with the lowest speed in Mb/s.

    The speed is 0 if a node does not know it. Bridges, virtual interfaces and the loopback are no networks.
    An interface with the same address on several nodes is none either.
    """
    speeds: dict[str, list[int]] = {}
    addresses: dict[str, set[str]] = {}
    for node in nodes:
        first: dict[str, Interface] = {}
        for interface in node.listening.interfaces:
            if interface.kind in _NETWORKS and ":" not in interface.address:
                first.setdefault(interface.name, interface)
        for name, interface in first.items():
            speeds.setdefault(name, []).append(interface.megabits)
            addresses.setdefault(name, set()).add(interface.address)
    return {name: min(values) for name, values in speeds.items() if len(addresses[name]) == len(nodes)}


def faster_interface(nodes: Sequence[NodeState]) -> tuple[str, int, int]:
    """Return (name, speed, speed of the interface in use) of the fastest interface that all nodes have.

    It must be at least twice as fast as the interface in use; otherwise the name is ''. Speeds are those of
    the slowest node in Mb/s; 0 if unknown.
    """
    common = {name: megabits for name, megabits in speeds_of_common(nodes).items() if megabits}
    used = common.get(common_interface(nodes), 0)
    best = max(common, key=lambda name: (common[name], name), default="")
    return (best, common[best], used) if used and common[best] >= 2 * used else ("", 0, used)
