"""One event loop for descriptors, signals and times; knows no message and no policy.

Signal handlers do nothing. The interpreter writes the signal's number into a pipe, so that no signal
interrupts a callback.
"""

from __future__ import annotations

import heapq
import os
import select
import signal
import time
from collections.abc import Callable, Iterable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT


def steady() -> float:
    """Return seconds of a clock that never jumps and counts sleep; it is common to all processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class EventLoop:
    """Calls back when a descriptor is ready, a time is reached or a signal came; one thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._times: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def watch(self, fd: int, callback: Callable[[int], None], mask: int = READABLE) -> None:
        """Call ``callback`` with the ready mask whenever ``fd`` is ready. A second call changes the mask."""
        if fd in self._callbacks:
            self._epoll.modify(fd, mask)
        else:
            self._epoll.register(fd, mask)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        if self._callbacks.pop(fd, None):
            self._epoll.unregister(fd)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._times, (when, self._order, callback))

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        self.at(steady() + seconds, callback)

    def every(self, seconds: float, callback: Callable[[], None]) -> None:
        def again() -> None:
            callback()
            self.after(seconds, again)

        again()

    def catch(self, numbers: Iterable[int], callback: Callable[[int], None]) -> None:
        """Call ``callback`` with the number of each of these signals, between two other callbacks.

        Signals that were blocked until now and are pending are delivered now.
        """
        numbers = tuple(numbers)
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)

        def on_signals(mask: int) -> None:
            for number in os.read(readable, 4096):
                callback(number)

        self.watch(readable, on_signals)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)

    def wait(self, until: float | None) -> None:
        """Wait once, until ``until`` at most, and call all callbacks that are due."""
        whens = [when for when in (until, self._times[0][0] if self._times else None) if when is not None]
        limit = max(0.0, min(whens) - steady()) if whens else -1
        # The kernel counts milliseconds. A wait that ends too early would become a busy loop.
        for fd, mask in self._epoll.poll(limit if limit < 0 else limit + 0.001):
            callback = self._callbacks.get(fd)
            if callback:
                callback(mask)
        now = steady()
        while self._times and self._times[0][0] <= now:
            heapq.heappop(self._times)[2]()
