import pytest

torch = pytest.importorskip("torch")

import text  # noqa: E402


def test_the_shipped_book_is_complete() -> None:
    training, held_out, alphabet = text.load()
    assert (len(training.characters), len(held_out.characters), alphabet) == (133628, 14848, 72)
    assert (len(training), len(held_out)) == (8348, 231)


def test_a_target_is_the_character_that_follows() -> None:
    windows = text.Windows(torch.arange(20), stride=5, block=8)
    assert len(windows) == 3
    inputs, targets = windows.at(torch.tensor([0, 2]))
    assert inputs.tolist() == [list(range(8)), list(range(10, 18))]
    assert targets.tolist() == [list(range(1, 9)), list(range(11, 19))]
