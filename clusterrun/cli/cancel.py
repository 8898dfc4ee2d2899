"""`clusterrun cancel`: ends runs and says what became of them."""

from __future__ import annotations

import click

from clusterrun.cli.boundary import say
from clusterrun.cli.completing import runs
from clusterrun.model.contract import ExitCode
from clusterrun.verbs.cancelling import cancel as cancel_runs
from clusterrun.verbs.desk import Desk


@click.command()
@click.argument("wanted", metavar="RUN...", nargs=-1, required=True, shell_complete=runs)
def cancel(wanted: tuple[str, ...]) -> int:
    """End runs, queued or running, and return when nothing of them is left.

    \b
    Examples:
      clusterrun cancel last
    """
    desk = Desk()
    ids = list(dict.fromkeys(desk.store.find(word) for word in wanted))
    code = ExitCode.DONE
    for before, status in cancel_runs(desk, ids, say):
        if before.state.ended:
            print(f"{status.run_id} had already ended: {status.state.value}")
        elif status.state.ended:
            print(f"{status.run_id} {status.state.value}")
        else:
            reason = f" ({status.reason})" if status.reason else ""
            say(f"{status.run_id} was told to end but is still {status.state.value}{reason}")
            code = ExitCode.FAILED
    return code
