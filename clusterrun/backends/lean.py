"""Loads one module of submitit without what its front door brings along; knows nothing of what is in it.

``import submitit`` takes as long as all the rest of a submission: its package imports every
backend, the helpers and the list of plug-ins, and its core asyncio, which only awaited jobs use. A
command that submits one job and ends needs none of that. What is left out is loaded as soon as
somebody asks for it, so that code which uses submitit in the same process finds all of it.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

FRONT = "submitit"


class Later(ModuleType):
    """Stands where a module will be; the first question that it cannot answer loads the real one."""

    def __init__(self, name: str, load: Callable[[Later], ModuleType], **known: Any) -> None:
        super().__init__(name)
        self.__dict__.update(known, _load=load)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_load"](self), name)


def load(module: str) -> ModuleType:
    """The module of submitit by that name (``submitit.slurm.slurm``)."""
    # Another thread must not meet the stand-in for asyncio while it is there.
    alone = threading.active_count() == 1 and "asyncio" not in sys.modules
    if FRONT in sys.modules or not alone:
        return importlib.import_module(module)
    sys.modules[FRONT] = _front()
    sys.modules["asyncio"] = Later("asyncio", lambda _: importlib.import_module("asyncio"), Future=object)
    try:
        return importlib.import_module(module)
    finally:
        del sys.modules["asyncio"]


def _front() -> Later:
    """The package submitit, its own code not yet run."""
    specs = (finder.find_spec(FRONT, None) for finder in sys.meta_path)
    spec = next(filter(None, specs), None)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {FRONT!r}", name=FRONT)
    run = spec.loader.exec_module

    def enter(front: Later) -> ModuleType:
        front.__dict__["_load"] = _unknown
        run(front)
        return front

    places = spec.submodule_search_locations
    return Later(FRONT, enter, __path__=places, __spec__=spec, __file__=spec.origin, __package__=FRONT)


def _unknown(module: Later) -> ModuleType:
    return ModuleType(module.__name__)
