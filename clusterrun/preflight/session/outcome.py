"""The end of an examination: who trains, what is said, whether it is enough; pure."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade, NodeReport, Report, worst
from clusterrun.model.world import exactly
from clusterrun.preflight.session.consistency import common_interface, faster_interface
from clusterrun.preflight.session.group_tests import PRODUCT
from clusterrun.preflight.session.node_selection import Choice
from clusterrun.preflight.session.state import NodeFinding, NodeState, SessionState

_NONE_PASSED = (
    "look at what all of them share: the interface that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, "
    "and the firewall between the nodes of a job"
)


@frozen
class SessionOutcome:
    """How it ended. ``world``: the allocation's numbers in rank order, complete where ``fit``.

    ``environment`` is for ranks where their user set nothing; ``excluded`` are names of nodes that
    another try should leave out.
    """

    fit: bool
    report: Report
    world: tuple[int, ...]
    environment: tuple[tuple[str, str], ...]
    excluded: tuple[str, ...]


def unverified(state: SessionState) -> list[NodeFinding]:
    """Several nodes of which no two passed a test together: never a pass.

    It fails where tests were made and all of them failed, and is undetermined where none was made.
    """
    known = [one.verdict for one in state.together]
    if state.orders.nodes < 2 or not state.set_wanted or Grade.FAIL in known or not state.choice().whole:
        return []
    tests = [one for one in state.tests if one.test != PRODUCT and len(one.nodes) > 1]
    if any(one.outcome == "passed" for one in tests):
        return []
    failed = [one for one in tests if one.outcome == "failed"]
    if failed:
        why = next((one.said for one in failed if one.said), "no answer within the limit")
        said = f"none of {len(failed)} tests of nodes together passed: {why}"
        return [NodeFinding(None, Finding("set", Grade.FAIL, said, _NONE_PASSED))]
    if Grade.UNDETERMINED in known:
        return []
    return [NodeFinding(None, Finding("set", Grade.UNDETERMINED, "no two nodes were tested together"))]


def concluded(state: SessionState) -> SessionOutcome:
    choice = state.choice()
    fit = choice.whole and Grade.FAIL not in [one.verdict for one in state.together]
    elsewhere = state.elsewhere()
    unfit = [one.name for one in state.subjects.values() if one.unfit and not one.excused]
    silent = [state.subjects[node].name for node in _smaller_side(state, choice)]
    parted = [] if choice.whole else [state.subjects[node].name for node in choice.parted]
    for was, now in choice.swaps:
        state.notice(f"{state.subjects[now].name} takes the place of {state.subjects[was].name}")
    _name_a_faster_interface(state, choice)
    alone = [state.subjects[node].name for node in choice.parted if node not in elsewhere]
    if alone and not choice.whole:
        state.notice(f"fit by itself, but not together with the others: leave out {', '.join(alone)}")
    report = _report(state, choice, fit)
    return SessionOutcome(
        fit,
        report,
        choice.nodes,
        report.environment,
        tuple(dict.fromkeys((*unfit, *parted, *silent))),
    )


def _name_a_faster_interface(state: SessionState, choice: Choice) -> None:
    """It may lead elsewhere than to the other nodes, and was not tested: it is the user's to choose."""
    name, fast, slow = faster_interface([state.subjects[node] for node in choice.nodes])
    if len(choice.nodes) > 1 and name and "GLOO_SOCKET_IFNAME" not in dict(state.orders.environment):
        state.notice(
            f"every node has {name} with {fast / 1000:g} Gb/s, the interface in use has {slow / 1000:g}: "
            f"if it joins the nodes, --env GLOO_SOCKET_IFNAME={name} --env NCCL_SOCKET_IFNAME=={name}"
        )


def _smaller_side(state: SessionState, choice: Choice) -> tuple[int, ...]:
    """Of nodes that joined and nodes apart from all of them, those that another try should leave out."""
    here, silent = state.parts.get("joining") or state.parts.get("sizes") or ((), ())
    return here if len(silent) > len(here) and not choice.whole else silent


def _environment(state: SessionState, choice: Choice) -> tuple[tuple[str, str], ...]:
    given = dict(state.orders.environment)
    name = common_interface([state.subjects[node] for node in choice.nodes])
    chosen = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": exactly(name)} if name else {}
    return tuple((variable, value) for variable, value in chosen.items() if variable not in given)


def _report(state: SessionState, choice: Choice, fit: bool) -> Report:
    orders, subjects = state.orders, state.subjects
    world = tuple(subjects[node].name for node in choice.nodes)
    within = [link for link in state.links if {link.a, link.b} <= set(world)]
    swapped = [Grade.WARN] if choice.swaps else []
    grades = [subjects[node].verdict for node in choice.nodes] + [one.verdict for one in within] + swapped
    grades += [one.verdict for one in state.together]
    spares = [one for one in subjects.values() if one.node not in choice.nodes and not one.unfit]
    return Report(
        run_id=orders.run_id,
        cluster=orders.preflight.cluster,
        level=str(orders.preflight.level),
        verdict=worst(tuple(grades)) if fit else Grade.FAIL,
        at=state.wall_at(state.now),
        seconds=round(state.now - state.began, 3),
        budget=orders.preflight.budget,
        rounds=state.rounds,
        backend=state.backend,
        world=world,
        spares=tuple(one.name for one in spares),
        excluded=tuple(one.name for one in subjects.values() if one.unfit and not one.excused),
        nodes=tuple(_node(one, choice) for one in subjects.values()),
        links=state.links,
        set_said="; ".join(map(_of_all, state.together)),
        tests=tuple(state.tests),
        notices=tuple(state.notices),
        environment=_environment(state, choice),
    )


def _of_all(one: Finding) -> str:
    """A finding of all together, with what to do about it where it keeps the run from training."""
    remedy = one.remedy if one.verdict is Grade.FAIL and one.remedy not in one.said else ""
    return f"{one.said} -> {remedy}" if remedy else one.said


def _node(node: NodeState, choice: Choice) -> NodeReport:
    role = "rank" if node.node in choice.nodes else "excluded" if node.unfit else "spare"
    return NodeReport(node.name, node.verdict, role, node.findings)
