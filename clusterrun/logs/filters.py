"""Select lines of the ranks: those since a time, matching lines, the last state of a progress bar.

A piece without data only marks the passing of time, and always passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from clusterrun.logs.merge import Piece
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

# One line up. A progress bar below another one prints it after each state.
UP = b"\x1b[A"
# Seconds after which the current state of a moving bar is shown.
SHOW_EVERY = 3.0


class Grep:
    """Lines that match a pattern, and the number of searched lines. Raises ``BadInput``."""

    def __init__(self, pattern: str, plain: Callable[[bytes], str]) -> None:
        """``plain`` returns a line without colours, as it is shown."""
        try:
            self._find = re.compile(pattern).search
        except re.error as error:
            remedy = "it is a regular expression of Python: write \\. for a dot, \\( for a bracket"
            raise BadInput(f"--grep {pattern!r} is not a pattern: {error}", remedy) from error
        self._plain = plain
        self.seen = self.found = 0

    def __call__(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Yield each piece with its matching lines. A piece without any is dropped."""
        for piece in pieces:
            if not piece.data:
                yield piece
                continue
            lines = _lines(piece.data)
            matching = [line for line in lines if self._find(self._plain(line))]
            self.seen, self.found = self.seen + len(lines), self.found + len(matching)
            if matching:
                yield piece._replace(data=b"".join(matching))


@frozen
class LineFilter:
    """A filter of lines: since ``begin``, matching ``grep``."""

    begin: float = 0.0
    grep: Grep | None = None
    as_is: bool = False  # keep older states of progress bars

    @property
    def exact(self) -> bool:
        """Return whether parts of lines may be shown as they arrive."""
        return self.as_is and self.grep is None

    def __call__(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """Yield the selected pieces. A piece without a time in an index counts as new."""
        if self.begin:
            pieces = (piece for piece in pieces if not piece.at or piece.at >= self.begin)
        through = pieces if self.as_is else moving(pieces)
        return self.grep(through) if self.grep else through

    @property
    def in_vain(self) -> str:
        """Return a sentence if lines were searched and none matched; else ''."""
        if self.grep is None or self.grep.found or not self.grep.seen:
            return ""
        lines = "the one line there is" if self.grep.seen == 1 else f"any of {self.grep.seen:,} lines"
        return f"the pattern was not found in {lines}"


def moving(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the last state of a lower progress bar, and one state every few seconds.

    Each state ends with a step up.
    """
    held: dict[tuple[int, str], Piece] = {}
    for piece in pieces:
        if not piece.data:
            for late in [key for key, state in held.items() if piece.at - state.at > SHOW_EVERY]:
                yield held.pop(late)
        key = (piece.rank, piece.stream)
        if UP in piece.data or (key in held and piece.data):
            yield from _over(held, key, piece)
        else:
            yield piece
    yield from held.values()


def _over(held: dict[tuple[int, str], Piece], key: tuple[int, str], piece: Piece) -> Iterator[Piece]:
    """Return the lines of ``piece`` that were not overwritten.

    The last state is held back, because it may be yet.
    """
    before = held.pop(key, None)
    state, since_ = (before.data, before.at) if before else (b"", piece.at)
    finished_lines = b""
    for line in _lines(piece.data):
        if UP in line:
            goes_on = line.rstrip(b"\r\n").endswith(UP)
            finished_lines, state = (finished_lines, line) if goes_on else (finished_lines + line, b"")
        elif state and not line.strip():
            state += line
        else:
            finished_lines, state = finished_lines + state + line, b""
    if finished_lines:
        yield piece._replace(data=finished_lines)
        since_ = piece.at
    if state:
        held[key] = piece._replace(data=state, at=since_)


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
