"""Find the interfaces over which NCCL should use sockets. It divides its messages between all of them."""

from __future__ import annotations

from clusterrun.preflight.observations import EarlierInterfaces, InterfaceDials
from clusterrun.preflight.session import network_phase
from clusterrun.preflight.session.consistency import common_interface, speeds_of_common
from clusterrun.preflight.session.expected_bandwidth import active_ports
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import DialTask
from clusterrun.preflight.thresholds import ANSWER_SECONDS, DIAL_SECONDS

VARIABLE = "NCCL_SOCKET_IFNAME"


def rounds(state: SessionState) -> Waits:
    """Dial over the further interfaces of all nodes, each in the same way as over the one in use.

    NCCL with InfiniBand or RoCE sends no data over sockets. A slower interface is not dialled.
    """
    nodes = state.listeners()
    if state.backend != "nccl" or len(nodes) < 2 or VARIABLE in dict(state.orders.environment):
        return
    if any(active_ports(node) for node in nodes):
        return
    used, speeds = common_interface(nodes), speeds_of_common(nodes)
    candidates = [name for name in speeds if name != used and speeds[name] >= speeds.get(used, 0)]
    for name in candidates if used in speeds else ():
        if state.clock.seconds_left < DIAL_SECONDS + ANSWER_SECONDS:
            return
        for node, targets in network_phase.first_plan(state).items():
            goals = []
            for other, ports in targets.items():
                interfaces = state.nodes[other].listening.interfaces
                addresses = (entry.address for entry in interfaces if entry.name == name)
                address = next(address for address in addresses if ":" not in address)
                goals.append(state.nodes[other].target(ports, address))
            task = DialTask(state.nonce, node, tuple(goals), DIAL_SECONDS, interface=name)
            state.ask(node, task, DIAL_SECONDS + ANSWER_SECONDS)
        state.label = f"dials over {name}"
        yield (DialTask,)


def chosen(state: SessionState) -> tuple[str, ...]:
    """Return the fastest interfaces on which all nodes reach each other; () if they use different ones."""
    nodes = state.listeners()
    used, speeds = common_interface(nodes), speeds_of_common(nodes)
    if not used:
        return ()
    working = {used}
    for earlier in state.log.of(EarlierInterfaces):
        working |= set(earlier.names) & speeds.keys()
    works_on: dict[str, set[int]] = {}
    for dials in state.log.of(InterfaceDials):
        reached = [way for way in dials.answer.dialled if way.large and not way.silent and not way.refused]
        if len(reached) == len(dials.task.targets):
            works_on.setdefault(dials.task.interface, set()).add(dials.task.node)
    working |= {name for name, good in works_on.items() if good.issuperset(node.node for node in nodes)}
    fastest = max(speeds.get(name, 0) for name in working)
    names = speeds if used in speeds else [used]
    return tuple(name for name in names if name in working and speeds.get(name, 0) == fastest)
