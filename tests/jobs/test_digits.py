import pytest

torch = pytest.importorskip("torch")

from digits import Digits, load, shifted  # noqa: E402


def test_the_shipped_digits_are_complete() -> None:
    training, held_out = load()
    assert (len(training), len(held_out)) == (1437, 360)
    assert training.images.shape == (1437, 1, 8, 8)
    together = torch.cat([training.labels, held_out.labels])
    assert together.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (training.images.min(), training.images.max()) == (0, 1)


def test_an_enlarged_digit_has_squares_for_pixels() -> None:
    image = torch.arange(4.0).reshape(1, 1, 2, 2)
    result, label = Digits(image, torch.tensor([7]), enlarged=2).at(torch.tensor([0]))
    assert result[0, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
    assert label.tolist() == [7]


def test_a_shifted_image_moves_by_a_bounded_number_of_pixels() -> None:
    images = torch.zeros(500, 1, 8, 8)
    images[:, 0, 4, 4] = 1
    moved = shifted(images, 2)
    places = {tuple(place) for place in moved.nonzero()[:, 2:].tolist()}
    assert places == {(row, column) for row in range(2, 7) for column in range(2, 7)}
    assert moved.sum() == 500
