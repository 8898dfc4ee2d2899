import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as some  # noqa: E402

import memory  # noqa: E402
from fitting import OnCPU, OnGPU, largest  # noqa: E402

MEBIBYTE = 2**20


@given(some.integers(0, 5000), some.integers(1, 5000))
def test_the_search_finds_a_fake_limit_within_a_sixteenth_and_never_doubles_it(fake_limit, ceiling) -> None:
    requested = []

    def fits(size):
        requested.append(size)
        return size <= fake_limit

    result = largest(fits, ceiling)
    best = min(fake_limit, ceiling)
    assert best - max(1, best // 16) <= result <= best
    assert result == best or best > 1
    assert max(requested) <= max(1, min(2 * max(1, best), ceiling))
    assert len(requested) == len(set(requested)) <= 2 * ceiling.bit_length() + 1


def test_a_batch_in_real_memory_stays_below_the_limit_and_comes_near_it() -> None:
    memory.trim()
    room = 64
    most = []

    def trial(size):
        most.append(size)
        torch.ones(size * MEBIBYTE, dtype=torch.uint8)

    fits = OnCPU(trial, memory.resident() + room * MEBIBYTE)
    result = largest(fits, 10_000)
    assert room * 2 // 3 <= result <= room
    assert max(most) <= room
    assert fits.tries == len(most)


def test_a_gpu_that_is_out_of_memory_is_believed_with_the_error_from_a_fake(monkeypatch) -> None:
    def trial(size):
        if size > 100:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    fits = OnGPU(trial)
    assert 94 <= largest(fits, 1000) <= 100
    assert 8 < fits.tries < 16


def test_another_error_of_a_trial_is_not_taken_for_a_lack_of_memory() -> None:
    def trial(size):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        OnGPU(trial)(1)
