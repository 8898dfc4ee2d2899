"""Hides the values of ``--env KEY=VALUE`` from the process list while a command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

_OPTION = b"--env"


def hide_env_values() -> None:
    """Overwrite the values in this process's own command line, which all users of the machine can read.

    It does nothing on a system that does not allow it. Until it is called, the values are visible.
    """
    if not any(word.startswith("--env") for word in sys.argv):
        return
    import ctypes  # most commands do without

    try:
        with open("/proc/self/stat", "rb") as file:
            # arg_start and arg_end of proc(5); the name before the last bracket may hold anything.
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/cmdline", "rb") as file:
            command_line = file.read()
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end or len(command_line) != end - start:
        return
    for place, length in _values(command_line):
        ctypes.memset(start + place, ord("*"), length)


def _values(command_line: bytes) -> Iterator[tuple[int, int]]:
    """Yield place and length of the value in each ``--env KEY=VALUE`` and ``--env=KEY=VALUE``."""
    place, is_value = 0, False
    for word in command_line.split(b"\0"):
        prefix = b"" if is_value else _OPTION + b"="
        if is_value or word.startswith(prefix):
            key = word[len(prefix) :].partition(b"=")[0]
            start = len(prefix) + len(key) + 1
            if start < len(word):
                yield place + start, len(word) - start
        is_value = word == _OPTION
        place += len(word) + 1
