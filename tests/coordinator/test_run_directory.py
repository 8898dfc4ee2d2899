"""The laws of reports, answers, notices, questions and of the word on jobs that go on: real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clusterrun.coordinator.actions import SaveBeside, SaveReport, WriteNotice
from clusterrun.coordinator.events import Progressed
from clusterrun.coordinator.io import run_directory
from clusterrun.coordinator.io.run_directory import ReportFiles
from clusterrun.model.document import decode
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level, Preflight
from clusterrun.model.paths import RunPaths
from clusterrun.model.preflight_report import Grade, Report
from tests.coordinator.tapes import ORDERS

REPORT = Report("r", "c", "full", Grade.FAIL, 1.0, 2.0, 60.0, 3, "gloo", ("n0",), (), ("n1",), ())


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    result = RunPaths(str(tmp_path / "run"))
    os.makedirs(result.attempt(2).folder)
    return result


def filing(paths: RunPaths, findings: str = "") -> tuple[ReportFiles, list[str]]:
    notes: list[str] = []
    orders = replace(ORDERS, preflight=Preflight(Level.FULL, findings=findings))
    return ReportFiles(orders, paths, notes.append), notes


def written(path: str) -> Report:
    return decode(Report, json.loads(Path(path).read_text()))


def test_a_report_is_stored_with_its_attempt_and_with_the_findings(paths: RunPaths, tmp_path: Path) -> None:
    retained = tmp_path / "home" / "findings" / "c"
    files, notes = filing(paths, str(retained))
    files.report(SaveReport(2, REPORT, keep=True))
    assert [written(paths.attempt(2).preflight), written(str(retained / "r.2.json")), notes] == [
        REPORT,
        REPORT,
        [],
    ]
    assert [oct(os.stat(path).st_mode & 0o777) for path in (retained, retained / "r.2.json")] == [
        "0o700",
        "0o600",
    ]


def test_a_report_without_findings_is_stored_only_with_its_attempt(paths: RunPaths, tmp_path: Path) -> None:
    files, _ = filing(paths, str(tmp_path / "findings"))
    files.report(SaveReport(2, REPORT, keep=False))
    assert not (tmp_path / "findings").exists()


def test_a_failed_write_only_costs_a_note(paths: RunPaths, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files, notes = filing(paths, str(tmp_path / "file" / "below"))
    files.report(SaveReport(7, REPORT, keep=True))
    files.beside(SaveBeside(7, "diagnosis.json", "{}"))
    assert len(notes) == 3 and all("cannot be" in note for note in notes)


@pytest.mark.parametrize("name", ["../state.json", ".hidden", "a/b", "", "x" * 70, "a\nb"])
def test_a_name_that_leads_elsewhere_is_refused(paths: RunPaths, name: str) -> None:
    files, notes = filing(paths)
    files.beside(SaveBeside(2, name, "text"))
    assert len(notes) == 1 and os.listdir(paths.attempt(2).folder) == []


def test_every_question_is_read_once_and_no_link_or_pipe_is_opened(paths: RunPaths) -> None:
    files, _ = filing(paths)
    assert list(files.asks()) == []
    os.mkdir(paths.asks)
    (Path(paths.asks) / "first").write_text("why?")
    (Path(paths.asks) / ".draft").write_text("not yet")
    (Path(paths.asks) / "link").symlink_to("/etc/passwd")
    os.mkfifo(os.path.join(paths.asks, "pipe"))
    assert list(files.asks()) == [("first", "why?")]
    (Path(paths.asks) / "second").write_bytes(b"\xff" * 100_000)
    assert [(name, len(text)) for name, text in files.asks()] == [("second", 65536)]


def test_questions_that_their_clients_removed_leave_room_for_others(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "_MOST_QUESTIONS", 2)
    files, _ = filing(paths)
    os.mkdir(paths.asks)
    for number in range(5):
        question = Path(paths.asks, f"q{number}")
        question.write_text("why?")
        assert list(files.asks()) == [(question.name, "why?")]
        question.unlink()
    for number in range(3):
        Path(paths.asks, f"r{number}").write_text("why?")
    assert [name for name, _ in files.asks()] == ["r0", "r1"]


def test_the_successor_is_written_down(paths: RunPaths) -> None:
    files, _ = filing(paths)
    files.successor("78", ("n1", "n2"))
    assert json.loads(Path(paths.successor).read_text()) == {"job_id": "78", "excluded": ["n1", "n2"]}


def test_the_job_that_was_waited_for_becomes_the_successor_when_it_runs(paths: RunPaths) -> None:
    files, _ = filing(paths)
    files.next("79", ("n1",))
    files.arrive("78")
    assert json.loads(Path(paths.next).read_text()) == {"job_id": "79", "excluded": ["n1"]}
    files.arrive("79")
    assert json.loads(Path(paths.successor).read_text()) == {"job_id": "79", "excluded": ["n1"]}
    assert not os.path.exists(paths.next)


@pytest.mark.parametrize("text", ["", "null", "[]", '{"job_id": 7}', '{"job_id": "7", "excluded": 3}'])
def test_a_damaged_word_on_the_job_that_waits_is_none(paths: RunPaths, text: str) -> None:
    files, _ = filing(paths)
    Path(paths.next).write_text(text)
    files.arrive("7")
    assert not os.path.exists(paths.successor)


def test_the_announced_end_is_written_for_ranks_that_look_for_it(paths: RunPaths) -> None:
    files, _ = filing(paths)
    files.notice(WriteNotice(2, "time-limit", 99.5))
    notice = json.loads(Path(paths.attempt(2).notice).read_text())
    assert notice.pop("at") > 0
    assert notice == {"why": "time-limit", "until": 99.5}


@pytest.mark.parametrize("text, means", [
    ('{"format": 1, "step": 7, "checkpoint": 5, "stopping": true, "at": 1.0}', Progressed(2, 7, 5, True)),
    ('{"step": 7, "checkpoint": null}', Progressed(2, 7, -1)),
    ('{"step": true, "checkpoint": "5", "stopping": 1}', Progressed(2)),
    ("[1]", Progressed(2)),
    ("{", Progressed(2)),
])  # fmt: skip
def test_a_report_of_rank_0_is_read_and_other_content_is_ignored(
    paths: RunPaths, text: str, means: Progressed
) -> None:
    files, _ = filing(paths)
    Path(paths.attempt(2).progress).write_text(text)
    assert files.progress(2) == means


@pytest.mark.parametrize("text, means", [
    ('{"job_id": "7", "node": "n2", "at": 9.5}', Progressed(0, orphan="n2", orphan_at=9.5)),
    ('{"job_id": "7", "node": 2, "at": 9.5}', Progressed(0)),
    ("{", Progressed(0)),
])  # fmt: skip
def test_the_last_agent_that_lost_the_coordinator_is_read(
    paths: RunPaths, text: str, means: Progressed
) -> None:
    files, _ = filing(paths)
    Path(paths.orphan_report).write_text(text)
    assert files.progress(0) == means
