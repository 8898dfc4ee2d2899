"""The buffers of the trained modules, and the averages of weights that a script keeps."""

from __future__ import annotations

import gc
from itertools import islice

from .optimizers import trained_by
from .tensor_digest import TensorDigest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_COPIES = 100_000
"""Tensors in a dict that is looked into."""


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
        """One of all buffers, one of each average."""
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
    """What a dict or a list holds, at most so many of it."""
    return list(islice(held.values() if isinstance(held, dict) else held, most))
