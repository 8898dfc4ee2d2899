"""Format rank output for a terminal: with headings, folded, and without harmful characters."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator

from clusterrun.diagnosis.verdict import folded
from clusterrun.logs.merge import Piece
from clusterrun.model.visible import visible

# Bytes that are shown unchanged.
_PLAIN = bytes(range(0x20, 0x7F)) + b"\n"
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
# Shortest interval in seconds between two queries for unknown node names.
ASK_EVERY = 0.5
# Up, down, erase the line, to a column, hide and show the cursor: sequences of progress bars between
# states.
_BAR = rb"\x1b\[(?:\d{0,4}[ABKG]|\?25[hl])"


class Headings:
    """The node's name and the rank before a line; ``|`` for stdout, ``!`` for stderr."""

    def __init__(
        self,
        names: Callable[[], tuple[str, ...]],
        ranks_per_node: int,
        world_size: int,
        colours: bool = False,
    ) -> None:
        """``names`` returns the names of the nodes that are known so far."""
        self.colours = colours
        self._ask = names
        self._names = [visible(name) for name in names()]
        self._width = max(map(len, self._names), default=0)
        self._ranks_per_node = ranks_per_node
        self._digits = len(str(world_size - 1))
        self._ask_again = self._pause = 0.0
        self._unknown: dict[tuple[int, str], bytes] = {}
        self._made: dict[tuple[int, str], bytes] = {}

    def of(self, rank: int, stream: str) -> bytes:
        if (rank, stream) in self._made:
            return self._made[rank, stream]
        node = rank // self._ranks_per_node
        if node >= len(self._names):
            # Query the names at once, then at growing intervals, since thousands of lines may arrive first.
            now = time.monotonic()
            if now >= self._ask_again:
                self._names = [visible(name) for name in self._ask()]
                self._width = max(map(len, self._names), default=0)
                self._pause = min(ASK_EVERY, 2 * self._pause + 0.005)
                self._ask_again = now + self._pause
                self._unknown.clear()
        if (rank, stream) in self._unknown:
            return self._unknown[rank, stream]
        has_name = node < len(self._names)
        name = self._names[node] if has_name else f"node{node}"
        label = self._painted(f"{name:<{self._width}} r{rank:<{self._digits}}", rank)
        head = (label + _mark(stream)).encode()
        (self._made if has_name else self._unknown)[rank, stream] = head
        return head

    def of_many(self, ranks: set[int], stream: str) -> bytes:
        return (self._painted(f"[{folded(tuple(ranks))}]", min(ranks)) + _mark(stream)).encode()

    def _painted(self, head: str, rank: int) -> str:
        return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m{head}\x1b[0m" if self.colours else head


def _mark(stream: str) -> str:
    return " ! " if stream == "err" else " | "


def headed(pieces: Iterable[Piece], headings: Headings) -> Iterator[bytes]:
    for piece in pieces:
        if not piece.data:
            continue
        head = headings.of(piece.rank, piece.stream)
        if piece.data.translate(None, _PLAIN):
            yield b"".join(head + line.encode() + b"\n" for line in lines(piece.data, headings.colours))
        else:
            yield head + piece.data.removesuffix(b"\n").replace(b"\n", b"\n" + head) + b"\n"


def lines(data: bytes, colours: bool = False) -> list[str]:
    """Return the lines in ``data`` as a terminal shows them in the end, without harmful characters."""
    ended = data[:-1] if data.endswith(b"\n") else data
    return [last_state(line, colours) for line in ended.split(b"\n")]


def last_state(line: bytes, colours: bool = False) -> str:
    """Return one line as a terminal shows it in the end, without harmful characters."""
    if b"\x1b[" in line:
        line = re.sub(_BAR, b"", line)
    if b"\r" not in line:
        state = line
    else:
        state = next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")
    return visible(state.decode("utf-8", "surrogateescape"), colours)


def plain(line: bytes) -> str:
    """Return one line without its end and without colours."""
    return last_state(line.removesuffix(b"\n"))


def raw(pieces: Iterable[Piece]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece.data
