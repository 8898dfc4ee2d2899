"""A pre-flight report as one self-contained page for a browser; pure, knows no file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from clusterrun.model.preflight_report import Grade, Report
from clusterrun.reports import svg, tables
from clusterrun.reports.findings import NodeBlame, blamed
from clusterrun.reports.link_rates import Rates, rates
from clusterrun.reports.markup import Markup, number, tag
from clusterrun.reports.style import STYLE
from clusterrun.reports.text_report import headline

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser loads and runs nothing, even if a name were not escaped."""
AT_ONCE = 8
"""Findings that are shown unfolded; the others are folded, so that the map is not far below."""
MOST_FINDINGS = 200
"""Findings that the page holds; of more, only the number is said."""


def page(report: Report) -> str:
    """The page. It reads without scripts, loads nothing, and is well below 3 MB for any report."""
    return whole(f"Pre-flight {report.run_id}: {report.verdict}", *_sections(report, rates(report)))


def whole(title: str, *sections: Markup) -> str:
    """A page of these sections; it loads nothing and runs nothing."""
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("title", title),
        tag("style", Markup(STYLE)),
    )
    body = tag("body", tag("main", *sections))
    return f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n'


def _sections(report: Report, seen: Rates) -> Iterator[Markup]:
    yield _header(report)
    yield _tiles(report, seen)
    yield from _findings(report)
    yield from _bandwidth(report, seen)
    yield from _notices(report)
    yield tables.nodes(report, seen)
    if report.tests:
        yield tables.tests(report)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.at))
    yield tag("footer", f"clusterrun pre-flight of {report.run_id}, {when}")


def _header(report: Report) -> Markup:
    cluster = f" on {report.cluster}" if report.cluster else ""
    backend = f", {report.backend}" if report.backend else ""
    spares = f", {len(report.spares)} spare" if report.spares else ""
    rounds = f"{report.rounds} round{'s' if report.rounds != 1 else ''} of tests"
    tested = f"{rounds}, {report.seconds:.1f} s of {report.budget:.0f} s"
    facts = f"{report.level} check{cluster}{backend}: {len(report.nodes)} nodes{spares}, {tested}"
    return tag(
        "header", tag("h1", headline(report)), tag("p", facts, class_="facts"), class_=report.verdict.value
    )


def _tiles(report: Report, seen: Rates) -> Markup:
    graded = Counter(node.verdict for node in report.nodes)
    links = sum(link.verdict is not Grade.PASS for link in report.links)
    slowest = min((link.rate for link in seen.links.values() if link.rate is not None), default=None)
    tiles: list[tuple[int | str, str]] = [
        (graded[Grade.PASS] + graded[Grade.WARN], f"of {len(report.nodes)} nodes are fit"),
        (graded[Grade.FAIL], "unfit"),
        *([(graded[Grade.UNDETERMINED], "not judged")] if graded[Grade.UNDETERMINED] else []),
        (graded[Grade.WARN], "with a warning"),
        (links, "links with a finding"),
        *([(number(seen.median), "GB/s, median")] if seen.median is not None else []),
        *([(number(slowest), "GB/s, slowest pair")] if slowest is not None else []),
    ]
    return tag("ul", *(tag("li", tag("b", what), tag("span", of)) for what, of in tiles), class_="tiles")


def _findings(report: Report) -> Iterator[Markup]:
    found = blamed(report)
    if not found:
        return
    blocks = [_finding(one) for one in found[:MOST_FINDINGS]]
    folded = blocks[AT_ONCE:]
    if len(found) > MOST_FINDINGS:
        folded.append(tag("p", f"and {len(found) - MOST_FINDINGS} more in the report's JSON", class_="soft"))
    more = tag("details", tag("summary", f"{len(found) - AT_ONCE} more findings"), *folded, class_="more")
    yield tag("section", tag("h2", "Findings, worst first"), *blocks[:AT_ONCE], *([more] if folded else []))


def _finding(one: NodeBlame) -> Markup:
    lines = [
        tag(
            "li",
            *([tag("span", f"{said.check}: ", class_="check")] if said.check else []),
            said.said,
            *([tag("span", said.remedy, class_="remedy")] if said.remedy else []),
        )
        for said in one.said
    ]
    title = tag("h3", one.title, tag("span", one.word or "the set", class_="chip"))
    return tag("div", title, tag("ul", *lines), class_=f"finding {one.grade.value}")


def _bandwidth(report: Report, seen: Rates) -> Iterator[Markup]:
    if not seen.links:
        return
    each = svg.nodes_in_a_square(seen)
    sharing = (
        f" Each square stands for {each} × {each} nodes and shows the worst test in it." if each > 1 else ""
    )
    text = f"The best rate of each pair that was tested, as a share of the median.{sharing}"
    yield tag(
        "div",
        tag(
            "section",
            tag("h2", "Bandwidth, node × node"),
            tag("p", text, class_="soft"),
            svg.matrix(seen),
            svg.legend(seen),
        ),
        tag("div", *_ring(report, seen), tables.stragglers(seen)),
        class_="two",
    )


def _ring(report: Report, seen: Rates) -> Iterator[Markup]:
    drawn = svg.ring(seen, report.world)
    if drawn is not None:
        sharing = (
            " Several links share a bar, which shows the worst." if len(report.world) > svg.MOST_BARS else ""
        )
        median = f"the line is the median, {number(seen.median or 0)} GB/s"
        text = f"Link by link in rank order; {median}; where there is no bar, no test was made.{sharing}"
        yield tag("section", tag("h2", "The ring that trains"), tag("p", text, class_="soft"), drawn)


def _notices(report: Report) -> Iterator[Markup]:
    if report.notices:
        lines = tag("ul", *(tag("li", notice) for notice in report.notices), class_="plain")
        yield tag("section", tag("h2", "Notices"), lines)
