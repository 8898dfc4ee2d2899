"""Hide the values of ``--env KEY=VALUE`` and ``--notify URL`` from the process list while a command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator

# Options whose value is secret after the first such character.
_SECRET_AFTER = {b"--env": b"=", b"--notify": b":"}


def hide_secret_values() -> None:
    """Overwrite the values in this process's own command line, which all users of the machine can read.

    It does nothing on a system that does not allow it. Until it is called, the values are visible.
    """
    if not any(word.startswith(("--env", "--notify")) for word in sys.argv):
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
    """Yield place and length of the secret in each ``--option VALUE`` and ``--option=VALUE``."""
    place, sign = 0, b""
    for word in command_line.split(b"\0"):
        option, equals, _ = word.partition(b"=")
        prefix = 0
        if not sign and equals and option in _SECRET_AFTER:
            sign, prefix = _SECRET_AFTER[option], len(option) + 1
        if sign:
            start = prefix + len(word[prefix:].partition(sign)[0]) + 1
            if start < len(word):
                yield place + start, len(word) - start
            sign = b""
        else:
            sign = _SECRET_AFTER.get(word, b"")
        place += len(word) + 1
