"""Fill in the arguments that resubmit a run without its bad nodes; pure."""

from __future__ import annotations

from clusterrun.model.contract import DEPENDENCY_PLACE, EXCLUDED_PLACE
from clusterrun.model.hostlist import fold


def filled(argv: tuple[str, ...], excluded: tuple[str, ...], job_id: str = "") -> tuple[str, ...]:
    """Fill the bad nodes and the job to wait for into ``argv``; drop placeholders without a value."""
    nodes = folded(excluded)
    after = (f"--dependency=afterany:{job_id}",) if job_id else ()
    arguments: list[str] = []
    for word in argv:
        if word == DEPENDENCY_PLACE:
            arguments += after
        elif EXCLUDED_PLACE not in word:
            arguments.append(word)
        elif nodes:
            arguments.append(word.replace(EXCLUDED_PLACE, nodes))
    return tuple(arguments)


def excluding(argv: tuple[str, ...], excluded: tuple[str, ...]) -> str:
    """Return the whole list of excluded nodes; '' if it is unknown."""
    lists = [word.partition("=")[2] for word in argv if EXCLUDED_PLACE in word]
    return lists[0].replace(EXCLUDED_PLACE, folded(excluded)) if lists else ""


def folded(excluded: tuple[str, ...]) -> str:
    return fold([name for name in excluded if " " not in name])
