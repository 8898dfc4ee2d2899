"""Turn the observations of a check into findings, verdicts, the nodes that train and the nodes to exclude."""

from __future__ import annotations

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.preflight_report import (
    Finding,
    Grade,
    LinkReport,
    Measurement,
    NodeReport,
    Report,
    worst,
)
from clusterrun.model.world import exactly
from clusterrun.preflight import registry
from clusterrun.preflight.observations import CheckFault, GroupTest, NodeGone, Unanswered
from clusterrun.preflight.session import (
    absent_findings,
    connection_findings,
    pair_findings,
    partition_findings,
    silent_findings,
    socket_interfaces,
)
from clusterrun.preflight.session.consistency import common_interface, faster_interface
from clusterrun.preflight.session.explanation import Explanation
from clusterrun.preflight.session.state import SessionState
from clusterrun.preflight.tasks import PRODUCT, SET

_OURS = "this is a fault of clusterrun: please report it with this line"
_MORE = "give it more: --preflight-budget"
_NONE_PASSED = (
    "look at what all of them share: the interface that GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, "
    "and the firewall between the nodes of a job"
)


@frozen
class SessionOutcome:
    """The outcome of a check."""

    fit: bool
    report: Report
    world: tuple[int, ...]  # numbers in the allocation in rank order; complete if ``fit``
    environment: tuple[tuple[str, str], ...]  # for the ranks, without the variables that the user set
    excluded: tuple[str, ...]  # names of the nodes that another attempt should exclude


def explain(state: SessionState) -> Explanation:
    """Return what the observations show so far. It is computed once for the same observations."""
    if state.explanation is None:
        state.explanation = Explanation(state.nodes, state.orders.nodes)
        for add_findings in FINDERS:
            try:
                add_findings(state, state.explanation)
            except Exception as error:  # noqa: BLE001 (a fault of ours must not keep a run from training)
                state.explanation.network.append(_fault(error))
    return state.explanation


def of_gone(state: SessionState, explanation: Explanation) -> None:
    """Report every node that gets no more requests, by the reason that it gave."""
    for loss in state.log.of(NodeGone):
        explanation.presence[loss.node] = loss.findings
        has_failed = any(finding.verdict is Grade.FAIL for finding in loss.findings)
        if loss.findings and not has_failed:
            explanation.excused.add(loss.node)


def of_local_checks(state: SessionState, explanation: Explanation) -> None:
    local, workers, products, burns = {}, {}, {}, {}
    for node in state.nodes.values():
        if node.local is not None:
            local[node.name] = node.local
        if node.first_torch_worker is not None:
            workers[node.name] = node.first_torch_worker
        if node.product is not None:
            products[node.name] = node.product
        if node.burn is not None:
            burns[node.name] = node.burn
    listeners = [node for node in state.nodes.values() if node.listens and not node.absent]
    overloaded = (node.name for node in listeners if state.excuse([node.node], state.clock.began))
    needs = replace(
        state.needs, peers=tuple(node.target(()) for node in listeners), overloaded=tuple(overloaded)
    )
    for place, findings in registry.findings(needs, local, workers, products, burns).items():
        for finding in findings:
            if isinstance(place, str):
                explanation.add(state.numbers.get(place), finding)
            else:
                a, b = place
                link = LinkReport(a, b, "a->b", finding.verdict, finding.message, finding.remedy)
                explanation.add_links([link])


def of_budget(state: SessionState, explanation: Explanation) -> None:
    ended = f"the budget of {state.orders.preflight.budget:g} s ended during"
    for unanswered in state.log.of(Unanswered):
        finding = Finding("budget", Grade.UNDETERMINED, f"{ended} {unanswered.title}", _MORE)
        explanation.add(unanswered.node, finding)
    for fault in state.log.of(CheckFault):
        explanation.network.append(_fault(fault.error))


def _fault(error: Exception) -> Finding:
    message = f"the check itself failed: {type(error).__name__}: {error}"
    return Finding("check", Grade.UNDETERMINED, message, _OURS)


def of_missing_tests(state: SessionState, explanation: Explanation) -> None:
    """Report at the end that the whole set was not tested, or that no two nodes passed a test together."""
    needed = state.has_ended and state.should_test_set and explanation.choice().whole
    tests = state.log.of(GroupTest)
    set_passed = any(test.passed for test in tests if test.kind == SET)
    if needed and state.backend and not set_passed and not explanation.network:
        message = "the whole set was not tested to its end: no time was left"
        explanation.network.append(Finding("set", Grade.UNDETERMINED, message))
    groups = [test for test in tests if test.kind != PRODUCT and len(test.nodes) > 1]
    failed = [test for test in groups if test.passed is False]
    is_verified = any(test.passed for test in groups) or state.orders.nodes < 2
    if needed and not is_verified and not explanation.together_has(Grade.FAIL):
        if failed:
            why = next((test.failure for test in failed if test.failure), pair_findings.NO_ANSWER)
            message = f"none of {len(failed)} tests of nodes together passed: {why}"
            remedy = pair_findings.remedy_of(state, why, _NONE_PASSED)
            explanation.network.append(Finding("set", Grade.FAIL, message, remedy))
        # A notice says that ranks without Python are not tested together.
        elif state.orders.preflight.python and not explanation.together_has(Grade.UNDETERMINED):
            message = "no two nodes were tested together"
            explanation.network.append(Finding("set", Grade.UNDETERMINED, message))


# Each adds findings. A cause comes before its consequences: is the node present, does it connect, is it sound
# by itself, does it work with another, is it fast, does it work in larger groups, was there enough time?
FINDERS = (
    of_gone,
    connection_findings.of_earlier_check,
    connection_findings.of_sweep,
    connection_findings.of_dials,
    connection_findings.of_losses,
    absent_findings.of_absent,
    silent_findings.of_silent,
    of_local_checks,
    pair_findings.of_torch_workers,
    pair_findings.of_pairs,
    pair_findings.of_rails,
    pair_findings.of_groups,
    pair_findings.of_set,
    silent_findings.of_late,
    absent_findings.of_kept_away,
    of_budget,
    of_missing_tests,
)


# --- the end ---


def conclude(state: SessionState) -> SessionOutcome:
    """Return the outcome of a check that has ended."""
    state.has_ended, state.explanation = True, None
    explanation = explain(state)
    choice = explanation.choice()
    fit = choice.whole and not explanation.together_has(Grade.FAIL)
    for search in state.pair_searches:
        for notice in pair_findings.notices(state, search.result()):
            state.notice(notice)
    for was, now in choice.swaps:
        state.notice(f"{state.nodes[now].name} takes the place of {state.nodes[was].name}")
    members = [state.nodes[node] for node in choice.nodes]
    sockets = socket_interfaces.chosen(state)
    if sockets and sockets != (common_interface(members),):
        state.notice(f"NCCL's sockets use {', '.join(sockets)}, on which all nodes reach each other")
    # gloo keeps the interface in use: the user chooses, since a faster one may not join the nodes.
    name, fast, slow = faster_interface(members)
    if len(members) > 1 and name and "GLOO_SOCKET_IFNAME" not in dict(state.orders.environment):
        also_nccl = f" --env NCCL_SOCKET_IFNAME=={name}" if name not in sockets else ""
        state.notice(
            f"every node has {name} with {fast / 1000:g} Gb/s, the interface in use has {slow / 1000:g}: "
            f"if it joins the nodes, --env GLOO_SOCKET_IFNAME={name}{also_nccl}"
        )
    separated = () if choice.whole else choice.separated
    if len(choice.nodes) > 1 and not explanation.elsewhere().issuperset(separated):
        left_out = fold(sorted(state.nodes[node].name for node in separated))
        offer = partition_findings.alone(state, choice.nodes)
        state.notice(f"no link between the nodes without {left_out} is broken: {offer}")
    report = _report(state, explanation, fit)
    # Another attempt excludes the smaller group: the nodes that joined, or the nodes that they do not reach.
    joined, others = [node.node for node in state.present()], explanation.unreached
    fewer = joined if len(others) > len(joined) and not choice.whole else others
    excluded = dict.fromkeys((*report.excluded, *(state.nodes[node].name for node in (*separated, *fewer))))
    return SessionOutcome(fit, report, choice.nodes, report.environment, tuple(excluded))


def _report(state: SessionState, explanation: Explanation, fit: bool) -> Report:
    orders, choice, links = state.orders, explanation.choice(), explanation.links
    together = explanation.together()
    members = [state.nodes[number] for number in choice.nodes]
    world = tuple(node.name for node in members)
    grades = [explanation.verdict(node) for node in choice.nodes]
    grades += [link.verdict for link in links if {link.a, link.b} <= set(world)]
    grades += [Grade.WARN] * bool(choice.swaps) + [finding.verdict for finding in together]
    interface = common_interface(members)
    sockets = socket_interfaces.chosen(state) or (interface,)
    environment = {"GLOO_SOCKET_IFNAME": interface, socket_interfaces.VARIABLE: exactly(",".join(sockets))}
    omitted = dict(orders.environment) if interface else environment
    reports, excluded = [], []
    for number, node in state.nodes.items():
        is_unfit = explanation.is_unfit(number)
        role = "spare"
        if number in choice.nodes:
            role = "rank"
        elif is_unfit:
            role = "excluded"
        elif number in choice.separated:
            role = "separated"
        reports.append(NodeReport(node.name, explanation.verdict(number), role, explanation.findings(number)))
        if is_unfit and number not in explanation.excused:
            excluded.append(node.name)
    if not fit:
        grades = [*(node.verdict for node in reports), *(link.verdict for link in links)]
        grades += [finding.verdict for finding in together]
        # Without a fault only nodes that an overload excuses are missing.
        is_undecided = Grade.FAIL not in grades and any(node.is_excused for node in state.nodes.values())
        grades = [Grade.UNDETERMINED if is_undecided else Grade.FAIL]
    messages = []
    for finding in together:
        shows_remedy = finding.remedy not in finding.message
        messages.append(f"{finding.message} -> {finding.remedy}" if shows_remedy else finding.message)
    tests = []
    for test in state.log.of(GroupTest):
        measurement = Measurement(
            test=test.kind,
            round=test.round,
            nodes=tuple(state.nodes[node].name for node in test.nodes),
            outcome={True: "passed", False: "failed", None: "void"}[test.passed],
            seconds=round(test.seconds, 3),
            gigabytes_per_second=test.rate,
            message=test.wrong or test.why,
        )
        tests.append(measurement)
    return Report(
        run_id=orders.run_id,
        cluster=orders.preflight.cluster,
        level=str(orders.preflight.level),
        verdict=worst(tuple(grades)),
        at=state.clock.wall_at(state.clock.now),
        seconds=round(state.clock.now - state.clock.began, 3),
        budget=orders.preflight.budget,
        rounds=state.rounds,
        backend=state.backend,
        world=world,
        spares=tuple(report.node for report in reports if report.role == "spare"),
        excluded=tuple(excluded),
        nodes=tuple(reports),
        links=links,
        set_message="; ".join(messages),
        tests=tuple(tests),
        quantities=state.quantities.report([node.name for node in state.nodes.values()]),
        table=state.quantities.table(),
        notices=tuple(state.notices),
        environment=tuple(item for item in environment.items() if item[0] not in omitted),
    )
