"""Whether nodes agree on names, time and network interfaces, and who is alone with what it thinks; pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.majority import some_of, vote
from clusterrun.preflight.session.state import NodeFinding, NodeState

LATE_NAME_SECONDS = 1.0
"""Far more than a file or a server of names takes; one that does not answer costs five."""
_RESOLVER = (
    "look at the servers of names in /etc/resolv.conf: one that does not answer costs seconds each time"
)
_TIME_SERVICE = "start its time service: chronyc tracking; chronyc makestep"
_NETWORKS = ("device", "infiniband")
_FEW = 3


# --- names ---


def names(views: Mapping[int, Mapping[str, str]], subjects: Mapping[str, NodeState]) -> Iterator[NodeFinding]:
    """``views``: by viewer, what each name resolves to (addresses with spaces between, or '').

    What most see wrongly is a wrong entry for that name; what few see wrongly is wrong with them. Names
    that mean nothing to anybody are Slurm's alone (NodeName is no host name there): nothing connects by them.
    """
    if not any(found for view in views.values() for found in view.values()):
        return
    wrong: dict[int, list[str]] = {}
    lacking: dict[int, list[str]] = {}
    for name, owner in subjects.items():
        seen = {viewer: view[name] for viewer, view in views.items() if name in view}
        known = (one.address for one in owner.listening.interfaces)
        right = {owner.address, *(one for one in known if not _is_loopback(one))}
        ill = {viewer: found for viewer, found in seen.items() if (found.split() or [""])[0] not in right}
        strange = {viewer: found for viewer, found in ill.items() if viewer != owner.node}
        if len(seen) >= _FEW and 2 * len(strange) > len(seen):
            found = next(iter(strange.values()))
            what = f"resolves to {found.split()[0]}" if found else "cannot be resolved"
            where = f"on {len(strange)} of {len(seen)} nodes; its address is {owner.address}"
            remedy = f"mend the entry of {name} in DNS or /etc/hosts"
            yield _of_names(owner.node, f"the name {name} {what} {where}", remedy)
            continue
        for viewer, found in ill.items():
            if viewer == owner.node and _is_loopback(found):
                first = found.split()[0]
                own = f"its own name {name} resolves to {first}: what binds to it cannot be reached by others"
                yield _of_names(viewer, own, f"take {name} out of the line of {first} in /etc/hosts")
            elif found:
                wrong.setdefault(viewer, []).append(f"{name} as {found.split()[0]}, which is not its address")
            else:
                lacking.setdefault(viewer, []).append(name)
    mend, add = "mend /etc/hosts or the resolver of this node", "add them to /etc/hosts or DNS"
    for viewer, said in wrong.items():
        yield _of_names(viewer, f"resolves {some_of(said)}", mend, Grade.FAIL)
    for viewer, said in lacking.items():
        yield _of_names(viewer, f"cannot resolve {some_of(said)}", add)


def _of_names(node: int | None, said: str, remedy: str, grade: Grade = Grade.WARN) -> NodeFinding:
    return NodeFinding(node, Finding("names", grade, said, remedy))


def late_names(subjects: Collection[NodeState]) -> Iterator[NodeFinding]:
    """Warn of nodes whose resolver answers late; where more than half of them do, of all together."""
    late = [one for one in subjects if one.resolve_seconds >= LATE_NAME_SECONDS]
    together = len(subjects) > 1 and 2 * len(late) > len(subjects)
    for one in late[:1] if together else late:
        where = f" on {len(late)} of {len(subjects)} nodes" if together else ""
        said = f"it takes {one.resolve_seconds:.1f} s to resolve a name{where}"
        yield _of_names(None if together else one.node, said, _RESOLVER)


def _is_loopback(addresses: str) -> bool:
    return addresses.startswith(("127.", "::1"))


# --- clocks ---


def clocks(subjects: Sequence[NodeState], warn: float, fail: float) -> Iterator[NodeFinding]:
    """Who is away from the median by more than can be explained by the way to and fro.

    The limits are seconds from the median; Munge and Kerberos refuse from 300 s on.
    """
    known = [one for one in subjects if one.latest < float("inf") and one.earliest > float("-inf")]
    if len(known) < 2:
        return
    median = statistics.median(one.offset for one in known)
    if len(known) < _FEW:
        first, second = known
        apart = max(first.earliest - second.latest, second.earliest - first.latest)
        if apart > warn:
            yield _unknown_clock(f"the clocks of {first.name} and {second.name} differ by {apart:.1f} s")
        return
    # The least that each is away, with its sign; 0 if it may be right.
    away = {
        one.node: one.earliest - median if one.earliest > median else min(0.0, one.latest - median)
        for one in known
    }
    astray = [one for one in known if abs(away[one.node]) > warn]
    if 2 * len(astray) >= len(known):
        widest = max(abs(seconds) for seconds in away.values())
        yield _unknown_clock(f"the clocks of the nodes differ by {widest:.0f} s and more")
        return
    for one in astray:
        seconds, far = one.offset - median, abs(away[one.node]) > fail
        said = f"its clock is {abs(seconds):.1f} s {'ahead' if seconds > 0 else 'behind'} of the others'"
        said += f" (limit {fail if far else warn:g} s)"
        yield NodeFinding(one.node, Finding("clock", Grade.FAIL if far else Grade.WARN, said, _TIME_SERVICE))


def _unknown_clock(seen: str) -> NodeFinding:
    said = f"{seen}; it is not known which is right"
    return NodeFinding(None, Finding("clock", Grade.WARN, said, "chronyc tracking on each node"))


# --- interfaces ---


def interfaces(subjects: Sequence[NodeState]) -> Iterator[NodeFinding]:
    """Whose MTU on the interface in use is unlike the others', and who uses an interface of another name."""
    used = {one.name: (one.node, one.interface) for one in subjects if one.interface is not None}
    found = vote({name: str(interface.mtu) for name, (_, interface) in used.items()})
    for node, interface in (used[name] for name in found.outliers):
        said = f"MTU {interface.mtu} on {interface.name}; the others have {found.majority}"
        remedy = f"ip link set {interface.name} mtu {found.majority}"
        yield NodeFinding(node, Finding("interface", Grade.WARN, said, remedy))
    if not found.unanimous and not found.majority:
        groups = "; ".join(f"{value} on {some_of(who)}" for value, who in found.nodes_by_value)
        yield NodeFinding(None, Finding("interface", Grade.WARN, f"the MTU differs over nodes: {groups}"))


def common_interface(subjects: Sequence[NodeState]) -> str:
    """The name of the interface that all these use; '' where they differ or one is not known."""
    used = {one.interface.name if one.interface is not None else "" for one in subjects}
    return used.pop() if len(used) == 1 else ""


def faster_interface(subjects: Sequence[NodeState]) -> tuple[str, int, int]:
    """The fastest interface of all these that is at least twice as fast as the one in use, and both speeds.

    Of each node's the slowest counts, in Mb/s. An empty name where there is none, or speeds are not known.
    """
    speeds: dict[str, list[int]] = {}
    for one in subjects:
        own = (i for i in one.listening.interfaces if i.kind in _NETWORKS and ":" not in i.address)
        for name, megabits in {i.name: i.megabits for i in own if i.megabits}.items():
            speeds.setdefault(name, []).append(megabits)
    common = {name: min(each) for name, each in speeds.items() if len(each) == len(subjects)}
    used = common.get(common_interface(subjects), 0)
    best = max(common, key=lambda name: (common[name], name), default="")
    return (best, common[best], used) if used and common[best] >= 2 * used else ("", 0, used)
