"""Whatever ends a run is named: the rank and its words, or the node; the others end, and nothing is lost."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterrun import system
from tests.hostile.conftest import Person, logs, marked, until

FAILS = """import json, os, signal, sys, time
how, rank = sys.argv[1], int(os.environ["RANK"])
print("up", flush=True)
if rank == 1:
    print("the last line", file=sys.stderr, flush=True)
    if how == "exit":
        sys.exit(3)
    if how == "error":
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            stack = {"py_callstack": "Traceback: a\\x1b[2Jb"}
            json.dump({"message": {"message": "m", "extraInfo": stack}}, file)
        sys.exit(1)
    os.kill(os.getpid(), getattr(signal, how))
time.sleep(600)
"""
WAITS = "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
CASES = {
    "exit": "rank 1 on {} exited with code 3",
    "error": "rank 1 on {} exited with code 1",
    "SIGSEGV": "rank 1 on {} was killed by signal 11 (SIGSEGV)",
    "SIGKILL": "rank 1 on {} was killed by signal 9 (SIGKILL)",
}


@pytest.mark.parametrize("how", CASES)
def test_the_first_failed_rank_is_named_with_its_last_output(anybody: Person, how: str) -> None:
    (anybody.folder / "x.py").write_text(FAILS)
    run = anybody.submits("--nodes", "2", "x.py", how)
    result = anybody.types("wait", run.name)
    status = anybody.status(run)
    assert (result.code, status["state"]) == (1, "FAILED")
    assert status["reason"] == CASES[how].format("n0002" if anybody.lab else "local-1")
    output = "Traceback: a\\x1b[2Jb" if how == "error" else "the last line"
    assert CASES[how].split(" on ")[0] in result.err and output in result.err
    assert marked(run) == []


def hidden(user: Person, path: Path) -> None:
    """Hide a folder from one node."""
    assert user.lab
    user.lab.exec(["mount", "-t", "tmpfs", "none", str(path)], host="n0002")


def seen(user: Person, path: Path) -> None:
    assert user.lab
    user.lab.exec(["umount", "-l", str(path)], host="n0002")


@pytest.mark.lab
@pytest.mark.parametrize("what", ["home", "python", "work"])
def test_a_node_that_misses_a_requirement_is_named_at_once(user: Person, what: str) -> None:
    folders = {name: user.folder / name for name in ("home", "python", "work")}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    (folders["work"] / "x.py").write_text("")
    (folders["python"] / "python").symlink_to(shutil.which("python3") or "/usr/bin/python3")
    hidden(user, folders[what])
    try:
        arguments = [
            "--nodes",
            "2",
            "--nodelist",
            "n0001,n0002",
            "--python",
            str(folders["python"] / "python"),
        ]
        run = user.submits(*arguments, "x.py", cwd=folders["work"])
        status = user.reaches(run, "FAILED", 90)
        assert "n0002" in status["reason"], status
    finally:
        seen(user, folders[what])


@pytest.mark.lab
def test_a_run_with_a_deleted_directory_ends_after_a_minute(user: Person) -> None:
    (user.folder / "x.py").write_text(WAITS)
    run = user.submits("--nodes", "2", "x.py")
    user.up(run, 2)
    # Processes that have not noticed the removal may still write into it.
    until(lambda: shutil.rmtree(run, ignore_errors=True) or not run.exists(), "the folder is gone")
    until(lambda: not marked(run), "all ranks ended", 180)
    assert user.types("status", run.name).code == 5


def test_a_damaged_state_is_reported_and_the_run_continues(person: Person) -> None:
    (person.folder / "x.py").write_text(WAITS)
    run = person.submits("x.py")
    person.up(run, 1)

    def said(content: str) -> bool:
        (run / "state.json").write_text(content)  # until the coordinator writes it anew
        status = person.status(run)
        assert status["name"] == "x"
        return status["state"] == "UNKNOWN" and "state.json" in status["reason"]

    for content in ("", "{", "null", "[" * 100_000, '{"format": 99}'):
        until(lambda content=content: said(content), f"{content[:20]} said")
    (person.folder / "go").touch()
    assert person.reaches(run, "COMPLETED")["exit_code"] == 0


FILLS = """import os, time
print("up", flush=True)
while os.path.exists("wait"): time.sleep(0.05)
try:
    while True: os.write(1, bytes(4096))
except OSError:
    pass
while not os.path.exists("go"): time.sleep(0.05)
"""


def test_a_run_that_fills_its_disk_reports_its_end_or_is_cancelled(person: Person) -> None:
    (person.folder / "x.py").write_text(FILLS)
    (person.folder / "wait").touch()
    person.home.mkdir()
    system.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", str(person.home)], 10)
    try:
        first, second = person.submits("x.py"), person.submits("x.py")
        for run in (first, second):
            person.up(run, 1)
        (person.folder / "wait").unlink()
        until(lambda: shutil.disk_usage(person.home).free == 0, "a full disk")
        assert person.types("cancel", second.name).code == 0
        assert person.status(second)["state"] == "CANCELLED"
        (person.folder / "go").touch()
        assert person.reaches(first, "COMPLETED", 90)["exit_code"] == 0
    finally:
        system.run(["umount", "-l", str(person.home)], 10)


def test_two_simultaneous_submissions_of_one_name_are_two_runs(anybody: Person) -> None:
    (anybody.folder / "x.py").write_text("import os\nprint(os.environ['CLUSTERRUN_RUN_ID'])")
    with ThreadPoolExecutor(4) as crowd:
        runs = list(crowd.map(lambda _: anybody.submits("--name", "same", "x.py"), range(4)))
    assert len({run.name for run in runs}) == 4
    for run in runs:
        anybody.reaches(run, "COMPLETED", 90)
        assert logs(run)[0].read_text() == f"{run.name}\n"
    newest = max(runs, key=lambda run: run.name)
    assert anybody.types("logs", "--raw", "same").out == f"{newest.name}\n"
