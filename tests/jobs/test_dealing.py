import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as some  # noqa: E402

import digits  # noqa: E402
from dealing import Dealer, Dealt, GlobalBatches, loaded, part  # noqa: E402

worlds = some.integers(1, 20)
sets = some.builds(GlobalBatches, some.integers(1, 400), some.integers(1, 150), some.integers(0, 2**31))


@settings(deadline=None)
@given(sets, worlds, some.integers(0, 5))
def test_every_sample_of_an_epoch_goes_to_exactly_one_rank(batches, size, epoch) -> None:
    steps = list(batches.steps(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch))
    dealt = [
        index for _, batch in steps for rank in range(size) for index in part(batch, rank, size).tolist()
    ]
    assert sorted(dealt) == list(range(batches.samples))


@settings(deadline=None)
@given(sets, worlds)
def test_the_parts_of_a_batch_differ_by_at_most_one_sample(batches, size) -> None:
    for _, batch in batches.steps(0, batches.per_epoch):
        lengths = {len(part(batch, rank, size)) for rank in range(size)}
        assert max(lengths) - min(lengths) <= 1


@settings(deadline=None)
@given(sets, some.integers(0, 40), some.integers(0, 40))
def test_starting_in_the_middle_gives_the_batches_that_an_uninterrupted_walk_gives(
    batches, first, more
) -> None:
    whole = list(batches.steps(0, first + more))[first:]
    rest = list(batches.steps(first, first + more))
    assert [(step, batch.tolist()) for step, batch in rest] == [
        (step, batch.tolist()) for step, batch in whole
    ]


def test_epochs_and_seeds_are_shuffled_differently() -> None:
    orders = {
        tuple(GlobalBatches(50, 5, seed).order(epoch).tolist()) for seed in (0, 1) for epoch in (0, 1, 2)
    }
    assert len(orders) == 6


@pytest.mark.parametrize(("samples", "batch"), [(0, 1), (1, 0), (5, -2)])
def test_no_samples_and_no_batch_are_refused(samples, batch) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        GlobalBatches(samples, batch, 0)


def dealt(workers, first=0):
    training, _ = digits.load()
    batches = GlobalBatches(len(training), 300, seed=4)
    dealer = Dealer(training, seed=4, rank=1, size=3, vary=True)
    return list(loaded(dealer, batches.steps(first, 6), workers, pinned=False))


def test_a_ranks_samples_depend_on_the_step_and_not_on_the_loader() -> None:
    local, elsewhere, resumed = dealt(workers=0), dealt(workers=2), dealt(workers=0, first=4)
    assert [entry.step for entry in local] == [0, 1, 2, 3, 4, 5]
    for expected, result in [*zip(local, elsewhere, strict=True), *zip(local[4:], resumed, strict=True)]:
        assert (expected.step, expected.total) == (result.step, result.total)
        assert torch.equal(expected.inputs, result.inputs)
        assert torch.equal(expected.targets, result.targets)


def test_micro_batches_hold_every_sample_once_and_may_be_empty() -> None:
    whole = Dealt(0, 2, torch.arange(2), torch.arange(2))
    pieces = list(whole.split(3, torch.device("cpu")))
    assert [inputs.tolist() for inputs, _ in pieces] == [[0], [1], []]
