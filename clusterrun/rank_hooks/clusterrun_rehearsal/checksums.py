"""Compute checksums of tensors in place, and of the process's random states."""

from __future__ import annotations

import ctypes
import struct
import sys
import zlib
from collections.abc import Callable, Iterable
from typing import Any

# Most samples of one batch with a checksum of their own.
MOST_ROWS = 512
# Most tensors whose place in memory is kept.
MOST_PLACES = 100_000
# Largest sample in bytes whose batch is copied. A copy of small samples is faster than reading each in place.
SMALL_ROW = 4096
# Below 2 to the power of 32.
LARGEST_PRIME = 4294967291
# Elements of a tensor on a device that are summed in one go.
PIECE = 1 << 22


class TensorDigest:
    """Computes checksums of tensors. Their version counters do not help: batch norm does not raise them."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._memory: dict[tuple[int, int], Any] = {}

    def of(self, tensors: Iterable[Any]) -> int:
        """Return one number for all tensors, in their order."""
        total, size = 0, 0
        for tensor in tensors:
            total = (total * 1000003 + self.fresh(tensor)) & 0xFFFFFFFF
            size += 1
        return total ^ size

    def of_set(self, tensors: Iterable[Any]) -> int:
        """Return one number for all tensors, in any order."""
        total = 0
        for tensor in tensors:
            checksum = self.fresh(tensor)
            total += checksum * checksum
        return total % LARGEST_PRIME

    def fresh(self, tensor: Any) -> int:
        """Return the checksum of one tensor's bytes; of the local bytes, if it is spread over ranks."""
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if not local.is_cpu:
            torch = self._torch
            flat = local.detach().contiguous().reshape(-1)
            if flat.numel() == 0:
                return 0
            integers = flat.view(torch.int32) if flat.element_size() >= 4 else flat.view(torch.uint8)
            sums = torch.zeros(2, dtype=torch.int64, device=flat.device)
            for begin in range(0, integers.numel(), PIECE):
                piece = integers[begin : begin + PIECE].to(torch.int64)
                weights = torch.arange(begin, begin + piece.numel(), device=flat.device) % 65521 + 1
                sums += torch.stack((piece.sum(), (piece * weights).sum()))
            first, second = sums.tolist()
            return int(first * 31 + second * 1000003) & 0xFFFFFFFF
        if not local.is_contiguous():
            local = local.detach().contiguous()
        size = local.numel() * local.element_size()
        if not size:
            return 0
        data = self._at(local.data_ptr(), size)
        return zlib.adler32(data, zlib.crc32(data[:4096]) if size > 4096 else 1)

    def _at(self, address: int, size: int) -> Any:
        """Return the bytes of a tensor. They are valid while it exists; most tensors keep their place."""
        data = self._memory.get((address, size))
        if data is None:
            if len(self._memory) >= MOST_PLACES:
                self._memory.clear()
            data = self._memory[address, size] = bytes_at(address, size)
        return data

    def rows(self, tensor: Any) -> str:
        """Return a checksum of eight digits for each sample of a batch; one for all if there are too many."""
        count = len(tensor) if tensor.dim() else 1
        numbers = tensor.numel()
        if not tensor.is_cpu and numbers <= PIECE:
            tensor = tensor.detach().cpu()
        if not tensor.is_cpu or not numbers or not 0 < count <= MOST_ROWS:
            return packed([self.fresh(tensor)])
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        size = numbers * tensor.element_size() // count
        data = self._at(tensor.data_ptr(), size * count)
        if size <= SMALL_ROW:
            return packed([*map(zlib.crc32, struct.unpack(f"{size}s" * count, data))])
        return packed([zlib.crc32(data[row * size : (row + 1) * size]) for row in range(count)])


def packed(numbers: list[int]) -> str:
    """Return checksums as hexadecimal text, which is much faster than decimals."""
    return struct.pack(f"={len(numbers)}I", *numbers).hex()


def bytes_at(address: int, size: int) -> Any:
    """Return the bytes of a tensor on the CPU without a copy. The reader must hold the tensor."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def tensors_in(value: Any, depth: int = 4) -> Iterable[Any]:
    if hasattr(value, "data_ptr"):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not callable(value):
        yield from tensors_in(vars(value), depth - 1)


class RandomStates:
    """The random states of Python, NumPy, torch and this rank's GPU."""

    def __init__(self, torch: Any, digest: TensorDigest) -> None:
        self._torch, self._digest = torch, digest
        self._python = Generator(python_words, python_place)
        self._numpy = Generator(numpy_words, numpy_place)

    def checksums(self) -> dict[str, int]:
        """Return one checksum per library that the script has loaded."""
        checksum_by_name = {}
        if "random" in sys.modules:
            owner = getattr(sys.modules["random"].getstate, "__self__", None)
            # Before Python 3.12 the hash of None is another one in each process.
            gauss = hash(getattr(owner, "gauss_next", None) or 0.0) & 0xFFFFFFFF
            checksum_by_name["python"] = zlib.crc32(self._python.words(owner)) ^ gauss
        if "numpy.random" in sys.modules:
            numpy_state = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
            owner = getattr(numpy_state, "_bit_generator", None)
            checksum_by_name["numpy"] = zlib.crc32(self._numpy.words(owner))
        checksum_by_name["torch"] = self._digest.fresh(self._torch.random.get_rng_state())
        cuda = self._torch.cuda
        if cuda.is_initialized():
            checksum_by_name["cuda"] = self._digest.fresh(cuda.get_rng_state())
        return checksum_by_name


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
        if owner is None or owner is not self._owner:
            state = self._ask()
            self._owner, self._memory = owner, self._found(state, owner)
            return state
        return self._ask() if self._memory is None else self._memory

    def _found(self, content: bytes, owner: Any) -> Any:
        try:
            memory = bytes_at(*self._place(owner))
        except (AttributeError, TypeError, ValueError):
            return None
        begin = bytes(memory).find(content)
        return memory[begin : begin + len(content)] if begin >= 0 else None


def python_words() -> bytes:
    *numbers, index = sys.modules["random"].getstate()[1]
    return struct.pack("=625I", index, *numbers)


def python_place(owner: Any) -> tuple[int, int]:
    """Return the memory of a `random.Random`, a C object that begins with those words."""
    if sys.implementation.name != "cpython":
        raise ValueError
    return id(owner), sys.modules["random"].Random.__base__.__basicsize__


def numpy_words() -> bytes:
    """Return the state of NumPy's `random`, whose generator a script may have replaced."""
    state = sys.modules["numpy.random"].get_state(legacy=False)["state"]
    if "key" not in state:
        return repr(state).encode()
    return bytes(state["key"]) + struct.pack("=i", state["pos"])


def numpy_place(owner: Any) -> tuple[int, int]:
    if type(owner).__name__ != "MT19937":
        raise ValueError
    return owner.ctypes.state_address, 2500
