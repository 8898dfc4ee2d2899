"""Find out whether a node without an agent is down, or only unreachable from the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.preflight import registry, tasks
from clusterrun.preflight.observations import ABSENT
from clusterrun.preflight.session import network_phase
from clusterrun.preflight.session.absent_findings import replies_of
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.silent_findings import silent_together
from clusterrun.preflight.session.state import HOST, SessionState
from clusterrun.preflight.tasks import DialTask, ListenTask, LocalTask, PeerTask, Target, Task, ThroughTask
from clusterrun.preflight.thresholds import ANSWER_SECONDS, DIAL_SECONDS, FEW_NODES, START_SECONDS
from clusterrun.slurm_text.srun_messages import BESIDE_SECONDS, step_on

# Few services listen on these ports. A live machine refuses the connection, which proves both directions.
# Each port is dialled from another source port, so that some dials pass if a range of ports is blocked.
_PORTS = tuple(range(1, 25))


def rounds(state: SessionState) -> Waits:
    """Let the present nodes dial the missing nodes, at the addresses to which their names resolve.

    A missing node that answers all nodes except the coordinator's is examined through another node.
    """
    missing = [node for node in state.nodes.values() if node.absent]
    yield from _names(state, missing)
    if _knock(state, missing):
        state.label = "a look at the nodes whose agents did not join"
        yield (DialTask,)
        unreached = [node for node in missing if replies_of(state, node).unanswered == (HOST,)]
        yield from rounds_through(state, unreached)
    if missing:
        state.end_phase(ABSENT)


def rounds_at_lost(state: SessionState) -> Waits:
    """Dial nodes that fell silent together during the check. The kernel of a live machine still answers."""
    if _knock(state, [state.nodes[node] for node in silent_together(state)]):
        state.label = "a look at the nodes that fell silent"
        yield (DialTask,)


def _knock(state: SessionState, nodes: list[NodeState]) -> bool:
    """Let witnesses dial these nodes. Return whether any witness has an address of one."""
    has_requests = False
    for witness in state.present()[:FEW_NODES]:
        addresses = (
            (node, node.address or witness.resolved.get(node.name, "").split(" ")[0]) for node in nodes
        )
        targets = tuple(
            Target(node.node, node.name, address, _PORTS, _PORTS[0]) for node, address in addresses if address
        )
        if targets:
            has_requests = True
            task = DialTask(state.nonce, witness.node, targets, DIAL_SECONDS, sizes=True)
            state.ask(witness.node, task, DIAL_SECONDS + ANSWER_SECONDS)
    return has_requests


def _names(state: SessionState, missing: list[NodeState]) -> Waits:
    """Look up the names of missing nodes on nodes that did not do so in the control round."""
    names = {node.name for node in missing}
    if not names or not state.orders.launch:
        return
    witnesses = [node for node in state.present()[:FEW_NODES] if not node.resolved.keys() & names]
    for witness in witnesses:
        network_phase.ask_checks(state, witness.node, [node.node for node in missing])
    if witnesses:
        yield (PeerTask,)


# --- examine nodes that the coordinator's node does not reach, through a node that reaches them ---


def rounds_through(state: SessionState, nodes: Sequence[NodeState]) -> Waits:
    """Start an examiner on each node, run its local checks, and let it and the coordinator's node dial."""
    reachable = (node for node in nodes[:FEW_NODES] if _relay(state, node) is not None)
    examined = [node for node in reachable if examiner_on(state.orders.launch, node.name)]
    if not examined or HOST not in [node.node for node in state.present()]:
        return
    state.label = "a look through others at nodes whose agents did not join"
    for node in examined:
        _through(state, node, ListenTask(state.nonce), START_SECONDS)
    yield (ThroughTask,)
    host = state.nodes[HOST]
    for node in examined:
        if node.listens:
            _through(state, node, LocalTask(state.needs, registry.check_names(state.needs)), START_SECONDS)
            task = DialTask(state.nonce, node.node, (host.target(host.listening.ports),), DIAL_SECONDS)
            _through(state, node, task, DIAL_SECONDS + ANSWER_SECONDS)
            address = next(iter(state.addresses_of(node.name)), "")
            target = node.target(node.listening.ports, address)
            task = DialTask(state.nonce, host.node, (target,), DIAL_SECONDS)
            state.ask(host.node, task, DIAL_SECONDS + ANSWER_SECONDS)
    yield (ThroughTask, DialTask)
    for node in examined:
        _through(state, node, None, 0.0)
    yield (ThroughTask,)


def _through(state: SessionState, node: NodeState, task: Task | None, seconds: float) -> None:
    relay = _relay(state, node)
    if relay is not None:
        body = tasks.message_text(task) if task is not None else ""
        request = ThroughTask(node.name, examiner_on(state.orders.launch, node.name), body, seconds)
        state.ask(relay, request, seconds + ANSWER_SECONDS)


def _relay(state: SessionState, node: NodeState) -> int | None:
    """Return a present node that reaches this node; None if there is none."""
    answered = replies_of(state, node).answered
    relays = (other.node for other in state.present() if other.node in answered and other.node != HOST)
    return next(relays, None)


def examiner_on(launch: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the command that starts an examiner on a node; () if agents are not started by srun."""
    if len(launch) < 3 or launch[-2] != "agent":
        return ()
    program, *arguments = launch[:-2]
    kept_arguments = [argument for argument in arguments if not argument.startswith("--immediate=")]
    return (program, *step_on(kept_arguments, [name], BESIDE_SECONDS), "examine", launch[-1], name)
