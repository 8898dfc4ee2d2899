"""Write lines to standard error. A full disk or a closed pipe ends no process."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
