"""Define the forms of RUN on a command line other than the run's name."""

from __future__ import annotations

import os
import re

LAST = "last"
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{4}-[A-Za-z0-9_][A-Za-z0-9._-]*")
# A job of Slurm, a task of an array (41_7), or a local job (PID.START).
JOB_ID = re.compile(r"\d+([._]\d+)?", re.ASCII)
# A job as squeue and sacct print it: 41, 41_7, 41_[0-3%2], 41+1, with a possible step: 41.0, 41_7.batch.
# Slurm numbers jobs from 1, and takes 0 for all of them.
_SLURM_JOB = re.compile(r"([1-9]\d*)(_\d+)?(_\[[\d,:%-]+\])?(\+\d+)?(\.\w+)?", re.ASCII)

_SCRIPT = re.compile(r"([\w.-]+)\.py(?![\w.-])", re.ASCII)


def slurm_job(word: str) -> str:
    """Return the job (41) or array task (41_7) that ``word`` or its step belongs to; '' for other words."""
    match = _SLURM_JOB.fullmatch(word)
    return match[1] + (match[2] or "") if match else ""


def default_name(command: tuple[str, ...]) -> str:
    """Return the script's name without its ending, the module's name, or the program's name."""
    program = os.path.basename(command[0].rstrip("/"))
    # The script of ``timeout 1h python train.py`` or of ``bash -c '… train.py'``.
    is_of_user = program != command[0] and not program.startswith("python")
    script = None if is_of_user or program.endswith(".py") else _SCRIPT.search(" ".join(command))
    if command[0] == "-m" and len(command) > 1:
        name = command[1]
    elif script:
        name = script[1]
    else:
        name = program.removesuffix(".py") or "run"
    return f"run-{name}" if shadowed_by(name) else name


def shadowed_by(name: str) -> str:
    """Return the meaning of RUN that hides a run of this name; '' if there is none."""
    if name == LAST:
        return "the newest run"
    if JOB_ID.fullmatch(name):
        return "the run of a job of that number"
    return "the run of that id" if RUN_ID.fullmatch(name) else ""
