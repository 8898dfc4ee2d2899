"""Write lines to standard error. A full disk or a closed pipe ends no process."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(line: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
