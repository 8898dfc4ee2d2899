"""Write numbers of things and lists of names."""

from __future__ import annotations

from collections.abc import Sequence


def count_of(number: int, noun: str) -> str:
    """Return ``1 node`` or ``3 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return a list of names that ends with how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
