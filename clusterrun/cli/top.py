"""`clusterrun top`: shows a run's usage of its nodes, live on a terminal, as lines in a pipe, or as JSON."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.fullscreen import other_screen, picture
from clusterrun.cli.shell_complete import runs
from clusterrun.cli.terminal import aligned, coloured, left_out_line, narrowed, painted
from clusterrun.model.duration import clock_time
from clusterrun.model.size import sized
from clusterrun.model.usage import NodeUse
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.operations.find_run import find_run_or_job
from clusterrun.operations.live_usage import LiveUsage, refuse_absent
from clusterrun.reports.view import INTEGER, NUMBER, TIME, View, ViewField, many, optional
from clusterrun.system import Clock

if TYPE_CHECKING:
    from clusterrun.operations.job_usage import JobUsage

HEADS = ("NODE", "RANK", "CORES", "MEMORY", "RECEIVED", "SENT", "GPU", "GPU MEMORY", "WATTS", "°C")
# Columns that a narrow terminal omits, in this order.
SPARE = ("°C", "WATTS", "SENT", "RECEIVED", "GPU MEMORY", "CORES")
# A node whose newest sample is older counts as silent.
STALE_SECONDS = 30.0


RANK_USE = View(
    "A rank, with all that it has started.",
    ViewField("rank", "The rank; -1 if no variable of a job numbers it.", INTEGER),
    ViewField("cores", "Cores in use.", NUMBER),
    ViewField("memory", "Bytes of its own.", INTEGER),
    ViewField("pid", "Its process, in a job that clusterrun did not start.", INTEGER, is_required=False),
)
GPU_USE = View(
    "A GPU; -1 where it does not say.",
    ViewField("index", "Its number on the node.", INTEGER),
    ViewField("busy", "Per cent of the time.", NUMBER),
    ViewField("memory", "Bytes in use.", NUMBER),
    ViewField("memory_total", "Bytes.", NUMBER),
    ViewField("watts", "Power.", NUMBER),
    ViewField("celsius", "Temperature.", NUMBER),
    ViewField("uuid", "The driver's name for it.", is_required=False),
)
MEANS = View(
    "Means since the ranks were started.",
    ViewField("seconds", "Since when.", NUMBER),
    ViewField("cores", "Cores of all ranks.", NUMBER),
    ViewField("busy", "Per cent of all GPUs.", NUMBER),
    ViewField("most_cores", "The most cores that its ranks used in one sample; -1: not measured.", NUMBER),
    ViewField("most_memory", "The most bytes that its ranks had at once; -1: not measured.", NUMBER),
    ViewField(
        "most_busy", "The highest per cent that its GPUs were busy in one sample; -1: not measured.", NUMBER
    ),
    ViewField(
        "most_gpu_memory", "The share of its memory that the fullest GPU had taken; -1: not measured.", NUMBER
    ),
    ViewField("gpus", "GPUs that were looked at.", INTEGER),
    ViewField("idle", "GPUs that were never busy; -1: not measured.", INTEGER),
    ViewField("joules", "Joules that the GPUs counted; -1: not measured.", NUMBER),
)
NODE_USE = View(
    "A node, over the newest sample.",
    ViewField("node", "Its name."),
    ViewField("at", "Seconds since the epoch, by the node's clock.", NUMBER),
    ViewField("seconds", "The length of the sample.", NUMBER),
    ViewField("cores", "Cores in use, by anybody.", NUMBER),
    ViewField("cores_total", "Cores of the node.", INTEGER),
    ViewField("memory", "Bytes in use.", INTEGER),
    ViewField("memory_total", "Bytes of the node.", INTEGER),
    ViewField("received", "Bytes per second, all networks.", NUMBER),
    ViewField("sent", "Bytes per second, all networks.", NUMBER),
    ViewField("ranks", "Its ranks.", many(RANK_USE), is_required=False),
    ViewField("gpus", "Its GPUs.", many(GPU_USE), is_required=False),
    ViewField(
        "gpus_reason",
        "Why `gpus` is empty although the node has GPUs.",
        is_required=False,
        former="gpus_said",
    ),
    ViewField("whole", "Means since the ranks were started.", optional(MEANS), is_required=False),
)
TOP = View(
    "The output of `top --json` each interval, one document a line.",
    ViewField("run_id", "The run."),
    ViewField("at", "When.", TIME),
    ViewField("nodes", "The requested nodes.", many(NODE_USE)),
)


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option("--ranks/--no-ranks", default=None, help="Show each rank and GPU (default: if they fit).")
@click.option("--node", default="", metavar="NAME", help="Only this node.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line and interval.")
@click.argument("run", default="last", shell_complete=runs)
def top(run: str, interval: float, once: bool, ranks: bool | None, node: str, as_json: bool) -> None:
    """Show what RUN uses of its nodes, ranks and GPUs, until it ends or you type q.

    RUN may be the number of any running Slurm job of yours.

    \b
    Examples:
      clusterrun top
      clusterrun top --once last
      clusterrun top --json --interval 5
    """
    context = Context()
    with _usage(context, run, interval, node) as live:
        if isinstance(live, LiveUsage):
            refuse_absent(live.status)
        try:
            if as_json:
                _lines(live, context.clock, 0.0 if once else interval, _document, "")
            elif once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
                text = partial(_text, ranks=ranks is not False)
                _lines(live, context.clock, 0.0 if once else interval, text, "\n")
            else:
                _on_terminal(live, context.clock, interval, ranks)
        except KeyboardInterrupt:
            pass


def _usage(context: Context, run: str, interval: float, node: str) -> LiveUsage | JobUsage:
    target = find_run_or_job(context, run, say)
    if isinstance(target, str):
        return LiveUsage(context, target, interval, node)
    from clusterrun.operations.job_usage import JobUsage  # only jobs of others need it

    return JobUsage(context, target, interval, node)


def _lines(
    live: LiveUsage | JobUsage,
    clock: Clock,
    interval: float,
    text: Callable[[LiveUsage | JobUsage, float], str],
    between: str,
) -> None:
    """Print ``text`` of each look, or of a single look if ``interval`` is 0."""
    live.look_first()
    while True:
        print(text(live, clock.now()), flush=True)
        if not interval:
            return
        clock.sleep(interval)
        if not live.look():
            return
        print(end=between)


def _text(live: LiveUsage | JobUsage, now: float, ranks: bool) -> str:
    return "\n".join([_headline(live, now), *_table(live, now, ranks, False)])


def _document(live: LiveUsage | JobUsage, now: float) -> str:
    return TOP.json({"run_id": live.run_id, "at": now, "nodes": live.uses})


def _on_terminal(live: LiveUsage | JobUsage, clock: Clock, interval: float, ranks: bool | None) -> None:
    last: list[str] = []
    try:
        with other_screen() as keys:
            while live.look():
                columns, rows = os.get_terminal_size(sys.stdout.fileno())
                last = _fitted(live, clock.now(), ranks, columns or 80, rows or 24)
                sys.stdout.write(picture([*last, "", "q ends top and nothing else"]))
                sys.stdout.flush()
                if keys.wait(interval if live.uses else 0.3):
                    break
    finally:
        print("\n".join(last))


def _fitted(live: LiveUsage | JobUsage, now: float, ranks: bool | None, columns: int, rows: int) -> list[str]:
    """Return the lines that fit the window: all ranks, else only nodes, else the first nodes."""
    room, paint = rows - 4, coloured(sys.stdout)
    lines = _table(live, now, ranks is not False, paint, columns)
    if len(lines) > room and ranks is None:
        lines = _table(live, now, False, paint, columns)
    if len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [*lines[: room - 1], f"… {hidden} more lines: --node NAME shows one node"]
    return [_headline(live, now)[: columns - 1], *lines]


def _headline(live: LiveUsage | JobUsage, now: float) -> str:
    headline = f"{visible(live.title)}  {clock_time(now, now)}"
    return headline if live.uses else f"{headline}  no node has sent a sample yet"


def _table(live: LiveUsage | JobUsage, now: float, ranks: bool, paint: bool, columns: int = 0) -> list[str]:
    counts = Counter(rank.rank for use in live.uses for rank in use.ranks)
    repeated = {number for number, count in counts.items() if number < 0 or count > 1}
    rows = [row for use in live.uses for row in (_node(use, now), *(_ranks(use, repeated) if ranks else ()))]
    if not rows:
        return []
    filled = [place for place in range(len(HEADS)) if any(row[place] for row in rows)]
    cells = [[row[place] for place in filled] for row in (HEADS, *rows)]
    spare = [head for head in SPARE if head in cells[0]] if columns else []
    cells = narrowed(cells, spare, columns - 1)
    left_out = [head for head in spare if head not in cells[0]]
    lines = [line[: columns - 1] if columns else line for line in aligned(cells)]
    lines = [painted(lines[0], "bold" if paint else ""), *lines[1:]]
    return [*lines, left_out_line(left_out)] if left_out else lines


def _node(use: NodeUse, now: float) -> tuple[str, ...]:
    name = visible(use.node)
    if now - use.at > STALE_SECONDS:
        return (f"{name} silent for {now - use.at:.0f} s", *[""] * (len(HEADS) - 1))
    busy = [gpu.busy for gpu in use.gpus if gpu.busy >= 0]
    held, total = (
        sum(max(0.0, getattr(gpu, field)) for gpu in use.gpus) for field in ("memory", "memory_total")
    )
    return (
        name,
        "",
        f"{use.cores:.1f}/{use.cores_total}",
        f"{sized(use.memory)}/{sized(use.memory_total)}",
        f"{sized(use.received)}/s",
        f"{sized(use.sent)}/s",
        f"{sum(busy) / len(busy):.0f} %" if busy else visible(use.gpus_reason),
        f"{sized(held)}/{sized(total)}" if total else "",
        _sum([gpu.watts for gpu in use.gpus]),
        f"{max(gpu.celsius for gpu in use.gpus):.0f}" if use.gpus else "",
    )


def _ranks(use: NodeUse, repeated: set[int]) -> list[tuple[str, ...]]:
    """Return a row per rank. It shows a GPU if the node has as many GPUs as ranks.

    Ranks whose number is in ``repeated`` are shown with their processes.
    """
    paired = use.gpus if len(use.gpus) == len(use.ranks) else ()
    rows = []
    for number, rank in enumerate(use.ranks):
        title = str(rank.rank)
        if rank.rank in repeated:
            title = f"{title} (process {rank.pid})" if rank.rank >= 0 else f"process {rank.pid}"
        row = ["", title, f"{rank.cores:.1f}", sized(rank.memory), "", "", "", "", "", ""]
        if paired:
            gpu = paired[number]
            row[6:] = [
                f"{gpu.busy:.0f} %" if gpu.busy >= 0 else "",
                f"{sized(gpu.memory)}/{sized(gpu.memory_total)}" if gpu.memory_total > 0 else "",
                _sum([gpu.watts]),
                f"{gpu.celsius:.0f}" if gpu.celsius >= 0 else "",
            ]
        rows.append(tuple(row))
    return rows


def _sum(values: Sequence[float]) -> str:
    measured = [value for value in values if value >= 0]
    return f"{sum(measured):.0f}" if measured else ""
