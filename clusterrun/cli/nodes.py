"""`clusterrun nodes`: lists nodes that earlier checks reported unfit, how often and when."""

from __future__ import annotations

import os

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.shell_complete import json_option
from clusterrun.cli.terminal import show
from clusterrun.model.duration import parse, spoken
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold
from clusterrun.operations.context import Context
from clusterrun.operations.node_history import links, offenders, unknown
from clusterrun.reports.json_document import FINDING
from clusterrun.reports.view import INTEGER, TIME, View, ViewField, many
from clusterrun.runs.node_records import clusters, findings_folder, forget, recall

OFFENDER = View(
    "A node or a link.",
    ViewField("name", "The node, or `a - b`.", read=lambda offender: offender.node, header="NODE OR LINK"),
    ViewField("fails", "How often it was unfit.", INTEGER, header="UNFIT"),
    ViewField("warnings", "How often it was warned about.", INTEGER, header="WARNED", spare=2),
    ViewField(
        "first",
        "The first time.",
        TIME,
        header="FIRST",
        cell=lambda offender, now: _ago(offender.first, now),
        spare=1,
    ),
    ViewField(
        "last", "The last time.", TIME, header="LAST", cell=lambda offender, now: _ago(offender.last, now)
    ),
    ViewField("run_id", "The run of the last finding."),
    ViewField(
        "finding",
        "The worst of the newest report.",
        FINDING,
        header="LAST FINDING",
        cell=lambda offender, now: f"{offender.finding.check}: {offender.finding.message}",
    ),
)
NODES = View(
    "The output of `nodes --json`.",
    ViewField("cluster", "The cluster's name."),
    ViewField("nodes", "Nodes, the most frequent first.", many(OFFENDER)),
    ViewField("links", "Links.", many(OFFENDER)),
)


@click.command()
@click.option("--cluster", metavar="NAME", help="Nodes of this cluster.  [default: the present one]")
@click.option("--since", default="30d", metavar="TIME", show_default=True, help="How far back to look.")
@click.option("--forget", "forgotten", metavar="NODES", help="Forget the findings of these nodes.")
@json_option
def nodes(cluster: str | None, since: str, forgotten: str | None, as_json: bool) -> None:
    """Show the nodes and links that checks found unfit or warned about, the most frequent first.

    \b
    Examples:
      clusterrun check nodes
      clusterrun check nodes --since 90d --json
    """
    context = Context()
    name = cluster or ("local" if context.client().why_not() else context.client().cluster_name())
    now = context.clock.now()
    folder = findings_folder(context.store.home, name)
    if forgotten:
        names = expand(forgotten)
        strangers = unknown(names, recall(folder, 0.0))
        if strangers:
            message = f"nothing is known of {fold(strangers)} on {name}"
            raise BadInput(message, "clusterrun nodes --since 365d lists them")
        for node in names:
            forget(folder, node, now)
        say(f"forgot what was found on {fold(names)}")
        return
    records = recall(folder, now - parse(since))
    for sentence in records.damaged:
        say(f"left out: {sentence}")
    unfit_nodes, unfit_links = offenders(records), links(records)
    if as_json:
        print(NODES.json({"cluster": name, "nodes": unfit_nodes, "links": unfit_links}))
    elif unfit_nodes or unfit_links:
        show(OFFENDER, unfit_nodes + unfit_links, now)
    else:
        say(f"nothing was found on nodes of {name} in the last {since}")
        others = [other for other in clusters(context.store.home) if other != os.path.basename(name)]
        if others:
            say(f"there are findings on {', '.join(others)}: clusterrun nodes --cluster {others[0]}")


def _ago(at: float, now: float) -> str:
    return f"{spoken(now - at)} ago"
