"""Runs that other versions wrote are shown, read and cancelled; of each format some are recorded for good."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from clusterrun.diagnosis.verdict import Diagnosis, Verdict
from clusterrun.model.document import decode, encode
from clusterrun.model.preflight_report import Finding, Grade, Report
from clusterrun.model.record import OrphanReport
from clusterrun.model.usage import NodeUse
from tests.cli.conftest import ROOT, CommandLine

RECORDED = ROOT / "tests" / "recorded" / "runs"
RUNS = sorted(path.relative_to(RECORDED).as_posix() for path in RECORDED.glob("*/*"))
FAILED = "format-1/20261122-111902-eaq1-train"
CHECKED = "format-1/20261122-111905-c5d9-train"
NEWER = "of_a_newer_version"
"""A field that no version has."""
STATES = {FAILED: "FAILED", CHECKED: "COMPLETED"}


@pytest.fixture
def context(clusterrun: CommandLine) -> CommandLine:
    """Make a home with every recorded run."""
    home = Path(clusterrun.environment["CLUSTERRUN_HOME"])
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for run in RUNS:
        (home / "runs").mkdir(mode=0o700, exist_ok=True)
        shutil.copytree(RECORDED / run, home / "runs" / Path(run).name)
    for path in home.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return clusterrun


def documents(context: CommandLine, run: str) -> list[Path]:
    return [directory(context, run) / name for name in ("record.json", "state.json", "ended.json")]


def directory(context: CommandLine, run: str) -> Path:
    return Path(context.environment["CLUSTERRUN_HOME"], "runs", Path(run).name)


def extended(value: Any) -> Any:
    """Return the document with one more field in every object, as a newer version may write it."""
    if isinstance(value, list):
        return [extended(item) for item in value]
    if isinstance(value, dict):
        return {NEWER: ["matlab"], **{name: extended(item) for name, item in value.items()}}
    return value


def status(context: CommandLine, run: str) -> dict[str, Any]:
    message = context("status", "--json", Path(run).name)
    assert (message.code, message.err) == (0, "")
    result: dict[str, Any] = json.loads(message.out)["runs"][0]
    return result


def test_every_recorded_run_has_an_expected_state() -> None:
    assert sorted(STATES) == RUNS


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("newer", [{}, {"format": 1}, {"format": 2}], ids=["as it is", "more", "newer"])
def test_a_run_of_another_version_is_shown_as_before(
    context: CommandLine, run: str, newer: dict[str, int]
) -> None:
    as_recorded = status(context, run)
    assert as_recorded["state"] == STATES[run]
    if newer:
        for path in documents(context, run):
            path.write_text(json.dumps({**extended(json.loads(path.read_text())), **newer}))
    assert status(context, run) == as_recorded
    name = Path(run).name
    assert context("logs", name, "--rank", "0").out.count("rank 0 step 2") == 1
    assert context("wait", name).code == (STATES[run] == "FAILED")
    cancelled = context("cancel", name)
    assert (cancelled.code, "already ended" in cancelled.out + cancelled.err) == (0, True)


def test_the_failure_and_the_check_of_a_recorded_run_are_shown(context: CommandLine) -> None:
    assert "ValueError: loss is NaN at step 3" in context("status", Path(FAILED).name).out
    assert json.loads(context("report", "--json", Path(CHECKED).name).out)["verdict"] == "pass"


@pytest.mark.parametrize("has_new_names", [False, True], ids=["recorded", "written now"])
def test_a_report_is_read_under_the_old_and_the_new_names_of_fields(
    context: CommandLine, has_new_names: bool
) -> None:
    path = directory(context, CHECKED) / "attempts/000/preflight.json"
    recorded = json.loads(path.read_text())
    finding = {"check": "xid", "verdict": "fail", "said": "Xid 79 of GPU 3", "remedy": ""}
    recorded["nodes"][0]["findings"] = [finding]
    recorded["set_said"] = "the network drops packets"
    if has_new_names:
        recorded = encode(decode(Report, recorded))
        assert recorded["nodes"][0]["findings"] == [
            {**finding, "message": finding["said"]}
        ]  # for older readers
        assert (recorded["set_said"], recorded["set_message"]) == ("the network drops packets",) * 2
    path.write_text(json.dumps(recorded))
    report = json.loads(context("report", "--json", Path(CHECKED).name).out)
    (result,) = next(node["findings"] for node in report["nodes"].values() if node["findings"])
    assert (result["message"], result["said"]) == ("Xid 79 of GPU 3",) * 2
    assert report["set"] == "the network drops packets"
    assert "Xid 79 of GPU 3" in context("report", Path(CHECKED).name).out


def test_only_the_new_name_of_a_field_is_needed() -> None:
    for value in (
        Finding("xid", Grade.FAIL, "Xid 79"),
        Diagnosis(Verdict.NOTHING, "all ranks compute"),
        NodeUse("n1", 1.0, 1.0, 1.0, 2, 3, 4, 0.0, 0.0, gpus_reason="no driver"),
        OrphanReport("41", "n1", 1.0, released=True),
    ):
        ((name, former),) = value.FORMER_NAMES.items()
        document = encode(value)
        assert document[name] == document[former] == getattr(value, former)
        for omitted in (name, former):
            assert (
                decode(type(value), {key: item for key, item in document.items() if key != omitted}) == value
            )


def test_a_field_that_changes_the_meaning_is_named_and_not_guessed_at(context: CommandLine) -> None:
    path, *_ = documents(context, FAILED)
    document = {**json.loads(path.read_text()), NEWER: [], "must_understand": [NEWER]}
    path.write_text(json.dumps(document))
    result = status(context, FAILED)
    assert result["state"] == "UNKNOWN"
    assert f"field '{NEWER}' is of a newer clusterrun" in result["reason"]


def test_a_run_that_was_queued_in_several_sizes_is_still_shown(context: CommandLine) -> None:
    expected = status(context, FAILED)
    path, *_ = documents(context, FAILED)
    record = json.loads(path.read_text())
    record |= {"others": ["4712"], "must_understand": ["others"]}
    record["spec"]["shapes"] = "1x0 2x0"
    path.write_text(json.dumps(record))
    assert status(context, FAILED) == expected


def test_a_sweep_that_was_recorded_with_a_search_is_still_shown(context: CommandLine) -> None:
    record = json.loads(documents(context, FAILED)[0].read_text())
    sweep_id = "20261122-111900-aaaa-train"
    search = {"sets": ["lr=log(1e-5,0.1)"], "trials": 9, "by": "loss", "largest": False, "at_once": 4}
    points = [{"values": [["lr", "0.1"]], "run_id": record["run_id"], "earlier": []}]
    folder = Path(context.environment["CLUSTERRUN_HOME"], "sweeps", sweep_id)
    folder.mkdir(mode=0o700, parents=True)
    document = {"sweep_id": sweep_id, "name": "train", "spec": record["spec"], "points": points}
    document |= {"submitted_at": record["submitted_at"], "search": search, "format": 1}
    (folder / "sweep.json").write_text(json.dumps(document))
    result = context("sweep", "results", sweep_id, "--json")
    assert result.code == 0, result.err
    assert [row["state"] for row in json.loads(result.out)["results"]] == ["FAILED"]
