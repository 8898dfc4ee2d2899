"""Checkpoint files: names, proofs, what is dropped, and every state that a crash can leave; no torch."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from clusterrun.training import files
from tests.training.powercut import Disk

LAST_GOOD, NEW = b"the state after step 3" * 40, b"the state after step 4" * 50


def permit() -> None:
    """Allow it."""


def put(folder: Path, step: int, content: bytes = b"weights", attempt: int = 0) -> files.CheckpointFile:
    return files.write(str(folder), step, attempt, lambda file: file.write(content), permit)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps(folder: Path) -> list[tuple[int, int]]:
    return [(result.step, result.attempt) for result in files.newest_first(str(folder))]


def whole(folder: Path) -> list[int]:
    return [
        entry.step for entry in files.newest_first(str(folder)) if not files.objection(str(folder), entry)
    ]


def test_the_name_has_step_attempt_and_checksum(tmp_path) -> None:
    result = put(tmp_path, 7, b"weights", attempt=2)
    # sha256 of "weights"
    assert result == files.CheckpointFile(7, 2, "step-000000007.a2.9a129038d9a00aed.pt")
    assert names(tmp_path) == [result.name]
    assert (tmp_path / result.name).read_bytes() == b"weights"
    assert files.objection(str(tmp_path), result) == ""


def test_the_highest_step_comes_first_then_the_newer_attempt_and_other_files_are_nothing(tmp_path) -> None:
    for step, attempt in ((3, 0), (12, 0), (3, 11), (3, 2), (1_000_000_000, 0)):
        put(tmp_path, step, attempt=attempt)
    (tmp_path / "step-000000009.9a129038d9a00aed.pt").touch()
    for stranger in (
        "step-000000099.a1.pt",
        "model.pt",
        "step-000000099.a1.9a129038d9a00aed.pt.old",
        "steps",
    ):
        (tmp_path / stranger).touch()
    assert steps(tmp_path) == [(10**9, 0), (12, 0), (9, 0), (3, 11), (3, 2), (3, 0)]


def test_a_missing_folder_has_no_checkpoints(tmp_path) -> None:
    assert files.newest_first(str(tmp_path / "none")) == []


@pytest.mark.parametrize("damage", [lambda all_: all_[:-1], lambda all_: b"", lambda all_: b"X" + all_[1:]])
def test_a_file_whose_content_differs_from_its_checksum_is_damaged(tmp_path, damage) -> None:
    result = put(tmp_path, 1)
    path = tmp_path / result.name
    path.write_bytes(damage(path.read_bytes()))
    assert files.objection(str(tmp_path), result) == "is damaged (its checksum differs)"


def test_a_file_that_the_disk_does_not_give_back_is_named_with_the_reason(tmp_path) -> None:
    result = put(tmp_path, 1)
    (tmp_path / result.name).unlink()
    (tmp_path / result.name).mkdir()
    assert files.objection(str(tmp_path), result) == "cannot be read (is a directory)"


def test_the_last_checkpoints_stay_and_those_of_newer_attempts_and_higher_steps(tmp_path) -> None:
    for step, attempt in ((1, 0), (2, 0), (3, 1), (3, 2), (4, 1), (9, 0)):
        newest = put(tmp_path, step, attempt=attempt)
    newest = files.CheckpointFile(
        4, 1, next(entry.name for entry in files.newest_first(str(tmp_path)) if entry.step == 4)
    )
    files.drop_old(str(tmp_path), newest, 2, ())
    assert steps(tmp_path) == [(9, 0), (4, 1), (3, 2), (3, 1)]


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2)
    damaged, newest = put(tmp_path, 3), put(tmp_path, 4)
    files.drop_old(str(tmp_path), newest, 2, {damaged})
    assert steps(tmp_path) == [(4, 0), (2, 0)]


def test_the_checkpoint_just_written_is_never_removed(tmp_path) -> None:
    put(tmp_path, 5, b"of another training")
    newest = put(tmp_path, 5, b"of this one")
    files.drop_old(str(tmp_path), newest, 1, ())
    assert names(tmp_path) == [newest.name]


def test_parts_of_dead_writers_are_removed_and_parts_of_live_writers_stay(tmp_path) -> None:
    older, of_us, of_newer, silent = (
        f".step-000000004.a{a}.{h}.part" for a, h in zip("1234", "abcd", strict=True)
    )
    for name in (older, of_us, of_newer, silent, ".step-4.part", "notes.part"):
        (tmp_path / name).touch()
    long_ago = time.time() - files.STALE - 5
    os.utime(tmp_path / silent, (long_ago, long_ago))
    files.drop_parts(str(tmp_path), attempt=2)
    assert names(tmp_path) == sorted([of_us, of_newer, ".step-4.part", "notes.part"])


def test_two_writers_of_a_step_write_two_complete_files(tmp_path) -> None:
    def other_writer_in_the_middle(file):
        file.write(b"mine, first ")
        put(tmp_path, 4, b"theirs")
        file.write(b"half and second")

    files.write(str(tmp_path), 4, 0, other_writer_in_the_middle, permit)
    assert whole(tmp_path) == [4, 4]
    assert len(names(tmp_path)) == 2


def test_a_checkpoint_that_is_forbidden_at_the_last_moment_is_not_published(tmp_path) -> None:
    def forbid():
        raise RuntimeError("a newer attempt has begun")

    with pytest.raises(RuntimeError, match="newer attempt"):
        files.write(str(tmp_path), 4, 0, lambda file: file.write(b"late"), forbid)
    assert names(tmp_path) == []


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: b"\0" * count)
    victim = tmp_path / "victim"
    (tmp_path / f".step-000000004.a0.{'00' * 8}.part").symlink_to(victim)
    with pytest.raises(FileExistsError):
        put(tmp_path, 4)
    assert not victim.exists()


def test_a_folder_is_created_with_its_parents_and_each_survives_a_power_cut(tmp_path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "a")]
    files.make_folder(str(tmp_path / "a" / "b"))
    assert len(synced) == 2


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/below"):
        with pytest.raises((FileExistsError, NotADirectoryError)):
            files.make_folder(str(tmp_path / folder))


def test_the_umask_determines_the_mode_of_a_checkpoint(tmp_path) -> None:
    before = os.umask(0o027)
    try:
        result = put(tmp_path, 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / result.name).stat().st_mode) == 0o640


FAILING = ("open", "write", "fsync", "replace")


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE], ids=errno.errorcode.get
)
@pytest.mark.parametrize("call", range(6))
def test_any_failed_call_leaves_the_last_good_checkpoint_and_no_part(tmp_path, code, call) -> None:
    put(tmp_path, 3, LAST_GOOD)
    disk = Disk(tmp_path, fail_at=call, code=code)
    with disk.recording():
        try:
            put(tmp_path, 4, NEW)
            failed = False
        except OSError as error:
            assert error.errno == code
            failed = True
    assert failed == (call < disk.calls)
    assert not [name for name in names(tmp_path) if name.endswith(".part")]
    assert whole(tmp_path) in ([3], [4, 3])
    assert len(names(tmp_path)) == len(whole(tmp_path))


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_complete_checkpoint_is_the_old_or_the_new_after_any_crash(tmp_path, keep) -> None:
    """Every prefix of what was done, with every subset of what was not yet durable lost."""
    began, observed, states = tmp_path / "began", set(), 0
    began.mkdir()
    put(began, 2, b"older")
    put(began, 3, LAST_GOOD)
    (began / ".step-000000003.a0.aa.part").write_bytes(b"of a writer that died")
    worked = tmp_path / "worked"
    shutil.copytree(began, worked)
    disk = Disk(worked)
    with disk.recording():
        files.drop_parts(str(worked), 1)
        result = put(worked, 4, NEW, attempt=1)
        files.drop_old(str(worked), result, keep, ())
    for number, state in enumerate(disk.crash_states(began)):
        place = tmp_path / "crashed"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in state.items():
            (place / name).write_bytes(content)
        first = next(iter(whole(place)), None)
        assert first in (3, 4), (number, sorted(state))
        go_on_after_the_crash(place, keep)
        assert whole(place) == [5, first][:keep]
        assert len(names(place)) == keep, names(place)
        observed.add(first)
        states += 1
    assert observed == {3, 4}
    assert states > 50


def go_on_after_the_crash(place: Path, keep: int) -> None:
    """Act as the next attempt: look, tidy, write."""
    damaged = [entry for entry in files.newest_first(str(place)) if files.objection(str(place), entry)]
    files.drop_parts(str(place), 2)
    newer = put(place, 5, b"after the restart", attempt=2)
    files.drop_old(str(place), newer, keep, damaged)


def test_a_reader_beside_a_writer_always_reads_a_complete_checkpoint(tmp_path) -> None:
    put(tmp_path, 1)
    for step in itertools.islice(itertools.count(2), 30):
        result = put(tmp_path, step)
        before = files.newest_first(str(tmp_path))
        files.drop_old(str(tmp_path), result, 1, ())
        remaining = [entry for entry in before if (tmp_path / entry.name).exists()]
        assert remaining == [result]
