"""Report the versions and GPUs that the ranks' torch sees on this node."""

from __future__ import annotations

import json
import platform

import torch
import torch.distributed as dist

from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import replace
from clusterrun.model.visible_gpus import instances
from clusterrun.preflight.tasks import TorchStarted
from clusterrun.preflight.torch_worker.backend import GLOO, NCCL
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.forked_rank import await_lines, fork

_SECONDS = 60.0


def inspect_torch(gpus: bool = True, visible: str = "", seconds: float = _SECONDS) -> TorchStarted:
    """Return versions, and GPUs if ``gpus`` is set. ``visible`` is ``CUDA_VISIBLE_DEVICES``.

    ``why`` explains why torch or NCCL cannot use its GPUs, such as a driver silent for ``seconds``.
    """
    nccls = torch.version.cuda or getattr(torch.version, "hip", None)
    info = TorchStarted(True, 0.0)
    if gpus and (nccls or _xpu()):
        # A child does this, because a process that uses CUDA cannot fork tests.
        lines = await_lines(fork(lambda say: say(json.dumps(encode(_counted())))), seconds)
        silent = TorchStarted(True, 0.0, f"the GPU driver did not answer torch within {seconds:g} s")
        info = decode(TorchStarted, json.loads(lines[0])) if lines else silent
    usable = nccls and info.devices > 0 and dist.is_nccl_available()
    divided = instances(visible) if usable else []
    several = len(divided) > 1
    mixed = f"NCCL does not support two MIG instances of a GPU: ranks on all {len(divided)} need gloo"
    own = (("torch", str(torch.__version__)), ("cuda", str(nccls or "none")), ("xpu", _xpu()))
    versions = (*own, *info.versions, ("python", platform.python_version()))
    return replace(
        info,
        why=mixed if several else info.why,
        backend=NCCL if usable and not several else GLOO,
        devices=len(divided) if several else info.devices,
        versions=tuple((subject, version) for subject, version in versions if version),
    )


def _uuids(count: int) -> tuple[str, ...]:
    """Return the UUIDs of NVIDIA's GPUs as nvidia-smi prints them; () if torch does not report them."""
    if not torch.version.cuda:
        return ()
    try:
        uuids = [str(getattr(torch.cuda.get_device_properties(index), "uuid", "")) for index in range(count)]
    except Exception:  # noqa: BLE001 (tests run without names)
        return ()
    return tuple(f"GPU-{uuid.removeprefix('GPU-')}" for uuid in uuids) if all(uuids) else ()


def _xpu() -> str:
    return str(getattr(torch.version, "xpu", None) or "")


def _counted() -> TorchStarted:
    """Return the number of GPUs, the NCCL version and the first GPU's name, or ``why`` there is none."""
    try:
        devices = getattr(torch, "xpu" if _xpu() else "cuda")
        devices.init()
        with_nccl = not _xpu() and dist.is_nccl_available()
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if with_nccl else ""
        versions = (("nccl", nccl), ("gpu", devices.get_device_name(0)))
        count = devices.device_count()
        return TorchStarted(True, 0.0, devices=count, versions=versions, uuids=_uuids(count))
    except Exception as error:  # noqa: BLE001 (torch raises many types, and each is an answer)
        return TorchStarted(True, 0.0, f"torch sees no GPU: {of_error(error)}")
