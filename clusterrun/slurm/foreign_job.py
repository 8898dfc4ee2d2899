"""Read a Slurm job of any user from scontrol or from the accounting."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State
from clusterrun.slurm.queries import moment_of
from clusterrun.slurm_text import job_states

FIELDS = ("JobID", "User", "State", "NodeList", "Submit", "End", "ExitCode", "JobName")
# The job's name ends the first line and may contain any text. All other values are single words.
_NAME = re.compile(r"^JobId=\S+ (?:.* )?JobName=(.*)$", re.MULTILINE)

_DIRECTIVE = re.compile(r"^#SBATCH\s+(.*)", re.MULTILINE)
# Bytes of a batch script that are searched for options.
MOST_OF_SCRIPT = 64 << 10
_NUMBER = re.compile(r"JobId=(\d+)")
_TASK = re.compile(r"JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=(\d+) ")
_HET = re.compile(r"JobId=\d+ HetJobId=(\d+) ")
_NODES = re.compile(r"^ +NodeList=([^\s(]+)", re.MULTILINE)


@frozen
class ForeignJob:
    """A job of any user. A field is '' if Slurm does not report it."""

    job_id: str
    name: str
    user: str
    word: str  # Slurm's own word for its state
    nodelist: str = ""
    reason: str = ""
    output: str = ""  # path of the file for its standard output
    comment: str = ""
    number: str = ""  # its plain number; that of a task of an array differs from ``job_id`` (``41_7``)
    # of an array named as a whole, the tasks that have begun, and Slurm's word for the state of each; () for
    # any other job
    tasks: tuple[tuple[str, str], ...] = ()
    error_output: str = ""  # path of the file for its standard error
    # the nodes of each component of a heterogeneous job; () for any other job
    het_nodelists: tuple[str, ...] = ()
    het_leader: str = ""  # number of the first component of a heterogeneous job
    # submitted_at, ended_at: seconds since the epoch; 0: unknown. A job that runs ends at its time limit
    submitted_at: float = 0.0
    ended_at: float = 0.0
    exit_code: str = ""  # the exit code of its script and the signal that ended it: ``3:0``, ``0:9``

    @property
    def state(self) -> State:
        return job_states.read(self.word).state

    @property
    def running_tasks(self) -> tuple[str, ...]:
        return tuple(task for task, word in self.tasks if job_states.read(word).state is State.RUNNING)


def read_shown(job_id: str, out: str) -> ForeignJob | None:
    """Return the job in the answer to ``scontrol show job``, one task of an array; None without one."""
    blocks = [block.strip() for block in out.split("\n\n")]
    tasks = [(f"{match[1]}_{match[2]}", block) for block in blocks if (match := _TASK.match(block))]
    if tasks:
        return _of_array([job for task, block in tasks if (job := _read_shown(task, block))])
    job, leader = _read_shown(job_id, blocks[0]), _HET.match(blocks[0])
    if job is None or leader is None:
        return job
    components = [block for block in blocks if _HET.match(block)]
    nodelists = tuple(match[1] if (match := _NODES.search(block)) else "" for block in components)
    nodelist = ",".join(filter(None, nodelists))
    return replace(job, nodelist=nodelist, het_nodelists=nodelists, het_leader=leader[1])


def _read_shown(job_id: str, block: str) -> ForeignJob | None:
    def value(key: str, pattern: str = r"\S+") -> str:
        match = re.search(rf"^ +(?:.* )?{key}=({pattern})", block, re.MULTILINE)
        return match[1] if match and match[1] not in ("(null)", "None") else ""

    name, word = _NAME.search(block), value("JobState")
    if name is None or not word:
        return None
    # With ``--chdir .`` Slurm has ``/data/./slurm-41.out``.
    output, error_output = (
        os.path.normpath(path) if (path := value(key, ".*")) else "" for key in ("StdOut", "StdErr")
    )
    return ForeignJob(
        job_id,
        name[1],
        value("UserId").partition("(")[0],
        word,
        value("NodeList"),
        value("Reason"),
        output,
        value("Comment", ".*").strip(),
        number[1] if (number := _NUMBER.match(block)) else "",
        error_output=error_output,
        submitted_at=moment_of(value("SubmitTime")) or 0.0,
        ended_at=moment_of(value("EndTime")) or 0.0,
        exit_code=value("ExitCode"),
    )


def _of_array(tasks: Sequence[ForeignJob]) -> ForeignJob | None:
    """Return the first task that runs, else that failed, else that ended, with the states of all tasks."""
    in_order = sorted(tasks, key=lambda task: int(task.job_id.partition("_")[2]))
    states = tuple((task.job_id, task.word) for task in in_order) if len(in_order) > 1 else ()
    last = (State.CANCELLED, State.COMPLETED, State.PENDING)
    order = (State.RUNNING, *(state for state in State if state not in last), *last)
    chosen = min(in_order, key=lambda task: order.index(task.state), default=None)
    return replace(chosen, tasks=states) if chosen else None


def accounting_argv(job_id: str) -> tuple[str, ...]:
    plain = ("sacct", "--noheader", "--allocations", "--parsable2", f"--format={','.join(FIELDS)}")
    return (*plain, f"--jobs={job_id}")


def read_accounting(job_id: str, out: str) -> ForeignJob | None:
    """Return the job in the answer to ``accounting_argv``, one task of an array; None without one.

    Its name is last, so that it may contain a ``|``.
    """
    jobs = []
    for line in out.splitlines():
        cells = line.split("|", len(FIELDS) - 1)
        if len(cells) == len(FIELDS):
            row_id, user, word, nodelist, submitted, ended, exit_code, name = cells
            job = ForeignJob(
                row_id,
                name,
                user,
                word.partition(" ")[0],
                nodelist,
                submitted_at=moment_of(submitted) or 0.0,
                ended_at=moment_of(ended) or 0.0,
                exit_code=exit_code,
            )
            jobs.append(job)
    # ``41_[2-9]``: tasks that have not begun.
    tasks = [job for job in jobs if re.fullmatch(r"\d+_\d+", job.job_id)]
    return _of_array(tasks) if tasks else replace(jobs[0], job_id=job_id) if jobs else None


def output_argvs(job_id: str) -> tuple[tuple[str, ...], ...]:
    """Return the queries for the output files of an ended job: for Slurm 24.05 and later, and for older."""
    plain = ("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job_id}")
    return (*plain, "--format=WorkDir,StdOut,StdErr"), (*plain, "--format=WorkDir,SubmitLine")


def read_outputs(job: ForeignJob, out: str) -> tuple[str, ...]:
    """Return the output files in the first row of an answer to one of ``output_argvs``.

    Parts of a name that the accounting does not hold become ``*``.
    """
    cells = out.splitlines()[0].split("|", 2) if out.strip() else []
    if not cells or not cells[0]:
        return ()
    names = cells[1:]
    if len(cells) <= 2:
        # The values of ``--output`` and ``--error`` on the line that submitted the job, else in its script.
        arguments = _split(cells[-1])
        names = _values(_own_options(arguments))
        files = [os.path.join(cells[0], argument) for argument in arguments[1:]]
        script = next(filter(os.path.isfile, files), "")
        if script and not names:
            with suppress(OSError), open(script, "rb") as file:
                text = file.read(MOST_OF_SCRIPT).decode("utf-8", "replace")
                names = _values([word for line in _DIRECTIVE.findall(text) for word in _split(line)])
    names = [name for name in names if name and name != "/dev/null"]
    array = job.job_id.partition("_")[2]
    names = names or ["slurm-%A_%a.out" if array else "slurm-%j.out"]
    paths = (os.path.join(cells[0], _filled(name, job)) for name in names)
    return tuple(dict.fromkeys(map(os.path.normpath, paths)))


def steps_argv(job_id: str) -> tuple[str, ...]:
    """Return the query for the lines that started the steps of a job. Slurm before 21.08 refuses it."""
    return ("sacct", "--noheader", "--parsable2", f"--jobs={job_id}", "--format=WorkDir,SubmitLine")


def read_steps(job: ForeignJob, out: str) -> tuple[str, ...]:
    """Return the files that the steps of a job may have written: the values of ``--output`` of srun."""
    rows = [line.split("|", 1) for line in out.splitlines() if "|" in line]
    folder = next((folder for folder, _ in rows if folder), "/")
    lines = [line for _, line in rows if re.match(r"(?:\S*/)?srun\b", line)]
    names = [name for line in lines for name in _values(_own_options(_split(line)))]
    paths = (os.path.normpath(os.path.join(folder, _filled(name, job))) for name in names)
    return tuple(dict.fromkeys(paths))


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _own_options(arguments: list[str]) -> list[str]:
    """Return the arguments of a command without those of the program that it starts.

    Those may look like options. Neither the program nor its script follows an option.
    """
    pairs = enumerate(zip(arguments, arguments[1:]), 1)
    ends = (place for place, pair in pairs if not any(word.startswith("-") for word in pair))
    return arguments[: next(ends, len(arguments))]


def _values(arguments: list[str]) -> list[str]:
    """Return the values of ``--output`` and ``--error`` among the arguments of sbatch."""
    names = []
    for word, following in zip(arguments, [*arguments[1:], ""]):
        match = re.fullmatch(r"(?:--output|--error)(?:=(.+))?|-[oe](.+)?", word)
        if match:
            names.append(match[1] or match[2] or following)
    return names


def _filled(name: str, job: ForeignJob) -> str:
    number, _, task = job.job_id.partition("_")
    values = {"j": job.number or number, "A": number, "a": task, "x": job.name, "u": job.user, "%": "%"}

    def value(match: re.Match[str]) -> str:
        import glob  # status does not need it

        text = values.get(match[1], "")
        return glob.escape(text) if text else "*"

    return re.sub(r"%\d*(.)", value, name)
