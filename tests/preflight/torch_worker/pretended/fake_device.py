"""A fake of what a GPU and NCCL are to the torch worker: CPU memory, gloo, and NCCL's failures in its words.

``torch.cuda`` and ``torch.distributed`` are replaced where the worker meets them; no line of the worker is.
The file in ``PRETENDED_FAULT`` holds ``FAULT RANK`` for the next test, ``PRETENDED_SICK`` is ``FAULT DEVICE``
for all tests of a node; both are read when a group is formed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

PLACE = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, "
VERSION = "NCCL version 2.27.5"
INFO_FOR, WARN_FOR = (f"(run with NCCL_DEBUG={level} for details)" for level in ("INFO", "WARN"))
SYSTEM = (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. "
)
AT_INIT = {
    "system": f"{PLACE}unhandled system error {INFO_FOR}, {VERSION}\n"
    f"{SYSTEM}\nLast error:\nError: network not found.",
    "no-interface": f"{PLACE}unhandled system error {INFO_FOR}, {VERSION}\n"
    f"{SYSTEM}\nLast error:\nBootstrap : no socket interface found",
    "unhandled-cuda": f"{PLACE}unhandled cuda error {INFO_FOR}, {VERSION}\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    "duplicate": f"{PLACE}invalid usage {WARN_FOR}, {VERSION}\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
}
IN_COLLECTIVE = {
    "async-error": f"{PLACE}remote process exited or there was a network error, {VERSION}\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
    " prematurely.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer n2<40001>",
    "cuda-error": "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"
    " asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
}
ABORT = (
    "[rank1]:[E1123 01:02:03.000000000 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=16384, NumelOut=16384,"
    " Timeout(ms)=30000) ran for 30012 milliseconds before timing out.\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
)
INFO = (
    "n1:77:77 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
    "n1:77:77 [0] NCCL INFO Assigned NET plugin IB to comm\n"
    "n1:77:77 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n"
)
LOADS = (
    "n1:77:77 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    "n1:77:77 [0] NCCL INFO cudaDriverVersion 12080\nNCCL version 2.27.5+cuda12.4\n"
)
FOREVER = 3600.0


class State:
    """The fault of this process, and whether the device is stuck."""

    fault = ""
    stuck = False
    device = -1


def pretend(torch: ModuleType, count: Any) -> None:
    """Replace what the worker uses of a GPU; ``count`` says how many there are."""
    import torch.distributed as dist
    from torch.overrides import TorchFunctionMode

    class OnHost(TorchFunctionMode):
        """Memory of a GPU is the host's."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            provided = {name: host(value) for name, value in (kwargs or {}).items()}
            return function(*(host(value) for value in args), **provided)

    def host(value: Any) -> Any:
        gpu = isinstance(value, torch.device) and value.type == "cuda"
        return torch.device("cpu") if gpu else value

    class Event:
        """Done as soon as it is looked at; never on a device that is stuck."""

        def __init__(self, enable_timing: bool = False) -> None:
            self.recorded_at = 0.0

        def record(self) -> None:
            self.recorded_at = time.perf_counter()

        def query(self) -> bool:
            return not State.stuck

        def elapsed_time(self, last: Event) -> float:
            return (last.recorded_at - self.recorded_at) * 1000

    torch.version.cuda = "12.8"
    torch.cuda.init = lambda: None
    torch.cuda.device_count = count
    torch.cuda.is_available = lambda: count() > 0
    torch.cuda.get_device_name = lambda number: "NVIDIA Pretended"
    torch.cuda.set_device = lambda device: setattr(State, "device", getattr(device, "index", device))
    torch.cuda.synchronize = lambda device: time.sleep(FOREVER) if State.stuck else None
    torch.cuda.nccl.version = lambda: (2, 27, 5)
    torch.cuda.Event = Event
    dist.is_nccl_available = lambda: True
    real_init, real_reduce, real_gather = dist.init_process_group, dist.all_reduce, dist.all_gather

    def init(backend: str, **provided: Any) -> None:
        if backend != "nccl":
            return real_init(backend, **provided)
        assert provided.pop("device_id") == torch.device("cuda", State.device), "not the device of the rank"
        State.fault = fault_of(provided["rank"])
        if heard("NCCL_DEBUG") == "INFO":
            print(LOADS if State.fault == "loads" else INFO, end="", flush=True)
        if State.fault == "loads":
            time.sleep(FOREVER)
        if State.fault in AT_INIT:
            raise dist.DistBackendError(AT_INIT[State.fault])
        if State.fault == "hang-in-init":
            time.sleep(FOREVER)
        os.putenv("GLOO_SOCKET_IFNAME", heard("NCCL_SOCKET_IFNAME").lstrip("=") or "lo")
        return real_init("gloo", **provided)

    def reduce(tensor: Any, *args: Any, **provided: Any) -> Any:
        if State.fault in IN_COLLECTIVE:
            error = dist.DistBackendError if State.fault == "async-error" else RuntimeError
            raise error(IN_COLLECTIVE[State.fault])
        if State.fault == "abort":
            print(ABORT, file=sys.stderr, flush=True)
            os.abort()
        if State.fault == "timeout":
            State.stuck = True  # what was queued never ends, and the call itself returns
            return None
        if State.fault == "slow":
            time.sleep(0.02)
        result = real_reduce(tensor, *args, **provided)
        if State.fault == "wrong-sum" and tensor.numel() > 1 and tensor.dtype == torch.int64:
            tensor[7] ^= 1 << 20
        if State.fault == "wrong-large" and tensor.numel() > 1 << 15 and tensor[:2].any():
            tensor[20000] += 1  # of a message that is large, and not of zeros
        return result

    dist.init_process_group, dist.all_reduce, dist.all_gather = init, reduce, real_gather
    OnHost().__enter__()
    with suppress(ImportError):  # a process that is no torch worker
        from clusterrun.preflight.torch_worker import matmul

        matmul._SIZE["cuda"] = 512  # as large as a GPU's takes a CPU minutes


def fault_of(rank: int) -> str:
    """Return the fault of ``rank`` in the group that is formed now."""
    fault, _, device = os.environ.get("PRETENDED_SICK", " -2").partition(" ")
    if int(device) == State.device:
        return fault
    try:
        with open(os.environ["PRETENDED_FAULT"]) as file:
            fault, _, whose = file.read().partition(" ")
    except (KeyError, OSError):
        return ""
    return (
        fault if fault == "timeout" or int(whose) == rank else ""
    )  # a collective that hangs holds all ranks


def heard(name: str) -> str:
    """Return the value of a variable as a library in C reads it."""
    get = ctypes.CDLL(None).getenv
    get.restype = ctypes.c_char_p
    return (get(name.encode()) or b"").decode()
