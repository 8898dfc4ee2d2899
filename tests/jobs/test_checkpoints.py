import os

import pytest

torch = pytest.importorskip("torch")

import checkpoints  # noqa: E402


def names(directory):
    return sorted(path.name.split(".")[0] for path in directory.iterdir())


def test_what_was_written_is_read_back(tmp_path):
    checkpoints.write(tmp_path / "made", 3, {"step": 3, "weights": torch.arange(4)})
    found = checkpoints.newest(tmp_path / "made")
    assert found["step"] == 3
    assert found["weights"].tolist() == [0, 1, 2, 3]


def test_the_newest_two_stay(tmp_path):
    for step in (9, 10, 11, 100):
        checkpoints.write(tmp_path, step, {"step": step})
    assert names(tmp_path) == ["step-000000011", "step-000000100"]


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-1], lambda whole: b"", lambda whole: b"X" + whole[1:]]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path, capsys, damage):
    checkpoints.write(tmp_path, 1, {"step": 1})
    newest = checkpoints.write(tmp_path, 2, {"step": 2})
    newest.write_bytes(damage(newest.read_bytes()))
    assert checkpoints.newest(tmp_path) == {"step": 1}
    expected = f"checkpoint {newest} is damaged (its checksum differs) and is passed over\n"
    assert capsys.readouterr().err == expected


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    checkpoints.write(tmp_path, 1, {"step": 1})

    def disk_full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write(tmp_path, 2, {"step": 2})
    assert names(tmp_path) == ["step-000000001"]
    assert checkpoints.newest(tmp_path) == {"step": 1}


def test_where_nothing_was_written_there_is_nothing_to_resume(tmp_path):
    assert checkpoints.newest(tmp_path / "never") is None
