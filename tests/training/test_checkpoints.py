"""Checkpoints of one process, and of three that form a group."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from clusterrun.training import CheckpointRefused, Checkpoints, OldAttempt, latest_checkpoint, script  # noqa: E402
from clusterrun.training.script import Script  # noqa: E402
from clusterrun.training.surroundings import Surroundings  # noqa: E402
from tests.training.of_gloo import several  # noqa: E402


@pytest.fixture(autouse=True)
def attempt(monkeypatch):
    """Return a function that makes this process one of an attempt of a run in a folder."""

    def of(run_dir: object = "", number: int = 0) -> None:
        monkeypatch.setattr(script, "_current", [Script(Surroundings(str(run_dir), number))])

    of()
    return of


def names(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[0] + "." + path.name.split(".")[1] for path in folder.iterdir())


def only(folder: Path, step: int) -> Path:
    (path,) = folder.glob(f"step-{step:09d}.*")
    return path


def spoil(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_saved_checkpoints_are_read_back_and_the_last_two_stay(tmp_path) -> None:
    retained = Checkpoints(tmp_path / "made" / "here")
    assert retained.latest() is None
    for step in (9, 10, 100):
        assert retained.save({"step": step, "weights": torch.arange(4)}, step)
    result = Checkpoints(tmp_path / "made" / "here").latest()
    assert (result["step"], result["weights"].tolist()) == (100, [0, 1, 2, 3])
    assert names(tmp_path / "made" / "here") == ["step-000000010.a0", "step-000000100.a0"]
    assert latest_checkpoint(str(tmp_path / "made" / "here")) == str(only(tmp_path / "made" / "here", 100))


def test_a_damaged_newest_checkpoint_is_reported_and_the_previous_is_used(tmp_path, capsys) -> None:
    retained = Checkpoints(tmp_path)
    retained.save(1, 1)
    retained.save(2, 2)
    damaged = only(tmp_path, 2)
    spoil(damaged)
    assert Checkpoints(tmp_path).latest() == 1
    message = f"checkpoint {damaged} is damaged (its checksum differs) and is skipped\n"
    assert capsys.readouterr().err == message


def test_each_damaged_checkpoint_is_reported_and_none_is_used(tmp_path, capsys) -> None:
    retained = Checkpoints(tmp_path)
    for step in (1, 2):
        retained.save(step, step)
        spoil(only(tmp_path, step))
    assert latest_checkpoint(tmp_path) == ""
    assert capsys.readouterr().err.count("is damaged") == 2


def test_a_resumed_training_keeps_a_good_checkpoint_beside_a_skipped_damaged_one(tmp_path) -> None:
    first = Checkpoints(tmp_path, keep=1)
    first.save(3, 3)
    Checkpoints(tmp_path, keep=2).save(5, 5)
    spoil(only(tmp_path, 5))
    resumed = Checkpoints(tmp_path, keep=1)
    assert resumed.latest() == 3
    resumed.save(4, 4)
    assert names(tmp_path) == ["step-000000004.a0", "step-000000005.a0"]
    resumed.save(6, 6)
    assert names(tmp_path) == ["step-000000006.a0"]


def test_checkpoints_of_the_script_as_it_was_before_attempts_had_a_place_in_the_name_are_read(
    tmp_path,
) -> None:
    Checkpoints(tmp_path).save({"step": 7}, 7)
    path = only(tmp_path, 7)
    path.rename(tmp_path / path.name.replace(".a0.", "."))
    assert Checkpoints(tmp_path).latest() == {"step": 7}


def test_a_file_that_needs_trust_is_not_taken_for_damaged(tmp_path) -> None:
    Checkpoints(tmp_path).save({"where": Path("a")}, 1)
    with pytest.raises(Exception, match="weights_only"):
        Checkpoints(tmp_path).latest()
    assert Checkpoints(tmp_path, trusted=True).latest() == {"where": Path("a")}


def test_keeping_no_checkpoint_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="keep=0"):
        Checkpoints(tmp_path, keep=0)


def test_an_unsavable_object_is_an_error_and_leaves_no_file(tmp_path) -> None:
    with pytest.raises(Exception, match=r"(?i)pickle"):
        Checkpoints(tmp_path).save({"made on the spot": lambda: None}, 1)
    assert names(tmp_path) == []


# --- the disk ---


def failing(monkeypatch, code: int) -> None:
    def fails(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fails)


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE], ids=errno.errorcode.get
)
def test_a_full_disk_is_reported_and_training_continues_after_the_first_checkpoint(
    tmp_path, monkeypatch, capsys, code
) -> None:
    retained = Checkpoints(tmp_path)
    with monkeypatch.context() as broken:
        failing(broken, code)
        assert retained.save(1, 1) is False
    why = f"cannot be written to {tmp_path}: {os.strerror(code)}"
    assert capsys.readouterr().err == f"checkpoint of step 1 {why}; none yet, training continues\n"
    assert retained.save(2, 2) is True
    with monkeypatch.context() as broken:
        failing(broken, code)
        assert retained.save(3, 3) is False
    last = "the last good one is of step 2, training continues\n"
    assert capsys.readouterr().err == f"checkpoint of step 3 {why}; {last}"
    assert retained.save(4, 4) is True
    assert names(tmp_path) == ["step-000000002.a0", "step-000000004.a0"]


def test_a_first_checkpoint_that_could_not_be_written_next_week_either_is_an_error(
    tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointRefused, match=rf"checkpoint of step 5 .*{tmp_path}/file: File exists"):
        Checkpoints(tmp_path / "file").save(5, 5)
    failing(monkeypatch, errno.EROFS)
    with pytest.raises(CheckpointRefused, match="Read-only file system"):
        Checkpoints(tmp_path / "there").save(5, 5)
    monkeypatch.undo()
    retained = Checkpoints(tmp_path / "there")
    retained.save(5, 5)
    failing(monkeypatch, errno.EROFS)
    assert retained.save(6, 6) is False
    assert names(tmp_path / "there") == ["step-000000005.a0"]


def test_an_unreadable_folder_is_not_treated_as_empty(tmp_path, monkeypatch) -> None:
    Checkpoints(tmp_path).save(1, 1)

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", forbidden)
    with pytest.raises(PermissionError):
        Checkpoints(tmp_path).latest()


def test_a_second_training_in_the_same_folder_is_suspected_aloud(tmp_path, capsys) -> None:
    retained = Checkpoints(tmp_path)
    retained.save(1, 1)
    Checkpoints(tmp_path, keep=1).save(1000, 1000)
    retained.save(2, 2)
    assert "step-000000001.a0" in capsys.readouterr().err.split(": does another run write to it?")[0]


# --- attempts ---


def test_the_name_has_the_attempt_and_the_progress_has_the_checkpoint(tmp_path, attempt) -> None:
    os.makedirs(tmp_path / "attempts" / "003")
    attempt(tmp_path, 3)
    Checkpoints(tmp_path / "kept").save(8, 8)
    script.current_script()._at_exit()
    assert names(tmp_path / "kept") == ["step-000000008.a3"]
    with open(tmp_path / "attempts" / "003" / "progress.json", encoding="ascii") as file:
        assert json.load(file)["checkpoint"] == 8


def test_an_old_attempt_writes_and_removes_nothing_after_a_newer_attempt_began(tmp_path, attempt) -> None:
    for number in (0, 1):
        os.makedirs(tmp_path / "attempts" / f"{number:03d}")
    attempt(tmp_path, 1)
    Checkpoints(tmp_path / "kept", keep=1).save("new", 5)
    attempt(tmp_path, 0)
    with pytest.raises(OldAttempt, match="attempt 1 of this run has begun, this process is of attempt 0"):
        Checkpoints(tmp_path / "kept", keep=1).save("old", 9)
    assert names(tmp_path / "kept") == ["step-000000005.a1"]


def test_a_newer_attempt_that_begins_during_the_writing_comes_in_time(tmp_path, attempt, monkeypatch) -> None:
    os.makedirs(tmp_path / "attempts" / "000")
    attempt(tmp_path, 0)
    save = torch.save

    def save_and_be_restarted(state, file):
        save(state, file)
        os.makedirs(tmp_path / "attempts" / "001")

    monkeypatch.setattr(torch, "save", save_and_be_restarted)
    with pytest.raises(OldAttempt):
        Checkpoints(tmp_path / "kept").save("old", 9)
    assert names(tmp_path / "kept") == []


# --- several ranks ---


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return the results of three ranks by the name of the case (see of_gloo.py), and the folder."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, several(3, str(folder))


def of_all(ranks, case: str) -> list:
    return [rank[case] for rank in ranks[1]]


def test_a_checkpoint_is_written_by_rank_0_and_read_by_all(ranks) -> None:
    assert of_all(ranks, "saved") == [[True, True, {"weights": [0, 1, 2]}]] * 3
    assert names(ranks[0] / "saved") == ["step-000000001.a0", "step-000000002.a0"]


def test_ranks_that_do_not_see_the_folder_get_the_state_from_rank_0(ranks) -> None:
    assert of_all(ranks, "sent") == [{"weights": [5]}] * 3


def test_all_ranks_hear_that_the_disk_refused(ranks) -> None:
    assert of_all(ranks, "full") == [False] * 3


def test_an_error_that_prevents_rank_0_from_writing_is_raised_on_every_rank(ranks) -> None:
    assert [kind for kind, _ in of_all(ranks, "unwritable")] == ["CheckpointRefused"] * 3
    kinds = [kind for kind, _ in of_all(ranks, "unpicklable")]
    assert kinds[0] != "CheckpointRefused"
    assert kinds[1:] == ["CheckpointRefused"] * 2
    assert [kind for kind, _ in of_all(ranks, "old")] == ["OldAttempt"] * 3


def test_ranks_agree_on_the_newest_complete_checkpoint(ranks) -> None:
    (result,) = {*of_all(ranks, "newest")}
    assert os.path.basename(result).startswith("step-000000001.a0.")


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_requests_one_checkpoint(ranks) -> None:
    steps = of_all(ranks, "signal")
    assert steps == [steps[0]] * 3
    stopped, saved = steps[0]
    assert stopped is not None
    assert len(saved) == 1


def test_a_notice_in_the_run_directory_is_read_by_rank_0_alone_and_stops_all(ranks) -> None:
    assert of_all(ranks, "notice") == [True] * 3
    with open(ranks[0] / "run" / "attempts" / "000" / "progress.json", encoding="ascii") as file:
        assert json.load(file)["stopping"] is True
