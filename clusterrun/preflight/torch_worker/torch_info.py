"""What the ranks' torch sees on this node: versions and GPUs, looked at in a child; decides nothing else."""

from __future__ import annotations

import json
import platform

import torch
import torch.distributed as dist

from clusterrun.model.document import decode, encode
from clusterrun.model.frozen import frozen
from clusterrun.model.visible_gpus import instances
from clusterrun.preflight.tasks import WarmUp
from clusterrun.preflight.torch_worker.backend import GLOO, NCCL
from clusterrun.preflight.torch_worker.error_text import of_error
from clusterrun.preflight.torch_worker.forked_rank import await_lines, fork

_SECONDS = 60.0


@frozen
class Devices:
    """GPUs as torch sees them; ``model`` is the first one's name, ``nccl`` the library's version."""

    count: int = 0
    model: str = ""
    nccl: str = ""
    why: str = ""


def look(gpus: bool = True, visible: str = "", seconds: float = _SECONDS) -> WarmUp:
    """What there is, but for ``gpus`` where they are not wanted; ``visible`` is ``CUDA_VISIBLE_DEVICES``.

    ``why`` says what kept torch or NCCL from GPUs it was built for.

    A driver that does not answer within ``seconds`` counts as no GPU, and is said.
    """
    nccls = torch.version.cuda or getattr(torch.version, "hip", None)
    devices = _devices(seconds) if gpus and (nccls or _xpu()) else Devices()
    usable = nccls and devices.count > 0 and dist.is_nccl_available()
    divided = instances(visible) if usable else []
    several = len(divided) > 1
    mixed = f"NCCL takes no two instances (MIG) of a GPU: ranks on all {len(divided)} need gloo"
    return WarmUp(
        up=True,
        seconds=0.0,
        why=mixed if several else devices.why,
        backend=NCCL if usable and not several else GLOO,
        devices=len(divided) if several else devices.count,
        versions=tuple((what, version) for what, version in _versions(devices).items() if version),
    )


def _xpu() -> str:
    return str(getattr(torch.version, "xpu", None) or "")


def _versions(devices: Devices) -> dict[str, str]:
    return {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or getattr(torch.version, "hip", None) or "none"),
        "xpu": _xpu(),
        "nccl": devices.nccl,
        "gpu": devices.model,
        "python": platform.python_version(),
    }


def _devices(seconds: float) -> Devices:
    # In a child: after CUDA was touched here, no test could be forked any more.
    child = fork(lambda say: say(json.dumps(encode(_counted()))))
    said = await_lines(child, seconds)
    if said:
        return decode(Devices, json.loads(said[0]))
    return Devices(why=f"the GPU driver did not answer torch within {seconds:g} s")


def _counted() -> Devices:
    try:
        if _xpu():
            torch.xpu.init()
            return Devices(torch.xpu.device_count(), torch.xpu.get_device_name(0))
        torch.cuda.init()
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else ""
        return Devices(torch.cuda.device_count(), torch.cuda.get_device_name(0), nccl)
    except Exception as error:  # noqa: BLE001 (torch raises many kinds, and each is an answer)
        return Devices(why=f"torch sees no GPU: {of_error(error)}")
