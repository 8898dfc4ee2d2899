"""Show pictures on a terminal's alternate screen without a flicker."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Around a picture: a terminal that supports synchronized output shows all of it at once.
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"


def picture(lines: Sequence[str]) -> str:
    """Return the text that draws ``lines`` from the upper left corner, over the old content."""
    return _BEGIN + "".join(f"{line}\x1b[K\r\n" for line in lines[:-1]) + lines[-1] + "\x1b[K" + _END


def _in_front(terminal: int) -> bool:
    """Return whether this process is in the terminal's foreground job."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it controls no session of ours
        return True


class Keys:
    """Reads keys while a picture is shown; ``q`` ends it. Reads nothing if stdin is not a terminal."""

    def __init__(self) -> None:
        """Read keys without echo and line buffering. A job in the background must not touch its terminal."""
        self._fd = sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else -1
        self._before: list[Any] | None = None
        if self._fd >= 0 and _in_front(self._fd):
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSANOW)

    def restore(self) -> None:
        if self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def wait(self, seconds: float) -> bool:
        """Wait for ``seconds``. Return True as soon as the user types ``q``."""
        if self._before is None:
            time.sleep(seconds)
            return False
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            if select.select([self._fd], [], [], remaining)[0]:
                typed = os.read(self._fd, 64)
                if not typed:  # the terminal is gone: a hang-up is on its way
                    return True
                if b"q" in typed.lower():
                    return True
        return False


@contextmanager
def other_screen() -> Iterator[Keys]:
    """Show the alternate screen; the terminal is restored on any end but SIGKILL."""
    signals = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before, keys = {number: signal.signal(number, _leave) for number in signals}, Keys()
    sys.stdout.write(_ENTER)
    try:
        yield keys
    finally:
        keys.restore()
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
