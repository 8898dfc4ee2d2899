"""How a process ended, in words; knows no rank, no node and no run."""

from __future__ import annotations

import signal


def code_in_words(code: int) -> str:
    """How a process ended, as a sentence without its subject."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
