"""Checksums of the states of random numbers that a process has."""

from __future__ import annotations

import struct
import sys
import zlib

from .tensor_digest import TensorDigest, bytes_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class RandomStates:
    """Those of Python, NumPy, torch and this rank's GPU."""

    def __init__(self, torch: Any, digest: TensorDigest) -> None:
        self._torch, self._digest = torch, digest
        self._python = Generator(python_words, python_place)
        self._numpy = Generator(numpy_words, numpy_place)

    def checksums(self) -> dict[str, int]:
        """One per library that the script has loaded."""
        found = {}
        if "random" in sys.modules:
            owner = getattr(sys.modules["random"].getstate, "__self__", None)
            # Before Python 3.12 the hash of None is another one in each process.
            gauss = hash(getattr(owner, "gauss_next", None) or 0.0) & 0xFFFFFFFF
            found["python"] = zlib.crc32(self._python.words(owner)) ^ gauss
        if "numpy.random" in sys.modules:
            made = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
            owner = getattr(made, "_bit_generator", None)
            found["numpy"] = zlib.crc32(self._numpy.words(owner))
        found["torch"] = self._digest.fresh(self._torch.random.get_rng_state())
        cuda = self._torch.cuda
        if cuda.is_initialized():
            found["cuda"] = self._digest.fresh(cuda.get_rng_state())
        return found


class Generator:
    """The random state of Python, or of NumPy, as the words that its Mersenne twister goes by.

    To ask for them takes ten times as long as to read them: an object is made of each. So it is asked once,
    and read from then on where what it said is found in its own memory.
    """

    def __init__(self, ask: Callable[[], bytes], place: Callable[[Any], tuple[int, int]]) -> None:
        self._ask, self._place = ask, place
        self._owner: Any = None
        self._memory: Any = None

    def words(self, owner: Any) -> Any:
        """Those of the generator that is in use now."""
        if owner is None or owner is not self._owner:
            asked = self._ask()
            self._owner, self._memory = owner, self._found(asked, owner)
            return asked
        return self._ask() if self._memory is None else self._memory

    def _found(self, words: bytes, owner: Any) -> Any:
        try:
            memory = bytes_at(*self._place(owner))
        except (AttributeError, TypeError, ValueError):
            return None
        begin = bytes(memory).find(words)
        return memory[begin : begin + len(words)] if begin >= 0 else None


def python_words() -> bytes:
    *words, index = sys.modules["random"].getstate()[1]
    return struct.pack("=625I", index, *words)


def python_place(owner: Any) -> tuple[int, int]:
    """Where the object of a `random.Random` lies, which is written in C, and begins with those words."""
    if sys.implementation.name != "cpython":
        raise ValueError
    return id(owner), sys.modules["random"].Random.__base__.__basicsize__


def numpy_words() -> bytes:
    """The state of NumPy's `random`, which may be another generator than it was made with."""
    state = sys.modules["numpy.random"].get_state(legacy=False)["state"]
    if "key" not in state:
        return repr(state).encode()
    return bytes(state["key"]) + struct.pack("=i", state["pos"])


def numpy_place(owner: Any) -> tuple[int, int]:
    """Where the state of its Mersenne twister lies."""
    if type(owner).__name__ != "MT19937":
        raise ValueError
    return owner.ctypes.state_address, 2500
