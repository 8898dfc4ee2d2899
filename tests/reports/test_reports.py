"""A report as people, scripts and Prometheus see it: whole values, worst first, nothing of it forged."""

from __future__ import annotations

import re

import pytest

from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Finding, Grade, LinkReport, Measurement, NodeReport, Report
from clusterrun.reports.findings import blamed
from clusterrun.reports.json_document import REPORT
from clusterrun.reports.metrics import METRICS, PREFIX, metrics
from clusterrun.reports.text_report import explained, headline, screen
from tests.reports.reports import CUT, FOUND, HEALTHY, PAIRS, SLOW, XID, node


def lines(report: Report, width: int = 100) -> list[str]:
    return [line.text for line in screen(report, width)]


def test_the_screen_shows_the_worst_finding_first_each_with_its_remedy() -> None:
    assert lines(FOUND) == [
        "FAIL: n0003 is unfit; the link n0001 -> n0002 is broken; n0004 has a warning; 5 of 6 nodes are fit",
        "full check by nccl of 20270115-080000-0000-train, 5 rounds of tests, 21.5 of 60 s",
        "",
        "n0003: fail, left out",
        "  gpu errors: GPU 3: Xid 79, fallen off the bus",
        "     -> reboot the node",
        "  pair: failed with n0001, n0002 and n0004 (3 of 3 tests)",
        "     -> look at its network",
        "",
        "link n0001 -> n0002: fail",
        "  nothing arrives: 3 of 3 tests",
        "     -> cable and port",
        "",
        "n0004: warn",
        "  product (warn): 12 % below the median: 44 of 50 teraflops",
        "     -> look at its clocks",
        "",
        "fit: n[0001-0002,0004-0006]",
        "spares left: n0006",
        "note: clocks differ by 2 s",
    ]


@pytest.mark.parametrize(("rounds", "is_partial"), [(0, False), (2, True), (3, True), (4, False)])
def test_pairs_that_were_not_tested_are_mentioned(rounds: int, is_partial: bool) -> None:
    report = replace(HEALTHY, rounds=rounds, nodes=tuple(node(f"n{number}") for number in range(5)))
    assert ("--all-pairs" in "\n".join(lines(report))) is is_partial


def test_the_report_of_healthy_nodes_is_short() -> None:
    assert lines(HEALTHY) == [
        "PASS: all 2 nodes are fit",
        "full check by gloo of 20270115-080000-0000-train, 2 rounds of tests, 6.2 of 60 s",
        "",
        "fit: n[0001-0002]",
    ]


@pytest.mark.parametrize(
    "report, message",
    [
        (replace(HEALTHY, nodes=(node("n1"),)), "PASS: n1 is fit"),
        (
            replace(HEALTHY, verdict=Grade.WARN, nodes=(node("n1", SLOW), node("n2"))),
            "WARN: n1 has a warning; all 2 nodes are fit",
        ),
        (
            replace(HEALTHY, verdict=Grade.FAIL, set_message="all together are at 1 of 10 GB/s"),
            "FAIL: all together are at 1 of 10 GB/s; no node and no link is to blame",
        ),
        (
            replace(
                HEALTHY,
                verdict=Grade.UNDETERMINED,
                nodes=(
                    NodeReport("n1", Grade.UNDETERMINED, "rank"),
                    NodeReport("n2", Grade.UNDETERMINED, "rank"),
                ),
            ),
            "UNDETERMINED: n[1-2] could not be judged",
        ),
        (
            replace(HEALTHY, verdict=Grade.FAIL, links=(replace(CUT, direction="both"),), world=("n0001",)),
            "FAIL: the link n0001 - n0002 is broken; either node can train without the other",
        ),
        (
            replace(
                HEALTHY,
                verdict=Grade.FAIL,
                nodes=(
                    NodeReport("n0001", Grade.PASS, "rank"),
                    NodeReport("n0002", Grade.PASS, "separated"),
                    NodeReport("n0003", Grade.PASS, "rank"),
                ),
                links=(CUT,),
                world=("n0001", "n0003"),
            ),
            "FAIL: the link n0001 -> n0002 is broken; n[0001,0003] can train without it",
        ),
        (
            replace(HEALTHY, verdict=Grade.FAIL, links=(replace(CUT, direction="b->a"),), world=("n0001",)),
            "FAIL: the link n0002 -> n0001 is broken; either node can train without the other",
        ),
    ],
)
def test_the_headline_is_the_verdict_and_its_reason(report: Report, message: str) -> None:
    assert headline(report) == message


def test_nodes_with_the_same_findings_are_one_block() -> None:
    ill = tuple(node(f"n{n}", XID) for n in range(1, 5))
    output = lines(replace(HEALTHY, nodes=(*ill, node("n5", PAIRS))))
    assert [line for line in output if re.match(r"n\S+: ", line)] == ["n[1-4]: fail", "n5: fail"]


def test_a_thousand_bad_nodes_fit_a_screen() -> None:
    ill = tuple(node(f"n{n:04}", Finding("clock", Grade.FAIL, f"{n} s off")) for n in range(1000))
    output = lines(replace(HEALTHY, nodes=ill))
    assert sum(line.startswith("  clock") for line in output) == 12
    assert max(map(len, output)) <= 100 and "and 988 more (--json has all)" in "\n".join(output)


@pytest.mark.parametrize("width", [40, 60, 200])
def test_lines_fit_the_width_and_foreign_text_cannot_forge_a_line(width: int) -> None:
    hostile = Finding("driver", Grade.FAIL, "\x1b[31mred\nFAIL: n0001 \u202e" + "word " * 60)
    output = lines(replace(HEALTHY, nodes=(node("n\n1", hostile), node("n2"))), width)
    assert max(map(len, output)) <= width
    assert all(line.isprintable() for line in output)


def test_messages_of_failed_tests_are_shown_once_with_their_meaning() -> None:
    text = "Got completion from peer 10.0.0.2 with status=12 opcode=0 len=0 vendor err 129"
    test = Measurement("pair", 0, ("a", "b"), "failed", 1.0, message=text)
    others = [
        replace(test, nodes=("c", "d")),
        replace(test, message="Connection closed by peer"),
        replace(test, message="never heard of"),
        replace(test, outcome="passed", message="Bootstrap : no socket interface found"),
    ]
    assert [message for message, _ in explained((test, *others))] == [text]
    notice = lines(replace(HEALTHY, tests=(test,)), 200)
    assert notice[2:4] == ["", f"a test said: {text}"] and notice[4].startswith("     -> ")


def test_the_document_has_the_fields_that_scripts_need() -> None:
    result = REPORT.document(FOUND)
    assert list(result)[:8] == [
        *("verdict", "seconds", "rounds", "world", "excluded", "nodes", "links", "tests")
    ]
    assert result["nodes"]["n0003"] == {
        "verdict": "fail",
        "role": "excluded",
        "findings": [
            {
                "check": "gpu errors",
                "verdict": "fail",
                "message": "GPU 3: Xid 79, fallen off the bus",
                "said": "GPU 3: Xid 79, fallen off the bus",
                "remedy": "reboot the node",
            },
            {
                "check": "pair",
                "verdict": "fail",
                "message": PAIRS.message,
                "said": PAIRS.message,
                "remedy": "look at its network",
            },
        ],
    }
    assert result["links"] == [
        {
            "a": "n0001",
            "b": "n0002",
            "direction": "a->b",
            "verdict": "fail",
            "message": "nothing arrives: 3 of 3 tests",
            "said": "nothing arrives: 3 of 3 tests",
            "remedy": "cable and port",
        }
    ]
    assert (result["verdict"], result["world"], result["excluded"], result["at"], len(result["tests"])) == (
        "fail",
        ["n0001", "n0002", "n0005", "n0004"],
        ["n0003"],
        "2027-01-15T08:00:00+00:00",
        5,
    )


def samples(text: str) -> dict[str, float]:
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name.removeprefix(PREFIX): float(value) for name, value in pairs}


def test_the_metrics_equal_the_report() -> None:
    result = samples(metrics(FOUND))
    assert {name: result[name] for name in result if "node" not in name} == {
        'info{cluster="lab",run_id="20270115-080000-0000-train",level="full",backend="nccl"}': 1,
        'verdict{cluster="lab",verdict="fail"}': 1,
        'verdict{cluster="lab",verdict="undetermined"}': 0,
        'verdict{cluster="lab",verdict="warn"}': 0,
        'verdict{cluster="lab",verdict="pass"}': 0,
        'timestamp_seconds{cluster="lab"}': 1_800_000_000,
        'duration_seconds{cluster="lab"}': 21.5,
        'rounds{cluster="lab"}': 5,
        'link_findings{cluster="lab",a="n0001",b="n0002",direction="a->b",verdict="fail"}': 1,
        'set_bus_bytes_per_second{cluster="lab"}': 11e9,
    }
    assert result['nodes{cluster="lab",verdict="fail"}'] == 1
    assert result['node_fit{cluster="lab",node="n0003"}'] == 0
    assert result['node_fit{cluster="lab",node="n0006"}'] == 1
    assert result['node_findings{cluster="lab",node="n0004",check="product",verdict="warn"}'] == 1
    assert result['node_bus_bytes_per_second{cluster="lab",node="n0001"}'] == 21e9


def test_metrics_are_valid_text_whatever_names_hold() -> None:
    hostile = 'a"b\\c\nd\udcff'
    report = replace(
        FOUND,
        cluster=hostile,
        nodes=(node(hostile, XID),),
        links=(LinkReport(hostile, "b", "both", Grade.WARN, ""),),
    )
    text = metrics(report)
    text.encode()
    sample = re.compile(r'[a-z_]+\{[a-z_]+="(\\.|[^"\\\n])*"(,[a-z_]+="(\\.|[^"\\\n])*")*\} [-+0-9.e]+')
    assert [
        line for line in text.splitlines() if not line.startswith("# ") and not sample.fullmatch(line)
    ] == []
    names = re.findall(r"^# TYPE (\S+) gauge$", text, re.MULTILINE)
    assert set(names) <= {PREFIX + name for name, _, _ in METRICS} and len(names) == len(set(names))
    assert text.endswith("\n")


def test_a_finding_of_several_nodes_is_reported_once() -> None:
    driver = Finding("driver", Grade.WARN, "persistence mode is off", "nvidia-smi -pm 1")
    nodes = (node("n1", driver), node("n2", driver), node("n3", driver, PAIRS), node("n4"))
    blames = blamed(replace(HEALTHY, verdict=Grade.FAIL, nodes=nodes))
    assert [(blame.title, blame.grade, blame.findings) for blame in blames] == [
        ("n3", Grade.FAIL, (PAIRS,)),
        ("n[1-3]", Grade.WARN, (driver,)),
    ]


def test_the_two_ends_of_a_broken_link_are_equally_fit() -> None:
    nodes = (NodeReport("n0001", Grade.PASS, "rank"), NodeReport("n0002", Grade.PASS, "separated"))
    report = replace(HEALTHY, verdict=Grade.FAIL, nodes=nodes, links=(CUT,), world=("n0001",))
    assert "fit, but not together: n[0001-0002]" in lines(report)
