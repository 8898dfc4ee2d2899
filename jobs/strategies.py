"""Choose a strategy, and distribute a model over devices and ranks."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ranks import World

STRATEGIES = ("single", "dp", "ddp", "ddp-spawn", "fsdp")


@dataclass(frozen=True)
class Choice:
    """The requested strategy and the strategy that runs."""

    asked: str
    runs_as: str
    gpus: int = 0  # GPUs of one process under DataParallel, else 0
    notice: str = ""

    @property
    def needs_group(self) -> bool:
        """Return whether the strategy needs a process group, even for a single rank."""
        return self.runs_as in ("ddp", "fsdp")


def chosen(strategy: str, world: World, gpus: int) -> Choice:
    """Return the choice for a requested strategy on a machine with ``gpus`` GPUs; '' means the default.

    Raises RuntimeError if the world cannot run it.
    """
    if not strategy:
        name = "ddp" if world.size > 1 else "single"
        return Choice(name, name)
    if strategy in ("single", "dp") and world.size > 1:
        raise RuntimeError(
            f"--strategy {strategy} trains in one process, and a launcher started {world.size} ranks: "
            "each would train the same alone; start one rank, or use --strategy ddp"
        )
    if strategy == "ddp-spawn":
        return Choice(strategy, "ddp")
    if strategy != "dp":
        return Choice(strategy, strategy)
    if world.device.type == "cuda" and gpus > 1:
        return Choice("dp", "dp", gpus)
    visible = f"torch sees {gpus}" if world.device.type == "cuda" or not gpus else "this run is on the CPU"
    why = f"DataParallel needs 2 GPUs or more in one process, and {visible}: training as single"
    return Choice("dp", "single", notice=why)


def spread(
    model: nn.Module, world: World, choice: Choice, bucket_mb: float = 25.0, find_unused: bool = False
) -> nn.Module:
    """Return the model, distributed as chosen. Bucket size (MiB) and unused parameters are for DDP."""
    if choice.runs_as == "dp":
        return DataParallel(model, device_ids=list(range(choice.gpus)))
    if choice.runs_as == "ddp":
        return DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, find_unused_parameters=find_unused, gradient_as_bucket_view=True
        )
    return sharded(model, world) if choice.runs_as == "fsdp" else model


def sharded(model: nn.Module, world: World) -> nn.Module:
    """Return the model with each parameter split over the ranks (FSDP2).

    Each block is gathered before it computes and released after it.
    """
    fully_shard = sharding()
    mesh = torch.distributed.init_device_mesh(world.device.type, (world.size,))
    blocks: Any = getattr(model, "blocks", ())
    for block in blocks:
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def sharding() -> Callable[..., Any]:
    """Return ``fully_shard`` of PyTorch. Raise RuntimeError if it does not exist."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        try:
            # Its place in torch 2.4 and 2.5.
            from torch.distributed._composable.fsdp import fully_shard
        except ImportError:
            raise RuntimeError(
                f"--strategy fsdp needs fully_shard, and torch {torch.__version__} has none: "
                "install torch 2.4 or newer, or use --strategy ddp"
            ) from None
    return fully_shard  # type: ignore[no-any-return]


@contextlib.contextmanager
def gradients_kept(model: nn.Module, is_kept: bool) -> Iterator[None]:
    """Return a context that accumulates gradients without sending them if ``kept``."""
    if not is_kept:
        yield
    elif isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


def bare(model: nn.Module) -> nn.Module:
    """Return the network without its wrapper."""
    spreads = isinstance(model, DistributedDataParallel | DataParallel)
    return model.module if spreads else model


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the state of model and optimizer for a checkpoint of any strategy and world size.

    Every rank must call it, because FSDP gathers the parts.
    """
    return {"model": gathered(bare(model).state_dict()), "optimizer": gathered(optimizer.state_dict())}


def digest(model: nn.Module) -> str:
    """Return 16 hexadecimal digits of a hash of all weights. Every rank must call it."""
    summed = hashlib.sha256()
    for name, weights in sorted(gathered(bare(model).state_dict()).items()):
        whole = weights.detach().cpu().contiguous()
        summed.update(f"{name} {whole.dtype} {tuple(whole.shape)}\n".encode())
        summed.update(ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()))
    return summed.hexdigest()[:16]


def gathered(value: Any) -> Any:
    """Return the same dicts with every split tensor gathered."""
    if isinstance(value, dict):
        return {name: gathered(item) for name, item in value.items()}
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a gathered state, and split it like the parameters."""
    optimizer.load_state_dict(state)
    if any(hasattr(parameter, "full_tensor") for parameter in optimizer.state):
        cut_like_parameters(optimizer)


def cut_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Split each parameter's state like the parameter."""
    try:
        from torch.distributed.tensor import distribute_tensor
    except ImportError:
        # Its place in torch 2.4.
        from torch.distributed._tensor import distribute_tensor
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                state[name] = distribute_tensor(value, parameter.device_mesh, parameter.placements)
