"""The words by which RUN on a command line means a run, other than the run's name."""

from __future__ import annotations

import re

LAST = "last"
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{4}-[A-Za-z0-9_][A-Za-z0-9._-]*")
# A job of Slurm, a task of an array (41_7), or a local job (PID.START).
JOB_ID = re.compile(r"\d+([._]\d+)?", re.ASCII)


def shadowed_by(name: str) -> str:
    """Return what RUN means instead of a run of this name; '' if it means that run."""
    if name == LAST:
        return "the newest run"
    if JOB_ID.fullmatch(name):
        return "the run of a job of that number"
    return "the run of that id" if RUN_ID.fullmatch(name) else ""
