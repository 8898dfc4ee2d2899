"""One line on standard error; a full disk or a closed pipe there ends nothing."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
