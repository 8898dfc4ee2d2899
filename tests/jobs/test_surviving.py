"""The training script finds clusterrun.training, and trains without it."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import surviving  # noqa: E402
from ranks import World  # noqa: E402

ALONE = World(0, 0, 1, 1, torch.device("cpu"), grouped=False)


@pytest.fixture
def not_installed(monkeypatch):
    """Remove clusterrun from this Python."""
    monkeypatch.setitem(sys.modules, "clusterrun", None)
    monkeypatch.delitem(sys.modules, "clusterrun.training", raising=False)
    monkeypatch.delitem(sys.modules, surviving.NAME, raising=False)


def options(folder=None) -> Namespace:
    return Namespace(checkpoint_every=2, checkpoint_dir=folder)


def test_the_training_module_is_imported_from_a_checkout_without_installation(
    not_installed, monkeypatch
) -> None:
    result = surviving.room()
    assert result.__name__ == surviving.NAME
    assert Path(result.__file__).parent == surviving.HERE.parent / "clusterrun" / "training"
    assert surviving.room() is result
    assert not result.should_stop()
    for name in [name for name in sys.modules if name.startswith(surviving.NAME)]:
        monkeypatch.delitem(sys.modules, name)


def test_training_without_a_folder_makes_no_checkpoints_and_refuses_to_promise_them(
    not_installed, monkeypatch
) -> None:
    monkeypatch.setattr(surviving, "COPIES", ())
    keeper = surviving.Keeper(options(), ALONE)
    keeper.stepped(1, 1, dict)
    assert not keeper.stopped
    with pytest.raises(
        RuntimeError, match=r"--checkpoint-dir needs clusterrun\.training: pip install clusterrun, or"
    ):
        surviving.Keeper(options("there"), ALONE)


def test_a_checkpoint_is_written_at_intervals_at_the_last_step_and_on_request(tmp_path, monkeypatch) -> None:
    keeper = surviving.Keeper(options(tmp_path), ALONE)
    saved = []
    monkeypatch.setattr(keeper._kept, "save", lambda state, step: saved.append((state, step)))
    wishes = iter([False, False, True, False, False])
    monkeypatch.setattr(keeper._room, "save_now", lambda: next(wishes))
    for number in range(1, 6):
        keeper.stepped(number, 5, lambda: {"weights": 1})
    assert saved == [({"weights": 1, "step": step}, step) for step in (2, 3, 4, 5)]
    assert not keeper.stopped


def test_a_notice_at_the_last_step_does_not_stop_a_complete_training(tmp_path, monkeypatch) -> None:
    keeper = surviving.Keeper(options(tmp_path), ALONE)
    monkeypatch.setattr(keeper._room, "should_stop", lambda: True)
    stopped = []
    for result in (1, 2):
        keeper.stepped(result, 2, dict)
        stopped.append(keeper.stopped)
    assert stopped == [True, False]
