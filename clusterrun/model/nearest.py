"""What a wrong word may have meant; knows no words of its own."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], most: int = 1, alike: float = 0.6) -> list[str]:
    """At most so many of ``known``, the most like ``word`` first; none where nothing is near."""
    import difflib  # for a wrong word alone: every TAB is a start

    return difflib.get_close_matches(word, list(known), most, alike)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    found = nearest(word, known)
    return f"did you mean {found[0]!r}?" if found else otherwise
