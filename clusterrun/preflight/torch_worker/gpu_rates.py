"""Measure the GPUs of this node: their memory, their ways to the host and to each other, and long load."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import torch

from clusterrun.model.frozen import replace
from clusterrun.preflight.probes import nvidia_smi
from clusterrun.preflight.probes.run_program import answer
from clusterrun.preflight.tasks import BURN, DONE, PEERS, PRODUCT
from clusterrun.preflight.torch_worker import matmul
from clusterrun.preflight.torch_worker.backend import OnCpu, OnGpu, device_for, set_variables, variables
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.rank_report import RankReport

Rates = tuple[tuple[str, float], ...]
# Bytes of one copy. Smaller copies do not fill the memory of a GPU.
_MEMORY_BYTES, _HOST_BYTES, _PEER_BYTES = 1 << 30, 256 << 20, 256 << 20
_REPEATS = 5
_CPU_SHARE = 64  # copies on a CPU are smaller by this factor
_LOOK_SECONDS = 10.0  # limit of nvidia-smi
# The clocks are read after this share of the load, when the GPU is hot.
_LOOKS_AT = (0.5, 0.9)
_READ = {"clock_now": "clock", "watts": "power", "temperature": "temperature"}


def serve(
    kind: str, backend: str, local: int, seconds: float, until: float, say: Callable[[RankReport], None]
) -> None:
    """Measure ``device``, ``peers`` or ``burn``. Report the stage and the end. Never raise."""
    try:
        say(RankReport(stage=PRODUCT))
        set_variables(variables(backend, "", {}))
        device = device_for(backend, local)
        if kind == BURN:
            say(burned(device, seconds, until))
            return
        rates = tuple(peer_rates(device, until)) if kind == PEERS else tuple(device_rates(device, until))
        say(RankReport(stage=DONE, ended=True, rates=rates))
    except BaseException as error:  # noqa: BLE001 (any exception is the answer)
        say(RankReport(ended=True, why=of_error(error)))


def device_rates(device: OnCpu | OnGpu, until: float) -> Iterator[tuple[str, float]]:
    """Yield GB/s of copies within the memory of the device, and from and to pinned memory of the host.

    A copy within the memory reads and writes each byte, so it counts twice.
    """
    on_gpu = device.torch_device.type == "cuda"
    share = 1 if on_gpu else _CPU_SHARE
    source = torch.empty(_MEMORY_BYTES // share, dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    yield "memory", _rate(device, lambda: target.copy_(source), 2 * source.numel(), until)
    if on_gpu:
        host = torch.empty(_HOST_BYTES, dtype=torch.uint8).pin_memory()
        part = source[:_HOST_BYTES]
        yield "from host", _rate(device, lambda: part.copy_(host, non_blocking=True), _HOST_BYTES, until)
        yield "to host", _rate(device, lambda: host.copy_(part, non_blocking=True), _HOST_BYTES, until)


def peer_rates(device: OnCpu | OnGpu, until: float) -> Iterator[tuple[str, float]]:
    """Yield GB/s of a copy between each pair of GPUs, one pair at a time: ``peer 0 1``."""
    if device.torch_device.type != "cuda":
        return
    devices = range(torch.cuda.device_count())
    buffers = [torch.empty(_PEER_BYTES, dtype=torch.uint8, device=torch.device("cuda", i)) for i in devices]
    for source in devices:
        torch.cuda.set_device(source)
        for target in devices:
            if source != target:
                step = partial(buffers[target].copy_, buffers[source], non_blocking=True)
                yield f"peer {source} {target}", _rate(device, step, _PEER_BYTES, until)


def _rate(device: OnCpu | OnGpu, step: Callable[[], object], moved: int, until: float) -> float:
    device.timed(step, until)  # Warms up.
    seconds = device.usual([device.timed(step, until) for _ in range(_REPEATS)])
    return round(moved / 1e9 / max(seconds, 1e-9), 3)


def burned(device: OnCpu | OnGpu, seconds: float, until: float) -> RankReport:
    """Multiply matrices for ``seconds`` and read the clocks. The last product must equal the first."""
    looks: list[Rates] = []
    timers = [
        threading.Timer(share * seconds, lambda: looks.append(read_sensors(device))) for share in _LOOKS_AT
    ]
    for timer in timers if device.torch_device.type == "cuda" else ():
        timer.daemon = True
        timer.start()
    report = matmul.multiplied(device, until, seconds)
    for timer in timers:
        timer.cancel()
        if timer.ident is not None:
            timer.join(_LOOK_SECONDS)
    worst: dict[str, float] = {}
    for name, value in (entry for rates in looks for entry in rates):
        lower = name == "clock"
        worst[name] = (min if lower else max)(worst.get(name, value), value)
    return replace(report, rates=(*report.rates, *worst.items()))


def read_sensors(device: OnCpu | OnGpu) -> Rates:
    """Return clock (MHz), power (W), temperature (°C) and reasons for low clocks of a GPU; () if unknown."""
    uuid = str(getattr(torch.cuda.get_device_properties(device.torch_device), "uuid", ""))
    if not uuid:  # torch before 2.4
        return ()
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    reply = answer("nvidia-smi", "-q", "-x", "-i", name, seconds=_LOOK_SECONDS)
    try:
        (gpu,) = nvidia_smi.gpus(reply.out)["gpus"]
    except ValueError:
        return ()
    numbers = [(rate, float(gpu[field])) for field, rate in _READ.items() if field in gpu]
    return (*numbers, *((f"slowed {reason}", 1.0) for reason in gpu["slowed"]))
