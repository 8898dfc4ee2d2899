"""Selects lines of the ranks: those since a moment, those that match, the last state of a progress bar.

Pure; a piece without data says only that time has passed, and always passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from clusterrun.logs.merge import Piece
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen

UP = b"\x1b[A"
"""One line up: what a progress bar below another one prints after each of its states."""
SHOW_EVERY = 3.0
"""Seconds after which a bar that moves is shown as it is."""


class Grep:
    """Lines in which a pattern is found, and how many were looked at. Raises ``BadInput``."""

    def __init__(self, pattern: str, plain: Callable[[bytes], str]) -> None:
        """``plain`` gives a line as it is shown, without colours."""
        try:
            self._find = re.compile(pattern).search
        except re.error as error:
            remedy = "it is a regular expression of Python: write \\. for a dot, \\( for a bracket"
            raise BadInput(f"--grep {pattern!r} is not a pattern: {error}", remedy) from error
        self._plain = plain
        self.seen = self.found = 0

    def __call__(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Each piece with those of its lines that match; one where none does is left out."""
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
    """Which lines are wanted: since ``begin``, matching ``grep``; ``as_is``: older states of bars too."""

    begin: float = 0.0
    grep: Grep | None = None
    as_is: bool = False

    @property
    def exact(self) -> bool:
        """Whether lines may be shown in parts, as they come."""
        return self.as_is and self.grep is None

    def __call__(self, pieces: Iterable[Piece]) -> Iterable[Piece]:
        """What is let through; what no index dates yet is new."""
        if self.begin:
            pieces = (piece for piece in pieces if not piece.at or piece.at >= self.begin)
        through = pieces if self.as_is else moving(pieces)
        return self.grep(through) if self.grep else through

    @property
    def in_vain(self) -> str:
        """A sentence where no line matched; '' otherwise, and where there were none."""
        if self.grep is None or self.grep.found or not self.grep.seen:
            return ""
        lines = "the one line there is" if self.grep.seen == 1 else f"any of {self.grep.seen:,} lines"
        return f"the pattern was not found in {lines}"


def moving(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Of a bar below another one (each state ends with a step up) the last state, and one now and then."""
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
    """The lines of ``piece`` that nothing was written over; the state that may yet be is held back."""
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
