"""The laws of reports, answers, questions and of the job that goes on: real files and programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterrun.agent.actions import SaveBeside, SaveReport
from clusterrun.agent.filing import Filing
from clusterrun.agent.loop import Loop, steady
from clusterrun.agent.process import ended_children
from clusterrun.agent.succession import Succession
from clusterrun.model.document import decode
from clusterrun.model.frozen import replace
from clusterrun.model.orders import Level, Preflight
from clusterrun.model.paths import RunPaths
from clusterrun.model.report import Grade, Report
from tests.agent.runs import until
from tests.agent.tapes import ORDERS

REPORT = Report("r", "c", "full", Grade.FAIL, 1.0, 2.0, 60.0, 3, "gloo", ("n0",), (), ("n1",), ())


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(str(tmp_path / "run"))
    os.makedirs(found.attempt(2).folder)
    return found


def filing(paths: RunPaths, findings: str = "") -> tuple[Filing, list[str]]:
    notes: list[str] = []
    orders = replace(ORDERS, preflight=Preflight(Level.FULL, findings=findings))
    return Filing(orders, paths, notes.append), notes


def written(path: str) -> Report:
    return decode(Report, json.loads(Path(path).read_text()))


def test_a_report_stands_beside_its_attempt_and_where_findings_are_kept(
    paths: RunPaths, tmp_path: Path
) -> None:
    kept = tmp_path / "home" / "findings" / "c"
    files, notes = filing(paths, str(kept))
    files.report(SaveReport(2, REPORT, keep=True))
    assert [written(paths.attempt(2).preflight), written(str(kept / "r.2.json")), notes] == [
        REPORT,
        REPORT,
        [],
    ]
    assert [oct(os.stat(path).st_mode & 0o777) for path in (kept, kept / "r.2.json")] == ["0o700", "0o600"]


def test_a_report_without_findings_is_kept_nowhere_else(paths: RunPaths, tmp_path: Path) -> None:
    files, _ = filing(paths, str(tmp_path / "findings"))
    files.report(SaveReport(2, REPORT, keep=False))
    assert not (tmp_path / "findings").exists()


def test_what_cannot_be_written_costs_a_note_and_nothing_else(paths: RunPaths, tmp_path: Path) -> None:
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


def test_every_question_is_heard_once_and_no_link_or_pipe_is_opened(paths: RunPaths) -> None:
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


def answered(argv: tuple[str, ...], environment: dict[str, str] | None = None) -> tuple[str, str]:
    loop = Loop()
    told: list[tuple[str, str]] = []
    succession = Succession(
        loop, {"PATH": os.defpath, **(environment or {})}, lambda *said: told.append(said)
    )
    succession.begin(argv)

    def look() -> Any:
        for child in ended_children():
            succession.reaped(child)
        return told

    until(look, "the program's answer", 60.0)
    loop.wait(steady())
    return told[0]


@pytest.mark.parametrize("script, said", [
    ("echo 4711", ("4711", "")),
    ("echo '4711;cluster'", ("4711", "")),
    ("echo 'sbatch: a warning' >&2; echo 12", ("12", "")),
    ("echo no; exit 0", ("", "the program exited with code 0: no")),
    ("echo 5; exit 1", ("", "the program exited with code 1: 5")),
    ("kill -6 $$", ("", "the program was killed by signal 6 (SIGABRT)")),
])  # fmt: skip
def test_the_new_job_is_the_number_that_was_printed_by_a_program_that_ended_well(
    script: str, said: tuple[str, str]
) -> None:
    assert answered(("sh", "-c", script)) == said


def test_nothing_of_this_job_steers_the_new_one(tmp_path: Path) -> None:
    environment = {"SLURM_NTASKS": "4", "SBATCH_EXCLUSIVE": "1", "SLURM_CONF": "/c", "MINE": "1"}
    out = tmp_path / "environment"
    assert answered(("sh", "-c", f"env >{out}; echo 1"), environment) == ("1", "")
    names = {line.partition("=")[0] for line in out.read_text().splitlines()}
    assert names & {*environment} == {"SLURM_CONF", "MINE"}


def test_a_program_that_is_not_there_is_an_answer_too() -> None:
    job_id, why = answered(("/no/such/sbatch",))
    assert job_id == "" and "'/no/such/sbatch' cannot be executed" in why


def test_the_successor_is_written_down(paths: RunPaths) -> None:
    files, _ = filing(paths)
    files.successor("78", ("n1", "n2"))
    assert json.loads(Path(paths.successor).read_text()) == {"job_id": "78", "excluded": ["n1", "n2"]}
