"""`clusterrun report`: prints the pre-flight report of a run as text, JSON, a page or metrics."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from clusterrun.cli.error_output import say
from clusterrun.cli.grouped_help import GroupedCommand, grouped
from clusterrun.cli.shell_complete import FILE, runs
from clusterrun.cli.terminal import coloured, columns
from clusterrun.model.preflight_report import Grade, Report
from clusterrun.runs.private_files import write_whole

F = TypeVar("F", bound=Callable[..., Any])

COLOURS = {Grade.FAIL: "red", Grade.UNDETERMINED: "magenta", Grade.WARN: "yellow", Grade.PASS: "green"}
WIDTH = 100
# Files that a user names are readable for others, such as a browser or the collector of metrics.
READABLE = 0o644


def outputs(command: F) -> F:
    option = partial(grouped, common=True)
    command = option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)
    command = option("--html", **FILE, help="Write a page for a browser, self-contained.")(command)
    return grouped("--prometheus", **FILE, help="Write metrics for the textfile collector.")(command)


@click.command(cls=GroupedCommand)
@grouped(
    "--attempt", type=click.IntRange(min=0), metavar="K", help="Attempt K instead of the newest.", common=True
)
@outputs
@click.argument("run", default="last", shell_complete=runs)
def report(run: str, attempt: int | None, as_json: bool, html: str | None, prometheus: str | None) -> None:
    """Show what the pre-flight check of RUN found, worst first.

    \b
    Examples:
      clusterrun check report
      clusterrun check report last --json
      clusterrun check report --html report.html
    """
    from clusterrun.operations.context import Context
    from clusterrun.operations.find_run import find_run
    from clusterrun.operations.report import report_of

    context = Context()
    put(report_of(context, find_run(context, run), attempt), as_json, html, prometheus)


def put(report: Report, as_json: bool, html: str | None, prometheus: str | None) -> None:
    if html:
        from clusterrun.reports.page import page

        _write(html, page(report))
    if prometheus:
        from clusterrun.reports.metrics import metrics

        _write(prometheus, metrics(report))
    if as_json:
        from clusterrun.reports.json_document import REPORT

        print(json.dumps(REPORT.document(report)))
    else:
        print("\n".join(painted(report)))


def _write(path: str, text: str) -> None:
    write_whole(os.path.abspath(path), text, READABLE)
    say(f"written: {path}")


def painted(report: Report) -> list[str]:
    from clusterrun.reports.text_report import screen

    width = columns() if sys.stdout.isatty() else WIDTH
    colours = coloured(sys.stdout)
    return [
        click.style(line.text, fg=COLOURS[line.grade], bold=True) if colours and line.grade else line.text
        for line in screen(report, width)
    ]


def await_report(context: Any, run_id: str) -> Report | None:
    """Return the report when the run ends. If there is none, print how the run ended and return None."""
    from clusterrun.cli.follow_run import print_end, show_until
    from clusterrun.operations.report import NoReport, report_of

    status = show_until(context, run_id, lambda status: status.state.ended)
    try:
        return report_of(context, run_id)
    except NoReport:
        print_end(context, status)
        return None
