"""Suggest names for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, names: Iterable[str], most: int = 1, alike: float = 0.6) -> list[str]:
    """Return at most ``most`` of ``names``, the most similar to ``word`` first.

    The result is empty if no name is similar.
    """
    import difflib  # slow to import, and every TAB starts a process

    return difflib.get_close_matches(word, list(names), most, alike)


def did_you_mean(word: str, names: Iterable[str], otherwise: str = "") -> str:
    similar = nearest(word, names)
    return f"did you mean {similar[0]!r}?" if similar else otherwise
