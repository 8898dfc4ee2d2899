"""Read the kernel's log since the start of this machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

from clusterrun.preflight.probes.run_program import answer

# Maximum size of a record of /dev/kmsg. The kernel refuses a shorter buffer.
RECORD = 8192
MOST_RECORDS = 100_000
_KMSG = re.compile(r"\d+,\d+,(\d+),[^;]*;(.*)")
# journalctl indents the further lines of a message to the column of its text.
_FURTHER = re.compile(r"\n {2,}(?=\S)")
_JOURNAL = re.compile(r"\[ *(\d+\.\d+)\] [^ ]+ kernel: (.*)")


def lines() -> list[tuple[float, str]] | None:
    """Return (seconds ago, text) of every line, oldest first, or None if this user may not read the log."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        argv = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic", "--grep", "NVRM|SXid")
        output = answer(*argv, seconds=4).out
        return list(journal(output, time.clock_gettime(time.CLOCK_MONOTONIC))) or None
    try:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return list(parsed("".join(_records(fd)), now))
    finally:
        os.close(fd)


def parsed(text: str, now: float) -> Iterator[tuple[float, str]]:
    """Yield the lines in records of /dev/kmsg. ``now`` is in seconds since the machine's start."""
    for line in text.splitlines():
        match = _KMSG.match(line)
        if match:
            yield max(0.0, now - int(match[1]) / 1e6), match[2]


def _records(fd: int) -> Iterator[str]:
    for _ in range(MOST_RECORDS):
        try:
            data = os.read(fd, RECORD)
        except BrokenPipeError:  # The kernel overwrote this record. The next read returns the oldest record.
            continue
        except BlockingIOError:  # The log ends.
            return
        if not data:
            return
        yield data.decode("utf-8", "replace")


def journal(text: str, now: float) -> Iterator[tuple[float, str]]:
    """Yield the kernel's lines that ``journalctl -o short-monotonic`` prints. ``now`` is as in ``parsed``."""
    for line in _FURTHER.sub(" ", text).splitlines():
        match = _JOURNAL.match(line)
        if match:
            yield max(0.0, now - float(match[1])), match[2]
