"""The history of nodes: how often each was unfit, and the nodes that a submission avoids."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clusterrun.model.document import encode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Finding, Grade, Report
from clusterrun.model.spec import JobSpec
from clusterrun.operations.node_history import Offender, keep_off, links, offenders, unknown
from clusterrun.runs.node_records import NodeRecords, clusters, findings_folder, forget, recall
from tests.reports.reports import AT, CUT, FOUND, HEALTHY, PAIRS, SLOW, XID, node

DAY = 86400.0
SPEC = JobSpec(("train.py",), cwd="/", nodes=2)


def bad(days_ago: float, *names: str, finding: Finding = XID) -> Report:
    """Return a report of eight nodes, with a finding for each of ``names``."""
    nodes = tuple(node(f"n{i}", *([finding] if f"n{i}" in names else [])) for i in range(1, 9))
    return replace(HEALTHY, run_id=f"run-{days_ago:g}", at=AT - days_ago * DAY, nodes=nodes)


def memory(*reports: Report, **more: object) -> NodeRecords:
    ordered = sorted(reports, key=lambda report: report.at)
    return NodeRecords(tuple(ordered), **more)  # type: ignore[arg-type]


def write_reports(folder: Path, *reports: Report) -> str:
    for number, report in enumerate(reports):
        (folder / f"{report.run_id}.{number}.json").write_text(json.dumps(encode(report)))
        os.utime(folder / f"{report.run_id}.{number}.json", (report.at, report.at))
    return str(folder)


def test_a_node_has_the_count_the_times_and_the_last_finding() -> None:
    records = memory(bad(3, "n1"), bad(2, "n1", finding=SLOW), bad(1, "n1", "n2", finding=PAIRS))
    assert offenders(records) == [
        Offender("n1", 2, 1, AT - 3 * DAY, AT - DAY, "run-1", PAIRS),
        Offender("n2", 1, 0, AT - DAY, AT - DAY, "run-1", PAIRS),
    ]


def test_a_link_has_one_history_in_both_directions_and_a_repair_of_one_end_counts() -> None:
    cut = replace(CUT, a="n0002", b="n0001")
    records = memory(replace(FOUND, at=AT - DAY), replace(FOUND, run_id="later", links=(cut, CUT)))
    link = Finding("link", Grade.FAIL, CUT.message, CUT.remedy)
    assert links(records) == [Offender("n0001 - n0002", 2, 0, AT - DAY, AT, "later", link)]
    assert links(replace(records, forgotten=(("n0002", AT),))) == []


def test_a_check_that_fails_on_every_node_tells_of_the_run_and_is_held_against_none() -> None:
    everywhere = tuple(node(f"n{i}", Finding("torch", Grade.FAIL, "no module named torch")) for i in (1, 2))
    assert offenders(memory(replace(HEALTHY, nodes=everywhere))) == []
    alone = replace(HEALTHY, nodes=(node("n1", XID),))
    assert [offender.node for offender in offenders(memory(alone))] == ["n1"]


def test_findings_on_disk_since_the_requested_time_are_read(tmp_path: Path) -> None:
    folder = write_reports(tmp_path, bad(40, "n3"), bad(3, "n1"), bad(1, "n2"))
    (tmp_path / "half.json").write_text('{"run_id": ')
    (tmp_path / "newer.json").write_text('{"format": 99}')
    for name in ("half.json", "newer.json"):
        os.utime(tmp_path / name, (AT, AT))
    records = recall(folder, AT - 30 * DAY)
    assert [report.run_id for report in records.reports] == ["run-3", "run-1"]
    assert [f"{tmp_path}/half.json is damaged" in records.damaged[0], "newer.json" in records.damaged[1]] == [
        True
    ] * 2
    assert recall(str(tmp_path / "nowhere"), 0.0) == NodeRecords(())


@pytest.mark.parametrize("name", ["lab", "../x", "a/b", "..", ".", "", "é\udcff", "n1.forgotten"])
def test_a_cluster_of_any_name_has_one_folder_of_findings(tmp_path: Path, name: str) -> None:
    folder = Path(findings_folder(str(tmp_path), name))
    assert folder.parent == tmp_path / "findings" and folder.name not in ("", ".", "..")
    folder.mkdir(parents=True)
    assert clusters(str(tmp_path)) == (folder.name,)


def test_a_forgotten_node_is_as_new_until_something_is_found_again(tmp_path: Path) -> None:
    folder = write_reports(tmp_path, bad(3, "n1", "n2"), bad(1, "n1"))
    forget(folder, "n1", AT - 2 * DAY)
    assert [(offender.node, offender.fails) for offender in offenders(recall(folder, 0.0))] == [
        ("n1", 1),
        ("n2", 1),
    ]
    forget(folder, "n1", AT)
    assert [offender.node for offender in offenders(recall(folder, 0.0))] == ["n2"]
    assert unknown(["n1", "n9"], recall(folder, 0.0)) == ["n9"]


def test_unfit_nodes_are_excluded_with_a_reason() -> None:
    spec_and_notices = keep_off(replace(SPEC, exclude="n8"), memory(bad(3, "n1"), bad(1, "n1", "n2")), AT)
    assert spec_and_notices[0].exclude == "n[8,1-2]"
    assert spec_and_notices[1] == (
        "excludes n1: unfit 2 times, last 1 d ago (gpu errors: GPU 3: Xid 79, fallen off the bus)",
        "excludes n2: unfit 1 d ago (gpu errors: GPU 3: Xid 79, fallen off the bus)",
    )


def test_a_warning_keeps_off_nobody() -> None:
    spec_and_notices = keep_off(SPEC, memory(bad(1, "n1", finding=SLOW)), AT)
    assert (spec_and_notices[0], spec_and_notices[1]) == (
        SPEC,
        ("no node was unfit lately: --avoid-bad excludes none",),
    )


def test_enough_nodes_remain_and_the_worst_are_excluded() -> None:
    records = memory(bad(3, "n2"), bad(2, "n2", "n3"), bad(1, "n1", "n2"))
    spec_and_notices = keep_off(replace(SPEC, spares=1), records, AT, nodes_there=5)
    assert spec_and_notices[0].exclude == "n[1-2]"
    assert spec_and_notices[1][0] == (
        "n3 would be excluded too, but of 5 nodes the run needs 3: without them it could never start"
    )
    none = keep_off(SPEC, records, AT, nodes_there=2)
    assert (none[0].exclude, len(none[1])) == ("", 1)


def test_a_node_that_is_requested_by_name_is_not_excluded() -> None:
    spec_and_notices = keep_off(replace(SPEC, nodelist="n[1-2]"), memory(bad(1, "n1", "n3")), AT)
    assert spec_and_notices[0].exclude == "n3"
    assert spec_and_notices[1][0] == "n1 was lately unfit, but --nodelist asks for it"


def test_a_name_that_is_none_never_reaches_sbatch() -> None:
    hostile = replace(HEALTHY, nodes=(node("n1"), node("--wrap=x", XID), node("a,b", XID)))
    assert keep_off(SPEC, memory(hostile), AT)[0] == SPEC


@pytest.mark.parametrize("more", [{"sbatch": ("exclude=n1",)}, {"exclude": "/etc/bad-nodes"}])
def test_an_exclude_list_that_cannot_grow_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="--avoid-bad cannot add to"):
        keep_off(replace(SPEC, **more), memory(FOUND), AT)
