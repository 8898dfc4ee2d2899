"""Read from Slurm's configuration which exit codes of a batch script make Slurm queue the job again."""

from __future__ import annotations

import re


def may_requeue(configuration: str, code: int) -> bool:
    """Return whether Slurm queues a job again, or holds it, after a batch script that ended with ``code``.

    Slurm 20.11 and 22.05 do so even if the job was submitted with ``--no-requeue``; 24.11 and 26.05 do not.

    ``configuration`` is the output of ``scontrol show config``. If it lacks a setting, the answer is True.
    """
    for setting in ("RequeueExit", "RequeueExitHold"):
        line = re.search(rf"(?m)^\s*{setting}\s*=\s*(.*)$", configuration)
        if line is None:
            return True
        if lists(line[1], code):
            return True
    return False


def lists(setting: str, code: int) -> bool:
    """Return whether ``setting``, a list of codes and ranges such as ``1-99,120``, has ``code``."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", setting)
    return any(int(first) <= code <= int(last or first) for first, last in ranges)
