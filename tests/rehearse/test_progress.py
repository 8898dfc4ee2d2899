"""`clusterrun rehearse` shows its progress between two rows of its table."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterrun.cli import rehearse, terminal
from clusterrun.cli.rehearse import ProgressLine
from clusterrun.cli.terminal import CLEAR
from clusterrun.model.paths import RunPaths
from clusterrun.model.spec import JobSpec
from clusterrun.rehearse.rehearsed_runs import RehearsedRuns

LIMIT = 60.0


@pytest.mark.parametrize("is_live", [False, True])
def test_a_line_shows_the_running_trial_until_the_end(
    is_live: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rehearse, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(rehearse, "RENEW_SECONDS", 0.01)
    for module in (rehearse, terminal):
        monkeypatch.setattr(module, "has_live_line", lambda: is_live)
    line, described_twice, calls = ProgressLine(), threading.Event(), []

    def describe() -> str:
        calls.append(1)
        if len(calls) > 1:
            described_twice.set()
        return "kill: step 3"

    with line.showing(describe):
        assert described_twice.wait(LIMIT)
        with line.hidden():
            print("a row")
    captured = capsys.readouterr()
    assert (captured.out, "kill: step 3" in captured.err) == ("a row\n", True)
    assert captured.err.endswith(CLEAR if is_live else "\n")
    assert (CLEAR in captured.err) == is_live


def test_the_line_names_each_run_with_its_start_and_step(tmp_path: Path) -> None:
    runs = RehearsedRuns(JobSpec(("train.py",), str(tmp_path)), str(tmp_path), {"HOME": str(tmp_path)}, 900.0)
    assert runs.progress().startswith("between two runs; ")
    paths = RunPaths(str(tmp_path / "run"))
    for number, text in (
        (0, '{"t": "step", "n": 9, "o": 0}\n'),
        (1, '{"t": "before"}\n{"t": "step", "n": 4, '),
    ):
        folder = Path(paths.attempt(number).folder)
        folder.mkdir(parents=True)
        (folder / "00000.rehearsal.jsonl").write_text(text)
    run: Any = SimpleNamespace(paths=paths)
    other: Any = SimpleNamespace(paths=RunPaths(str(tmp_path / "other")))
    runs._live = {"1": ("kill", run), "2": ("damaged", other)}
    text, _, used = runs.progress().rpartition("; ")
    assert (text, used[-11:]) == ("kill, start 2: step 4; damaged: before its first step", " s of 900 s")
