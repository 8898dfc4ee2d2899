"""Detect ranks that start launchers, so that their children form several worlds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterrun.diagnosis.solo_ranks import ALONE, SILENCE


class InnerWorlds:
    """The ranks below the ranks of one attempt, as the nodes report them.

    Processes of one world have different ``RANK``s. The same ``RANK`` below two ranks means two worlds, and
    below one rank if the processes meet at two addresses. A script that only wraps its Python has one child
    with the rank's own ``RANK``. A launcher that joins all ranks gives each process a ``RANK`` of its own.
    """

    def __init__(self) -> None:
        self._below: dict[int, set[tuple[int, str]]] = {}
        self.exist = False

    def heard(self, inner_ranks: Iterable[tuple[int, int, str]]) -> str:
        """Return the warning when two worlds are detected for the first time, else ''."""
        inner_by_starter: dict[int, set[tuple[int, str]]] = {}
        for starter, rank, address in inner_ranks:
            inner_by_starter.setdefault(starter, set()).add((rank, address))
        self._below.update(inner_by_starter)
        counts = Counter(rank for processes in self._below.values() for rank, _ in processes)
        worlds = max(counts.values(), default=0)
        if self.exist or worlds < 2:
            return ""
        self.exist = True
        return (
            f"{ALONE}: launchers inside the ranks (torchrun, accelerate, …) make at least {worlds} worlds: "
            "submit the training script itself, or start the launcher with --per-node (clusterrun help "
            f"frameworks){SILENCE}"
        )
