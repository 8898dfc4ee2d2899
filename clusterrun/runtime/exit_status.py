"""Describe the end of a process in words; knows no rank, no node and no run."""

from __future__ import annotations

import signal

# Added to the last lines of a rank if the kernel's count of out-of-memory kills has risen.
STARVED = "clusterrun: out of memory: the kernel ended a process of this job on this node"


def code_in_words(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
