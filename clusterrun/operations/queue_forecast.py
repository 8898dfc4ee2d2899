"""Forecast when a run of each size starts, from the queue and from earlier runs.

A forecast has three parts: the calendar of the nodes (``slurm.node_calendar``), the waits of this user's runs
of similar size, and the errors of earlier forecasts that a run followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from statistics import median

from clusterrun.model.document import BadDocument, decode, encode
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context
from clusterrun.runs.private_files import private_folder, write_whole
from clusterrun.slurm import partition_limits
from clusterrun.slurm.node_calendar import calendar, seconds_of

# The number of newest runs that are read.
MOST_RUNS = 200
MOST_FORECASTS = 500
# Seconds. A run that was submitted this soon after a forecast for its size shows the error of the forecast.
FOLLOWED_SECONDS = 900.0
# Runs of up to this many times more or fewer nodes wait about as long.
ALIKE = 2.0
DAY = 86400.0


@frozen
class Forecast:
    """A line of the file of forecasts."""

    at: float  # time of the forecast
    partition: str
    nodes: int
    seconds: float
    starts_at: float


@frozen
class Waits:
    """Waits of runs, or errors of forecasts (late is positive), in seconds."""

    count: int
    middle: float
    most: float


@frozen
class SizeForecast:
    """The forecast for one size."""

    shape: str  # the size as text: ``4x8``
    nodes: int
    least: int  # the fewest nodes that the run accepts
    gpus: int  # per node
    seconds: float  # duration of the run
    partition: str
    starts_at: float | None  # None if the calendar shows no start
    nodes_then: int  # number of nodes at the start
    hidden: int  # number of nodes with jobs that this user cannot see
    unplanned: int  # number of queued jobs without a planned start
    waited: Waits | None  # waits of similar runs
    off: Waits | None  # errors of earlier forecasts


def forecasts(spec: JobSpec, context: Context) -> list[SizeForecast]:
    """Return a forecast for the size of ``spec`` and for smaller sizes."""
    client, now = context.slurm(), context.clock.now()
    if spec.cluster is Cluster.LOCAL:
        raise BadInput("a run on this machine starts at once: there is no queue", "leave --cluster local out")
    offers, nodes, queue = client.partitions(), client.nodes(), client.queue()
    reservations = client.reservations()
    runs = list(_runs(context))
    try:
        with open(_path(context), encoding="utf-8") as file:
            earlier = [decode(Forecast, json.loads(line)) for line in file]
    except (OSError, ValueError, BadDocument):  # none yet, or the file is damaged
        earlier = []
    results, fresh = [], []
    # The size and its halves down to one node, each with its text.
    sizes = [(spec.nodes_asked, spec)]
    fewer = spec.nodes // 2
    while fewer >= 1 and not spec.min_nodes:
        sizes.append((str(fewer), replace(spec, nodes=fewer)))
        fewer //= 2
    for count, sized in sizes:
        word = f"{count}x{sized.gpus_asked}" if sized.gpus else count
        offer = partition_limits.target_partition(sized, offers)
        if offer is None:
            names = ", ".join(sorted({partition.name for partition in offers}))
            raise BadInput(f"{word}: its partition is not known", f"name it with --partition: {names}")
        node_calendar = calendar(nodes, queue, reservations, offer.name, sized)
        longest = seconds_of(offer.time_limit) or DAY
        seconds = sized.time_min or sized.time or longest
        place = node_calendar.earliest(sized.least_allocated, seconds, now)
        in_partition = [
            (record, started) for record, started in runs if record.spec.partition in ("", offer.name)
        ]
        size = max(sized.nodes, 1)
        similar = [run for run in in_partition if 1 / ALIKE <= max(run[0].spec.nodes, 1) / size <= ALIKE]
        # The error of each forecast that a run of its size followed; late is positive.
        delays = []
        for record, started in similar:
            subject = (offer.name, record.spec.nodes, record.spec.time_min or record.spec.time or longest)
            newest = None
            for forecast in earlier:
                is_same = (forecast.partition, forecast.nodes, forecast.seconds) == subject
                if is_same and 0 <= record.submitted_at - forecast.at <= FOLLOWED_SECONDS:
                    newest = forecast
            if newest:
                delays.append(started - max(newest.starts_at, record.submitted_at))
        result = SizeForecast(
            shape=word,
            nodes=sized.nodes,
            least=sized.min_nodes or sized.nodes,
            gpus=sized.gpus,
            seconds=seconds,
            partition=offer.name,
            starts_at=place[0] if place else None,
            nodes_then=min(place[1] - sized.spares, sized.nodes) if place else 0,
            hidden=len(node_calendar.hidden),
            unplanned=node_calendar.unplanned,
            waited=summed([started - record.submitted_at for record, started in similar]),
            off=summed(delays),
        )
        results.append(result)
        if result.starts_at is not None:
            fresh.append(Forecast(now, result.partition, result.nodes, result.seconds, result.starts_at))
    lines = [json.dumps(encode(forecast)) + "\n" for forecast in [*earlier, *fresh][-MOST_FORECASTS:]]
    with suppress(ClusterrunError):
        for folder in (context.store.home, context.store.cache):
            private_folder(folder)
        write_whole(_path(context), "".join(lines), sync=False)
    return results


def summed(values: Sequence[float]) -> Waits | None:
    """Return the count, the median and the value farthest from zero; None for no values."""
    return Waits(len(values), median(values), max(values, key=abs)) if values else None


def _runs(context: Context) -> list[tuple[RunRecord, float]]:
    """Return this user's newest runs on this cluster whose first job has started, each with the start."""
    started = []
    for name in context.store.ids()[:MOST_RUNS]:
        try:
            record, state = context.store.read(name), context.store.state(name)
        except ClusterrunError:
            continue
        queued = record.cluster == Cluster.SLURM.value and not record.in_allocation and not record.spec.after
        if queued and state and state.started_at and not context.other_cluster(record):
            started.append((record, state.started_at))
    return started


def _path(context: Context) -> str:
    return os.path.join(context.store.cache, f"forecasts-{context.client().cluster_name()}")
