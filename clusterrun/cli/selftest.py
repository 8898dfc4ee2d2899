"""`clusterrun check --selftest-gpu`: makes the self-test or reads its file, and shows what was found."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from clusterrun.cli.error_output import say
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Grade
from clusterrun.model.spec import JobSpec
from clusterrun.model.visible import visible
from clusterrun.operations.context import Context
from clusterrun.reports.selftest_findings import FORMAT, grade, lines

MOST_BYTES = 64 << 20


def make(spec: JobSpec, path: str, anonymous: bool, otherwise: bool) -> int:
    """Make the self-test, write its file (0600) and show what it found; ``otherwise``: as JSON or a page."""
    if otherwise:
        raise click.UsageError("--selftest-gpu writes a JSON file: --selftest-file FILE says where")
    from clusterrun.bench import gpu_selftest
    from clusterrun.runs.private_files import write_whole

    context = Context()
    spec = gpu_selftest.with_gpus(spec, context)
    made = gpu_selftest.measure(replace(spec, name=spec.name or gpu_selftest.NAME), context, say)
    path = os.path.abspath(path or f"selftest-{made['run']}.json")
    write_whole(path, gpu_selftest.text_of(made, context, anonymous) + "\n")
    say(f"written: {path} (attach it to a report; clusterrun check --read {os.path.basename(path)} shows it)")
    return show(made)


def read(path: str) -> int:
    """Show what a file of a self-test says."""
    try:
        with open(path, encoding="utf-8") as file:
            made = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}", "name a file of check --selftest-gpu") from error
    if not isinstance(made, dict) or not isinstance(made.get("format"), int):
        raise BadInput(f"{path} is no file of a self-test", "name a file of check --selftest-gpu")
    if made["format"] > FORMAT:
        seen = f"{path} has format {made['format']}; this clusterrun reads {FORMAT}"
        raise BadInput(seen, "read it with the clusterrun that wrote it")
    return show(made)


def show(made: dict[str, Any]) -> int:
    """Print the findings; the exit code says the worst."""
    print("\n".join(visible(line) for line in lines(made)))
    found = grade(made)
    return {Grade.FAIL: ExitCode.UNFIT, Grade.UNDETERMINED: ExitCode.FAILED}.get(found, ExitCode.DONE)
