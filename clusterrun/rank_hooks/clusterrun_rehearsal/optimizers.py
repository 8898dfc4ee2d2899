"""The optimizers of a script, the buffers of what they train, and the averages of weights that it keeps."""

from __future__ import annotations

import gc
import sys
import zlib
from itertools import islice

from .checksums import TensorDigest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONLY_OURS = 3
"""References to an object: of our list, of a variable, and of the call that counts them."""
MOST_COPIES = 100_000
"""Tensors in a dict that is looked into."""


class Optimizers:
    """Those that have stepped, each with a key that is the same in every start."""

    def __init__(self, torch: Any, digest: TensorDigest) -> None:
        self._kind, self._digest = torch.optim.Optimizer, digest
        self.all: list[Any] = []
        self._keys: list[int] = []

    def knows(self, optimizer: Any) -> bool:
        return any(one is optimizer for one in self.all)

    def key(self, optimizer: Any) -> int:
        return next(key for key, one in zip(self._keys, self.all) if one is optimizer)

    def add(self, optimizer: Any) -> int:
        """The key of a new one, made of its kind and the shapes that it trains."""
        shapes = [tuple(one.shape) for one in trained_by(optimizer)]
        key = zlib.crc32(f"{type(optimizer).__name__}{shapes}".encode())
        while key in self._keys:
            key += 1
        self.all.append(optimizer)
        self._keys.append(key)
        return key

    def takes_over(self, optimizer: Any) -> bool:
        """Whether it is for the weights of one that the script has dropped: it is the same one to us."""
        mine = [id(one) for one in trained_by(optimizer)]
        for place in range(len(self.all)):
            one = self.all[place]
            gone = sys.getrefcount(one) <= ONLY_OURS
            same = mine == [id(parameter) for parameter in trained_by(one)]
            if gone and type(one) is type(optimizer) and same:
                self.all[place] = optimizer
                return True
        return False

    def shares(self, optimizer: Any) -> bool:
        """Whether an optimizer that stepped before trains some of the same parameters."""
        mine = {id(one) for one in trained_by(optimizer)}
        others = (one for one in self.all if one is not optimizer)
        return any(id(parameter) in mine for one in others for parameter in trained_by(one))

    def checksums(self, optimizer: Any, with_state: bool = True) -> tuple[int, int]:
        """Checksums of the parameters, in any order, and of the state; ZeRO has that of its shard inside."""
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
    """Found once, after the first step: by then there is a state of every optimizer to tell them from."""

    def __init__(self, torch: Any, digest: TensorDigest, optimizers: list[Any]) -> None:
        self._torch, self._digest = torch, digest
        trained = [parameter for one in optimizers for parameter in trained_by(one)]
        self._trained = {id(parameter) for parameter in trained}
        self._shapes = {tuple(parameter.shape) for parameter in trained}
        self._buffers: list[Any] = []
        self._averages: list[Any] = []
        modules, collections = self._candidates()
        self._sort_modules(modules)
        states = [one.state.values() for one in optimizers if hasattr(one.state, "values")]
        state = {id(v) for held in states for one in held if isinstance(one, dict) for v in one.values()}
        of_modules = {id(one.__dict__.get("_parameters")) for one in modules}
        for one in collections:
            if id(one) not in of_modules and self._is_average(one, self._trained | state):
                self._averages.append(one)

    def checksums(self) -> tuple[int, list[int]]:
        found = []
        for one in self._averages:
            values = one.state_dict().values() if hasattr(one, "state_dict") else values_of(one)
            found.append(self._digest.of(v for v in values if hasattr(v, "data_ptr")))
        return self._digest.of(self._buffers), sorted(set(found))

    def _candidates(self) -> tuple[list[Any], list[Any]]:
        """All modules, and all dicts and lists that begin with a tensor; each type is looked at once."""
        kinds: dict[type, bool] = {dict: False, list: False}
        tensor, modules, collections = self._torch.Tensor, [], []
        for one in gc.get_objects():
            kind = type(one)
            known = kinds.get(kind)
            if known is None:
                known = kinds[kind] = issubclass(kind, self._torch.nn.Module)
            if known:
                modules.append(one)
            elif kind in (dict, list) and one and issubclass(type(next(iter(values_of(one, 1)))), tensor):
                collections.append(one)
        return modules, collections

    def _sort_modules(self, modules: list[Any]) -> None:
        """Outermost modules that are trained have buffers; others of the same shapes are averages."""
        inner = {id(child) for one in modules for child in one.children()}
        buffers: dict[int, Any] = {}
        for one in modules:
            if id(one) in inner:
                continue
            held = list(one.parameters())
            if any(id(parameter) in self._trained for parameter in held):
                buffers.update((id(buffer), buffer) for buffer in one.buffers())
            elif held and {tuple(parameter.shape) for parameter in held} >= self._shapes:
                self._averages.append(one)
        self._buffers = list(buffers.values())

    def _is_average(self, held: Any, in_use: set[int]) -> bool:
        """Whether a dict or a list has a tensor for every shape of the parameters, and none in use."""
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
