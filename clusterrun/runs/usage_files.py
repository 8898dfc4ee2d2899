"""What the observers of a run's nodes wrote about its use of them; reads files of one attempt only."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clusterrun.atomic_file import end_of
from clusterrun.model.document import BadDocument, decode
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.usage import NodeUse

LAST_BYTES = 64 * 1024
"""More than one line of a node with many ranks and GPUs."""


def newest(attempt: AttemptPaths, nodes: int) -> tuple[NodeUse, ...]:
    """The newest sample of each of so many ``nodes`` of an allocation that has one, in their order."""
    found = []
    for node in range(nodes):
        seen = [use for path in (attempt.now(node), attempt.samples(node)) if (use := _last(path))]
        if seen:
            found.append(max(seen, key=lambda use: use.at))
    return tuple(found)


def _last(path: str) -> NodeUse | None:
    """The last whole line; None if there is none, or none that can be read."""
    for line in reversed(end_of(path, LAST_BYTES)[0].split(b"\n")[:-1]):
        try:
            return decode(NodeUse, json.loads(line))
        except (ValueError, BadDocument):
            continue
    return None


def summary(uses: Sequence[NodeUse]) -> str:
    """How busy a run has kept its nodes since it started, in a sentence; '' where nothing is known."""
    known = [use.whole for use in uses if use.whole and use.whole.seconds > 0]
    if not known:
        return ""
    busy = [whole.busy for whole in known if whole.busy >= 0]
    cores = sum(whole.cores for whole in known) / len(known)
    held = [gpu.memory / gpu.memory_total for use in uses for gpu in use.gpus if gpu.memory_total > 0]
    said = [f"GPUs {sum(busy) / len(busy):.0f} % busy on average" if busy else ""]
    said += [f"their memory {100 * max(held):.0f} % full at most" if held else ""]
    said += [f"{cores:.1f} cores of each node's {uses[0].cores_total}"]
    return ", ".join(filter(None, said))
