import pytest

torch = pytest.importorskip("torch")

import contextlib  # noqa: E402
import sys  # noqa: E402

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import strategies  # noqa: E402
from ranks import World  # noqa: E402
from strategies import Choice, chosen  # noqa: E402

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ALONE, ALONE_ON_GPU = World(0, 0, 1, 1, CPU, False), World(0, 0, 1, 1, GPU, False)
OF_FOUR = World(1, 1, 4, 4, CPU, True)
NEEDS = "DataParallel needs 2 GPUs or more in one process, and "


@pytest.mark.parametrize(
    ("requested", "world", "gpus", "choice"),
    [
        ("", ALONE, 0, Choice("single", "single")),
        ("", OF_FOUR, 0, Choice("ddp", "ddp")),
        ("single", ALONE, 8, Choice("single", "single")),
        ("ddp", ALONE, 0, Choice("ddp", "ddp")),
        ("fsdp", OF_FOUR, 0, Choice("fsdp", "fsdp")),
        ("ddp-spawn", OF_FOUR, 0, Choice("ddp-spawn", "ddp")),
        ("dp", ALONE_ON_GPU, 4, Choice("dp", "dp", gpus=4)),
        ("dp", ALONE_ON_GPU, 1, Choice("dp", "single", notice=NEEDS + "torch sees 1: training as single")),
        ("dp", ALONE, 0, Choice("dp", "single", notice=NEEDS + "torch sees 0: training as single")),
        ("dp", ALONE, 4, Choice("dp", "single", notice=NEEDS + "this run is on the CPU: training as single")),
    ],
)
def test_the_requested_strategy_runs_or_a_reason_is_reported(requested, world, gpus, choice) -> None:
    assert chosen(requested, world, gpus) == choice


@pytest.mark.parametrize("requested", ["single", "dp"])
def test_strategies_of_one_process_are_refused_in_four_processes(requested) -> None:
    with pytest.raises(
        RuntimeError, match=f"--strategy {requested} trains in one process, .* 4 ranks: .*ddp"
    ):
        chosen(requested, OF_FOUR, 0)


def test_a_torch_without_sharding_is_named_with_imports_that_fail_as_a_fake(monkeypatch) -> None:
    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match=r"needs fully_shard, and torch .* has none: install torch 2\.4"):
        strategies.sharding()


def test_a_model_under_data_parallel_is_wrapped_once_and_owns_its_state_on_fake_gpus() -> None:
    network = nn.Linear(2, 2)
    model = strategies.spread(network, ALONE_ON_GPU, Choice("dp", "dp", gpus=2))
    assert isinstance(model, nn.DataParallel)
    assert strategies.bare(model) is network
    state = strategies.whole_state(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(state["model"]) == ["weight", "bias"]


@contextlib.contextmanager
def a_group_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield World(0, 0, 1, 1, CPU, True)
    finally:
        dist.destroy_process_group()


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, numbers):
        return self.used(numbers)


def two_steps(model):
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def test_ddp_needs_find_unused_if_a_step_does_not_use_all_parameters() -> None:
    with a_group_of_one() as world:
        ddp = Choice("ddp", "ddp")
        with pytest.raises(RuntimeError, match="find_unused_parameters=True"):
            two_steps(strategies.spread(HalfUsed(), world, ddp))
        two_steps(strategies.spread(HalfUsed(), world, ddp, find_unused=True))


def test_the_bucket_size_is_the_requested_size() -> None:
    layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    sizes = {}
    with a_group_of_one() as world:
        for mebibytes in (0.25, 100.0):
            model = strategies.spread(layers, world, Choice("ddp", "ddp"), bucket_mb=mebibytes)
            # DDP builds its buckets anew from the order in which the first step's gradients came.
            for _ in range(3):
                model(torch.ones(1, 256)).sum().backward()
            sizes[mebibytes] = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert sizes == {0.25: ", ".join(["262144"] * 8), 100.0: str(8 * 262144)}
