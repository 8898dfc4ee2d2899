"""Whichever call a disk refuses, every command says so in words, and no run is lost or left half made."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterrun.cli.main import main
from clusterrun.model.document import encode
from clusterrun.model.frozen import replace
from clusterrun.model.paths import RunPaths
from clusterrun.model.states import State
from clusterrun.operations import submit
from clusterrun.runs.store import Store
from clusterrun.script import pack
from tests.operations.values import ID, NOW, RECORD, state
from tests.reports.reports import FOUND
from tests.survive.refusing import refusing

CODES = range(8)
HOURS = 3600.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home with a run of each kind. There is no Slurm, and the node-side program is a stand-in."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CLUSTERRUN_HOME", str(folder))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(pack, "packed", lambda sources: b"program")
    monkeypatch.setattr(submit, "queue", lambda *args: "4711.1")
    (tmp_path / "x.py").write_text("")
    monkeypatch.chdir(tmp_path)
    store = Store(str(folder))
    ended = state(State.FAILED, reason="rank 3 on n1 exited with code 7", exit_code=1)
    store.claim(ID)
    store.save(replace(RECORD, cluster="local", submitted_at=NOW - 9 * HOURS))
    attempt = Path(RunPaths(store.paths(ID).run_dir).attempt(0).folder)
    attempt.mkdir(parents=True, mode=0o700)
    Path(store.paths(ID).state).write_text(json.dumps(encode(ended)))
    (attempt / "00003.err").write_text("last words\n")
    (attempt / "preflight.json").write_text(json.dumps(encode(FOUND)))
    return folder


@pytest.fixture
def sweep(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Iterator[tuple[str, int, str]]]:
    """Run a command once for each call that touches the home, which fails; until none is left to fail."""

    def run(error: int, *arguments: str) -> Iterator[tuple[str, int, str]]:
        retained, number = tmp_path / "kept", 0
        shutil.copytree(home, retained)
        while True:
            shutil.rmtree(home)
            shutil.copytree(retained, home)
            with refusing(home, number, error) as disk:
                code = main(list(arguments))
            message = capsys.readouterr()
            if not disk.struck:
                return
            yield disk.struck, code, message.err
            number += 1

    return run


LOOKING = (
    ("submit", "--dry-run", "--cluster", "local", "x.py"),
    *(("status", "--json"), ("status", ID), ("logs", ID), ("wait", ID), ("report", ID), ("diagnose", ID)),
    *(("nodes", "--cluster", "lab"), ("config", "show"), ("top", "--once", ID)),
)
WRITING = (
    ("submit", "--cluster", "local", "--json", "x.py"),
    *(("status",), ("cancel", ID), ("nodes", "--cluster", "lab", "--forget", "n1")),
)
CASES = [(words, errno.EIO) for words in (*LOOKING, *WRITING)] + [(words, errno.ENOSPC) for words in WRITING]


@pytest.mark.parametrize(
    "arguments, error",
    CASES,
    ids=[f"{' '.join(arguments)} {errno.errorcode[error]}" for arguments, error in CASES],
)
def test_a_refused_call_is_reported_and_every_run_still_exists(
    home: Path, sweep: Callable[..., Iterator[tuple[str, int, str]]], arguments: tuple[str, ...], error: int
) -> None:
    count = 0
    for struck, code, message in sweep(error, *arguments):
        count += 1
        assert "Traceback" not in message and code in CODES, (struck, message)
        assert code in (0, 1) or "error: " in message, (struck, code, message)
        store = Store(str(home))
        assert store.read(ID).run_id == ID and store.state(ID) is not None, struck
        assert all(store.read(run_id) for run_id in store.ids()), struck
    assert count or arguments[:2] in (("config", "show"), ("submit", "--dry-run"))
