"""Reports on the command line: in every form, of runs that have none, and of nodes remembered."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest

from clusterrun.model.document import encode
from clusterrun.model.frozen import replace
from tests.cli.conftest import CommandLine
from tests.reports.reports import FOUND


def test_a_report_is_shown_and_written_in_every_form(ended: CommandLine) -> None:
    result = ended("report", "--html", "out.html", "--prometheus", "out.prom")
    assert result.code == 0, result
    assert result.out.startswith("FAIL: n0003 is unfit; the link n0001 -> n0002 is broken;")
    assert result.err == "written: out.html\nwritten: out.prom\n"
    page, prom = (ended.folder / name for name in ("out.html", "out.prom"))
    assert "n0003" in page.read_text() and "clusterrun_preflight_rounds" in prom.read_text()
    assert {path.stat().st_mode & 0o777 for path in (page, prom)} == {0o644}
    assert sorted(json.loads(ended("report", "last", "--json").out)["nodes"]) == [
        f"n000{number}" for number in range(1, 7)
    ]


def test_a_file_that_cannot_be_written_is_an_error(ended: CommandLine) -> None:
    result = ended("report", "--html", "no/such/folder.html")
    assert (result.code, result.out) == (2, "") and "no such file or directory" in result.err


def test_a_run_without_a_report_is_refused_with_a_reason_and_a_remedy(clusterrun: CommandLine) -> None:
    run_id = clusterrun("submit", "--wait", "train.py").out.strip()
    result = clusterrun("report")
    assert (result.code, result.out) == (2, "")
    assert result.err == (
        f"error: {run_id} was submitted with --preflight off: its nodes were not checked\n"
        "clusterrun check checks nodes now; or clusterrun submit --preflight full\n"
    )
    assert clusterrun("report", "nonsense").code == 5


def test_an_attempt_without_a_report_names_the_attempt_that_has_one(ended: CommandLine) -> None:
    result = ended("report", "--attempt", "3")
    assert result.code == 2 and re.search(
        r"attempt 3 of \S+ has no .*\nattempts with a report: 0; to show", result.err
    )


def remember(context: CommandLine, cluster: str, *names: str) -> None:
    folder = Path(context.environment["CLUSTERRUN_HOME"], "findings", cluster)
    for path in (folder.parent.parent, folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
    for name in names:
        report = replace(FOUND, run_id=name, cluster=cluster, at=time.time() - 7200)
        (folder / f"{name}.0.json").write_text(json.dumps(encode(report)))


def test_nodes_lists_findings_with_count_and_time_and_forgets_on_request(clusterrun: CommandLine) -> None:
    remember(clusterrun, "local", "a", "b")
    lines = re.sub(r"2 h \d+ s ago", "2 h ago", clusterrun("nodes").out).splitlines()
    assert [re.split(r"  +", line) for line in lines] == [
        ["NODE OR LINK", "UNFIT", "WARNED", "FIRST", "LAST", "LAST FINDING"],
        ["n0003", "2", "0", "2 h ago", "2 h ago", "gpu errors: GPU 3: Xid 79, fallen off the bus"],
        ["n0004", "0", "2", "2 h ago", "2 h ago", "product: 12 % below the median: 44 of 50 teraflops"],
        ["n0001 - n0002", "2", "0", "2 h ago", "2 h ago", "link: nothing arrives: 3 of 3 tests"],
    ]
    document = json.loads(clusterrun("nodes", "--json").out)
    assert [(node["name"], node["fails"], node["warnings"]) for node in document["nodes"]] == [
        ("n0003", 2, 0),
        ("n0004", 0, 2),
    ]
    assert clusterrun("nodes", "--forget", "n[0001,0003-0004]").err == (
        "forgot what was found on n[0001,0003-0004]\n"
    )
    assert json.loads(clusterrun("nodes", "--json").out) == {"cluster": "local", "nodes": [], "links": []}
    assert clusterrun("nodes", "--forget", "n0099").code == 2


def test_a_damaged_file_hides_no_other_finding(clusterrun: CommandLine) -> None:
    remember(clusterrun, "local", "a")
    Path(clusterrun.environment["CLUSTERRUN_HOME"], "findings/local/half.json").write_text("{")
    result = clusterrun("nodes")
    assert "half.json is damaged" in result.err and "n0003" in result.out and result.code == 0


def test_other_clusters_with_findings_are_named_if_this_one_has_none(clusterrun: CommandLine) -> None:
    remember(clusterrun, "alps", "a")
    assert clusterrun("nodes").err == (
        "nothing was found on nodes of local in the last 30d\n"
        "there are findings on alps: clusterrun nodes --cluster alps\n"
    )
    assert "n0003" in clusterrun("nodes", "--cluster", "alps").out


@pytest.mark.parametrize(
    "arguments, observed",
    [
        (["--preflight-limit", "slow"], "has no number"),
        (["--preflight-limit", "slwo_fail=1"], "no limit is named slwo_fail"),
        (["--preflight-budget", "soon"], "--preflight-budget 'soon' is not a duration"),
        (["--spares", "-1"], "--spares must be at least 0, not -1"),
        (["--bad-since", "x"], "--bad-since 'x' is not a duration"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    clusterrun: CommandLine, arguments: list[str], observed: str
) -> None:
    result = clusterrun("submit", *arguments, "train.py")
    assert result.code == 2 and observed in result.err and os.listdir(clusterrun.folder.parent) == ["work"]


def test_a_dry_run_of_check_shows_the_submission(clusterrun: CommandLine) -> None:
    result = clusterrun("check", "--nodes", "3", "--spares", "1", "--dry-run", "--json")
    document = json.loads(result.out)
    assert (result.code, document["command"], document["name"]) == (0, ["check"], "check")
