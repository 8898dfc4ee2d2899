"""`clusterrun top`: what a run uses of its nodes, live on a terminal, as lines in a pipe, or as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

import click

from clusterrun.cli.fullscreen import other_screen, picture
from clusterrun.cli.shell_complete import runs
from clusterrun.cli.terminal import aligned, coloured, iso, painted
from clusterrun.model.contract import ExitCode
from clusterrun.model.document import encode
from clusterrun.model.duration import clock_time
from clusterrun.model.record import RunStatus
from clusterrun.model.size import sized
from clusterrun.model.usage import NodeUse
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.operations.live_usage import LiveUsage, refuse_absent

HEADS = ("NODE", "RANK", "CORES", "MEMORY", "RECEIVED", "SENT", "GPU", "GPU MEMORY", "WATTS", "°C")
STALE_SECONDS = 30.0
"""A sample this old says that the node is silent, not that it uses little."""
FIRST_SECONDS = 10.0
"""How long a first sample is waited for: it comes within a second or two of being asked for."""


@click.command()
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Show it once and end.")
@click.option("--ranks/--no-ranks", default=None, help="Each rank and GPU too (by default where they fit).")
@click.option("--node", default="", metavar="NAME", help="Only this node.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line, each interval.")
@click.argument("run", default="last", shell_complete=runs)
def top(run: str, interval: float, once: bool, ranks: bool | None, node: str, as_json: bool) -> int:
    """Show what RUN uses of its nodes, ranks and GPUs, until it ends or you type q.

    While somebody looks each node takes a sample every interval; otherwise one light one each 10 s.

    \b
    Examples:
      clusterrun top
      clusterrun top --once last
      clusterrun top --json --interval 5
    """
    context = Context()
    with LiveUsage(context, context.store.find(run), interval) as looking:
        refuse_absent(looking.status())
        shown = Shown(context, looking, ranks, node)
        try:
            if as_json:
                return _lines(shown, interval, once, _document, "")
            if once or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
                return _lines(shown, interval, once, _text, "\n")
            return _on_terminal(shown, interval)
        except KeyboardInterrupt:
            return ExitCode.DONE


class Shown:
    """What is to be shown of a run: its status, and the use of the nodes that are wanted."""

    def __init__(self, context: Context, looking: LiveUsage, ranks: bool | None, node: str) -> None:
        self.context, self.ranks = context, ranks
        self._looking, self._node = looking, node
        self.status: RunStatus = looking.status()
        self.uses: tuple[NodeUse, ...] = ()

    def look(self) -> bool:
        """Look again; False where the run has ended."""
        self.status = self._looking.status()
        self.uses = tuple(use for use in self._looking.uses() if self._node in ("", use.node))
        return not self.status.state.ended

    def wait(self, seconds: float) -> None:
        """Until it is worth looking again."""
        self.context.clock.sleep(seconds)

    def wait_for_the_first(self) -> None:
        """Until every wanted node has said something new since it was asked, for a limited time."""
        end, asked = self.context.clock.monotonic() + FIRST_SECONDS, self.context.clock.now()
        wanted = 1 if self._node else self._looking.nodes
        while self.look() and self.context.clock.monotonic() < end:
            if len([use for use in self.uses if use.at >= asked]) >= wanted:
                return
            self.wait(0.2)


def _lines(shown: Shown, interval: float, once: bool, text: Callable[[Shown], str], between: str) -> int:
    """Print ``text`` of each look."""
    shown.wait_for_the_first()
    while True:
        print(text(shown), flush=True)
        if once:
            return ExitCode.DONE
        shown.wait(interval)
        if not shown.look():
            return ExitCode.DONE
        print(end=between)


def _text(shown: Shown) -> str:
    return "\n".join([_headline(shown), *_table(shown, shown.ranks is not False, False)])


def _document(shown: Shown) -> str:
    document = {"run_id": shown.status.run_id, "at": iso(shown.context.clock.now())}
    return json.dumps({**document, "nodes": [encode(use) for use in shown.uses]})


def _on_terminal(shown: Shown, interval: float) -> int:
    last: list[str] = []
    try:
        with other_screen() as keys:
            while shown.look():
                columns, rows = os.get_terminal_size(sys.stdout.fileno())
                last = _fitted(shown, columns or 80, rows or 24)
                sys.stdout.write(picture([*last, "", "q ends top, not the run"]))
                sys.stdout.flush()
                if keys.wait(interval if shown.uses else 0.3):
                    break
    finally:
        print("\n".join(last))
    return ExitCode.DONE


def _fitted(shown: Shown, columns: int, rows: int) -> list[str]:
    """As much as the window holds: ranks where they fit, else nodes, else the first of them."""
    room, paint = rows - 4, coloured(sys.stdout)
    lines = _table(shown, shown.ranks is not False, paint, columns)
    if len(lines) > room and shown.ranks is None:
        lines = _table(shown, False, paint, columns)
    if len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [*lines[: room - 1], f"… {hidden} more lines: --node NAME shows one node"]
    return [_headline(shown)[: columns - 1], *lines]


def _headline(shown: Shown) -> str:
    status, now = shown.status, shown.context.clock.now()
    said = f"{visible(status.run_id)}  {status.state.value}, {status.phase.value}  {clock_time(now, now)}"
    return said if shown.uses else f"{said}  no node has sent a sample yet"


def _table(shown: Shown, ranks: bool, paint: bool, columns: int = 0) -> list[str]:
    now = shown.context.clock.now()
    rows = [row for use in shown.uses for row in (*_node(use, now), *(_ranks(use) if ranks else ()))]
    if not rows:
        return []
    kept = [place for place in range(len(HEADS)) if any(row[place] for row in rows)]
    cells = [[row[place] for place in kept] for row in (HEADS, *rows)]
    lines = [line[: columns - 1] if columns else line for line in aligned(cells)]
    return [painted(lines[0], "bold" if paint else ""), *lines[1:]]


def _node(use: NodeUse, now: float) -> list[tuple[str, ...]]:
    name = visible(use.node)
    if now - use.at > STALE_SECONDS:
        return [(f"{name} silent for {now - use.at:.0f} s", *[""] * (len(HEADS) - 1))]
    busy = [gpu.busy for gpu in use.gpus if gpu.busy >= 0]
    held, total = (sum(max(0.0, getattr(gpu, f)) for gpu in use.gpus) for f in ("memory", "memory_total"))
    row = (
        name,
        "",
        f"{use.cores:.1f}/{use.cores_total}",
        f"{sized(use.memory)}/{sized(use.memory_total)}",
        f"{sized(use.received)}/s",
        f"{sized(use.sent)}/s",
        f"{sum(busy) / len(busy):.0f} %" if busy else visible(use.gpus_said),
        f"{sized(held)}/{sized(total)}" if total else "",
        _sum([gpu.watts for gpu in use.gpus]),
        f"{max(gpu.celsius for gpu in use.gpus):.0f}" if use.gpus else "",
    )
    return [row]


def _ranks(use: NodeUse) -> list[tuple[str, ...]]:
    """A row for each rank, with its GPU where there are as many of both."""
    paired = use.gpus if len(use.gpus) == len(use.ranks) else ()
    rows = []
    for number, rank in enumerate(use.ranks):
        row = ["", str(rank.rank), f"{rank.cores:.1f}", sized(rank.memory), "", "", "", "", "", ""]
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
    known = [value for value in values if value >= 0]
    return f"{sum(known):.0f}" if known else ""
