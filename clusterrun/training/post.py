"""Exchanges messages between a script and its run directory in a thread.

The run directory lies on a file system that many machines share, and that may be slow or gone: the
training never waits for it longer than ``WRITE_SECONDS``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping

from .surroundings import Surroundings

EVERY = 1.0
"""Seconds between polls of the run directory, and between messages once ``BURST`` are used up."""
BURST = 10
"""This many messages are written at once, so that a script that crashes at step 3 has reported it."""
WRITE_SECONDS = 0.05
AT_THE_END = 2.0


class MessageWriter:
    """The messages of one process; ``leads`` tells whether it is the one that writes."""

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
        """Write the newest message to its file (by default that of progress), with ``now`` at once."""
        self._news[path or self.place.progress] = news
        if self._may_go() or now:
            self._hand_over(WRITE_SECONDS)

    def close(self) -> None:
        """Send what has not been sent, and end: an interpreter that ends should find no thread awake."""
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
        while not self._closing:
            self._wake.wait(EVERY)
            self._wake.clear()
            self.write()
            self.look()
            if not self._wake.is_set():
                self._idle.set()

    def write(self) -> None:
        """Put the newest words into their files, whole; a file system that is away gets the next ones."""
        told, self._news = self._news, {}
        for path, news in told.items() if self._leads else ():
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
        """See whether somebody wants room or a checkpoint; at most once in ``EVERY``."""
        if self._clock() - self._looked < EVERY:
            return
        self._looked = self._clock()
        self.noticed = self.noticed or os.path.exists(self.place.notice)
        if self._leads and taken(self.place.save_now):
            self.saves_asked += 1


def taken(path: str) -> bool:
    """Remove the file; whether it was there."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
