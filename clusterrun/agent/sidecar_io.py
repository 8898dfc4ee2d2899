"""One sidecar's pipes: JSON lines in and out, both bounded, so that the agent never waits."""

from __future__ import annotations

import json
import os

from clusterrun.runtime.event_loop import READABLE, WRITABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterrun.runtime.event_loop import EventLoop

LONGEST_LINE = 1_000_000
_MOST_UNREAD = 4 * 1024 * 1024
_READ = 64 * 1024
_LAST_READS = 64
_PAUSE = 0.1


class Sidecar:
    """A running sidecar and the pipes to it."""

    def __init__(self, loop: EventLoop, pid: int, epoch: int, pipes: tuple[int, int]) -> None:
        self.pid = pid
        self.epoch = epoch
        self._loop = loop
        self._questions, self._answers = pipes
        self._unread = bytearray()
        self._half = bytearray()
        self._open = True
        for pipe in pipes:
            os.set_blocking(pipe, False)

    def open(
        self, heard: Callable[[int, str], None], broke: Callable[[str], None], clear: Callable[[], bool]
    ) -> None:
        """Begin to listen.

        ``heard(number, body)`` is called with what it says, ``broke(why)`` once where it does not keep to
        the form; ``clear()`` says whether more can be heard now: where it is False, the pipe fills up
        and the sidecar waits.
        """
        self._heard, self._broke, self._clear = heard, broke, clear
        self._loop.watch(self._answers, lambda mask: self._listen())

    def ask(self, number: int, body: str) -> None:
        """Hand a question over, now or when it reads again."""
        if not self._open:
            return
        self._unread += json.dumps({"number": number, "body": body}).encode() + b"\n"
        self._hand_over(WRITABLE)
        if self._open and len(self._unread) > _MOST_UNREAD:
            self._break("reads nothing of what it is asked")

    def _hand_over(self, mask: int) -> None:
        try:
            while self._unread:
                del self._unread[: os.write(self._questions, self._unread)]
        except BlockingIOError:
            self._loop.watch(self._questions, self._hand_over, WRITABLE)
            return
        except OSError:  # it reads no more; its end is heard of by itself
            self._unread.clear()
        self._loop.forget(self._questions)

    def _listen(self) -> None:
        if not self._open:
            return
        if self._clear():
            self._read()
            return
        self._loop.forget(self._answers)
        self._loop.after(_PAUSE, self._listen_again)

    def _listen_again(self) -> None:
        if self._open:
            self._loop.watch(self._answers, lambda mask: self._listen(), READABLE)
            self._listen()

    def _read(self) -> bool:
        """Take in what there is, one piece of it; False when there is no more for now."""
        try:
            data = os.read(self._answers, _READ)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(self._answers)
            return False
        self._take(data)
        return self._open

    def _take(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole, self._half = bytes(self._half) + line, bytearray()
            if not self._open or not self._answer(whole):
                return
        self._half += rest
        if len(self._half) > LONGEST_LINE:
            self._break(f"said more than {LONGEST_LINE:,} bytes in one line")

    def _answer(self, line: bytes) -> bool:
        try:
            said = json.loads(line)
            number, body = said["number"], said["body"]
            # As it travels on; a frame has a limit, and what is beyond it would cost the link.
            fits = len(line) <= LONGEST_LINE and len(json.dumps(body)) <= LONGEST_LINE
        except (ValueError, KeyError, TypeError, RecursionError):
            number = body = None
            fits = True
        if type(number) is not int or not isinstance(body, str) or abs(number) >= 2**63:
            self._break(f"said what is no answer: {line[:80].decode('utf-8', 'backslashreplace')!r}")
        elif not fits:
            self._break(f"said more than {LONGEST_LINE:,} bytes in one line")
        else:
            self._heard(number, body)
        return self._open

    def _break(self, why: str) -> None:
        self.close()
        self._broke(why)

    def last_words(self) -> None:
        """It has ended: take in what it said before, but no more than a pipe holds a few times."""
        for _ in range(_LAST_READS):
            if not self._open or not self._read():
                return

    def close(self) -> None:
        """Nothing is heard or said any more; the process is somebody else's to end."""
        if self._open:
            self._open = False
            for pipe in (self._questions, self._answers):
                self._loop.forget(pipe)
                os.close(pipe)
