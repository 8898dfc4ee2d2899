"""Run the short check between two attempts: test suspects with other nodes, which count as fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterrun.model import contract
from clusterrun.model.orders import Level
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.preflight.observations import EarlierInterfaces, EarlierLink, NodeGone
from clusterrun.preflight.session import absent_nodes, local_phase, network_phase, socket_interfaces
from clusterrun.preflight.session.collective_phase import pair_rounds, whole_set
from clusterrun.preflight.session.group_tests import GroupTests
from clusterrun.preflight.session.node_state import NodeState
from clusterrun.preflight.session.report import explain
from clusterrun.preflight.session.requests import Waits
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import ListenTask, LocalTask, StartTorch
from clusterrun.preflight.thresholds import START_SECONDS, WITNESSES

# Reasons of a loss. A shared cause is searched if several nodes are lost.
_LOST = (contract.AGENT_LOST, contract.NOT_BACK)


def in_order(nodes: Mapping[int, NodeState], after: Report | None) -> list[NodeState]:
    """Return the nodes that trained by the last report, in rank order, then the others by number."""
    places = {name: index for index, name in enumerate(after.world)} if after is not None else {}
    return sorted(nodes.values(), key=lambda node: (places.get(node.name, len(places)), node.node))


def recall(state: SessionState, report: Report, suspects: Sequence[int]) -> None:
    """Take over the excluded nodes, the bad links and NCCL's interfaces of the last check."""
    for node_report in report.nodes:
        number = state.numbers.get(node_report.node)
        if number is not None and node_report.role == "excluded" and number not in suspects:
            node = state.nodes[number]
            failed = [finding.message for finding in node_report.findings if finding.verdict is Grade.FAIL]
            node.absent, node.gone = "", failed[0] if failed else "it was found unfit before"
            state.observe(NodeGone(number, node_report.findings, state.clock.now))
    for link in report.links:
        if link.verdict is Grade.FAIL and {link.a, link.b} <= state.numbers.keys():
            state.observe(EarlierLink(link))
    names = dict(report.environment).get(socket_interfaces.VARIABLE, "").lstrip("=")
    if names:
        state.observe(EarlierInterfaces(tuple(names.split(","))))


def rounds(state: SessionState, group_tests: GroupTests, suspects: Sequence[int], network: bool) -> Waits:
    """Run local checks and dials, and tests of pairs if their result can help.

    ``network`` means that the network may be at fault, so that the whole set is tested as well.
    """
    state.should_test_set = network
    suspects = [member.node for member in state.present() if member.node in suspects]
    examined = [*suspects, *_spares(state, suspects)]
    several_lost = sum(member.absent in _LOST for member in state.nodes.values()) > 1
    if not examined and not several_lost:
        return
    if examined:
        state.notice(f"a short check: of {state.names(examined)} alone")
    for member in state.present():
        state.ask(member.node, ListenTask(state.nonce), START_SECONDS)
    for node in examined:
        local_phase.start_local_checks(state, node)
    yield (ListenTask,)
    if several_lost:
        yield from absent_nodes.rounds(state)  # Lost nodes dial ports that listen.
    if not examined:
        return
    yield from network_phase.around(state, examined)
    state.label = "local round"
    yield (LocalTask,)
    # Tests are worth an import of torch if a spare can replace a fit suspect.
    options, is_unfit = state.orders.preflight, explain(state).is_unfit
    has_fit_suspects = not all(map(is_unfit, suspects))
    helps = options.resubmit or not all(map(is_unfit, _spares(state, suspects)))
    is_worth = network or (has_fit_suspects and helps and options.level is Level.FULL)
    if not options.python or not is_worth:
        return
    for node in (
        [member.node for member in state.present()] if network else _members(state, suspects, examined)
    ):
        local_phase.start_torch_worker(state, node)
    state.label = "torch is being imported"
    yield (StartTorch,)
    local_phase.choose_backend(state)
    if state.backend:
        yield from pair_rounds(state, group_tests, options.all_pairs)
    if state.backend and network:
        yield from whole_set(state, group_tests)


def _spares(state: SessionState, suspects: Sequence[int]) -> list[int]:
    """Return the spares that may replace a suspect or a lost node, in their order."""
    nodes = list(state.nodes)
    places, idle = nodes[: state.orders.nodes], nodes[state.orders.nodes :]
    needed = sum(node in suspects or bool(state.nodes[node].gone) for node in places)
    free = [node for node in idle if not state.nodes[node].gone and node not in suspects]
    return free[: needed + 1] if needed else []  # one more, since a spare may be unfit itself


def _members(state: SessionState, suspects: Sequence[int], examined: Sequence[int]) -> list[int]:
    """Return the tested nodes, and as partners their neighbours in the ring, near ones first."""
    explanation = explain(state)
    ring = explanation.choice().nodes
    needed = WITNESSES * len(suspects) + 1  # one more, since a partner may be at fault itself
    at = [place for place, node in enumerate(ring) if node in suspects]
    steps = (step * way for step in range(1, len(ring)) for way in (1, -1))
    neighbours = [ring[(place + step) % len(ring)] for step in steps for place in at]
    partners = [node for node in dict.fromkeys(neighbours) if node not in examined]
    members = {*examined, *partners[:needed]}
    return [node for node in state.nodes if node in members and not explanation.is_unfit(node)]
