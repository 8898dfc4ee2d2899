"""Which ranks, nodes and streams are wanted; pure."""

from __future__ import annotations

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

STREAMS = ("out", "err")


@frozen
class LogSelection:
    """``ranks`` None: all of them. ``streams`` are of ``STREAMS``, ``begin`` is seconds since the epoch."""

    ranks: frozenset[int] | None = None
    streams: tuple[str, ...] = STREAMS
    begin: float = 0.0

    def wants(self, rank: int, stream: str) -> bool:
        """Whether that file is to be shown."""
        return stream in self.streams and (self.ranks is None or rank in self.ranks)


def numbers(text: str, below: int, what: str) -> frozenset[int]:
    """The numbers in ``0,3-5``. Raises ``BadInput`` for anything else, or one not below ``below``."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (text.isascii() and first.isdecimal() and (last.isdecimal() or not dash)):
            raise BadInput(f"{text!r} is not a list of {what}s", f"write for example --{what} 0,3-5")
        low, high = int(first), int(last or first)
        if high >= below or low > high:
            raise BadInput(f"there is no {what} {part.strip()}", f"the run has {what}s 0 to {below - 1}")
        found.update(range(low, high + 1))
    return frozenset(found)
