"""Questions to Slurm, each beside the reading of its answer.

A field is the column asked for and its reader, and the argument list is derived from the fields,
so question and answer cannot drift. Cells are separated by a word made at random for each query:
whoever chose a job's name or comment cannot have known it, so text cannot forge a cell or a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clusterrun.model.errors import SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State
from clusterrun.slurm_text import job_states, reasons

QUERY_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Times as seconds since the epoch, whatever the site's clock zone; all tasks of an array that wait."""
_FILTERS = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS")
"""How variables begin by which people set what Slurm's programs show them, and which jobs these end.

``SLURM_CLUSTERS`` has all of them ask other clusters, to which no job of ours goes.
"""


def unfiltered(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` without what would keep jobs from being listed or ended, as ``SQUEUE_PARTITION`` does.

    A job is submitted with this too: its coordinator asks about it from the environment of the job.
    """
    return {name: value for name, value in environment.items() if not name.startswith(_FILTERS)}


@frozen
class Field:
    """One column: its name in the row, what Slurm calls it, and how a cell is read."""

    name: str
    column: str
    read: Callable[[str], Any]


@frozen
class JobRow:
    """One job as Slurm tells it; times in seconds since the epoch, ``None`` where Slurm gives none.

    ``word`` and ``reason`` are Slurm's own words, ``explained`` what they say to people ('' where
    they say nothing). ``start`` is an estimate while the job waits; ``end`` is the time limit
    while it runs. ``exit_code`` is ``None`` where the query does not tell.
    """

    job_id: str
    word: str
    reason: str
    nodelist: str
    start: float | None
    end: float | None
    name: str
    comment: str
    nodes: int = 0
    exit_code: int | None = None

    @property
    def state(self) -> State:
        return job_states.read(self.word).state

    @property
    def explained(self) -> str:
        return reasons.explain(self.reason).said or job_states.read(self.word).said


@frozen
class PartitionOffer:
    """A partition: ``gpus`` and ``cpus`` of its largest node, ``memory`` in MiB; both of all ``kinds``."""

    name: str
    available: str
    default: bool
    time_limit: str
    nodes: int
    cpus: int
    memory: int
    gpus: int
    kinds: tuple[tuple[int, int], ...] = ()


@frozen
class QueueRow:
    """A job of anybody's that runs, or waits: where and how long, or where and when Slurm has planned it."""

    word: str
    partition: str
    nodelist: str
    planned_nodes: str
    start: float | None
    end: float | None


@frozen
class NodeRow:
    """A node in a partition: its state in Slurm's long word, and its GPUs."""

    name: str
    partition: str
    state: str
    gpus: int


def text(cell: str) -> str:
    """A cell as it is, where Slurm has an answer at all."""
    return "" if cell in ("(null)", "N/A", "None assigned", "Unknown") else cell


def moment(cell: str) -> float | None:
    """Seconds since the epoch; ``N/A`` and the like are ``None``."""
    return float(cell) if cell[:1].isdecimal() and re.fullmatch(r"\d+(\.\d+)?", cell) else None


def number(cell: str) -> int:
    """The number a cell begins with (``16+`` and ``4-8`` are ranges; ``1K`` is 1024)."""
    if cell.isascii() and cell.isdecimal():
        return int(cell)
    match = re.match(r"(\d+)([KMG]?)", cell)
    return int(match[1]) * {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}[match[2]] if match else 0


def joules(cell: str) -> int | None:
    """The energy in a cell; None if none was measured: nothing, 0, or Slurm's number for no value."""
    count = int(cell) if cell.isascii() and cell.isdecimal() else 0
    return count if 0 < count < 2**63 else None


def exit_code(cell: str) -> int | None:
    """``CODE:SIGNAL`` as a shell gives it: 128 and the signal's number for a signal."""
    match = re.fullmatch(r"(\d+):(\d+)", cell)
    code, signal = map(int, match.groups()) if match else (None, 0)
    return 128 + signal if signal and not code else code


def gpus(cell: str) -> int:
    """The GPUs in a list of generic resources: ``gpu:a100:4(S:0-1),gpu:v100:2,nvme:1`` has 6."""
    plain = re.sub(r"\([^)]*\)", "", cell)
    found = [item.split(":") for item in plain.split(",") if item == "gpu" or item.startswith("gpu:")]
    return sum(number(item[-1]) if len(item) > 1 else 1 for item in found)


JOBS = (
    Field("job_id", "%i", text),
    Field("word", "%T", text),
    Field("nodelist", "%N", text),
    Field("nodes", "%D", number),
    Field("start", "%S", moment),
    Field("end", "%e", moment),
    Field("reason", "%r", text),
    Field("name", "%j", str),
    Field("comment", "%k", text),
)
FINISHED = (
    Field("job_id", "JobID", text),
    Field("word", "State", text),
    Field("nodelist", "NodeList", text),
    Field("nodes", "NNodes", number),
    Field("start", "Start", moment),
    Field("end", "End", moment),
    Field("exit_code", "ExitCode", exit_code),
    Field("reason", "Reason", text),
    Field("name", "JobName", str),
    Field("comment", "Comment", text),
)
ENERGY = (Field("job_id", "JobID", text), Field("joules", "ConsumedEnergyRaw", joules))
PARTITIONS = (
    Field("name", "%R", text),
    Field("default", "%P", lambda cell: cell.endswith("*")),
    Field("available", "%a", text),
    Field("time_limit", "%l", text),
    Field("nodes", "%D", number),
    Field("cpus", "%c", number),
    Field("memory", "%m", number),
    Field("gpus", "%G", gpus),
)


QUEUE = (
    Field("word", "%T", text),
    Field("partition", "%P", text),
    Field("nodelist", "%N", text),
    Field("planned_nodes", "%Y", text),
    Field("start", "%S", moment),
    Field("end", "%e", moment),
)
NODES = (
    Field("name", "%n", text),
    Field("partition", "%R", text),
    Field("state", "%T", text),
    Field("gpus", "%G", gpus),
)


def queue_argv(mark: str) -> tuple[str, ...]:
    return ("squeue", "--noheader", f"--format={_format(QUEUE, mark)}")


def nodes_argv(mark: str) -> tuple[str, ...]:
    return ("sinfo", "--noheader", "--Node", "--exact", f"--format={_format(NODES, mark)}")


def read_queue(out: str, mark: str) -> tuple[QueueRow, ...]:
    return tuple(QueueRow(**cells) for cells in _marked_rows(QUEUE, out, mark))


def read_nodes(out: str, mark: str) -> tuple[NodeRow, ...]:
    return tuple(NodeRow(**cells) for cells in _marked_rows(NODES, out, mark))


def jobs_argv(user: int, mark: str) -> tuple[str, ...]:
    """``squeue`` for all jobs of ``user`` (a numeric id) that Slurm still remembers, ended ones too."""
    return ("squeue", "--noheader", f"--user={user}", "--states=all", f"--format={_format(JOBS, mark)}")


def finished_argv(job_ids: Sequence[str], mark: str) -> tuple[str, ...]:
    """``sacct`` for ``job_ids``: one row per job, no steps."""
    return (*_accounting(FINISHED, mark), f"--jobs={','.join(job_ids)}")


def energy_argv(job_ids: Sequence[str], since: str, until: str, mark: str) -> tuple[str, ...]:
    """``sacct`` for what ``job_ids`` consumed: a row for each time that Slurm started one of them."""
    times = (f"--starttime={since}", f"--endtime={until}")
    return (*_accounting(ENERGY, mark), "--duplicates", f"--jobs={','.join(job_ids)}", *times)


def since_argv(user: int, since: str, mark: str) -> tuple[str, ...]:
    """``sacct`` for every job of ``user`` since ``since`` (as Slurm reads times: ``now-1days``)."""
    return (*_accounting(FINISHED, mark), f"--user={user}", f"--starttime={since}")


def _accounting(fields: Sequence[Field], mark: str) -> tuple[str, ...]:
    columns = ",".join(field.column for field in fields)
    plain = ("--noheader", "--allocations", "--parsable2")
    return ("sacct", *plain, f"--delimiter={mark}", f"--format={columns}")


def partitions_argv(mark: str) -> tuple[str, ...]:
    return ("sinfo", "--noheader", "--exact", f"--format={_format(PARTITIONS, mark)}")


def read_jobs(out: str, mark: str) -> tuple[JobRow, ...]:
    """The answer to ``jobs_argv``. Raises ``SchedulerError`` that shows what could not be read."""
    return tuple(JobRow(**cells) for cells in _marked_rows(JOBS, out, mark))


def read_finished(out: str, mark: str) -> tuple[JobRow, ...]:
    """The answer to ``finished_argv``; a requeued job's newest row comes last."""
    return tuple(JobRow(**cells) for cells in _counted_rows(FINISHED, out, mark))


def read_energy(out: str, job_ids: Sequence[str], mark: str) -> int | None:
    """The joules of all ``job_ids``, from the answer to ``energy_argv``; None if some are not known."""
    rows = list(_counted_rows(ENERGY, out, mark))
    measured: list[int | None] = [row["joules"] for row in rows]
    known = [one for one in measured if one is not None]
    whole = len(known) == len(rows) and {row["job_id"] for row in rows} == set(job_ids)
    return sum(known) if whole else None


def read_partitions(out: str, mark: str) -> tuple[PartitionOffer, ...]:
    """The answer to ``partitions_argv``, one value per partition: nodes added up, the largest node kept."""
    found: dict[str, PartitionOffer] = {}
    for cells in _marked_rows(PARTITIONS, out, mark):
        row = PartitionOffer(**cells, kinds=((cells["gpus"], cells["cpus"]),))
        if known := found.get(row.name):
            most = {name: max(cells[name], getattr(known, name)) for name in ("cpus", "memory", "gpus")}
            row = replace(known, nodes=known.nodes + row.nodes, kinds=known.kinds + row.kinds, **most)
        found[row.name] = row
    return tuple(found.values())


def _format(fields: Sequence[Field], mark: str) -> str:
    """Every row opens with a mark of its own: a cell may be empty, or hold line breaks."""
    return f"[{mark}]" + mark.join(field.column for field in fields)


def _marked_rows(fields: Sequence[Field], out: str, mark: str) -> Iterable[dict[str, Any]]:
    before, *rows = out.split(f"[{mark}]")
    if before.strip() and not rows:  # before rows it is what a site's wrapper of the program says
        raise _unreadable(before, "text before the first row")
    for row in rows:
        yield _cells(fields, row.removesuffix("\n").split(mark), row)


def _counted_rows(fields: Sequence[Field], out: str, mark: str) -> Iterable[dict[str, Any]]:
    """Rows of ``sacct``, which cannot open a row with a mark: a row is read until it has all its cells.

    Line breaks within free text are no end of a row: before the last cell because marks are
    missing, after it because no mark follows, which nobody could have put there.
    """
    rows: list[str] = []
    for line in out.splitlines(keepends=True):
        if not rows or (rows[-1].count(mark) >= len(fields) - 1 and mark in line):
            rows.append(line)
        else:
            rows[-1] += line
    for row in rows:
        yield _cells(fields, row.removesuffix("\n").split(mark), row)


def _cells(fields: Sequence[Field], cells: Sequence[str], row: str) -> dict[str, Any]:
    if len(cells) != len(fields):
        raise _unreadable(row, f"{len(cells)} cells where {len(fields)} were asked for")
    return {field.name: field.read(cell) for field, cell in zip(fields, cells)}


def _unreadable(line: str, why: str) -> SchedulerError:
    seen = f"Slurm's answer cannot be read ({why}): {line!r}"
    return SchedulerError(seen, "report this line, with the output of: sinfo --version")
