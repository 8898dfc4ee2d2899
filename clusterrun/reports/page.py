"""A pre-flight report as one self-contained page for a browser; pure, knows no file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

from clusterrun.model.preflight_report import WORST_FIRST, Grade, Measurement, NodeReport, Report
from clusterrun.reports import svg
from clusterrun.reports.findings import NodeBlame, blamed, node_findings
from clusterrun.reports.link_rates import Rates, rates
from clusterrun.reports.markup import Content, Markup, number, tag
from clusterrun.reports.text_report import headline

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The browser loads and runs nothing, even if a name were not escaped."""
AT_ONCE = 8
"""Findings that are shown unfolded; the others are folded, so that the map is not far below."""
MOST_FINDINGS = 200
"""Findings that the page holds; of more, only the number is said."""
MOST_STRAGGLERS = 10
MOST_NODES = 3000
MOST_TESTS = 1500
OPEN_BELOW = 33
"""So few nodes are shown at once; more when asked."""
WORST_OUTCOME = {"failed": 0, "void": 1, "passed": 2}


def page(report: Report) -> str:
    """The page. It reads without scripts, loads nothing, and is well below 3 MB for any report."""
    return whole(f"Pre-flight {report.run_id}: {report.verdict}", *_sections(report, rates(report)))


def whole(title: str, *sections: Markup) -> str:
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
    yield _nodes(report, seen)
    if report.tests:
        yield _tests(report)
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(report.at))
    yield tag("footer", f"clusterrun pre-flight of {report.run_id}, {when}")


def _header(report: Report) -> Markup:
    cluster = f" on {report.cluster}" if report.cluster else ""
    backend = f", {report.backend}" if report.backend else ""
    spares = f", {len(report.spares)} spare" if report.spares else ""
    rounds = f"{report.rounds} round{'s' if report.rounds != 1 else ''} of tests"
    tested = f"{rounds}, {report.seconds:.1f} s of {report.budget:.0f} s"
    facts = f"{report.level} check{cluster}{backend}: {len(report.nodes)} nodes{spares}, {tested}"
    told = tag("p", facts, class_="facts")
    return tag("header", tag("h1", headline(report)), told, class_=report.verdict.value)


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
    text = "The best rate of each pair that was tested, as a share of the median."
    if each > 1:
        text += f" Each square stands for {each} × {each} nodes and shows the worst test in it."
    drawn = _section("Bandwidth, node × node", text, svg.matrix(seen), svg.legend(seen))
    yield tag("div", drawn, tag("div", *_ring(report, seen), _stragglers(seen)), class_="two")


def _section(title: str, text: str, *content: Markup) -> Markup:
    return tag("section", tag("h2", title), tag("p", text, class_="soft"), *content)


def _ring(report: Report, seen: Rates) -> Iterator[Markup]:
    drawn = svg.ring(seen, report.world)
    if drawn is not None:
        median = f"the line is the median, {number(seen.median or 0)} GB/s"
        text = f"Link by link in rank order; {median}; where there is no bar, no test was made."
        if len(report.world) > svg.MOST_BARS:
            text += " Several links share a bar, which shows the worst."
        yield _section("The ring that trains", text, drawn)


def _notices(report: Report) -> Iterator[Markup]:
    if report.notices:
        lines = tag("ul", *(tag("li", notice) for notice in report.notices), class_="plain")
        yield tag("section", tag("h2", "Notices"), lines)


# --- tables, worst first ---


def _stragglers(rates: Rates) -> Markup:
    timed = [name for name in rates.nodes if rates.was_timed(name)]
    slowest = sorted(timed, key=rates.behind)[:MOST_STRAGGLERS]
    rows = [_straggler(name, rates) for name in slowest]
    title = "Slowest nodes" if len(timed) > MOST_STRAGGLERS else "Nodes, slowest first"
    text = "The rate with the best third of its partners, a matrix product, the worse of both in shares."
    return _section(title, text, _table("node|GB/s:n|product:n|:n|", rows))


def _straggler(name: str, rates: Rates) -> tuple[Content, ...]:
    node, behind = rates.nodes[name], rates.behind(name)
    product = "–" if node.product is None else f"{node.product * 1e3:.0f} ms"
    return name, _rate(node.rate), product, f"{behind:.0%}", svg.meter(behind, svg.band(min(behind, 1.0)))


def _nodes(report: Report, rates: Rates) -> Markup:
    ordered = sorted(report.nodes, key=lambda node: WORST_FIRST.index(node.verdict))
    ranks = {name: str(at) for at, name in enumerate(report.world)}
    rows = [_node(node, ranks.get(node.node, "–"), rates) for node in ordered[:MOST_NODES]]
    table = _table("node|verdict|role|rank:n|GB/s:n|tests:n|", rows)
    title = tag("summary", f"All {len(report.nodes)} nodes")
    left = _left_out(len(report.nodes), MOST_NODES)
    is_open = "" if len(report.nodes) < OPEN_BELOW else None
    return tag("details", title, table, *left, open=is_open)


def _node(node: NodeReport, rank: str, rates: Rates) -> tuple[Content, ...]:
    numbers = rates.nodes[node.node]
    failed = f", {numbers.failed} failed" if numbers.failed else ""
    return (
        node.node,
        tag("span", node.verdict.value, class_=f"chip {node.verdict.value}"),
        node.role,
        rank,
        _rate(numbers.rate),
        f"{numbers.tests}{failed}",
        ", ".join(dict.fromkeys(finding.check for finding in node_findings(node))),
    )


def _tests(report: Report) -> Markup:
    ordered = sorted(report.tests, key=lambda test: (WORST_OUTCOME.get(test.outcome, 0), test.round))
    rows = [_test(test) for test in ordered[:MOST_TESTS]]
    table = _table("round:n|test|nodes|outcome|s:n|GB/s:n|", rows)
    left = _left_out(len(report.tests), MOST_TESTS)
    return tag("details", tag("summary", f"All {len(report.tests)} tests"), table, *left)


def _test(test: Measurement) -> tuple[Content, ...]:
    names = ", ".join(test.nodes[:4]) + (f" … ({len(test.nodes)})" if len(test.nodes) > 4 else "")
    rate = _rate(test.gigabytes_per_second)
    return test.round, test.test, names, test.outcome, f"{test.seconds:.2f}", rate, test.said[:300]


def _rate(rate: float | None) -> str:
    return "–" if rate is None else number(rate)


def _left_out(count: int, most: int) -> list[Markup]:
    return [tag("p", f"and {count - most} more in the report's JSON", class_="soft")] if count > most else []


def _table(heads: str, rows: Iterable[tuple[Content, ...]]) -> Markup:
    """A table; each head is its word and its column's class: ``node|rank:n`` (numbers, to the right)."""
    columns = [(word, kind or None) for word, _, kind in (head.partition(":") for head in heads.split("|"))]
    head = tag("tr", *(tag("th", word, class_=kind) for word, kind in columns))
    body = [
        tag("tr", *(tag("td", cell, class_=kind) for cell, (_, kind) in zip(row, columns))) for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


STYLE = """
:root{color-scheme:light dark;--paper:#f7f7f5;--card:#fff;--ink:#1c2126;--soft:#5b6670;--line:#e2e5e7;
--pass:#17794a;--warn:#9a6200;--fail:#b8202f;--undetermined:#6a4ab5;--field:#eef0f1;
--r5:#20659f;--r4:#5b9ad0;--r3:#a9cdea;--r2:#f0c24f;--r1:#e38330;--r0:#b9450c;--bad:#d0103a;--void:#9aa3aa}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--card:#1c2024;--ink:#e7eaec;--soft:#9aa5ae;
--line:#30363b;--pass:#54c98b;--warn:#e2ac4a;--fail:#ff6b76;--undetermined:#b49bf2;--field:#262b30;
--r5:#69b1ee;--r4:#3f82bd;--r3:#2c547a;--r2:#d8aa3c;--r1:#dd7d2d;--r0:#b94a1a;--bad:#ff3d63;--void:#66707a}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}
header{border-left:6px solid var(--grade);padding:2px 0 2px 18px;margin-bottom:22px}
h1{font-size:23px;line-height:1.3;margin:0 0 6px;font-weight:650;overflow-wrap:anywhere}
h2{font-size:16px;margin:0 0 12px;font-weight:650}
p{margin:0 0 10px}
.soft,.facts{color:var(--soft)}
.facts{font-size:14px;margin:0;overflow-wrap:anywhere}
section,details{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:18px 20px;margin:0 0 16px;overflow-wrap:anywhere}
.more{border:0;border-top:1px solid var(--line);border-radius:0;padding:12px 0 0;margin:16px 0 0}
.more summary{font-size:14px;color:var(--soft)}
summary{cursor:pointer;font-weight:650;font-size:16px}
details[open]>summary{margin-bottom:12px}
.more{border:0;border-top:1px solid var(--line);border-radius:0;padding:12px 0 0;margin:16px 0 0}
.more>summary{font-size:14px;color:var(--soft)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:12px;
margin:0 0 16px;padding:0}
.tiles li{list-style:none;background:var(--card);border:1px solid var(--line);
border-radius:10px;padding:12px 16px}
.tiles b{display:block;font-size:24px;line-height:1.25;font-weight:650;font-variant-numeric:tabular-nums}
.tiles span{color:var(--soft);font-size:13px}
.pass{--grade:var(--pass)}.warn{--grade:var(--warn)}.fail{--grade:var(--fail)}
.undetermined{--grade:var(--undetermined)}
.chip{display:inline-block;color:var(--grade);border:1px solid var(--grade);border-radius:99px;
font-size:12px;line-height:1;padding:4px 9px;font-weight:600;white-space:nowrap;vertical-align:2px}
.finding{border-left:4px solid var(--grade);padding:0 0 0 14px;margin:0 0 16px}
.finding:last-child{margin-bottom:0}
.finding h3{margin:0 0 4px;font-size:15px;font-weight:650}
.finding h3 .chip{margin-left:8px}
.finding ul{margin:0;padding:0;list-style:none}
.finding li{margin:0 0 6px}
.finding .check{color:var(--soft)}
.remedy{display:block;color:var(--soft)}
.remedy::before{content:"→ "}
.map{overflow-x:auto}
svg{display:block;width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.field{fill:var(--field)}
.diagonal{stroke:var(--line);stroke-width:1.5;fill:none}
.r5{fill:var(--r5);background:var(--r5)}.r4{fill:var(--r4);background:var(--r4)}
.r3{fill:var(--r3);background:var(--r3)}.r2{fill:var(--r2);background:var(--r2)}
.r1{fill:var(--r1);background:var(--r1)}.r0{fill:var(--r0);background:var(--r0)}
.bad{fill:var(--bad);background:var(--bad)}.void{fill:var(--void);background:var(--void)}
.ok{fill:var(--r4);background:var(--r4)}.none{background:var(--field);border:1px solid var(--line)}
svg text.in{fill:#fff;stroke:none;pointer-events:none}
svg text.r3,svg text.r2,svg text.r1{fill:#14202b}
.cross{stroke:#fff;stroke-width:1.6;fill:none;pointer-events:none}
@media(prefers-color-scheme:dark){svg text.r5{fill:#14202b}svg text.r3{fill:#fff}}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:12px 0 0;list-style:none;
font-size:13px;color:var(--soft)}
.key{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.ring{height:110px;background:var(--field);border-radius:4px}
.median{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:5 4;fill:none;vector-effect:non-scaling-stroke}
.two{display:grid;grid-template-columns:minmax(0,3fr) minmax(0,2fr);gap:16px}
.two>*{min-width:0}
@media(max-width:860px){.two{grid-template-columns:minmax(0,1fr);gap:0}
main{padding:18px 12px 40px}h1{font-size:20px}}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--soft);font-size:13px}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;white-space:nowrap}
tr:last-child td{border-bottom:0}
.meter{display:inline-block;width:84px;height:9px;border-radius:3px;background:var(--field);overflow:hidden}
.meter i{display:block;height:100%}
ul.plain{margin:0;padding-left:18px}
footer{color:var(--soft);font-size:13px}
@media print{body{background:#fff}section,details{break-inside:avoid}}
"""
