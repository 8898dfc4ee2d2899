"""A terminal's other screen, and pictures drawn on it without a flicker; knows not what they show."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
"""Around a picture: a terminal that knows it shows all of it at once."""


def picture(lines: Sequence[str]) -> str:
    """``lines`` from the upper left corner on, over whatever stood there."""
    return _BEGIN + "".join(f"{line}\x1b[K\r\n" for line in lines[:-1]) + lines[-1] + "\x1b[K" + _END


@contextmanager
def other_screen() -> Iterator[None]:
    """The terminal as it was is given back whatever ends us, but for a KILL."""
    before = signal.signal(signal.SIGTERM, _leave)
    sys.stdout.write(_ENTER)
    try:
        yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
