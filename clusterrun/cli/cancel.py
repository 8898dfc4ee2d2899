"""`clusterrun cancel`: ends runs and reports their final states."""

from __future__ import annotations

import click

from clusterrun.cli.error_output import put, say
from clusterrun.cli.shell_complete import runs
from clusterrun.model import duration
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import NoSuchRun
from clusterrun.operations.cancel import cancel as cancel_runs
from clusterrun.operations.context import Context
from clusterrun.operations.find_run import describing_foreign_jobs, other_job
from clusterrun.runs.sweep_records import Sweeps


@click.command()
@click.option(
    "--kill-wait",
    metavar="TIME",
    help="Time from SIGTERM to SIGKILL; 0: at once.  [default: the run's, else Slurm's KillWait]",
)
@click.argument("names", metavar="RUN...", nargs=-1, required=True, shell_complete=runs)
def cancel(names: tuple[str, ...], kill_wait: str | None) -> int:
    """End runs, queued or running, and return when all their processes and jobs are gone.

    Ranks get SIGTERM and can save until SIGKILL. A second cancel with a shorter --kill-wait ends them sooner.

    \b
    Examples:
      clusterrun cancel last
      clusterrun cancel --kill-wait 5m last
      clusterrun cancel --kill-wait 0 last
    """
    no_time = kill_wait is not None and kill_wait.strip() in ("0", "0s")
    seconds = 0.0 if no_time else None if kill_wait is None else float(duration.parse(kill_wait, bare=1))
    context = Context(tell=say)
    name_by_run: dict[str, str] = {}
    unknown: list[NoSuchRun] = []
    sweeps = Sweeps(context.store)
    for name in names:
        try:
            with describing_foreign_jobs(context, name):
                for run_id in sweeps.called_off(name):
                    name_by_run.setdefault(run_id, name)
        except NoSuchRun as error:
            unknown.append(error)  # the other runs end all the same, as under scancel
    ids = list(name_by_run)
    code = ExitCode.DONE
    for before, status in cancel_runs(context, ids, say, seconds) if ids else ():
        if before.state.ended:
            put(f"{status.run_id} had already ended: {status.state.value}")
            # A name means only the newest run. Older runs of the name may be live.
            of_name = context.store.live_of_name(name_by_run[status.run_id])
            statuses = context.inquiry().statuses([run_id for run_id in of_name if run_id not in ids])
            if older := [other.run_id for other in statuses if not other.state.ended]:
                lives = "an older run of that name is" if len(older) == 1 else "older runs of that name are"
                say(f"{lives} live: clusterrun cancel {' '.join(older)}")
                code = ExitCode.FAILED
            elif other := other_job(context, name_by_run[status.run_id], status.run_id):
                say(other)
                code = ExitCode.FAILED
        elif status.state.ended:
            put(f"{status.run_id} {status.state.value}")
        else:
            reason = f" ({status.reason})" if status.reason else ""
            say(f"{status.run_id} was asked to end, but is still {status.state.value}{reason}")
            code = ExitCode.FAILED
    if unknown:
        remedies = dict.fromkeys(error.remedy for error in unknown)
        raise NoSuchRun("; ".join(error.seen for error in unknown), "\n".join(remedies))
    return code
