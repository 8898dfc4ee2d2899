"""Run directories are removed whole or finished later, and nothing beside them is touched."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterrun.logs.attempt_logs import LogSelection, in_order, log_files
from clusterrun.runs import disk_usage, removal
from clusterrun.runs.removal import Unremoved, finish, leftovers, remove_run

ID = "20261120-074500-k3f9-train"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    attempt = tmp_path / "runs" / ID / "attempts" / "000"
    attempt.mkdir(parents=True)
    (attempt / "00000.out").write_bytes(b"line\n" * 2000)
    (attempt / "node-0000.index").write_text("100.0 0 out 10000\n")
    (attempt.parents[1] / "record.json").write_text("{}")
    return attempt.parents[1]


def test_a_run_directory_is_removed_with_all_contents(run_dir: Path) -> None:
    assert remove_run(str(run_dir)) is True
    assert os.listdir(run_dir.parent) == []
    assert remove_run(str(run_dir)) is False


def test_links_are_not_followed_and_folders_without_rights_are_removed(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/precious").write_text("x")
    (run_dir / "out").symlink_to(tmp_path / "data")
    (run_dir / "file").symlink_to(tmp_path / "data/precious")
    (run_dir / "attempts/closed").mkdir()
    (run_dir / "attempts/closed/inside").write_text("x")
    (run_dir / "attempts/closed").chmod(0)
    (run_dir / "attempts").chmod(0o500)
    as_somebody(lambda: remove_run(str(run_dir)), run_dir)
    assert os.listdir(run_dir.parent) == []
    assert (tmp_path / "data/precious").read_text() == "x"


def as_somebody(act: Callable[[], object], owned: Path) -> None:
    """Do it as a user whom file modes bind; as root nobody would notice that a folder is closed."""
    if os.geteuid():
        act()
        return
    subprocess.run(["chown", "-hR", "65534", str(owned.parent)], check=True)
    for above in owned.parents:
        if above.stat().st_uid == 0 and not above.stat().st_mode & 1:
            above.chmod(above.stat().st_mode | 0o011)
    child = os.fork()
    if not child:
        os.setuid(65534)
        try:
            act()
        except BaseException:  # noqa: BLE001  the parent sees what is left
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_run_directory_that_is_a_link_is_not_followed(run_dir: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    run_dir.rename(away)
    run_dir.symlink_to(away)
    with pytest.raises(Unremoved):
        remove_run(str(run_dir))
    assert (away / "record.json").exists()


def test_folders_deeper_than_pythons_recursion_limit_are_removed(run_dir: Path) -> None:
    level = os.open(run_dir, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=level)
        below = os.open("d", os.O_RDONLY, dir_fd=level)
        os.close(level)
        level = below
    os.close(level)
    assert remove_run(str(run_dir)) is True
    assert os.listdir(run_dir.parent) == []


def test_an_interrupted_removal_is_detected_and_finished(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(removal, "finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove_run(str(run_dir))
    assert not run_dir.exists()
    (leftover,) = leftovers(str(run_dir.parent))
    finish(leftover)
    assert os.listdir(run_dir.parent) == []


def test_a_disk_too_full_for_a_new_name_is_emptied_first(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, renamed = os.rename, list[bool]()

    def full(source: str, target: str, **named: int) -> None:
        renamed.append((run_dir / "attempts").exists())
        if renamed[-1]:
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target, **named)

    monkeypatch.setattr(os, "rename", full)
    assert remove_run(str(run_dir)) is True
    assert (renamed, os.listdir(run_dir.parent)) == ([True, False], [])


def test_several_processes_may_remove_the_same_folders_at_once(tmp_path: Path) -> None:
    runs = [tmp_path / "runs" / f"20261120-0745{number:02d}-k3f9-train" for number in range(8)]
    for run in runs:
        for part in range(20):
            (run / f"attempts/{part:03d}/sub").mkdir(parents=True)
            (run / f"attempts/{part:03d}/sub/00000.out").write_text("x")
    removed, errors = list[str](), list[BaseException]()

    def clean() -> None:
        try:
            for run in runs:
                if remove_run(str(run)):
                    removed.append(run.name)
                for leftover in leftovers(str(run.parent)):
                    finish(leftover)
        except BaseException as error:  # noqa: BLE001  whatever it is, it belongs to the test
            errors.append(error)

    threads = [threading.Thread(target=clean) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (errors, sorted(removed)) == ([], [run.name for run in runs])
    assert os.listdir(tmp_path / "runs") == []


def test_a_reader_of_the_logs_comes_to_an_end_during_a_removal(run_dir: Path) -> None:
    folder = str(run_dir / "attempts/000")
    files = log_files(folder, LogSelection(None))
    pieces = in_order(folder, files, [(0, 10000)])
    remove_run(str(run_dir))
    assert list(pieces) == []


def test_a_file_with_two_names_is_freed_with_the_second(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own").write_bytes(b"x" * 8192)
    (tmp_path / "a/agent.pyz").write_bytes(b"y" * 65536)
    os.link(tmp_path / "a/agent.pyz", tmp_path / "b/agent.pyz")
    (tmp_path / "a/link").symlink_to("/")
    usages = disk_usage.measure({name: str(tmp_path / name) for name in ("a", "b")}, 60)
    assert [usage.size >= 65536 + 8192 for usage in usages.values()] == [True, True]
    shared = disk_usage.freed(usages["a"])
    both = disk_usage.together(usages.values())
    assert shared < 65536 <= disk_usage.freed(both) == both.size
    assert both.size < usages["a"].size + usages["b"].size


def test_a_file_system_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "stale"):
        (tmp_path / name).mkdir()
    answer, scandir = threading.Event(), os.scandir

    def hangs(path: str) -> object:
        if path.endswith("stale"):
            answer.wait(60)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", hangs)
    try:
        usages = disk_usage.measure({"good": str(tmp_path / "good"), "bad": str(tmp_path / "stale")}, 0.5)
    finally:
        answer.set()
    assert list(usages) == ["good"]
