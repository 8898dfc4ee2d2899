"""Apply and heal faults by kind, refuse impossible ones, and record them."""

from __future__ import annotations

from clusterrun.lab.faults import gpu, machines, network, systems
from clusterrun.lab.faults.kinds import FaultType
from clusterrun.lab.namespaces import LabError
from clusterrun.lab.place import Fault, write_state
from clusterrun.lab.site import LabSite
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import replace

KINDS: dict[str, FaultType] = {
    kind.name: kind for kind in (*network.KINDS, *machines.KINDS, *systems.KINDS, *gpu.KINDS)
}


def apply(site: LabSite, fault: Fault) -> Fault:
    """Put a fault in force and record it. Raises ``BadInput`` for one that is unknown or in force already."""
    kind = KINDS.get(fault.kind)
    if kind is None:
        raise BadInput(f"there is no fault {fault.kind!r}", f"there are {', '.join(KINDS)}")
    if unknown := [key for key, _ in fault.details if key not in kind.details]:
        raise BadInput(f"the fault {kind.name!r} takes no {unknown[0]!r}", f"it takes {sorted(kind.details)}")
    if kind.needs_host or fault.host:
        site.host(fault.host)
        site.first(fault.host)
    if any(_same(in_force, fault, kind) for in_force in site.state.faults):
        raise BadInput(f"{fault} is in force already", "end it first: lab fault heal")
    applied = kind.apply(site, fault)
    faults = site.state.faults
    if kind.name == "kill" and not fault.get("process"):
        faults = tuple(f for f in faults if not (f.host == fault.host and KINDS[f.kind].lives_in_host))
    site.state = replace(site.state, faults=(*faults, applied))
    write_state(site.place, site.state)
    return applied


def _same(in_force: Fault, requested: Fault, kind: FaultType) -> bool:
    if (in_force.kind, in_force.host) != (requested.kind, requested.host or kind.host):
        return False
    # ``apply`` appends its own details, so an equal fault begins with the requested ones.
    return kind.alone or in_force.details[: len(requested.details)] == requested.details


def heal(site: LabSite, host: str = "", kind: str = "") -> tuple[Fault, ...]:
    """End all faults, or those on one host, or of one kind (latest first). Return them.

    One that cannot be undone stays in force and is raised as ``LabError``, after the others.
    """
    if host:
        site.host(host)
    chosen = [f for f in reversed(site.state.faults) if host in ("", f.host) and kind in ("", f.kind)]
    failed = [f"{fault}: {error.seen}" for fault in chosen if (error := _undo(site, fault)) is not None]
    if failed:
        raise LabError("not healed: " + "; ".join(failed), "`lab down` and `lab up` end every fault")
    return tuple(chosen)


def _undo(site: LabSite, fault: Fault) -> ClusterrunError | None:
    try:
        KINDS[fault.kind].heal(site, fault)
    except ClusterrunError as error:
        return error
    site.state = replace(site.state, faults=tuple(f for f in site.state.faults if f != fault))
    write_state(site.place, site.state)
    return None
