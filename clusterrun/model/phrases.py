"""Write numbers of things, lists of names and exit codes, and shorten texts."""

from __future__ import annotations

import signal
from collections.abc import Sequence


def count_of(number: int, noun: str) -> str:
    """Return ``1 node`` or ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return a list of names that ends with how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def shortened(text: str, most: int) -> str:
    """Return the text in at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def code_in_words(code: int) -> str:
    """Return how a process ended. The code of a process that a signal ended is negative."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
