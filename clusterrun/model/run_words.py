"""Defines the forms of RUN on a command line other than the run's name."""

from __future__ import annotations

import re

LAST = "last"
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{4}-[A-Za-z0-9_][A-Za-z0-9._-]*")
# A job of Slurm, a task of an array (41_7), or a local job (PID.START).
JOB_ID = re.compile(r"\d+([._]\d+)?", re.ASCII)


def shadowed_by(name: str) -> str:
    """Return the meaning of RUN that hides a run of this name; '' if there is none."""
    if name == LAST:
        return "the newest run"
    if JOB_ID.fullmatch(name):
        return "the run of a job of that number"
    return "the run of that id" if RUN_ID.fullmatch(name) else ""
