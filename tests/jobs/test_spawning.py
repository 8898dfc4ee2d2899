import pytest

torch = pytest.importorskip("torch")

import spawning  # noqa: E402


@pytest.mark.parametrize(
    ("expected", "surrounding", "gpus", "ranks"),
    [
        (3, {"NPROC_PER_NODE": "8"}, 2, 3),
        (None, {"NPROC_PER_NODE": "8", "NNODES": "1"}, 2, 8),
        (None, {}, 2, 2),
    ],
)
def test_the_number_of_ranks_is_the_requested_else_the_launchers_else_one_per_fake_gpu(
    monkeypatch, expected, surrounding, gpus, ranks
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert spawning.how_many(expected, surrounding, "auto") == ranks


@pytest.mark.parametrize(
    ("surrounding", "message"),
    [
        ({"RANK": "0"}, "start it once per node .*--per-node"),
        ({"NNODES": "2"}, "runs on one node, and this run has 2: use --strategy ddp"),
    ],
)
def test_impossible_spawning_is_refused_with_the_reason(surrounding, message) -> None:
    with pytest.raises(RuntimeError, match=message):
        spawning.how_many(2, surrounding, "cpu")
