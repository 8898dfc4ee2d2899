"""How a model is spread over devices and ranks, and why one way was taken; knows no task and no data."""

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
    """The strategy that was asked for, and the one that this machine runs in its place."""

    asked: str
    runs_as: str
    gpus: int = 0
    """The GPUs that one process spreads its batch over: of DataParallel, else 0."""
    notice: str = ""

    @property
    def needs_group(self) -> bool:
        """Whether its ranks speak to each other, be it only one that speaks to itself."""
        return self.runs_as in ("ddp", "fsdp")


def chosen(asked: str, world: World, gpus: int) -> Choice:
    """What runs for the strategy asked for (none: what suits the world), on a machine with so many GPUs.

    Raises RuntimeError for what the world cannot run.
    """
    if not asked:
        name = "ddp" if world.size > 1 else "single"
        return Choice(name, name)
    if asked in ("single", "dp") and world.size > 1:
        raise RuntimeError(
            f"--strategy {asked} trains in one process, and a launcher started {world.size} ranks: "
            "each would train the same alone; start one rank, or take --strategy ddp"
        )
    if asked == "ddp-spawn":
        return Choice(asked, "ddp")
    if asked != "dp":
        return Choice(asked, asked)
    if world.device.type == "cuda" and gpus > 1:
        return Choice("dp", "dp", gpus)
    seen = f"torch sees {gpus}" if world.device.type == "cuda" or not gpus else "this run is on the CPU"
    why = f"DataParallel needs 2 GPUs or more in one process, and {seen}: training as single"
    return Choice("dp", "single", notice=why)


def spread(
    model: nn.Module, world: World, choice: Choice, bucket_mb: float = 25.0, find_unused: bool = False
) -> nn.Module:
    """The model on its devices, spread as chosen; bucket size (MiB) and unused parameters are DDP's."""
    if choice.runs_as == "dp":
        return DataParallel(model, device_ids=list(range(choice.gpus)))
    if choice.runs_as == "ddp":
        return DistributedDataParallel(
            model, bucket_cap_mb=bucket_mb, find_unused_parameters=find_unused, gradient_as_bucket_view=True
        )
    return sharded(model, world) if choice.runs_as == "fsdp" else model


def sharded(model: nn.Module, world: World) -> nn.Module:
    """The model with each parameter cut into one piece per rank (FSDP2).

    Every one of its blocks is put together right before it computes, and let go after.
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
    """PyTorch's ``fully_shard``; raises RuntimeError where there is none."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        try:
            # Its first home, in torch 2.4 and 2.5.
            from torch.distributed._composable.fsdp import fully_shard
        except ImportError:
            raise RuntimeError(
                f"--strategy fsdp needs fully_shard, and torch {torch.__version__} has none: "
                "install torch 2.4 or newer, or take --strategy ddp"
            ) from None
    return fully_shard  # type: ignore[no-any-return]


@contextlib.contextmanager
def gradients_kept(model: nn.Module, kept: bool) -> Iterator[None]:
    """Inside, gradients add up on this rank and are not sent, if ``kept``: they go with the last piece."""
    if not kept:
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
    """The network itself, without what spreads it over ranks."""
    spreads = isinstance(model, DistributedDataParallel | DataParallel)
    return model.module if spreads else model


def whole_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Model and optimizer as one process would hold them: a checkpoint fits any strategy and world size.

    Under FSDP the pieces are gathered, so every rank must call it.
    """
    return {
        "model": gathered(bare(model).state_dict()),
        "optimizer": gathered(optimizer.state_dict()),
    }


def digest(model: nn.Module) -> str:
    """16 hexadecimal digits that only the same weights have, bit for bit; every rank must ask for it."""
    summed = hashlib.sha256()
    for name, weights in sorted(gathered(bare(model).state_dict()).items()):
        whole = weights.detach().cpu().contiguous()
        summed.update(f"{name} {whole.dtype} {tuple(whole.shape)}\n".encode())
        summed.update(ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()))
    return summed.hexdigest()[:16]


def gathered(held: Any) -> Any:
    """The same dicts and lists, with every cut tensor in one piece again."""
    if isinstance(held, dict):
        return {name: gathered(value) for name, value in held.items()}
    return held.full_tensor() if hasattr(held, "full_tensor") else held


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a whole state, cut again as the parameters are cut."""
    optimizer.load_state_dict(state)
    if any(hasattr(parameter, "full_tensor") for parameter in optimizer.state):
        cut_like_parameters(optimizer)


def cut_like_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Keep of each parameter's state the piece that goes with this rank's piece of the parameter."""
    try:
        from torch.distributed.tensor import distribute_tensor
    except ImportError:
        # Its home in torch 2.4.
        from torch.distributed._tensor import distribute_tensor
    for parameter, held in optimizer.state.items():
        for name, value in held.items():
            if torch.is_tensor(value) and value.shape == parameter.shape:
                held[name] = distribute_tensor(value, parameter.device_mesh, parameter.placements)
