"""Hooks torch and safetensors as soon as the script has imported them."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

COMPILER = "torch._dynamo"


class TorchImport:
    """Sees the imports of torch, of its compiler and of safetensors, and no other.

    Nothing of what they make is garbage: without looking for any they load in four fifths of the time,
    which is most of what a start of many ranks costs. What torch itself made is never looked at again.
    """

    def __init__(self, after: dict[str, Callable[[Any], None]], failed: Callable[[Exception], None]) -> None:
        self._after, self._failed = after, failed
        self._waits_for = {*after, COMPILER}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The real spec of such a module; it is hooked once it has run."""
        if name not in self._waits_for:
            return None
        self._waits_for.discard(name)
        if not self._waits_for:
            sys.meta_path.remove(self)
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self._hooking(loader.exec_module, name)
        return spec

    def _hooking(self, run: Callable[[Any], None], name: str) -> Callable[[Any], None]:
        def loaded(module: Any) -> None:
            collects = gc.isenabled()
            gc.disable()
            try:
                run(module)
            finally:
                if name == "torch":
                    gc.freeze()
                if collects:
                    gc.enable()
            try:
                if name in self._after:
                    self._after[name](module)
            except Exception as error:  # noqa: BLE001 (a torch that we do not know)
                self._failed(error)

        return loaded
