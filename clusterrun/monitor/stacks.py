"""Asks ranks for the stacks of their threads, all at once, and waits a bounded time; judges nothing.

The answer is written by ``faulthandler`` within the signal: it comes whatever the rank is doing,
also in code that never gives Python's lock back; not from one that is stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from clusterrun import proc
from clusterrun.diagnosis.frames import of_faulthandler, other_threads
from clusterrun.model.frozen import frozen
from clusterrun.monitor.rank_channels import RankChannel
from clusterrun.monitor.rank_instrumentation import STACKS_SIGNAL

ANSWER_SECONDS = 2.5
_LOOK_SECONDS = 0.01
_SETTLED_LOOKS = 4
_MOST = 1 << 18


@frozen
class StackReply:
    """The main thread's stack, and where in the user's code each other thread stands."""

    main: tuple[str, ...]
    threads: tuple[str, ...] = ()


class StackRequest:
    """Stacks that were asked for and may still come."""

    def __init__(self, channel: RankChannel, pid: int) -> None:
        """``pid``: the rank itself, or a process that it forked, which has the same channels."""
        self._channel, self._pid = channel, pid
        self._settled = 0
        self._text = ""
        self._file = -1
        self.stack: tuple[str, ...] = ()
        self.waiting = self._ask()

    def _ask(self) -> bool:
        if not self._channel.intact() or not proc.catches(self._pid, STACKS_SIGNAL):
            return False
        try:
            path = f"/proc/{self._channel.pid}/fd/{self._channel.stacks}"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._start = os.fstat(self._file).st_size
            os.kill(self._pid, STACKS_SIGNAL)
        except OSError:
            return False
        return True

    def look(self) -> None:
        """Take what has come; complete once it is there and grows no more."""
        text = os.pread(self._file, _MOST, self._start).decode("utf-8", "backslashreplace")
        self._settled = self._settled + 1 if text and text == self._text else 0
        self._text = text
        if self._settled >= _SETTLED_LOOKS:
            self.stack = of_faulthandler(text, self._channel.main)
            self.waiting = not self.stack

    @property
    def threads(self) -> tuple[str, ...]:
        return other_threads(self._text, self._channel.main)

    def close(self) -> None:
        if self._file >= 0:
            self.stack = self.stack or of_faulthandler(self._text, self._channel.main)
            os.close(self._file)


def stacks(channels: Iterable[RankChannel], seconds: float = ANSWER_SECONDS) -> dict[int, StackReply]:
    """What each rank that gave its main thread's stack told, by process."""
    questions = {channel.pid: StackRequest(channel, channel.pid) for channel in channels}
    _wait(list(questions.values()), seconds)
    return {pid: StackReply(one.stack, one.threads) for pid, one in questions.items() if one.stack}


def stack_of_fork(channel: RankChannel, pid: int, seconds: float = ANSWER_SECONDS) -> tuple[str, ...]:
    """The stack of a process that the rank behind ``channel`` forked; () where it has the handler no more.

    Such processes write into one file with their parent: one after the other is asked.
    """
    question = StackRequest(channel, pid)
    _wait([question], seconds)
    return question.stack


def _wait(questions: list[StackRequest], seconds: float) -> None:
    until = time.monotonic() + seconds
    waiting = [question for question in questions if question.waiting]
    while waiting and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
        for question in waiting:
            question.look()
        waiting = [question for question in waiting if question.waiting]
    for question in questions:
        question.close()
