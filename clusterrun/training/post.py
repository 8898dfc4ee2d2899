"""Exchange messages between a script and its run directory in a thread.

The run directory is on a shared file system, which may be slow or unreachable. The training never waits for
it longer than ``WRITE_SECONDS``.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping

from .surroundings import Surroundings

# Seconds between polls of the run directory, and between messages once ``BURST`` are used up.
EVERY = 1.0
# Number of messages that are written at once. A script that crashes at step 3 has then reported it.
BURST = 10
WRITE_SECONDS = 0.05
AT_THE_END = 2.0


class MessageWriter:
    """The messages of one process. Only the process that ``leads`` writes them."""

    def __init__(self, place: Surroundings, leads: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self.noticed = False
        self.saves_asked = 0
        self._leads = leads
        self._clock = clock
        self._news: dict[str, Mapping[str, object]] = {}
        self._allowed, self._counted = float(BURST), clock()
        self._looked = -EVERY
        self._wake, self._idle = threading.Event(), threading.Event()
        self._idle.set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="clusterrun-training", daemon=True)

    def open(self) -> None:
        self.look()
        self._thread.start()

    def send(self, news: Mapping[str, object], now: bool = False, path: str = "") -> None:
        """Write the newest message to its file (by default the progress file), immediately with ``now``."""
        self._news[path or self.place.progress] = news
        if self._may_go() or now:
            self._hand_over(WRITE_SECONDS)

    def close(self) -> None:
        """Send pending messages and end the thread. No thread may be active when the interpreter ends."""
        if self._news:
            self._hand_over(AT_THE_END)
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(AT_THE_END)

    def _may_go(self) -> bool:
        now = self._clock()
        self._allowed = min(float(BURST), self._allowed + (now - self._counted) / EVERY)
        self._counted = now
        if self._allowed < 1:
            return False
        self._allowed -= 1
        return True

    def _hand_over(self, patience: float) -> None:
        was_idle = self._idle.is_set()
        self._idle.clear()
        self._wake.set()
        if was_idle or patience > WRITE_SECONDS:
            self._idle.wait(patience)

    def _serve(self) -> None:
        # A script may block its signals in all of its threads, and call sigwait.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._closing:
            self._wake.wait(EVERY)
            self._wake.clear()
            self.write()
            self.look()
            if not self._wake.is_set():
                self._idle.set()

    def write(self) -> None:
        """Write the newest messages as complete files.

        If the file system fails, a later message is written.
        """
        messages, self._news = self._news, {}
        for path, news in messages.items() if self._leads else ():
            if not self._put(path, news):
                self._news.setdefault(path, news)

    def _put(self, path: str, news: Mapping[str, object]) -> bool:
        beside = f"{path}.{os.getpid()}"
        try:
            handle = os.open(
                beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(handle, "w", encoding="ascii") as file:
                json.dump({"format": 1, **news, "at": time.time()}, file)
            os.replace(beside, path)
        except OSError:
            taken(beside)
            return False
        return True

    def look(self) -> None:
        """Check for a notice and for a request to save, at most once per ``EVERY`` seconds."""
        if self._clock() - self._looked < EVERY:
            return
        self._looked = self._clock()
        self.noticed = self.noticed or os.path.exists(self.place.notice)
        if self._leads and taken(self.place.save_now):
            self.saves_asked += 1


def taken(path: str) -> bool:
    """Remove the file, and return whether it existed."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
