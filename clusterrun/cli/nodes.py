"""`clusterrun nodes`: which nodes earlier checks found unfit, how often and when."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.terminal import iso, table
from clusterrun.model.document import encode
from clusterrun.model.duration import parse, spoken
from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold
from clusterrun.operations.context import Context
from clusterrun.operations.node_history import Offender, links, offenders, unknown
from clusterrun.runs.node_records import clusters, findings_folder, forget, recall


@click.command()
@click.option("--cluster", metavar="NAME", help="Nodes of this cluster.  [default: the one here]")
@click.option("--since", default="30d", metavar="TIME", show_default=True, help="How far back to look.")
@click.option("--forget", "forgotten", metavar="NODES", help="Forget what was found on these nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
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
        _forget(folder, forgotten, name, now)
        return
    known = recall(folder, now - parse(since))
    for sentence in known.damaged:
        say(f"left out: {sentence}")
    found, between = offenders(known), links(known)
    if as_json:
        entries = {"nodes": [_entry(one) for one in found], "links": [_entry(one) for one in between]}
        print(json.dumps({"cluster": name, **entries}))
    elif found or between:
        _show(found + between, now)
    else:
        _nothing(context, name, since)


def _forget(folder: str, text: str, cluster: str, now: float) -> None:
    names = expand(text)
    strangers = unknown(names, recall(folder, 0.0))
    if strangers:
        seen = f"nothing is known of {fold(strangers)} on {cluster}"
        raise BadInput(seen, "clusterrun nodes --since 365d lists them")
    for node in names:
        forget(folder, node, now)
    say(f"forgot what was found on {fold(names)}")


def _entry(one: Offender) -> dict[str, Any]:
    known = encode(one)
    return {"name": known.pop("node"), **known, "first": iso(one.first), "last": iso(one.last)}


def _show(found: list[Offender], now: float) -> None:
    rows = []
    for one in found:
        times = (_ago(one.first, now), _ago(one.last, now))
        said = f"{one.finding.check}: {one.finding.said}"
        rows.append((one.node, str(one.fails), str(one.warnings), *times, said))
    heads = ("NODE OR LINK", "UNFIT", "WARNED", "FIRST", "LAST", "LAST FINDING")
    table(heads, rows, spare=("FIRST", "WARNED"))


def _ago(at: float, now: float) -> str:
    return f"{spoken(max(0.0, now - at))} ago"


def _nothing(context: Context, cluster: str, since: str) -> None:
    say(f"nothing was found on nodes of {cluster} in the last {since}")
    others = [name for name in clusters(context.store.home) if name != os.path.basename(cluster)]
    if others:
        say(f"there are findings on {', '.join(others)}: clusterrun nodes --cluster {others[0]}")
