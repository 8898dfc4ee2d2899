"""Let all ranks agree on an answer with a tiny collective, if they form a process group.

torch is used only if the script has loaded it.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def joined() -> Any:
    """Return `torch.distributed` if this process is in a process group, else None."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if is_initialized else None


def group() -> Any:
    """Return `torch.distributed` if the process group has several members, else None."""
    distributed = joined()
    return distributed if distributed is not None and distributed.get_world_size() > 1 else None


def rank(otherwise: int) -> int:
    distributed = joined()
    return otherwise if distributed is None else int(distributed.get_rank())


class Maximum:
    """Maxima over all ranks that a GPU computes. Until ``wait`` the process does not wait for the GPU."""

    def __init__(self, numbers: tuple[int, ...], event: Any = None, copy: Any = None) -> None:
        self._numbers, self._event, self._copy = numbers, event, copy

    @property
    def is_ready(self) -> bool:
        """Return whether the maxima were known when this value was made."""
        return self._event is None

    def wait(self) -> tuple[int, ...]:
        if self._event is None:
            return self._numbers
        self._event.synchronize()
        return tuple(self._copy.tolist())


def start_max_over_ranks(*numbers: int) -> Maximum:
    """Start computing each number's maximum over all ranks. Every rank must call it.

    On a GPU the collective runs on a stream of its own: the work of the script does not wait for it.
    """
    distributed = group()
    if distributed is None:
        return Maximum(numbers)
    torch = sys.modules["torch"]
    where = device(distributed)
    accelerator: Any = getattr(torch, where.type, None)
    if where.type == "cpu" or not hasattr(accelerator, "Stream"):
        return Maximum(max_over_ranks(*numbers))
    # Copies to and from pageable memory would wait for the GPU.
    own_numbers = torch.tensor(numbers, dtype=torch.int64).pin_memory()
    if str(where) not in _streams:
        _streams[str(where)] = accelerator.Stream(where)
    with accelerator.stream(_streams[str(where)]):
        tensor = own_numbers.to(where, non_blocking=True)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        copy = torch.empty_like(own_numbers).pin_memory()
        copy.copy_(tensor, non_blocking=True)
        event = accelerator.Event()
        event.record()
    return Maximum(numbers, event, copy)


_streams: dict[str, Any] = {}


def max_over_ranks(*numbers: int) -> tuple[int, ...]:
    """Return each number's maximum over all ranks. Every rank must call it. It waits for the GPU."""
    distributed = group()
    if distributed is None:
        return numbers
    torch = sys.modules["torch"]
    tensor = torch.tensor(numbers, dtype=torch.int64, device=device(distributed))
    distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
    return tuple(tensor.tolist())


def from_rank_zero(value: Any) -> Any:
    """Return the value that rank 0 passed, on every rank. Every rank must call it."""
    distributed = group()
    if distributed is None:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0, device=device(distributed))
    return box[0]


def device(distributed: Any) -> Any:
    """Return the device of a tensor that the group can send: the CPU if possible, else the rank's own GPU.

    A script need not call ``set_device``, for example with ``DDP(device_ids=[local_rank])``. Then GPU 0 is
    the current device of every rank, and NCCL refuses the second rank on it ("Duplicate GPU detected").
    """
    torch = sys.modules["torch"]
    kinds = [pair.partition(":")[0] for pair in str(distributed.get_backend_config()).split(",")]
    if "cpu" in kinds:
        return torch.device("cpu")
    bound = getattr(distributed.group.WORLD, "bound_device_id", None)
    if bound is not None:
        return bound
    accelerator = getattr(torch, kinds[0])
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    index = accelerator.current_device()
    if index == 0 and local_rank < accelerator.device_count():
        index = local_rank
    return torch.device(kinds[0], index)
