"""`make recordings`: record Slurm's answers to the queries of ``slurm/queries.py`` in ``tests/recorded/``.

Each release of this machine (``clusterrun lab root list``) runs the same jobs in a lab of its own. Its
``columns.json`` lists the requested columns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from clusterrun.lab.lab import Lab
from clusterrun.lab.spec import LabSpec
from clusterrun.slurm import queries
from clusterrun.slurm.queries import QUERY_ENVIRONMENT, Query
from tests.slurm_versions import releases

RECORDED = Path(__file__).parent / "recorded"
MARK = "<MARK>"
EVIL = "evil\n99[<GUESS>]1<GUESS>RUNNING\x1b[2J"
# The options and the command of each job, by its name. A refused job is in Slurm's queue too.
JOBS = {
    "cancelled": (("--hold",), "true"),
    "two\nlines": (("--hold",), "true"),
    "failed": (("--hold",), "exit 7"),
    "sig": (("--hold",), "kill -9 $$"),
    "running": (("--nodes=2", "--time=30", "--comment=clusterrun:r:tok"), "sleep 600"),
    EVIL: (("--hold", '--comment=a,b "c"'), "true"),
    "toobig": (("--nodes=50",), "true"),
    "later": (("--begin=now+1hour",), "true"),
    "refused": (("--gpus-per-node=99", "--comment=clusterrun:s:refused"), "true"),
}
ENDED = ("two\nlines", "failed", "sig")
LIMIT = 120.0


def main(expected: list[str]) -> int:
    """Record the named releases, or every release of this machine. Return 1 if there is none."""
    local = releases()
    for version in expected or [*local]:
        if version not in local:
            print(f"Slurm {version} is not on this machine: clusterrun lab root make fetches another release")
            return 1
        record(version, local[version])
    old = {path.parent.name for path in RECORDED.glob("*/squeue.txt")} - {short(entry) for entry in local}
    if old:
        print(f"recorded before, and not on this machine: {', '.join(sorted(old))}")
    return 0 if local else 1


def short(version: str) -> str:
    """Return the release without its patch level: ``22.05``."""
    return ".".join(version.split(".")[:2])


def record(version: str, slurm: str) -> None:
    """Start a lab of that release, let the jobs run, and write the answers."""
    lab = Lab(f"recordings{os.getpid()}")
    try:
        lab.up(LabSpec(name=lab.name, nodes=4, gpus=8, accounting=True, slurm=slurm))
        numbers = {name: submit(lab, name, *job) for name, job in JOBS.items()}
        # The accounting never learns the name of a job that starts before its submission was noted.
        ended = [numbers[name] for name in ENDED]
        until("the accounting has heard of the jobs", lambda: has_heard(lab, "JobID", ended))
        ask(lab, "scancel", numbers["cancelled"])
        ask(lab, "scontrol", "release", ",".join(ended))
        until("the job runs", lambda: "RUNNING" in ask(lab, "squeue", "-hn", "running", "-o", "%T"))
        until("the accounting has heard of every end", lambda: has_heard(lab, "End", ended))
        jobs = f"--jobs={','.join(ended)}"
        times = ("--starttime=now-1days", "--endtime=now")
        questions: dict[str, tuple[Query, tuple[str, ...]]] = {
            "squeue": (queries.JOBS, ("--user=0", "--states=all")),
            "sinfo": (queries.PARTITIONS, ()),
            "sacct": (queries.FINISHED, (jobs,)),
            "energy": (queries.ENERGY, ("--duplicates", jobs, *times)),
        }
        folder = RECORDED / short(version)
        folder.mkdir(exist_ok=True)
        for name, (query, options) in questions.items():
            (folder / f"{name}.txt").write_text(ask(lab, *query.argv(MARK, *options)))
        columns = {name: [field.column for field in query.fields] for name, (query, _) in questions.items()}
        (folder / "columns.json").write_text(json.dumps(columns, indent=1) + "\n")
        print(f"recorded Slurm {version} into {folder}")
    finally:
        lab.down()


def submit(lab: Lab, name: str, options: tuple[str, ...], runs: str) -> str:
    """Submit a job and return its id; '' if Slurm refuses it."""
    argv = ["sbatch", "--parsable", "--job-name", name, "--output=/dev/null", *options, "--wrap", runs]
    return lab.exec(argv, cwd="/tmp").out.strip()


def has_heard(lab: Lab, column: str, job_ids: list[str]) -> bool:
    """Return whether the accounting has a number in that column for each job."""
    rows = ask(lab, "sacct", "-nX", "-P", "-o", column, "-j", ",".join(job_ids)).split()
    return len(rows) == len(job_ids) and all(row.isdecimal() for row in rows)


def until(what: str, true: Callable[[], bool]) -> None:
    """Wait for a condition, at most ``LIMIT`` seconds."""
    end = time.monotonic() + LIMIT
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"not within {LIMIT:g} s: {what}")
        time.sleep(0.2)


def ask(lab: Lab, *argv: str) -> str:
    """Return the output of a program of Slurm on the login host."""
    result = lab.exec(list(argv), env=dict(QUERY_ENVIRONMENT))
    if result.code:
        raise SystemExit(f"{argv[0]} failed: {result.err}")
    return result.out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
