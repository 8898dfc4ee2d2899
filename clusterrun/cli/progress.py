"""Shows the progress of a run before it trains, live on a terminal and as lines elsewhere."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from clusterrun.cli.error_output import say
from clusterrun.cli.terminal import coloured
from clusterrun.model.orders import Preflight
from clusterrun.model.record import RunStatus
from clusterrun.model.states import Phase
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context, quiet
from clusterrun.operations.wait import RunWait

Show = Callable[[RunStatus], None]
LOOK_SECONDS = 0.1
# The end of a check's progress text: the time left in its budget.
LEFT = re.compile(r",? *(\d+(?:\.\d+)?) s left")
BEFORE_TRAINING = (Phase.QUEUED, Phase.STARTING, Phase.PREFLIGHT)


def ended(status: RunStatus) -> bool:
    return status.state.ended


def past_preflight(status: RunStatus) -> bool:
    return status.state.ended or status.phase not in BEFORE_TRAINING


def show_until(context: Context, run_id: str, over: Callable[[RunStatus], bool]) -> RunStatus:
    """Show the progress of a run until ``over`` returns True for its status. Ctrl-C is not caught."""
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    watch = RunWait(context, run_id, quiet if live else say, logs_are_shown=True)
    budget = context.store.read(run_id).spec.preflight_budget or Preflight().budget
    with _display(float(budget)) if live else nullcontext(lambda status: None) as show:
        while not (over(status := watch.look()) or watch.in_vain):
            show(status)
            context.clock.sleep(LOOK_SECONDS)
    return status


@contextmanager
def _display(budget: float) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
    from rich.table import Column

    console = Console(stderr=True, no_color=not coloured(sys.stderr), highlight=False)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.fields[phase]}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[left]}", markup=False),
        TextColumn(
            "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
        ),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, phase="", left="")

        def show(status: RunStatus) -> None:
            time_left = LEFT.search(status.reason)
            progress.update(
                task,
                description=visible(LEFT.sub("", status.reason)),
                total=budget if time_left else None,
                completed=max(0.0, budget - float(time_left[1])) if time_left else 0,
                phase=status.phase.value,
                left=f"{time_left[1]} s left" if time_left else "",
            )

        yield show
