"""The errors in what a rank printed, as its lines come, each with its place in the user's code; pure."""

from __future__ import annotations

import re

from clusterrun.diagnosis.messages import meaning
from clusterrun.diagnosis.places import is_library, short
from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from clusterrun.diagnosis.rows import Row

_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
_FRAME = re.compile(r'^\s+File "(.*)", line (\d+),? in (\S+)')
_FATAL = re.compile(r"^Fatal Python error: (.*)")
_NAMED = re.compile(r"^[A-Za-z_][\w.]*(?:: |$)")
MOST = 400


@frozen
class Error:
    """What a rank complained of at ``at`` (seconds); ``frame`` is where in the user's code, if it said so."""

    at: float
    rank: int
    text: str
    frame: str = ""
    row: Row | None = None

    @property
    def consequence(self) -> bool:
        """Somebody else failed first."""
        return self.row is not None and self.row.consequence

    @property
    def said(self) -> str:
        """The message, and where it came from."""
        return self.text + (f", at {short(self.frame)}" if self.frame else "")


class Listener:
    """Hears one stream of a rank line by line; ``errors`` are what it found."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._frame = ""
        self._open = False
        self._fatal: tuple[float, str] | None = None
        self.errors: list[Error] = []

    def hear(self, at: float, line: str) -> None:
        """One line, without its end."""
        text = _PREFIX.sub("", line)
        if "Traceback (most recent call last)" in text:
            self._open, self._frame = True, ""
        elif frame := _FRAME.match(text):
            self._note(at, f"{frame[1]}:{frame[2]} {frame[3]}")
        elif fatal := _FATAL.match(text):
            self._fatal = (at, fatal[1])
        elif self._open and text and not text[0].isspace():
            self._open = False
            self._add(at, text)
        elif not self._open and (row := meaning(text)):
            self._add(at, text.strip(), row)

    def _note(self, at: float, frame: str) -> None:
        """A frame of a traceback (outermost first), or of a fatal error's stack (innermost first)."""
        own = not is_library(frame)
        if self._open and own:
            self._frame = frame
        elif self._fatal and own:
            self._close_fatal(at, frame)

    def _close_fatal(self, at: float, frame: str) -> None:
        """An abort says where it was, after what it was about."""
        said = f"Fatal Python error: {self._fatal[1]}" if self._fatal else ""
        self._fatal = None
        if self.errors and not self.errors[-1].frame and at - self.errors[-1].at < 2.0:
            before = self.errors.pop()
            self.errors.append(Error(before.at, before.rank, before.text, frame, before.row))
        else:
            self.errors.append(Error(at, self._rank, said, frame))

    def _add(self, at: float, text: str, row: Row | None = None) -> None:
        row = row or meaning(text)
        if row is None and not _NAMED.match(text):
            return
        self.errors.append(Error(at, self._rank, text[:MOST], self._frame, row))
        self._frame = ""
