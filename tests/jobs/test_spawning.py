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
def test_as_many_ranks_start_as_asked_else_as_the_launcher_says_else_one_per_gpu_of_a_fake_torch(
    monkeypatch, expected, surrounding, gpus, ranks
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert spawning.how_many(expected, surrounding, "auto") == ranks


@pytest.mark.parametrize(
    ("surrounding", "message"),
    [
        ({"RANK": "0"}, "start it once per node .*--per-node"),
        ({"NNODES": "2"}, "runs on one node, and this run has 2: use --strategy ddp"),
    ],
)
def test_where_spawning_cannot_be_the_reason_is_said(surrounding, message):
    with pytest.raises(RuntimeError, match=message):
        spawning.how_many(2, surrounding, "cpu")
