"""Start the coordinator of a plan on this machine, in a session that Ctrl-C in the terminal does not reach.

``main`` is the program that starts and watches the coordinator with submitit's local controller.
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
# The current directory is removed from sys.path, since it may hold a file named like a module of
# Python. Our own folder is added, since this Python may lack it.
PROGRAM = """import sys
sys.path = [place for place in sys.path if place] + sys.argv[1:]
from clusterrun.local.start_run import main
main()"""
LAST_LINES = 10
# submitit ends a task after this time. The coordinator enforces the time limit of a run.
TEN_YEARS = 10 * 366 * 86400


def start(plan: Plan, environment: Mapping[str, str]) -> str:
    """Start ``plan``, whose script is in the run directory. Return the id of its coordinator's process."""
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
    """Start the task in a session of its own, print its job id, and watch it to its end."""
    from submitit.local.local import Controller  # the submitting process does not load it

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
    # The caller waits until all writers of its pipes have closed them.
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        controller.wait(freq=4)
    finally:
        controller.kill_tasks()
