import os
import random

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

import seeds  # noqa: E402


def drawn(*place):
    seeds.seed_rank(*place)
    return random.random(), torch.rand(()).item(), numpy.random.random()


def test_every_rank_step_and_purpose_has_its_own_repeatable_random_numbers() -> None:
    requested = [
        (seed, rank, step, purpose)
        for seed in (0, 1)
        for rank in (0, 1, 12)
        for step in (0, 1, 21)
        for purpose in ("step", "loading")
    ]
    streams = [drawn(*entry) for entry in requested]
    assert len({entry for several in streams for entry in several}) == 3 * len(requested)
    assert streams == [drawn(*entry) for entry in requested]


def test_exact_repetition_sets_pytorch_and_cublas_options(monkeypatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        seeds.repeat_exactly()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
