"""`clusterrun init` writes what the user chose, and asks again for a partition that the site lacks."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest

from clusterrun.cli.main import main
from clusterrun.operations import new_configuration
from tests.operations.test_new_configuration import OFFER


def test_a_name_that_the_site_lacks_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new_configuration, "site_offer", lambda context, user: OFFER)
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    answers = iter(["nonsense", "cpu", "labor", "lab", "module load my-own"])
    monkeypatch.setattr(click, "prompt", lambda *arguments, **options: next(answers))
    assert main(["init"]) == 0
    text = (tmp_path / "clusterrun.toml").read_text()
    assert 'partition = "cpu"\naccount = "lab"' in text
    assert "module load my-own" in text and "nonsense" not in text and not list(answers)


def test_without_a_terminal_the_values_that_were_taken_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new_configuration, "site_offer", lambda context, user: OFFER)
    monkeypatch.setattr(sys, "stdin", io.StringIO("cpu\n"))
    assert main(["init"]) == 0
    shown = capsys.readouterr().err
    assert "standard input is not read" in shown
    assert "Partition: gpu.a\n" in shown and "nodes: none\n" in shown
    assert 'partition = "gpu.a"\n' in (tmp_path / "clusterrun.toml").read_text()
