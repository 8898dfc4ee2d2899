"""Fills in the arguments that resubmit a run without its bad nodes; pure."""

from __future__ import annotations

from clusterrun.model.contract import DEPENDENCY_PLACE, EXCLUDED_PLACE
from clusterrun.model.hostlist import fold


def filled(argv: tuple[str, ...], excluded: tuple[str, ...], job_id: str = "") -> tuple[str, ...]:
    """Fill the bad nodes and the job to wait for into ``argv``; drop placeholders without a value."""
    nodes = folded(excluded)
    after = (f"--dependency=afterany:{job_id}",) if job_id else ()
    words: list[str] = []
    for word in argv:
        if word == DEPENDENCY_PLACE:
            words += after
        elif EXCLUDED_PLACE not in word:
            words.append(word)
        elif nodes:
            words.append(word.replace(EXCLUDED_PLACE, nodes))
    return tuple(words)


def excluding(argv: tuple[str, ...], excluded: tuple[str, ...]) -> str:
    """The whole list of nodes to be kept off; empty if it is not known."""
    found = [word.partition("=")[2] for word in argv if EXCLUDED_PLACE in word]
    return found[0].replace(EXCLUDED_PLACE, folded(excluded)) if found else ""


def folded(excluded: tuple[str, ...]) -> str:
    return fold([name for name in excluded if " " not in name])
