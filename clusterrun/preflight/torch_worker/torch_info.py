"""What the ranks' torch sees on this node: versions and GPUs, looked at in a child; decides nothing else."""

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


def look(gpus: bool = True, visible: str = "", seconds: float = _SECONDS) -> TorchStarted:
    """What there is, but for ``gpus`` where they are not wanted; ``visible`` is ``CUDA_VISIBLE_DEVICES``.

    ``why`` says what kept torch or NCCL from GPUs it was built for, such as a driver silent for ``seconds``.
    """
    nccls = torch.version.cuda or getattr(torch.version, "hip", None)
    seen = TorchStarted(True, 0.0)
    if gpus and (nccls or _xpu()):
        # In a child: after CUDA was touched here, no test could be forked any more.
        said = await_lines(fork(lambda say: say(json.dumps(encode(_counted())))), seconds)
        silent = TorchStarted(True, 0.0, f"the GPU driver did not answer torch within {seconds:g} s")
        seen = decode(TorchStarted, json.loads(said[0])) if said else silent
    usable = nccls and seen.devices > 0 and dist.is_nccl_available()
    divided = instances(visible) if usable else []
    several = len(divided) > 1
    mixed = f"NCCL takes no two instances (MIG) of a GPU: ranks on all {len(divided)} need gloo"
    own = (("torch", str(torch.__version__)), ("cuda", str(nccls or "none")), ("xpu", _xpu()))
    versions = (*own, *seen.versions, ("python", platform.python_version()))
    return replace(
        seen,
        why=mixed if several else seen.why,
        backend=NCCL if usable and not several else GLOO,
        devices=len(divided) if several else seen.devices,
        versions=tuple((what, version) for what, version in versions if version),
    )


def _xpu() -> str:
    return str(getattr(torch.version, "xpu", None) or "")


def _counted() -> TorchStarted:
    """How many GPUs torch sees, the version of NCCL and the first one's name; ``why`` it sees none."""
    try:
        seen = getattr(torch, "xpu" if _xpu() else "cuda")
        seen.init()
        with_nccl = not _xpu() and dist.is_nccl_available()
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if with_nccl else ""
        versions = (("nccl", nccl), ("gpu", seen.get_device_name(0)))
        return TorchStarted(True, 0.0, devices=seen.device_count(), versions=versions)
    except Exception as error:  # noqa: BLE001 (torch raises many kinds, and each is an answer)
        return TorchStarted(True, 0.0, f"torch sees no GPU: {of_error(error)}")
