"""The page of a report: what stands in it; that it is whole, loads nothing, and no name can drive it."""

from __future__ import annotations

import random
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Finding, Grade, LinkReport, Measurement, NodeReport
from clusterrun.reports.link_rates import LinkRate, NodeRate, rates
from clusterrun.reports.page import page
from tests.reports.reports import FOUND, HEALTHY

KNOWN = {"html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "h3", "p", "section"}
KNOWN |= {"div", "ul", "li", "b", "i", "span", "footer", "details", "summary"}
KNOWN |= {"table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "g", "path", "text"}
EMPTY_ELEMENTS = {"meta"}
MEGABYTE = 1 << 20
hostile = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "</title></style></svg><b>",
            "&lt;&#60;",
            "]]>--><!--",
            "n\u202e1000\udcff\x00\x1b[31m",
            "javascript:alert(1)",
            "' onmouseover='x",
        ]
    ),
)


class Page(HTMLParser):
    """The elements, their attributes and the text as a browser reads them. Each element must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), "an attribute stands once"
        if tag not in EMPTY_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        """Return the attributes of every such element that has the wanted ones."""
        return [had for result, had in self.elements if result == tag and attributes.items() <= had.items()]


def pair(a, b, rate=None, outcome="passed", at=0):
    return Measurement("pair", at, (a, b), outcome, 0.3, rate)


def of_nodes(count, every=False, seed=1):
    """Return a report of ``count`` nodes that tested their ring; ``every``: all pairs."""
    luck = random.Random(seed)
    names = [f"n{at:04d}" for at in range(count)]
    ring = [(names[at], names[(at + 1) % count]) for at in range(count if count > 2 else count // 2)]
    pairs = [(a, b) for at, a in enumerate(names) for b in names[at + 1 :]] if every else ring
    tests = [pair(a, b, luck.uniform(40, 50)) for a, b in pairs]
    return replace(
        HEALTHY,
        world=tuple(names),
        nodes=tuple(NodeReport(name, Grade.PASS, "rank") for name in names),
        tests=tuple(tests),
    )


def test_the_page_shows_the_verdict_and_every_finding_worst_first() -> None:
    observed = Page(page(FOUND))
    message = observed.text
    order = ["FAIL: n0003 is unfit", "Xid 79", "3 of 3 tests", "nothing arrives", "12 % below the median"]
    places = [message.index(member) for member in order]
    assert places == sorted(places)
    assert "n0001 -> n0002" in message
    for member in ("reboot the node", "cable and port", "left out", "5 rounds of tests", "21.5 s of 60 s"):
        assert member in message
    assert all(notice in message for notice in FOUND.notices)


def test_a_healthy_set_has_no_findings() -> None:
    message = Page(page(HEALTHY)).text
    assert "PASS: all 2 nodes are fit" in message
    assert "Findings" not in message


def test_a_small_map_has_a_square_with_its_rate_for_both_halves_of_each_pair() -> None:
    report = replace(
        of_nodes(4),
        tests=(
            pair("n0000", "n0001", 50.0),
            pair("n0001", "n0002", 20.0),
            pair("n0002", "n0003", 50.0, at=1),
            pair("n0000", "n0003", outcome="failed", at=1),
        ),
    )
    observed = Page(page(report))
    colours = [had.get("class") for had in observed.all("rect") if had.get("class") != "field"]
    squares = colours[:8]
    assert {colour: squares.count(colour) for colour in set(squares)} == {"r5": 4, "r2": 2, "bad": 2}
    assert colours[8:] == ["r5", "r2", "r5", "bad"]
    assert "n0001 – n0002: 20 GB/s (40% of the median), passed 1 of 1" in observed.text
    assert "n0000 – n0003: 1 of 1 tests failed" in observed.text


def test_a_link_blamed_without_a_test_of_the_pair_is_on_the_map() -> None:
    cut = LinkReport("n0002", "n0001", "a->b", Grade.FAIL, "packets do not arrive")
    observed = Page(page(replace(of_nodes(4), links=(cut,), tests=of_nodes(4).tests[2:])))
    assert "n0001 – n0002: packets do not arrive" in observed.text
    assert [had.get("class") for had in observed.all("rect")].count("bad") == 3, (
        "twice on the map, once in the ring"
    )


def test_the_ring_is_drawn_in_rank_order_also_where_a_spare_took_a_place() -> None:
    links = [("a", "b"), ("b", "d"), ("d", "a"), ("c", "a")]
    nodes = tuple(NodeReport(name, Grade.PASS, "rank") for name in "abcd")
    tests = tuple(pair(*ends, 10.0 * at) for at, ends in enumerate(links, 1))
    report = replace(HEALTHY, world=("a", "b", "d"), nodes=nodes, tests=tests)
    observed = Page(page(report))
    assert len(observed.all("svg", **{"class": "ring"})) == 1
    bars = [bar for bar in observed.texts if "GB/s (" in bar][-3:]
    assert [bar.split(":")[0] for bar in bars] == ["a – b", "b – d", "d – a"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 64, 200, 1250])
def test_the_page_is_complete_and_self_contained_at_every_size(count) -> None:
    text = page(of_nodes(count))
    observed = Page(text)
    assert len(text) < MEGABYTE
    assert (
        not observed.all("script")
        and not observed.all("link")
        and not observed.all("img")
        and not observed.all("a")
    )
    assert "url(" not in text and "@import" not in text and "http://" not in text and "https://" not in text
    policy = observed.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert [had["content"] for had in policy] == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert observed.all("meta", name="viewport")
    assert len(observed.all("svg")) == (0 if count < 2 else 1 if count == 2 else 2)


@pytest.mark.parametrize("count", [64, 170])
def test_all_pairs_of_many_nodes_still_make_a_small_page(count) -> None:
    text = page(of_nodes(count, every=True))
    assert len(text) < 2 * MEGABYTE
    Page(text)


def test_many_nodes_share_a_square_that_shows_the_worst_of_them() -> None:
    report = of_nodes(400)
    failed = pair("n0007", "n0009", outcome="failed", at=1)
    observed = Page(page(replace(report, tests=(*report.tests, failed))))
    assert "Each square stands for 3 × 3 nodes" in observed.text
    assert "n0007 – n0009: 1 of 1 tests failed" in observed.text


def test_the_page_limits_findings_and_tests_and_shows_how_many_it_omits() -> None:
    nodes = tuple(
        NodeReport(f"n{at}", Grade.FAIL, "excluded", (Finding("gpu", Grade.FAIL, f"number {at}"),))
        for at in range(300)
    )
    tests = tuple(pair("n0", f"n{at % 299 + 1}", outcome="failed", at=at) for at in range(5000))
    text = page(replace(HEALTHY, nodes=nodes, tests=tests))
    assert "292 more findings" in text and "and 100 more in the report" in text
    assert "All 5000 tests" in text and "and 3500 more in the report" in text
    assert len(text) < MEGABYTE


def test_the_slowest_nodes_come_first_without_nodes_that_never_passed() -> None:
    report = of_nodes(30)
    tests = [
        replace(test, gigabytes_per_second=10.0) if "n0007" in test.nodes else test for test in report.tests
    ]
    lost = [pair("x", "n0001", outcome="failed"), Measurement("product", 0, ("x",), "passed", 0.1)]
    text = Page(page(replace(report, tests=(*tests, *lost)))).text
    slowest = text[text.index("Slowest nodes") : text.index("All 30 nodes")]
    assert slowest.index("n0007") < min(
        slowest.index(f"n{at:04d}") for at in range(30) if f"n{at:04d}" in slowest and at != 7
    )
    assert " x " not in slowest


@settings(max_examples=60)
@given(
    names=st.lists(hostile, min_size=1, max_size=4, unique=True),
    message=hostile,
    remedy=hostile,
    cluster=hostile,
    notice=hostile,
    direction=hostile,
    outcome=hostile,
)
def test_no_text_of_a_report_can_drive_the_page(
    names, message, remedy, cluster, notice, direction, outcome
) -> None:
    grades = list(Grade)
    nodes = tuple(
        NodeReport(name, grades[at % 4], notice, (Finding(message, grades[at % 4], message, remedy),))
        for at, name in enumerate(names)
    )
    links = (LinkReport(names[0], names[-1], direction, Grade.FAIL, message, remedy),)
    tests = (
        Measurement("pair", 0, (names[0], names[-1]), "passed", 1.0, 2.0, message),
        Measurement("pair", 1, (names[0], names[-1]), outcome, 1.0, None, message),
        Measurement(message, 0, tuple(names), outcome, 1.0, None, remedy),
    )
    report = replace(
        HEALTHY,
        run_id=message,
        cluster=cluster,
        world=tuple(names),
        nodes=nodes,
        links=links,
        tests=tests,
        notices=(notice,),
        set_message=remedy,
    )
    text = page(report)
    text.encode()
    observed = Page(text)
    assert {tag for tag, _ in observed.elements} <= KNOWN
    assert not [
        key for _, had in observed.elements for key in had if key.startswith("on") or key in ("href", "src")
    ]


def test_the_numbers_of_links_and_nodes() -> None:
    tests = (
        Measurement("product", 0, ("a",), "passed", 0.2),
        Measurement("product", 0, ("b",), "passed", 0.1),
        pair("b", "a", 10.0),
        pair("a", "b", 30.0, at=1),
        pair("b", "c", outcome="failed"),
        pair("b", "c", outcome="void", at=1),
        Measurement("set", 2, ("a", "b", "c"), "passed", 0.1, 5.0),
    )
    nodes = tuple(NodeReport(name, Grade.PASS, "rank") for name in "abc")
    result = rates(replace(HEALTHY, world=("a", "b"), nodes=nodes, tests=tests))
    assert result.links == {("a", "b"): LinkRate(30.0, 2, 0, 0), ("b", "c"): LinkRate(None, 0, 1, 1)}
    assert result.nodes == {
        "a": NodeRate(30.0, 0.2, 2, 0),
        "b": NodeRate(30.0, 0.1, 3, 1),
        "c": NodeRate(None, None, 1, 1),
    }
    assert (result.median, round(result.median_product or 0, 3)) == (30.0, 0.15)
    assert [round(result.behind(name), 2) for name in "abc"] == [0.75, 1.0, 1.0]


def test_a_slow_link_that_was_repeated_does_not_make_its_nodes_slow() -> None:
    tests = [pair("a", "b", 10.0, at=at) for at in range(5)] + [pair("b", "c", 50.0), pair("a", "c", 50.0)]
    nodes = tuple(NodeReport(name, Grade.PASS, "rank") for name in "abc")
    result = rates(replace(HEALTHY, world=("a", "b", "c"), nodes=nodes, tests=tuple(tests)))
    assert {name: node.rate for name, node in result.nodes.items()} == {"a": 50.0, "b": 50.0, "c": 50.0}
