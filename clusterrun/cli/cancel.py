"""`clusterrun cancel`: ends runs and says what became of them."""

from __future__ import annotations

import click

from clusterrun.cli.error_output import put, say
from clusterrun.cli.shell_complete import runs
from clusterrun.model import duration
from clusterrun.model.contract import ExitCode
from clusterrun.operations.cancel import cancel as cancel_runs
from clusterrun.operations.context import Context
from clusterrun.operations.find_run import describing_foreign_jobs
from clusterrun.runs.sweep_records import Sweeps


@click.command()
@click.option(
    "--kill-wait",
    metavar="TIME",
    help="Time from SIGTERM to SIGKILL; 0: at once.  [default: the run's, else Slurm's KillWait]",
)
@click.argument("wanted", metavar="RUN...", nargs=-1, required=True, shell_complete=runs)
def cancel(wanted: tuple[str, ...], kill_wait: str | None) -> int:
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
    words: dict[str, str] = {}
    sweeps = Sweeps(context.store)
    for word in wanted:
        with describing_foreign_jobs(context, word):
            for run_id in sweeps.called_off(word):
                words.setdefault(run_id, word)
    ids = list(words)
    code = ExitCode.DONE
    for before, status in cancel_runs(context, ids, say, seconds):
        if before.state.ended:
            put(f"{status.run_id} had already ended: {status.state.value}")
            if older := _live_runs(context, words[status.run_id], ids):
                lives = "an older run of that name is" if len(older) == 1 else "older runs of that name are"
                say(f"{lives} live: clusterrun cancel {' '.join(older)}")
                code = ExitCode.FAILED
        elif status.state.ended:
            put(f"{status.run_id} {status.state.value}")
        else:
            reason = f" ({status.reason})" if status.reason else ""
            say(f"{status.run_id} was asked to end, but is still {status.state.value}{reason}")
            code = ExitCode.FAILED
    return code


def _live_runs(context: Context, word: str, already_cancelled: list[str]) -> list[str]:
    """The other live runs named ``word``: the name means only the newest one."""
    others = [one for one in context.store.live_of_name(word) if one not in already_cancelled]
    return [status.run_id for status in context.inquiry().statuses(others) if not status.state.ended]
