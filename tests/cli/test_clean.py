"""`clusterrun clean` as it is typed: it shows, asks, removes, and never asks where nobody can answer."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, CommandLine

RECORDED = ROOT / "tests/recorded/runs/format-1/20261122-111902-eaq1-train"
DAY = 86400.0


def home(context: CommandLine) -> Path:
    return Path(context.environment["CLUSTERRUN_HOME"])


def runs_present(context: CommandLine) -> list[str]:
    return sorted(path.name for path in (home(context) / "runs").iterdir())


def add(context: CommandLine, days: float, state: str = "FAILED", size: int = 0) -> str:
    """Record a run that ended ``days`` ago, and return its id."""
    then = time.time() - days * DAY
    run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(then))}-{os.urandom(2).hex()}-train"
    folder = home(context) / "runs" / run_id
    for created in (home(context), home(context) / "runs"):
        created.mkdir(mode=0o700, exist_ok=True)
    shutil.copytree(RECORDED, folder)
    (folder / "ended.json").unlink()
    change(folder / "record.json", run_id=run_id, submitted_at=then - 60)
    change(folder / "state.json", run_id=run_id, state=state, ended_at=then, updated_at=then)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (folder / "checkpoint.pt").write_bytes(os.urandom(size))
    return run_id


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_dry_run_lists_the_runs_and_removes_nothing(clusterrun: CommandLine) -> None:
    old, young = add(clusterrun, 45, size=2 << 20), add(clusterrun, 5)
    result = clusterrun("clean", "--dry-run")
    head, row = result.out.splitlines()
    assert (result.code, head.split()) == (0, ["RUN", "STATE", "ENDED", "SIZE"])
    assert row.split()[:2] == [old, "FAILED"]
    assert re.search(r"would remove 1 run \(2\.\d MiB\) with all they hold, checkpoints too", result.err)
    assert re.search(rf"{re.escape(str(home(clusterrun)))} holds 2\.\d MiB in 2 runs", result.err)
    assert runs_present(clusterrun) == sorted([old, young])


def test_a_script_confirms_or_is_refused(clusterrun: CommandLine) -> None:
    old, young = add(clusterrun, 45), add(clusterrun, 5)
    requested = clusterrun("clean", "--older-than", "30d")
    assert (requested.code, runs_present(clusterrun)) == (2, sorted([old, young]))
    assert "cannot ask here" in requested.err and "--yes" in requested.err
    result = clusterrun("clean", "--older-than", "30d", "--yes")
    assert (result.code, runs_present(clusterrun)) == (0, [young])
    assert "removed 1 run (" in result.err and f"{home(clusterrun)} holds" in result.err
    again = clusterrun("clean", "--older-than", "30d")
    assert (again.code, "no run matches" in again.err, "holds" in again.err) == (0, True, True), again


def test_a_bare_number_is_days_and_0_is_every_run_that_has_ended(clusterrun: CommandLine) -> None:
    old, young = add(clusterrun, 4), add(clusterrun, 2)
    assert clusterrun("clean", "--older-than", "3", "--yes").code == 0
    assert (runs_present(clusterrun), old == young) == ([young], False)
    assert clusterrun("clean", "--older-than", "0", "--yes").code == 0
    assert runs_present(clusterrun) == []


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_clean_asks_on_a_terminal(clusterrun: CommandLine, answer: str, code: int) -> None:
    old = add(clusterrun, 45)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "clusterrun", "clean"],
        cwd=clusterrun.folder,
        env={**clusterrun.environment, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    observed = b""
    while b"[y/N]" not in observed:
        observed += os.read(ours, 4096)
    os.write(ours, f"{answer}\n".encode())
    assert process.wait(60) == code
    os.close(ours)
    assert b"Remove 1 run (" in observed and old.encode() in observed
    assert runs_present(clusterrun) == ([] if answer == "y" else [old])


def test_json_lists_removed_runs_and_the_size_of_the_home(clusterrun: CommandLine) -> None:
    old = add(clusterrun, 45, "CANCELLED", 1 << 20)
    add(clusterrun, 45, "FAILED")
    result = clusterrun("clean", "--state", "cancelled", "--yes", "--json")
    document = json.loads(result.out)
    assert [(entry["run_id"], entry["state"]) for entry in document["removed"]] == [(old, "CANCELLED")]
    assert document["removed"][0]["bytes"] >= 1 << 20 <= document["frees_bytes"]
    assert (document["runs"], document["failures"], document["unmeasured"]) == (1, [], 0)
    assert 0 < document["holds_bytes"] < 1 << 20


def test_size_keep_and_names_choose(clusterrun: CommandLine) -> None:
    large, *small = (
        add(clusterrun, 1, size=3 << 20),
        add(clusterrun, 4),
        add(clusterrun, 3),
        add(clusterrun, 2),
    )
    assert clusterrun("clean", "--larger-than", "2M", "--yes").code == 0
    assert runs_present(clusterrun) == sorted(small)
    assert clusterrun("clean", "--keep", "2", "--yes").code == 0
    assert runs_present(clusterrun) == sorted(small[1:])
    assert clusterrun("clean", small[1], "--yes").code == 0
    assert runs_present(clusterrun) == [small[2]]
    assert large not in runs_present(clusterrun)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--larger-than", "big"), "'big' is not a size"),
        (("--older-than", "soon"), "'soon' is neither a duration nor a date"),
        (("--state", "running"), "--state running: clean removes only runs that have ended"),
        (("--keep", "3", "train"), "do not go together"),
    ],
)
def test_meaningless_options_are_refused(
    clusterrun: CommandLine, args: tuple[str, ...], message: str
) -> None:
    run_id = add(clusterrun, 45)
    result = clusterrun("clean", "--yes", *args)
    assert (result.code, message in result.err, runs_present(clusterrun)) == (2, True, [run_id]), result.err


def test_a_run_that_lives_is_not_removed(live: CommandLine) -> None:
    result = live("clean", "stays", "--yes")
    assert (result.code, "it is RUNNING: clusterrun cancel" in result.err) == (1, True), result.err
    assert len(runs_present(live)) == 1


def test_a_folder_that_cannot_be_removed_is_named(clusterrun: CommandLine, tmp_path: Path) -> None:
    run_id = add(clusterrun, 45)
    place = home(clusterrun) / "runs" / run_id / "attempts"
    if subprocess.run(
        ["mount", "-t", "tmpfs", "none", str(place)], check=False, capture_output=True
    ).returncode:
        pytest.skip("mount needs root")
    aside = place.parents[1] / f".removed-{run_id}" / "attempts"
    (place / "foreign").write_text("x")
    try:
        result = clusterrun("clean", "--yes")
        assert (aside / "foreign").read_text() == "x"
        assert (result.code, "different device" in result.err, str(aside) in result.err) == (1, True, True), (
            result.err
        )
    finally:
        subprocess.run(["umount", str(aside if aside.exists() else place)], check=True)
    assert clusterrun("status").out == ""
    again = clusterrun("clean")
    assert (again.code, "finished the removal of 1 run" in again.err, runs_present(clusterrun)) == (
        0,
        True,
        [],
    )
