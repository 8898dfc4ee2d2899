"""When which shape of a run is expected to start, by the queue and by earlier runs.

Three things are told beside each other: what the nodes' calendar says (``slurm.node_calendar``), how long
this user's runs of about that size waited, and how far the forecasts were off that a run followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import BadInput, ClusterrunError, SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context
from clusterrun.runs.private_files import private_folder, write_whole
from clusterrun.slurm import partition_limits
from clusterrun.slurm.node_calendar import NodeCalendar, calendar, seconds_of
from clusterrun.slurm.queries import PartitionOffer

MOST_RUNS = 200
"""How many of the newest runs are looked at."""
MOST_FORECASTS = 500
FOLLOWED_SECONDS = 900.0
"""A run that was submitted so soon after a forecast for its size tells how good that was."""
ALIKE = 2.0
"""Runs of up to so many times more, or fewer, nodes wait about as long."""
DAY = 86400.0


@frozen
class Forecast:
    """What was forecast, and when: a line of the file that keeps forecasts."""

    at: float
    partition: str
    nodes: int
    seconds: float
    starts_at: float


@frozen
class Waits:
    """How long runs waited, or by how much forecasts were off (late is positive), in seconds."""

    count: int
    middle: float
    most: float


@frozen
class ShapeForecast:
    """One shape: when it is expected to start on how many nodes; no ``starts_at``: nobody can say."""

    shape: str
    nodes: int
    least: int
    gpus: int
    seconds: float
    partition: str
    starts_at: float | None
    nodes_then: int
    hidden: int
    unplanned: int
    waited: Waits | None
    off: Waits | None


def forecasts(spec: JobSpec, context: Context) -> list[ShapeForecast]:
    """Each shape of ``spec``, or its size and smaller ones. Raises ``ClusterrunError``."""
    if why := context.client().why_not():
        raise SchedulerError(f"Slurm cannot be used here: {why}", "run this where Slurm is")
    if spec.cluster is Cluster.LOCAL:
        raise BadInput("a run on this machine starts at once: there is no queue", "leave --cluster local out")
    client, now = context.client(), context.clock.now()
    offers, nodes, queue = client.partitions(), client.nodes(), client.queue()
    runs, earlier = list(_runs(context)), _remembered(context)
    found, fresh = [], []
    for word, one in _shapes(spec):
        offer = partition_limits.target_partition(one, offers)
        if offer is None:
            known = ", ".join(sorted({each.name for each in offers}))
            raise BadInput(f"{word}: which partition it goes to is not known", f"say --partition: {known}")
        seen = calendar(nodes, queue, offer.name, one.gpus, one.exclude)
        made = _forecast(word, one, offer, seen, now, runs, earlier)
        found.append(made)
        if made.starts_at is not None:
            fresh.append(Forecast(now, made.partition, made.nodes, made.seconds, made.starts_at))
    _remember([*earlier, *fresh][-MOST_FORECASTS:], context)
    return found


def _shapes(spec: JobSpec) -> list[tuple[str, JobSpec]]:
    """What is asked for, in words: the shapes, or the size itself and half of it, down to one node."""
    if spec.shapes:
        return [(word, spec.shaped(place)) for place, word in enumerate(spec.shape_words)]
    made = [(spec.nodes_asked, spec)]
    fewer = spec.nodes // 2
    while fewer >= 1 and not spec.min_nodes:
        made.append((str(fewer), replace(spec, nodes=fewer)))
        fewer //= 2
    return [(f"{word}x{one.gpus_asked}" if one.gpus else word, one) for word, one in made]


def _forecast(
    word: str,
    spec: JobSpec,
    offer: PartitionOffer,
    seen: NodeCalendar,
    now: float,
    runs: Sequence[tuple[RunRecord, float]],
    earlier: Sequence[Forecast],
) -> ShapeForecast:
    usual = seconds_of(offer.time_limit) or DAY
    seconds = spec.time_min or spec.time or usual
    place = seen.earliest(spec.least_allocated, seconds, now)
    here = [(record, started) for record, started in runs if record.spec.partition in ("", offer.name)]
    size = max(spec.nodes, 1)
    alike = [one for one in here if 1 / ALIKE <= max(one[0].spec.nodes, 1) / size <= ALIKE]
    return ShapeForecast(
        shape=word,
        nodes=spec.nodes,
        least=spec.min_nodes or spec.nodes,
        gpus=spec.gpus,
        seconds=seconds,
        partition=offer.name,
        starts_at=place[0] if place else None,
        nodes_then=min(place[1] - spec.spares, spec.nodes) if place else 0,
        hidden=len(seen.hidden),
        unplanned=seen.unplanned,
        waited=summed([started - record.submitted_at for record, started in alike]),
        off=summed(_off(alike, earlier, offer.name, usual)),
    )


def _off(
    runs: Sequence[tuple[RunRecord, float]], earlier: Sequence[Forecast], partition: str, usual: float
) -> list[float]:
    """How much later than it was forecast each run started that followed a forecast for its size."""
    found = []
    for record, started in runs:
        before = [
            one
            for one in earlier
            if (one.partition, one.nodes) == (partition, record.spec.nodes)
            and one.seconds == (record.spec.time_min or record.spec.time or usual)
            and 0 <= record.submitted_at - one.at <= FOLLOWED_SECONDS
        ]
        if before:
            found.append(started - max(before[-1].starts_at, record.submitted_at))
    return found


def summed(values: Sequence[float]) -> Waits | None:
    """In three numbers; None for no values. ``most`` is that of the largest, early or late."""
    return Waits(len(values), median(values), max(values, key=abs)) if values else None


def _runs(context: Context) -> list[tuple[RunRecord, float]]:
    """This user's newest runs on this cluster whose first job has started, and when."""
    found = []
    for name in context.store.ids()[:MOST_RUNS]:
        try:
            record, state = context.store.read(name), context.store.state(name)
        except ClusterrunError:
            continue
        queued = record.cluster == Cluster.SLURM.value and not record.in_allocation and not record.spec.after
        if queued and state and state.started_at and not context.other_cluster(record):
            found.append((record, state.started_at))
    return found


def _path(context: Context) -> str:
    return os.path.join(context.store.cache, f"forecasts-{context.client().cluster_name()}")


def _remembered(context: Context) -> list[Forecast]:
    """Earlier forecasts, oldest first; a file that is damaged tells nothing."""
    try:
        with open(_path(context), encoding="utf-8") as file:
            return [decode(Forecast, json.loads(line)) for line in file]
    except (OSError, ValueError, BadDocument):
        return []


def _remember(known: Sequence[Forecast], context: Context) -> None:
    """A disk that does not take it costs no forecast."""
    with suppress(ClusterrunError):
        for folder in (context.store.home, context.store.cache):
            private_folder(folder)
        write_whole(_path(context), "".join(json.dumps(encode(one)) + "\n" for one in known), sync=False)
