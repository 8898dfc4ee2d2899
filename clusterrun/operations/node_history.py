"""Count how often past checks found the nodes of a cluster unfit, and exclude such nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from clusterrun.model.duration import spoken
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.preflight_report import Finding, Grade, NodeReport, Report
from clusterrun.model.spec import JobSpec
from clusterrun.runs.node_records import NodeRecords, forgotten_at
from clusterrun.script.sbatch_options import excluded

# The names that are safe in an argument of sbatch. Names come from files.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)


@frozen
class Offender:
    """A node or a link with findings."""

    node: str  # the name of the node, or ``a - b`` for a link
    fails: int  # number of reports in which it was unfit
    warnings: int  # number of reports in which it had warnings alone
    first: float  # time of its first report
    last: float  # time of its newest report
    run_id: str  # run of its newest report
    finding: Finding  # the worst finding of its newest report


def offenders(memory: NodeRecords) -> list[Offender]:
    """Return every node with findings, sorted by the number of failures, then by the newest report."""
    offender_by_node: dict[str, Offender] = {}
    for report in memory.reports:
        for node in report.nodes:
            held = _held(report, node, forgotten_at(memory, node.node))
            if held:
                offender_by_node[node.node] = _added(offender_by_node.get(node.node), node.node, report, held)
    return _worst_first(offender_by_node)


def links(memory: NodeRecords) -> list[Offender]:
    """Return every link with findings, in either direction, sorted by the number of failures."""
    offender_by_link: dict[str, Offender] = {}
    for report in memory.reports:
        findings_by_link: dict[str, list[Finding]] = {}
        for link in report.links:
            ends = sorted((link.a, link.b))
            finding = Finding("link", link.verdict, link.message, link.remedy)
            if report.at > max(forgotten_at(memory, end) for end in ends):
                findings_by_link.setdefault(" - ".join(ends), []).append(finding)
        for name, held in findings_by_link.items():
            held.sort(key=lambda finding: finding.verdict is not Grade.FAIL)
            offender_by_link[name] = _added(offender_by_link.get(name), name, report, held)
    return _worst_first(offender_by_link)


def _worst_first(offenders: dict[str, Offender]) -> list[Offender]:
    return sorted(offenders.values(), key=lambda offender: (-offender.fails, -offender.last, offender.node))


def _held(report: Report, node: NodeReport, forgotten: float) -> list[Finding]:
    """Return the findings that count against a node, worst first."""
    if report.at <= forgotten:
        return []
    # A check that failed on every one of several nodes is a fault of the run, not of its nodes.
    failed = [{f.check for f in other.findings if f.verdict is Grade.FAIL} for other in report.nodes]
    common = set.intersection(*failed) if len(failed) > 1 else ()
    held = [f for f in node.findings if f.verdict in (Grade.FAIL, Grade.WARN) and f.check not in common]
    return sorted(held, key=lambda finding: finding.verdict is Grade.WARN)


def _added(earlier: Offender | None, node: str, report: Report, held: list[Finding]) -> Offender:
    """Return the offender with the findings of one more report."""
    unfit = held[0].verdict is Grade.FAIL
    return Offender(
        node=node,
        fails=(earlier.fails if earlier else 0) + unfit,
        warnings=(earlier.warnings if earlier else 0) + (not unfit),
        first=earlier.first if earlier else report.at,
        last=report.at,
        run_id=report.run_id,
        finding=held[0],
    )


def keep_off(
    spec: JobSpec, memory: NodeRecords, now: float, nodes_there: int = 0
) -> tuple[JobSpec, tuple[str, ...]]:
    """Return ``spec`` without the nodes that were unfit in ``memory``, and a notice for each.

    At least as many of the ``nodes_there`` (0: unknown) stay as the job needs, the least often unfit first.
    """
    user_excluded = excluded(spec, "--avoid-bad")
    nodelist = set(expand(spec.nodelist)) if spec.nodelist and "/" not in spec.nodelist else set()
    bad = [
        offender for offender in offenders(memory) if offender.fails and NODE_NAME.fullmatch(offender.node)
    ]
    bad = [offender for offender in bad if offender.node not in user_excluded]
    notices = list(memory.damaged)
    requested = [offender.node for offender in bad if offender.node in nodelist]
    if requested:
        notices.append(f"{fold(requested)} was lately unfit, but --nodelist asks for it")
    chosen = [offender for offender in bad if offender.node not in nodelist]
    room = nodes_there - len(user_excluded) - spec.least_allocated if nodes_there else len(chosen)
    if spared := chosen[max(room, 0) :]:
        too = f"{fold(sorted(offender.node for offender in spared))} would be excluded too"
        needed = f"of {nodes_there} nodes the run needs {spec.least_allocated}"
        notices.append(f"{too}, but {needed}: without them it could never start")
        chosen = chosen[: max(room, 0)]
    notices += [f"excludes {offender.node}: {_why(offender, now)}" for offender in chosen]
    if not bad:
        notices.append("no node was unfit lately: --avoid-bad excludes none")
    if not chosen:
        return spec, tuple(notices)
    names = [*user_excluded, *sorted(offender.node for offender in chosen)]
    return replace(spec, exclude=fold(names)), tuple(notices)


def _why(offender: Offender, now: float) -> str:
    times = f"{offender.fails} times, last " if offender.fails > 1 else ""
    age = spoken(now - offender.last)
    return f"unfit {times}{age} ago ({offender.finding.check}: {offender.finding.message})"


def unknown(names: Iterable[str], memory: NodeRecords) -> list[str]:
    """Return the names that no report contains."""
    reported = {node.node for report in memory.reports for node in report.nodes}
    return [name for name in names if name not in reported]
