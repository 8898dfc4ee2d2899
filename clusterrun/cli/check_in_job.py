"""The check of the nodes of the job in which `clusterrun check` is typed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Any

from clusterrun.cli.error_output import say
from clusterrun.cli.report import await_report
from clusterrun.cli.run import ALLOCATION_OPTIONS, of_the_allocation, refuse_job_options
from clusterrun.config.settings import Setting
from clusterrun.model.frozen import replace
from clusterrun.model.preflight_report import Report
from clusterrun.model.spec import JobSpec
from clusterrun.operations.context import Context
from clusterrun.operations.interactive import begin, end, planned

_REMEDY = "give --new-job for a job of its own"


def check_nodes_of_job(
    submission: Mapping[str, Any],
    values: dict[str, Setting],
    spec_of: Callable[[dict[str, Setting]], JobSpec],
    context: Context,
    dry_run: bool,
) -> Report | None:
    """Check the nodes of this job, and return the report; None if there is none, or with ``dry_run``.

    Raises ``BadInput`` for options of a job that is to be queued.
    """
    refuse_job_options(submission, "check", _REMEDY)
    explicit = {name for name in ALLOCATION_OPTIONS if submission.get(name) is not None} | {"preflight"}
    spec = replace(spec_of(of_the_allocation(values, explicit)), time=0)
    if dry_run:
        drafted, allocation = planned(spec, explicit, context)
        say(f"would check {drafted.plan.spec.nodelist} of job {allocation.job_id}")
        return None
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)
    record = begin(spec, explicit, context, say)
    say(f"checks {record.spec.nodelist} of job {record.job_id}: {record.run_id}")
    try:
        return await_report(context, record.run_id)
    except KeyboardInterrupt:
        end(record, context)
        raise
