"""`clusterrun gpus`: lists the free GPUs of the cluster, and the next that become free."""

from __future__ import annotations

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import json_option
from clusterrun.cli.terminal import show
from clusterrun.model.duration import spoken
from clusterrun.operations.context import Context
from clusterrun.operations.free_gpus import FreeGpus, free_gpus
from clusterrun.reports.view import INTEGER, TIME, View, ViewField, many, optional


def _next(row: FreeGpus, now: float) -> str:
    if row.next_at is None:
        return ""
    return f"{row.next_gpus} in {spoken(row.next_at - now)}"


ROW = View(
    "The GPUs of one type in one partition.",
    ViewField("partition", "The partition.", header="PARTITION"),
    ViewField(
        "gpu_type",
        "The type; empty if the site names none.",
        header="GPU",
        cell=lambda row, now: row.gpu_type or "gpu",
    ),
    ViewField("free", "GPUs that no job has, on nodes with a free processor.", INTEGER, header="FREE"),
    ViewField("total", "All GPUs.", INTEGER, header="OF"),
    ViewField("free_nodes", "Nodes whose GPUs are all free.", INTEGER, header="FREE NODES"),
    ViewField("most_on_node", "The most free GPUs on one node.", INTEGER, header="MOST ON A NODE", spare=1),
    ViewField("unusable", "GPUs on which Slurm starts no job now.", INTEGER, header="OUT", spare=2),
    ViewField(
        "next_at",
        "When a job on a node with such GPUs ends at the latest; null if no end is known.",
        optional(TIME),
        header="NEXT FREE",
        cell=_next,
    ),
    ViewField("next_gpus", "How many GPUs of its node are not free.", INTEGER),
)
FREE_GPUS = View("The output of `gpus --json`.", ViewField("gpus", "Rows by partition and type.", many(ROW)))


@click.command()
@click.option("--partition", "-p", default="", metavar="NAME", help="Only this partition.")
@json_option
def gpus(partition: str, as_json: bool) -> None:
    """Show the free GPUs by partition and type, and when the next become free.

    FREE counts GPUs that a job can get now. OUT counts those of nodes that are drained, down or
    reserved, and of closed partitions. NEXT FREE is the first time limit of a job on a node with such
    GPUs; jobs may end sooner.

    \b
    Examples:
      clusterrun gpus
      clusterrun gpus --partition gpu
    """
    context = Context()
    rows, now = free_gpus(context, partition), context.clock.now()
    if as_json:
        print(FREE_GPUS.json({"gpus": rows}))
        return
    show(ROW, rows, now)
    if not rows:
        say("Slurm counts no GPUs on this cluster: clusterrun help frameworks tells how to use such GPUs")
    else:
        most = max(row.most_on_node for row in rows) or 1
        say(f"when a run of yours would start: clusterrun plan --nodes 2 --gpus {most}")
