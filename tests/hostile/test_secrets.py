"""Secrets stay with their owner: no argument, script, log or other user shows them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from clusterrun import system
from tests.hostile.conftest import Person, logs

CANARY = "canary-0f3d9a-secret"
WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"


def commands() -> str:
    """Return the command line of every process, on the lab's hosts too."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            results.append(path.read_bytes().decode("utf-8", "replace"))
        except OSError:
            continue
    return "\n".join(results)


def holding(run: Path, word: str) -> list[str]:
    """Return the files of a run that contain ``word``."""
    files = (path for path in run.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(run)) for path in files if word.encode() in path.read_bytes())


def test_a_value_of_env_is_in_the_orders_and_the_ranks_and_nowhere_else(anybody: Person) -> None:
    (anybody.folder / "x.py").write_text(WAITS)
    arguments = ("--env", "KEY", "x.py")
    run = anybody.submits("--nodes", "2", *arguments, env={"KEY": CANARY})
    anybody.up(run, 2)
    observed = [commands(), str(anybody.status(run)), anybody.types("logs", run.name).out]
    if anybody.lab:
        output = (["show", "job", "-dd"], ["show", "step"], ["write", "batch_script", "1", "-"])
        observed += [anybody.lab.exec(["scontrol", *arguments]).out for arguments in output]
    (anybody.folder / "go").touch()
    anybody.reaches(run, "COMPLETED")
    assert [text for text in observed if CANARY in text] == []
    assert holding(run, CANARY) == ["orders.json"]
    assert holding(run, '"secret"') == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="root can be somebody else")
def test_no_other_user_can_read_a_run_under_any_umask(anybody: Person) -> None:
    (anybody.folder / "x.py").write_text("print('up')")
    home = anybody.folder / "new" / "parent" / "home"
    before = os.umask(0)
    try:
        run = anybody.waits("x.py", env={"CLUSTERRUN_HOME": str(home)})
    finally:
        os.umask(before)
    mine = [p for p in (anybody.folder / "new").rglob("*") if p.lstat().st_mode & 0o077]
    assert mine == [] and logs(run)[0].read_text() == "up\n"
    requested = ["runuser", "-u", "nobody", "--", "cat", str(run / "orders.json")]
    result = subprocess.run(requested, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0 and "ermission denied" in result.stderr


def spoil_owner(home: Path) -> None:
    home.mkdir()
    os.chown(home, 65534, 65534)


def spoil_mode(home: Path) -> None:
    home.mkdir()
    home.chmod(0o770)


def spoil_runs(home: Path) -> None:
    (home / "runs").mkdir(parents=True)
    home.chmod(0o700)
    (home / "runs").chmod(0o777)


def spoil_kind(home: Path) -> None:
    home.write_text("")


def fill(home: Path) -> None:
    home.mkdir(0o700)
    system.run(["mount", "-t", "tmpfs", "-o", "size=128k,mode=700", "none", str(home)], 10)


def seal(home: Path) -> None:
    home.mkdir(0o700)
    system.run(["mount", "-t", "tmpfs", "-o", "ro,mode=700", "none", str(home)], 10)


@pytest.mark.skipif(os.geteuid() != 0, reason="root can be somebody else")
@pytest.mark.parametrize("spoil, message", [
    (spoil_owner, "belongs to another user (number 65534)"),
    (spoil_mode, "can be written by others (mode 0770)"),
    (spoil_runs, "can be written by others (mode 0777)"),
    (spoil_kind, "is not a folder"),
    (fill, "no space left on device"),
    (seal, "read-only file system"),
])  # fmt: skip
def test_a_home_that_cannot_be_trusted_or_written_is_refused_and_keeps_nothing(
    person: Person, spoil, message: str
) -> None:
    (person.folder / "x.py").write_text("")
    spoil(person.home)
    try:
        result = person.types("submit", "--cluster", "local", "x.py")
        assert (
            (result.code, result.out) == (2, "") and str(person.home) in result.err and message in result.err
        )
        assert len(result.err.splitlines()) == 2
        assert list(person.home.glob("*/*")) == []
    finally:
        system.run(["umount", str(person.home)], 10)


def test_no_file_remains_in_shared_folders(person: Person) -> None:
    (person.folder / "x.py").write_text("")
    shared = person.folder / "tmp"
    shared.mkdir()
    before = set(os.listdir("/dev/shm"))
    run = person.waits("--nodes", "2", "x.py", env={"TMPDIR": str(shared)})
    assert person.status(run)["state"] == "COMPLETED"
    assert os.listdir(shared) == [] and set(os.listdir("/dev/shm")) <= before
