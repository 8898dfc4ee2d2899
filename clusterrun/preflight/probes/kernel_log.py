"""Reads the kernel's log since the start of this machine, where it may be read; judges no line of it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from clusterrun.preflight.probes.run_program import answer

RECORD = 8192
"""A record of /dev/kmsg is never longer; a shorter buffer would make the kernel refuse it."""
MOST_RECORDS = 100_000
_KMSG = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)")
_FURTHER = re.compile(r"\n {2,}(?=\S)")
"""A message of several lines: those behind the first are indented, as far as its text is."""
_JOURNAL = re.compile(r"\[ *(\d+\.\d+)\] [^ ]+ kernel: (.*)")


def lines() -> list[tuple[float, str]] | None:
    """(seconds ago, text) of every line, oldest first; None if this user may not read it."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        argv = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", "--grep", "NVRM|SXid")
        said = answer(*argv, seconds=4).out
        return list(journal(said, time.clock_gettime(time.CLOCK_MONOTONIC))) or None
    try:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return list(parsed("".join(_records(fd)), now))
    finally:
        os.close(fd)


def parsed(text: str, now: float) -> Iterator[tuple[float, str]]:
    """The lines in the records of /dev/kmsg; ``now`` is in seconds since the machine's start."""
    for line in text.splitlines():
        found = _KMSG.match(line)
        if found:
            yield max(0.0, now - int(found[1]) / 1e6), found[2]


def _records(fd: int) -> Iterator[str]:
    for _ in range(MOST_RECORDS):
        try:
            data = os.read(fd, RECORD)
        except BrokenPipeError:  # this record was overwritten meanwhile; the next is the oldest there is
            continue
        except BlockingIOError:  # that was the last one
            return
        if not data:
            return
        yield data.decode("utf-8", "replace")


def journal(text: str, now: float) -> Iterator[tuple[float, str]]:
    """The kernel's lines in what ``journalctl -o short-monotonic`` prints; ``now`` as in ``parsed``."""
    for line in _FURTHER.sub(" ", text).splitlines():
        found = _JOURNAL.match(line)
        if found:
            yield max(0.0, now - float(found[1])), found[2]
