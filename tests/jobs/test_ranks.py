import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import ranks  # noqa: E402

LAUNCHED = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
MASTER = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
CPU = torch.device("cpu")


def test_the_launcher_determines_rank_and_world() -> None:
    assert ranks.place({**LAUNCHED, **MASTER}, "cpu") == ranks.World(5, 1, 8, 4, CPU, grouped=True)


def test_a_script_without_a_launcher_has_one_rank_and_no_group() -> None:
    world = ranks.place({}, "cpu")
    assert world == ranks.World(0, 0, 1, 1, CPU, grouped=False)
    assert world.backend == "none"


@pytest.mark.parametrize("lost", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_half_set_environment_is_refused_by_name(lost) -> None:
    environment = {**LAUNCHED, **MASTER, lost: ""}
    with pytest.raises(RuntimeError, match=f"but not {lost}:"):
        ranks.place(environment, "cpu")


@pytest.mark.parametrize(("gpus", "kind"), [(1, "auto"), (1, "cuda"), (0, "cuda")])
def test_a_rank_without_a_gpu_of_its_own_is_refused_with_counts_from_a_fake_torch(
    monkeypatch, gpus, kind
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(RuntimeError, match=f"local rank 1 on .* has no GPU: .* sees {gpus}; .*--device cpu"):
        ranks.pick_device(kind, 1)


@pytest.mark.parametrize(
    ("gpus", "kind", "device"), [(2, "auto", "cuda:1"), (2, "cpu", "cpu"), (0, "auto", "cpu")]
)
def test_a_rank_uses_the_gpu_of_its_number_of_a_fake_torch(monkeypatch, gpus, kind, device) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert ranks.pick_device(kind, 1) == torch.device(device)


def test_an_empty_list_of_gpus_means_the_cpu_even_if_a_fake_torch_sees_a_gpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert ranks.pick_device("auto", 1, visible="") == CPU
    assert ranks.pick_device("auto", 0, visible="0") == ranks.pick_device("cuda", 0, visible="")


def test_a_world_of_gpu_and_cpu_ranks_is_refused() -> None:
    store = dist.HashStore()
    ranks.agree_on_device(ranks.World(0, 0, 2, 1, torch.device("cuda", 0), grouped=True), store)
    with pytest.raises(RuntimeError, match=r"rank 0 computes on cuda, but rank 1 on \S+ on cpu"):
        ranks.agree_on_device(ranks.World(1, 0, 2, 1, CPU, grouped=True), store)
