"""Detects ranks that start a launcher, so that the children of each rank form a separate world. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterrun.diagnosis.solo_ranks import ALONE, SILENCE


class InnerWorlds:
    """The ranks below the ranks of one attempt, as the nodes report them.

    Processes of one world have different ``RANK``s. The same ``RANK`` below two ranks means two worlds.
    A script that only wraps its Python has one child with the rank's own ``RANK``, and a launcher that
    joins all ranks gives each process a ``RANK`` of its own.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._below: dict[int, set[int]] = {}
        self.exist = False

    def heard(self, inner_ranks: Iterable[tuple[int, int]]) -> str:
        """Return the warning when two worlds are detected for the first time, else ''."""
        below: dict[int, set[int]] = {}
        for starter, rank in inner_ranks:
            below.setdefault(starter, set()).add(rank)
        self._below.update(below)
        starters = Counter(rank for ranks in self._below.values() for rank in ranks)
        worlds = max(starters.values(), default=0)
        if self.exist or worlds < 2:
            return ""
        self.exist = True
        return (
            f"{ALONE}: at least {worlds} of {self._size} ranks start a launcher (torchrun, accelerate, …) "
            "that makes a world of its own: submit the training script itself, or start the launcher with "
            f"--per-node (clusterrun help frameworks){SILENCE}"
        )
