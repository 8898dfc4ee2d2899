"""The optimizers of a script, each known again after a restart."""

from __future__ import annotations

import sys
import zlib

from .tensor_digest import TensorDigest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ONLY_OURS = 3
"""References to an object: of our list, of a variable, and of the call that counts them."""


class Optimizers:
    """Those that have stepped, each with a key that is the same in every start."""

    def __init__(self, torch: Any, digest: TensorDigest) -> None:
        self._kind, self._digest = torch.optim.Optimizer, digest
        self.all: list[Any] = []
        self._keys: list[int] = []

    def knows(self, optimizer: Any) -> bool:
        """Whether it has stepped before."""
        return any(one is optimizer for one in self.all)

    def key(self, optimizer: Any) -> int:
        """Of one that is known."""
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
    """The parameters of an optimizer, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
