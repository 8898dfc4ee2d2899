"""A Slurm job by its number, whoever queued it: as scontrol shows it, or as the accounting remembers it."""

from __future__ import annotations

import re

from clusterrun.model.frozen import frozen
from clusterrun.model.states import State
from clusterrun.slurm_text import job_states

FIELDS = ("JobID", "User", "State", "NodeList", "JobName")
# The first line holds the job's name, which ends the line and may hold anything. The other values are words.
_NAME = re.compile(r"^JobId=\S+ (?:.* )?JobName=(.*)$", re.MULTILINE)


@frozen
class ForeignJob:
    """A job of anybody; an empty text stands for what Slurm does not tell."""

    job_id: str
    name: str
    user: str
    word: str  # Slurm's own word for its state
    nodelist: str = ""
    reason: str = ""
    output: str = ""  # path of the file for its standard output
    comment: str = ""

    @property
    def state(self) -> State:
        return job_states.read(self.word).state


def show_argv(job_id: str) -> tuple[str, ...]:
    return ("scontrol", "show", "job", job_id)


def read_shown(job_id: str, out: str) -> ForeignJob | None:
    """Read the answer to ``show_argv``; of an array the first task that it lists. None without a job."""
    first = out.split("\n\n", 1)[0]

    def value(key: str, pattern: str = r"\S+") -> str:
        match = re.search(rf"^ +(?:.* )?{key}=({pattern})", first, re.MULTILINE)
        return match[1] if match and match[1] not in ("(null)", "None") else ""

    name, word = _NAME.search(first), value("JobState")
    if name is None or not word:
        return None
    return ForeignJob(
        job_id,
        name[1],
        value("UserId").partition("(")[0],
        word,
        value("NodeList"),
        value("Reason"),
        value("StdOut", ".*"),
        value("Comment", ".*").strip(),
    )


def accounting_argv(job_id: str) -> tuple[str, ...]:
    plain = ("sacct", "--noheader", "--allocations", "--parsable2", f"--format={','.join(FIELDS)}")
    return (*plain, f"--jobs={job_id}")


def read_accounting(job_id: str, out: str) -> ForeignJob | None:
    """Read the answer to ``accounting_argv``; the name stands last, so that a ``|`` in it does no harm."""
    for line in out.splitlines():
        cells = line.split("|", len(FIELDS) - 1)
        if len(cells) == len(FIELDS):
            _, user, word, nodelist, name = cells
            return ForeignJob(job_id, name, user, word.partition(" ")[0], nodelist)
    return None
