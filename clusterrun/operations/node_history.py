"""What the past says about the nodes of a cluster: who was found unfit, how often, and who is kept off."""

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

NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
"""What may stand in an argument of sbatch: names come from files."""


@frozen
class Offender:
    """A node, or a link (``a - b``): how often it was unfit or warned of; the worst of the newest report."""

    node: str
    fails: int
    warnings: int
    first: float
    last: float
    run_id: str
    finding: Finding


def offenders(memory: NodeRecords) -> list[Offender]:
    """Every node with findings, the one that was unfit most often (and then last) first."""
    found: dict[str, Offender] = {}
    for report in memory.reports:
        for node in report.nodes:
            held = _held(report, node, forgotten_at(memory, node.node))
            if held:
                found[node.node] = _added(found.get(node.node), node.node, report, held)
    return _worst_first(found)


def links(memory: NodeRecords) -> list[Offender]:
    """Every link with findings, whatever the direction, the one that was broken most often first."""
    found: dict[str, Offender] = {}
    for report in memory.reports:
        seen: dict[str, list[Finding]] = {}
        for link in report.links:
            ends = sorted((link.a, link.b))
            finding = Finding("link", link.verdict, link.said, link.remedy)
            if report.at > max(forgotten_at(memory, end) for end in ends):
                seen.setdefault(" - ".join(ends), []).append(finding)
        for name, held in seen.items():
            held.sort(key=lambda finding: finding.verdict is not Grade.FAIL)
            found[name] = _added(found.get(name), name, report, held)
    return _worst_first(found)


def _worst_first(found: dict[str, Offender]) -> list[Offender]:
    return sorted(found.values(), key=lambda one: (-one.fails, -one.last, one.node))


def _held(report: Report, node: NodeReport, forgotten: float) -> list[Finding]:
    """The findings that count against a node, worst first."""
    if report.at <= forgotten:
        return []
    # What failed on every node of several tells of the run that asked, not of its nodes.
    failed = [{f.check for f in one.findings if f.verdict is Grade.FAIL} for one in report.nodes]
    common = set.intersection(*failed) if len(failed) > 1 else ()
    held = [f for f in node.findings if f.verdict in (Grade.FAIL, Grade.WARN) and f.check not in common]
    return sorted(held, key=lambda finding: finding.verdict is Grade.WARN)


def _added(known: Offender | None, node: str, report: Report, held: list[Finding]) -> Offender:
    unfit = held[0].verdict is Grade.FAIL
    return Offender(
        node=node,
        fails=(known.fails if known else 0) + unfit,
        warnings=(known.warnings if known else 0) + (not unfit),
        first=known.first if known else report.at,
        last=report.at,
        run_id=report.run_id,
        finding=held[0],
    )


def keep_off(
    spec: JobSpec, memory: NodeRecords, now: float, nodes_there: int = 0
) -> tuple[JobSpec, tuple[str, ...]]:
    """``spec`` without the nodes that ``memory`` calls unfit, and why, in sentences.

    Of the ``nodes_there`` (0: not known) at least as many as the job needs are left, the least often unfit.
    """
    own = excluded(spec, "--avoid-bad")
    wanted = set(expand(spec.nodelist)) if spec.nodelist and "/" not in spec.nodelist else set()
    bad = [one for one in offenders(memory) if one.fails and NODE_NAME.fullmatch(one.node)]
    bad = [one for one in bad if one.node not in own]
    notices = list(memory.damaged)
    asked = [one.node for one in bad if one.node in wanted]
    if asked:
        notices.append(f"{fold(asked)} was lately unfit, but --nodelist asks for it")
    chosen = [one for one in bad if one.node not in wanted]
    room = nodes_there - len(own) - spec.least_allocated if nodes_there else len(chosen)
    if left := chosen[max(room, 0) :]:
        too = f"{fold(sorted(one.node for one in left))} would be excluded too"
        needed = f"of {nodes_there} nodes the run needs {spec.least_allocated}"
        notices.append(f"{too}, but {needed}: without them it could never start")
        chosen = chosen[: max(room, 0)]
    notices += [f"excludes {one.node}: {_why(one, now)}" for one in chosen]
    if not bad:
        notices.append("no node was found unfit lately: --avoid-bad excludes none")
    if not chosen:
        return spec, tuple(notices)
    names = [*own, *sorted(one.node for one in chosen)]
    return replace(spec, exclude=fold(names)), tuple(notices)


def _why(one: Offender, now: float) -> str:
    times = f"{one.fails} times, last " if one.fails > 1 else ""
    return f"unfit {times}{spoken(max(0.0, now - one.last))} ago ({one.finding.check}: {one.finding.said})"


def unknown(names: Iterable[str], memory: NodeRecords) -> list[str]:
    """Those of ``names`` that no report speaks of."""
    known = {node.node for report in memory.reports for node in report.nodes}
    return [name for name in names if name not in known]
