"""Print a line that many ranks wrote only once, with the ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from clusterrun.logs.format import Headings, lines
from clusterrun.logs.merge import Piece

# Seconds after a line's first rank in which other ranks join it.
WINDOW = 1.0
# Limit on lines that wait at once.
MOST = 10_000


class _Shared:
    """One line, with the time of its first rank and its ranks."""

    __slots__ = ("at", "key", "ranks")

    def __init__(self, key: tuple[str, str], at: float) -> None:
        self.key = key
        self.at = at
        self.ranks: set[int] = set()


class _Repeated:
    """Copies of one line that are not printed yet.

    The second copy of one rank joins the second copies of others.
    """

    __slots__ = ("shown", "times", "written")

    def __init__(self) -> None:
        self.shown = 0
        self.times: deque[_Shared] = deque()
        self.written: dict[int, int] = {}

    def next_of(self, rank: int) -> int:
        """Return which of ``times`` the rank writes now; their count for a new one."""
        number = max(self.written.get(rank, 0), self.shown)
        self.written[rank] = number + 1
        return number - self.shown


def folding(pieces: Iterable[Piece], headings: Headings) -> Iterator[bytes]:
    """Yield lines with heading and end.

    A line that several ranks wrote within ``WINDOW`` comes once, with the ranks.
    """
    waiting: deque[_Shared] = deque()
    repeated_by_key: dict[tuple[str, str], _Repeated] = {}
    for piece in pieces:
        while waiting and (piece.at - waiting[0].at > WINDOW or len(waiting) > MOST):
            yield _shown(waiting.popleft(), repeated_by_key, headings)
        for line in lines(piece.data, headings.colours) if piece.data else ():
            key = (line, piece.stream)
            repeated = repeated_by_key.get(key) or repeated_by_key.setdefault(key, _Repeated())
            number = repeated.next_of(piece.rank)
            if number == len(repeated.times):
                repeated.times.append(_Shared(key, piece.at))
                waiting.append(repeated.times[-1])
            repeated.times[number].ranks.add(piece.rank)
    while waiting:
        yield _shown(waiting.popleft(), repeated_by_key, headings)


def _shown(shared: _Shared, repeated_by_key: dict[tuple[str, str], _Repeated], headings: Headings) -> bytes:
    repeated = repeated_by_key[shared.key]
    repeated.times.popleft()
    repeated.shown += 1
    if not repeated.times:
        del repeated_by_key[shared.key]
    line, stream = shared.key
    ranks = shared.ranks
    head = headings.of(min(ranks), stream) if len(ranks) == 1 else headings.of_many(ranks, stream)
    return head + line.encode() + b"\n"
