"""The end of an examination: who trains, what is said, whether it is enough; pure."""

from __future__ import annotations

from clusterrun.model.frozen import frozen
from clusterrun.model.preflight_report import Finding, Grade, NodeReport, Report, worst
from clusterrun.model.world import exactly
from clusterrun.preflight.session.consistency import common_interface, faster_interface
from clusterrun.preflight.session.group_tests import PRODUCT
from clusterrun.preflight.session.node_selection import Choice
from clusterrun.preflight.session.state import SessionState

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


def write_unverified(state: SessionState) -> None:
    """Several nodes of which no two passed a test together: never a pass.

    It fails where tests were made and all of them failed, and is undetermined where none was made.
    """
    known = [one.verdict for one in state.together]
    tests = [one for one in state.tests if one.test != PRODUCT and len(one.nodes) > 1]
    passed = any(one.outcome == "passed" for one in tests)
    unasked = state.orders.nodes < 2 or not state.set_wanted
    if passed or unasked or Grade.FAIL in known or not state.choice().whole:
        return
    failed = [one for one in tests if one.outcome == "failed"]
    if failed:
        why = next((one.said for one in failed if one.said), "no answer within the limit")
        said = f"none of {len(failed)} tests of nodes together passed: {why}"
        state.write_of_all("verified", "set", Grade.FAIL, said, _NONE_PASSED)
    elif Grade.UNDETERMINED not in known:
        state.write_of_all("verified", "set", Grade.UNDETERMINED, "no two nodes were tested together")


def concluded(state: SessionState) -> SessionOutcome:
    choice = state.choice()
    fit = choice.whole and Grade.FAIL not in [one.verdict for one in state.together]
    for was, now in choice.swaps:
        state.notice(f"{state.subjects[now].name} takes the place of {state.subjects[was].name}")
    # A faster interface may lead elsewhere than to the other nodes, and was not tested: the user chooses.
    name, fast, slow = faster_interface([state.subjects[node] for node in choice.nodes])
    if len(choice.nodes) > 1 and name and "GLOO_SOCKET_IFNAME" not in dict(state.orders.environment):
        state.notice(
            f"every node has {name} with {fast / 1000:g} Gb/s, the interface in use has {slow / 1000:g}: "
            f"if it joins the nodes, --env GLOO_SOCKET_IFNAME={name} --env NCCL_SOCKET_IFNAME=={name}"
        )
    parted = () if choice.whole else choice.parted
    alone = state.names(node for node in parted if node not in state.elsewhere())
    if alone:
        state.notice(f"fit by itself, but not together with the others: leave out {alone}")
    # Of nodes that joined and nodes apart from all of them, the fewer are left out of another try.
    here, silent = state.parts.get("joining") or state.parts.get("sizes") or ((), ())
    fewer = here if len(silent) > len(here) and not choice.whole else silent
    report = _report(state, choice, fit)
    excluded = dict.fromkeys((*report.excluded, *(state.subjects[node].name for node in (*parted, *fewer))))
    return SessionOutcome(fit, report, choice.nodes, report.environment, tuple(excluded))


def _report(state: SessionState, choice: Choice, fit: bool) -> Report:
    orders, subjects = state.orders, state.subjects
    members, others = [subjects[node] for node in choice.nodes], set(subjects) - set(choice.nodes)
    world = tuple(one.name for one in members)
    grades = [one.verdict for one in members]
    grades += [link.verdict for link in state.links if {link.a, link.b} <= set(world)]
    grades += [Grade.WARN] * bool(choice.swaps) + [one.verdict for one in state.together]
    interface = common_interface(members)
    chosen = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": exactly(interface)} if interface else {}
    roles = {
        node: "rank" if node not in others else "excluded" if one.unfit else "spare"
        for node, one in subjects.items()
    }
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
        spares=tuple(one.name for one in subjects.values() if roles[one.node] == "spare"),
        excluded=tuple(one.name for one in subjects.values() if one.unfit and not one.excused),
        nodes=tuple(
            NodeReport(one.name, one.verdict, roles[one.node], one.findings) for one in subjects.values()
        ),
        links=state.links,
        set_said="; ".join(map(_of_all, state.together)),
        tests=tuple(state.tests),
        notices=tuple(state.notices),
        environment=tuple(item for item in chosen.items() if item[0] not in dict(orders.environment)),
    )


def _of_all(one: Finding) -> str:
    """A finding of all together, with what to do about it where it keeps the run from training."""
    remedy = one.remedy if one.verdict is Grade.FAIL and one.remedy not in one.said else ""
    return f"{one.said} -> {remedy}" if remedy else one.said
