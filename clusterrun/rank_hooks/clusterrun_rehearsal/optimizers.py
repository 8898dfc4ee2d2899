"""Find the optimizers of a script, the buffers of the trained modules, and averages of weights."""

from __future__ import annotations

import gc
import sys
import zlib
from itertools import islice
from typing import Any

from .checksums import TensorDigest

# References to an object: our list, a variable, and the call that counts them.
ONLY_OURS = 3
# Most tensors in a dict or list that is examined.
MOST_COPIES = 100_000


class Optimizers:
    """The optimizers that have stepped, each with a key that is equal in every start."""

    def __init__(self, torch: Any, digest: TensorDigest) -> None:
        self._kind, self._digest = torch.optim.Optimizer, digest
        self.all: list[Any] = []
        self._keys: list[int] = []

    def knows(self, optimizer: Any) -> bool:
        return any(other is optimizer for other in self.all)

    def key(self, optimizer: Any) -> int:
        return next(key for key, other in zip(self._keys, self.all) if other is optimizer)

    def add(self, optimizer: Any) -> int:
        """Add an optimizer and return its key, made of its class and the shapes that it trains."""
        shapes = [tuple(parameter.shape) for parameter in trained_by(optimizer)]
        key = zlib.crc32(f"{type(optimizer).__name__}{shapes}".encode())
        while key in self._keys:
            key += 1
        self.all.append(optimizer)
        self._keys.append(key)
        return key

    def takes_over(self, optimizer: Any) -> bool:
        """Return whether it replaces an optimizer of the same weights that the script has dropped."""
        own_ids = [id(parameter) for parameter in trained_by(optimizer)]
        for index in range(len(self.all)):
            other = self.all[index]
            is_dropped = sys.getrefcount(other) <= ONLY_OURS
            is_same = own_ids == [id(parameter) for parameter in trained_by(other)]
            if is_dropped and type(other) is type(optimizer) and is_same:
                self.all[index] = optimizer
                return True
        return False

    def shares(self, optimizer: Any) -> bool:
        """Return whether an optimizer that stepped before trains some of the same parameters."""
        own_ids = {id(parameter) for parameter in trained_by(optimizer)}
        others = (other for other in self.all if other is not optimizer)
        return any(id(parameter) in own_ids for other in others for parameter in trained_by(other))

    def checksums(self, optimizer: Any, with_state: bool = True) -> tuple[int, int]:
        """Return checksums of the parameters, in any order, and of the state, which ZeRO keeps inside."""
        parameters = trained_by(optimizer)
        inner = getattr(optimizer, "optim", None)
        state = inner.state if isinstance(inner, self._kind) else optimizer.state
        held: list[Any] = []
        plain = 0
        for parameter in parameters if with_state else ():
            mine = (state.get(parameter) if hasattr(state, "get") else None) or {}
            for name in sorted(mine, key=str):
                value = mine[name]
                if hasattr(value, "data_ptr"):
                    held.append(value)
                elif isinstance(value, (int, float)):
                    plain = (plain * 31 + hash(value)) & 0xFFFFFFFF
        return self._digest.of_set(parameters), self._digest.of(held) ^ plain


def trained_by(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class WeightAverages:
    """Finds averages once, after the first step, when every optimizer has a state to tell them from."""

    def __init__(self, torch: Any, digest: TensorDigest, optimizers: list[Any]) -> None:
        self._torch, self._digest = torch, digest
        trained = [parameter for optimizer in optimizers for parameter in trained_by(optimizer)]
        self._trained = {id(parameter) for parameter in trained}
        self._shapes = {tuple(parameter.shape) for parameter in trained}
        self._buffers: list[Any] = []
        self._averages: list[Any] = []
        # All modules, and all dicts and lists that begin with a tensor.
        kinds: dict[type, bool] = {dict: False, list: False}
        tensor, modules, collections = self._torch.Tensor, [], []
        for value in gc.get_objects():
            kind = type(value)
            is_module = kinds.get(kind)
            if is_module is None:
                is_module = kinds[kind] = issubclass(kind, self._torch.nn.Module)
            if is_module:
                modules.append(value)
            elif kind in (dict, list) and value and issubclass(type(next(iter(values_of(value, 1)))), tensor):
                collections.append(value)
        # Take buffers from trained outermost modules; other modules of the same shapes are averages.
        inner = {id(child) for module in modules for child in module.children()}
        buffers: dict[int, Any] = {}
        for module in modules:
            if id(module) in inner:
                continue
            held = list(module.parameters())
            if any(id(parameter) in self._trained for parameter in held):
                buffers.update((id(buffer), buffer) for buffer in module.buffers())
            elif held and {tuple(parameter.shape) for parameter in held} >= self._shapes:
                self._averages.append(module)
        self._buffers = list(buffers.values())
        states = [o.state.values() for o in optimizers if hasattr(o.state, "values")]
        entries = [entry for values in states for entry in values if isinstance(entry, dict)]
        state_ids = {id(value) for entry in entries for value in entry.values()}
        of_modules = {id(module.__dict__.get("_parameters")) for module in modules}
        for collection in collections:
            if id(collection) not in of_modules and self._is_average(collection, self._trained | state_ids):
                self._averages.append(collection)

    def checksums(self) -> tuple[int, list[int]]:
        checksums = []
        for average in self._averages:
            values = average.state_dict().values() if hasattr(average, "state_dict") else values_of(average)
            checksums.append(self._digest.of(value for value in values if hasattr(value, "data_ptr")))
        return self._digest.of(self._buffers), sorted(set(checksums))

    def _is_average(self, held: Any, in_use: set[int]) -> bool:
        """Return whether a dict or a list has a tensor for every shape of the parameters, and none in use."""
        if not 0 < len(self._shapes) <= len(held) <= MOST_COPIES:
            return False
        values = values_of(held)
        if type(held) is list and len(values) != len(self._trained):
            return False  # many lists hold tensors: of an average one is wanted per parameter
        if not all(issubclass(type(value), self._torch.Tensor) for value in values):
            return False
        if any(id(value) in in_use or value.requires_grad for value in values):
            return False
        return {tuple(value.shape) for value in values} >= self._shapes


def values_of(held: Any, most: int | None = None) -> list[Any]:
    return list(islice(held.values() if isinstance(held, dict) else held, most))
