"""Hide the differences between gloo on a CPU and NCCL on a GPU from the tests."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from clusterrun.model.world import exactly

GLOO, NCCL = "gloo", "nccl"
PIECE_BYTES = 256 * 1024
_UNSET = ""
# A wait for the GPU polls without pauses for this long. Then a pause is this share of the wait, in seconds.
_BUSY_SECONDS, _PAUSE_SHARE, _LONGEST_PAUSE = 0.02, 0.01, 0.01


class OutOfTime(Exception):
    """The GPU did not finish the queued work in time."""


def variables(backend: str, interface: str, users: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a test sets. An empty value unsets a variable.

    The test sets the interface unless the user did; NCCL may get several with commas. NCCL prints the chosen
    network to stdout. The watchdog of torch writes no dumps, and its waits do not block. torch 2.6 and 2.7.0
    with ``device_id`` would run NCCL without blocking, which hangs healthy nodes occasionally
    (pytorch#153960).
    """
    shared = {"GLOO_SOCKET_IFNAME": interface.partition(",")[0], "NCCL_SOCKET_IFNAME": exactly(interface)}
    named = shared if interface else {}
    chosen = {name: value for name, value in named.items() if name not in users}
    if backend == GLOO:
        return chosen
    return {
        **chosen,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
        "NCCL_DEBUG_FILE": _UNSET,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_USE_COMM_NONBLOCKING": "0",
        "NCCL_BLOCKING_WAIT": _UNSET,
    }


def set_variables(settings: Mapping[str, str]) -> None:
    """Set variables for the libraries of this process, which read the C environment."""
    for name, value in settings.items():
        if value == _UNSET:
            os.unsetenv(name)
        else:
            os.putenv(name, value)


class OnCpu:
    name = GLOO

    def __init__(self, local: int) -> None:
        # Several nodes may share these cores. No test measures the number of threads.
        torch.set_num_threads(1)
        self.torch_device = torch.device("cpu")

    def join(self, store: dist.Store, rank: int, world: int, seconds: float) -> None:
        limit = timedelta(seconds=seconds)
        dist.init_process_group(GLOO, store=store, rank=rank, world_size=world, timeout=limit)

    def settle(self, until: float) -> None:
        """Do nothing: gloo's operations are complete when they return."""

    def timed(self, step: Callable[[], object], until: float) -> float:
        """Return the seconds that ``step`` takes."""
        began = time.perf_counter()
        step()
        return time.perf_counter() - began

    @staticmethod
    def sizes(most: int) -> tuple[int, ...]:
        """Return the bytes per message. Large ones fill a fast network. Small ones pass on busy cores too."""
        return tuple(dict.fromkeys((most, min(most, PIECE_BYTES))))

    @staticmethod
    def usual(seconds: Sequence[float]) -> float:
        """Return the representative of several measurements. On shared cores it is the fastest."""
        return min(seconds)


class OnGpu:
    """Test with NCCL on the GPU of a local rank. The rank counts the GPUs that torch sees."""

    name = NCCL

    def __init__(self, local: int) -> None:
        device_count = torch.cuda.device_count()
        if local >= device_count:
            raise RuntimeError(f"local rank {local} has no GPU: torch sees {device_count}")
        torch.cuda.set_device(local)
        self.torch_device = torch.device("cuda", local)

    def join(self, store: dist.Store, rank: int, world: int, seconds: float) -> None:
        """Form the group. NCCL connects now, and not in the first collective, because the device is named."""
        limit = timedelta(seconds=seconds)
        dist.init_process_group(
            NCCL, store=store, rank=rank, world_size=world, timeout=limit, device_id=self.torch_device
        )

    def settle(self, until: float) -> None:
        """Wait for the queued work until ``until``. Raise ``OutOfTime``. CUDA's own wait has no limit.

        The pauses grow with the wait, so that a long wait leaves the processor to torch's watchdog.
        """
        event = torch.cuda.Event()
        event.record()
        began = time.monotonic()
        while not event.query():
            now = time.monotonic()
            if now > until:
                raise OutOfTime("the GPU did not finish the queued work")
            waited = now - began
            time.sleep(min(_LONGEST_PAUSE, _PAUSE_SHARE * waited) if waited > _BUSY_SECONDS else 0)

    def timed(self, step: Callable[[], object], until: float) -> float:
        """Return the seconds that the GPU takes for the work of ``step``. Raise ``OutOfTime``.

        The GPU's own clock is read, since the host polls in steps of about 75 µs (H100 machine, Python 3.12).
        An all-reduce of 64 MB over NVLink takes only four times as long.
        """
        self.settle(until)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        step()
        last.record()
        self.settle(until)
        return float(first.elapsed_time(last)) / 1000

    @staticmethod
    def sizes(most: int) -> tuple[int, ...]:
        return (most,)

    @staticmethod
    def usual(seconds: Sequence[float]) -> float:
        """Return the representative of several measurements: the median shows a throttled GPU."""
        return statistics.median(seconds)


def device_for(backend: str, local: int) -> OnCpu | OnGpu:
    return OnGpu(local) if backend == NCCL else OnCpu(local)
