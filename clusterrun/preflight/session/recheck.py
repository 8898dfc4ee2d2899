"""The short check between two attempts: suspects against the others, which are taken as fit; pure."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from clusterrun.model import contract
from clusterrun.model.orders import Level
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.preflight.session import absent_nodes, local_phase, network_phase
from clusterrun.preflight.session.collective_phase import PairTests, WholeSet
from clusterrun.preflight.session.state import NodeState, SessionState
from clusterrun.preflight.tasks import ListenTask, LocalTask, StartTorch

_LOST = (contract.AGENT_LOST, contract.NOT_BACK)
"""Of several that were lost it is asked whether what they share is to blame."""
SPARES_MORE = 1
"""So many spares more are looked at than may be needed: one of them may be unfit itself."""


def in_order(known: Mapping[int, NodeState], after: Report | None) -> list[NodeState]:
    """By number; those that trained by the last report before the others, as they trained."""
    places = {name: place for place, name in enumerate(after.world)} if after is not None else {}
    return sorted(known.values(), key=lambda one: (places.get(one.name, len(places)), one.node))


def recall(state: SessionState, report: Report, suspects: Sequence[int]) -> None:
    """What the last check found still holds: who stays out, and which links are bad."""
    for one in report.nodes:
        node = state.numbers.get(one.node)
        if node is not None and one.role == "excluded" and node not in suspects:
            state.subjects[node].exclude_as_known_unfit(one.findings)
    bad = (one for one in report.links if one.verdict is Grade.FAIL)
    state.write("before", (), [one for one in bad if {one.a, one.b} <= state.numbers.keys()])


def rounds(
    pairs: PairTests, suspects: Sequence[int], network: bool
) -> Generator[tuple[type, ...], None, None]:
    """Local checks and dialling; tests of pairs where they may show something that can be mended.

    ``network``: what went wrong may be the network's, so the whole set is tested as well.
    """
    case = pairs.case
    case.set_wanted = network
    suspects = [one.node for one in case.present() if one.node in suspects]
    looked = [*suspects, *_spares(case, suspects)]
    several_lost = sum(one.absent in _LOST for one in case.subjects.values()) > 1
    if not looked and not several_lost:
        return
    if looked:
        case.notice(f"a short check: of {case.names(looked)} alone")
    for one in case.present():
        case.ask(one.node, ListenTask(case.nonce), local_phase.LISTEN_SECONDS)
    for node in looked:
        local_phase.look_at(case, node)
    yield (ListenTask,)
    if several_lost:
        yield from absent_nodes.rounds(case)  # those that are lost dial ports that listen
    if not looked:
        return
    yield from network_phase.around(case, looked)
    case.label = "local round"
    yield (LocalTask,)
    local_phase.write(case)
    if not _tests_wanted(case, suspects, network):
        return
    for node in [one.node for one in case.present()] if network else _members(case, suspects, looked):
        local_phase.warm_up(case, node)
    case.label = "torch is being imported"
    yield (StartTorch,)
    local_phase.write(case)
    local_phase.choose_backend(case)
    if case.backend:
        yield from pairs.rounds()
    if case.backend and network:
        yield from WholeSet(pairs).rounds()


def _spares(case: SessionState, suspects: Sequence[int]) -> list[int]:
    """Those that may take the place of a suspect or of a node that is lost, as they come."""
    nodes = list(case.subjects)
    places, idle = nodes[: case.orders.nodes], nodes[case.orders.nodes :]
    wanted = sum(node in suspects or bool(case.subjects[node].gone) for node in places)
    free = [node for node in idle if not case.subjects[node].gone and node not in suspects]
    return free[: wanted + SPARES_MORE] if wanted else []


def _tests_wanted(case: SessionState, suspects: Sequence[int], network: bool) -> bool:
    """Whether torch is worth its import: only where somebody can take a suspect's place."""
    asked = case.orders.preflight
    if not asked.python or network:
        return bool(asked.python)
    left = any(not case.subjects[node].unfit for node in suspects)
    helps = asked.resubmit or any(not case.subjects[node].unfit for node in _spares(case, suspects))
    return bool(left and helps and asked.level is Level.FULL)


def _members(case: SessionState, suspects: Sequence[int], looked: Sequence[int]) -> list[int]:
    """Who is looked at, and as partners their neighbours in the ring, near ones first."""
    ring = [node for node in case.choice().nodes if not case.subjects[node].unfit]
    wanted = max(case.orders.preflight.confirm, 2 * len(suspects))
    at = [place for place, node in enumerate(ring) if node in suspects]
    steps = (step * way for step in range(1, len(ring)) for way in (1, -1))
    near = [ring[(place + step) % len(ring)] for step in steps for place in at]
    partners = [node for node in dict.fromkeys(near) if node not in looked]
    members = {*looked, *partners[:wanted]}
    return [one.node for one in case.present() if one.node in members and not one.unfit]
