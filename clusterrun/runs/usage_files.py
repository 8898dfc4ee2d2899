"""Read the samples of an attempt: how its nodes are used, as their observers wrote it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clusterrun.atomic_file import end_of
from clusterrun.model.document import BadDocument, decode
from clusterrun.model.paths import AttemptPaths
from clusterrun.model.usage import NodeUse

# Bytes. This is more than one line of a node with many ranks and GPUs.
LAST_BYTES = 64 * 1024


def newest(attempt: AttemptPaths, nodes: int) -> tuple[NodeUse, ...]:
    """Return the newest samples of the ``nodes`` of an allocation, in their order. Silent nodes have none."""
    samples = []
    for node in range(nodes):
        node_samples = [use for path in (attempt.now(node), attempt.samples(node)) if (use := _last(path))]
        if node_samples:
            samples.append(max(node_samples, key=lambda use: use.at))
    return tuple(samples)


def _last(path: str) -> NodeUse | None:
    """Return the last whole line that can be read; None if there is none."""
    for line in reversed(end_of(path, LAST_BYTES)[0].split(b"\n")[:-1]):
        try:
            return decode(NodeUse, json.loads(line))
        except (ValueError, BadDocument):
            continue
    return None


def summary(uses: Sequence[NodeUse]) -> str:
    """Return a sentence on how busy the run has kept its nodes since its start; '' without samples."""
    totals = [use.whole for use in uses if use.whole and use.whole.seconds > 0]
    if not totals:
        return ""
    busy = [usage.busy for usage in totals if usage.busy >= 0]
    cores = sum(usage.cores for usage in totals) / len(totals)
    held = [gpu.memory / gpu.memory_total for use in uses for gpu in use.gpus if gpu.memory_total > 0]
    parts = [f"GPUs {sum(busy) / len(busy):.0f} % busy on average" if busy else ""]
    parts += [f"their memory {100 * max(held):.0f} % full at most" if held else ""]
    parts += [f"{cores:.1f} cores of each node's {uses[0].cores_total}"]
    return ", ".join(filter(None, parts))
