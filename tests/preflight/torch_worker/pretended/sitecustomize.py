"""Makes torch pretend that this machine has GPUs; for processes with this folder on ``PYTHONPATH``.

``PRETENDED_GPUS`` is their number. Their driver obeys ``CUDA_VISIBLE_DEVICES`` if ``PRETENDED_ISOLATION`` is
set, as CUDA does. Else the ranks of a machine see all of them, as HIP does with an empty list.
``fake_device`` imitates the GPU.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

VISIBLE = "CUDA_VISIBLE_DEVICES"


def count() -> int:
    remote = int(os.environ.get("PRETENDED_GPUS", "1"))
    if "PRETENDED_ISOLATION" not in os.environ or VISIBLE not in os.environ:
        return remote
    return min(remote, len([name for name in os.environ[VISIBLE].split(",") if name]))


def pretend(torch: ModuleType) -> None:
    """Give ``torch`` as many GPUs as ``count`` says at each look."""
    from fake_device import pretend as replaced

    replaced(torch, count)


class Pretending(Loader):
    """torch's own loader, and then ``pretend``."""

    def __init__(self, real: Loader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        pretend(module)


class Finder(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Pretending(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())
