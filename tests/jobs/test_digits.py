import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402

from digits import GlobalBatches, load, part  # noqa: E402

worlds = some.integers(1, 20)
sets = some.builds(GlobalBatches, some.integers(1, 400), some.integers(1, 150), some.integers(0, 2**31))


@settings(deadline=None)
@given(sets, worlds, some.integers(0, 5))
def test_in_an_epoch_every_sample_goes_to_exactly_one_rank_once(batches, size, epoch):
    steps = list(batches.steps(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch))
    dealt = [
        index for _, batch in steps for rank in range(size) for index in part(batch, rank, size).tolist()
    ]
    assert sorted(dealt) == list(range(batches.samples))


@settings(deadline=None)
@given(sets, worlds)
def test_the_parts_of_a_batch_differ_by_at_most_one_sample(batches, size):
    for _, batch in batches.steps(0, batches.per_epoch):
        lengths = {len(part(batch, rank, size)) for rank in range(size)}
        assert max(lengths) - min(lengths) <= 1


@settings(deadline=None)
@given(sets, some.integers(0, 40), some.integers(0, 40))
def test_starting_in_the_middle_gives_the_batches_that_an_uninterrupted_walk_gives(batches, first, more):
    whole = list(batches.steps(0, first + more))[first:]
    rest = list(batches.steps(first, first + more))
    assert [(step, batch.tolist()) for step, batch in rest] == [
        (step, batch.tolist()) for step, batch in whole
    ]


def test_epochs_and_seeds_are_shuffled_differently():
    orders = {
        tuple(GlobalBatches(50, 5, seed).order(epoch).tolist()) for seed in (0, 1) for epoch in (0, 1, 2)
    }
    assert len(orders) == 6


@pytest.mark.parametrize(("samples", "batch"), [(0, 1), (1, 0), (5, -2)])
def test_no_samples_and_no_batch_are_refused(samples, batch):
    with pytest.raises(ValueError, match="both must be at least 1"):
        GlobalBatches(samples, batch, 0)


def test_the_shipped_digits_are_whole():
    training, held_out = load()
    assert (len(training), len(held_out)) == (1437, 360)
    assert training.images.shape == (1437, 1, 8, 8)
    together = torch.cat([training.labels, held_out.labels])
    assert together.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (training.images.min(), training.images.max()) == (0, 1)
