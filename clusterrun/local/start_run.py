"""Start a plan on this machine: its coordinator, in a session that a Ctrl-C in the terminal does not reach.

``main`` is the program that starts the coordinator and watches it, with submitit's local controller.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from clusterrun import system
from clusterrun.local import processes
from clusterrun.model.errors import SchedulerError
from clusterrun.script.plan import Plan

START_SECONDS = 60.0
PROGRAM = """import sys
sys.path = [place for place in sys.path if place] + sys.argv[1:]
from clusterrun.local.start_run import main
main()"""
"""Without the current directory, where a file of the user's may be named as a module of Python's; with our
own folder, which this Python may not know."""
LAST_LINES = 10
TEN_YEARS = 10 * 366 * 86400
"""submitit ends a task after its time; the time limit of a run is the coordinator's to keep."""


def start(plan: Plan, environment: Mapping[str, str]) -> str:
    """Start ``plan``, whose script stands in the run directory; the id of its coordinator's process."""
    for_controller = {
        **environment,
        "SUBMITIT_LOCAL_NTASKS": "1",
        "SUBMITIT_LOCAL_COMMAND": shlex.join(plan.argv),
        "SUBMITIT_LOCAL_TIMEOUT_S": str(TEN_YEARS),
        "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
        "SUBMITIT_STDERR_TO_STDOUT": "1",
        "SUBMITIT_LOCAL_WITH_SHELL": "",
        "SUBMITIT_EXECUTOR": "local",
    }
    argv = (sys.executable, "-c", PROGRAM, str(Path(__file__).resolve().parents[2]))
    try:
        answer = system.run(argv, START_SECONDS, env=for_controller, cwd=plan.spec.cwd)
    except system.ProgramTimeout as error:
        raise SchedulerError(f"the run could not be started: {error.seen}", "submit it again") from error
    job_id = answer.out.strip()
    if answer.code != 0 or not job_id:
        last = answer.err.strip().splitlines()[-LAST_LINES:]
        raise SchedulerError(f"the run could not be started: exit code {answer.code}", "\n".join(last))
    return job_id


def main() -> None:
    """Start the task in a session of its own, say its job id on stdout, then watch it to its end."""
    from submitit.local.local import Controller  # here: the process that submits need not load it

    if os.fork():
        os._exit(0)
    os.setsid()
    # submitit names its files by patterns, and a run directory may have a % in its path.
    folder = tempfile.mkdtemp(prefix="clusterrun-")
    controller = Controller(Path(folder))
    for name in [name for name in os.environ if name.startswith("SUBMITIT_")]:
        del os.environ[name]
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    controller.start_tasks()
    shutil.rmtree(folder)  # the script itself writes to job.out
    print(processes.identity(controller.tasks[0].pid), flush=True)
    # Whoever started us waits until nobody holds its pipes any more.
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        controller.wait(freq=4)
    finally:
        controller.kill_tasks()
