"""Define the queries to Slurm, each with the parser of its answer.

A field holds the column and its parser. The argument list is derived from the fields, so query and parser
always agree. A random word per query separates the cells. It is unknown in advance, so a job's name or
comment cannot forge a cell or a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from clusterrun.model.errors import SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State
from clusterrun.slurm_text import job_states, reasons

YEAR_SECONDS = 365 * 86400
# Times in seconds since the epoch in any time zone, and one row per waiting task of an array.
QUERY_ENVIRONMENT = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
# Prefixes of variables that limit which jobs Slurm's programs list or cancel. ``SLURM_CLUSTERS`` sends
# queries to other clusters, where clusterrun has no jobs.
_FILTERS = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "SLURM_CLUSTERS")


def unfiltered(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` without variables that hide jobs from lists or cancellation.

    ``SQUEUE_PARTITION`` is one of them.

    Jobs are submitted with this environment too, because the coordinator queries Slurm from inside the job.
    """
    return {name: value for name, value in environment.items() if not name.startswith(_FILTERS)}


@frozen
class Field:
    """One column of a query."""

    name: str  # name in the row
    column: str  # Slurm's name
    read: Callable[[str], Any]  # parser of a cell


@frozen
class Query:
    """A command of Slurm, and the columns of the rows that it prints."""

    command: tuple[str, ...]
    fields: tuple[Field, ...]

    def argv(self, mark: str, *options: str) -> tuple[str, ...]:
        """Return the command. A mark opens every row, since a cell may be empty or contain line breaks."""
        columns = mark.join(field.column for field in self.fields)
        return (*self.command, *options, f"--format=[{mark}]{columns}")

    def rows(self, out: str, mark: str) -> Iterator[dict[str, Any]]:
        """Yield the cells of each row by name. Raise ``SchedulerError`` for text that cannot be parsed."""
        for row in self._texts_of_rows(out, mark):
            cells = row.removesuffix("\n").split(mark)
            if len(cells) != len(self.fields):
                raise _unreadable(row, f"{len(cells)} cells instead of {len(self.fields)}")
            yield {field.name: field.read(cell) for field, cell in zip(self.fields, cells)}

    def _texts_of_rows(self, out: str, mark: str) -> list[str]:
        opening = f"[{mark}]"
        before, *parts = out.split(opening)
        if before.strip() and not parts:  # output of a site's wrapper before the rows
            raise _unreadable(before, "text before the first row")
        rows: list[str] = []
        for part in parts:
            # A cell that ends in [ before a cell that begins with ] looks like the opening of a row.
            if rows and rows[-1].count(mark) < len(self.fields) - 1:
                rows[-1] += opening + part
            else:
                rows.append(part)
        return rows


class AccountingQuery(Query):
    """A query of ``sacct``, which cannot open a row with a mark. A row ends after all its cells."""

    def argv(self, mark: str, *options: str) -> tuple[str, ...]:
        columns = ",".join(field.column for field in self.fields)
        return (*self.command, *options, f"--delimiter={mark}", f"--format={columns}")

    def _texts_of_rows(self, out: str, mark: str) -> list[str]:
        """Split the rows.

        Free text may contain line breaks. Before the last cell marks are missing, so the row continues. After
        the last cell no mark follows a line break in text, because nobody can know the mark.
        """
        rows: list[str] = []
        for line in out.splitlines(keepends=True):
            if not rows or (rows[-1].count(mark) >= len(self.fields) - 1 and mark in line):
                rows.append(line)
            else:
                rows[-1] += line
        return rows


@frozen
class JobRow:
    """One job as Slurm reports it. Times are in seconds since the epoch, None if unknown."""

    job_id: str
    word: str  # Slurm's state word
    reason: str  # Slurm's reason word
    nodelist: str
    start: float | None  # an estimate while the job waits
    end: float | None  # the time limit while it runs
    name: str
    comment: str
    nodes: int = 0
    exit_code: int | None = None  # None if the query does not report it
    command: str = ""  # path of the batch script; '' if the query does not report it

    @property
    def state(self) -> State:
        return job_states.read(self.word).state

    @property
    def explained(self) -> str:
        """Return the meaning of ``reason`` or ``word`` for users; '' if they need no explanation."""
        return reasons.explain(self.reason).meaning or job_states.read(self.word).meaning


@frozen
class PartitionOffer:
    """A partition, with the sizes of its nodes."""

    name: str
    available: str
    default: bool
    time_limit: str
    nodes: int
    cpus: int  # of its largest node
    memory: int  # miB of its largest node
    gpus: int  # of its largest node
    kinds: tuple[tuple[int, int], ...] = ()  # (GPUs, CPUs) of each kind of node


@frozen
class QueueRow:
    """A running or waiting job of any user."""

    word: str  # Slurm's state word
    partition: str
    nodelist: str  # nodes of a running job
    planned_nodes: str  # nodes that Slurm has planned for a waiting job
    start: float | None  # of a waiting job: the planned start, if there is one
    end: float | None


@frozen
class ReservationRow:
    """A reservation of nodes. Only jobs that name it may use them between ``start`` and ``end``."""

    name: str
    nodelist: str
    start: float
    end: float


@frozen
class NodeRow:
    """A node in a partition."""

    name: str
    partition: str
    state: str  # in Slurm's long form
    gpus: int


@frozen
class GpuRow:
    """The GPUs of one type on a node, in one of its partitions."""

    node: str
    partition: str
    state: str  # in Slurm's long form
    gpu_type: str  # '': the site names none
    total: int
    used: int
    is_open: bool = True  # Slurm starts jobs in the partition


def text_of(cell: str) -> str:
    """Return the cell unchanged, or '' if it holds one of Slurm's words for no value."""
    return "" if cell in ("(null)", "N/A", "None assigned", "Unknown") else cell


def moment_of(cell: str) -> float | None:
    """Return seconds since the epoch; None for ``N/A`` and similar words."""
    return float(cell) if cell[:1].isdecimal() and re.fullmatch(r"\d+(\.\d+)?", cell) else None


def number_of(cell: str) -> int:
    """Return the number at the start of a cell. ``16+`` and ``4-8`` are ranges; ``1K`` is 1024."""
    if cell.isascii() and cell.isdecimal():
        return int(cell)
    match = re.match(r"(\d+)([KMG]?)", cell)
    return int(match[1]) * {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}[match[2]] if match else 0


def joules_of(cell: str) -> int | None:
    """Return the energy in a cell; None if it was not measured (empty, 0, or Slurm's number for no value)."""
    count = int(cell) if cell.isascii() and cell.isdecimal() else 0
    return count if 0 < count < 2**63 else None


def exit_code_of(cell: str) -> int | None:
    """Return ``CODE:SIGNAL`` as a shell's exit code: 128 plus the signal's number if a signal is set."""
    match = re.fullmatch(r"(\d+):(\d+)", cell)
    code, signal = map(int, match.groups()) if match else (None, 0)
    return 128 + signal if signal and not code else code


def gpu_count(cell: str) -> int:
    """Return the number of GPUs in a resource list: ``gpu:a100:4(S:0-1),gpu:v100:2,nvme:1`` has 6."""
    return sum(gpus_by_type(cell).values())


def gpus_by_type(cell: str) -> dict[str, int]:
    """Return the GPUs of a resource list by their type.

    ``gpu:a100:4(S:0-1),gpu:2`` has 4 of type a100, and 2 without a type.
    """
    counts: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", cell).split(","):
        name, *rest = item.strip().split(":")
        if name == "gpu":
            kind = rest[0] if len(rest) > 1 else ""
            counts[kind] = counts.get(kind, 0) + (number_of(rest[-1]) if rest else 1)
    return counts


JOBS = Query(
    ("squeue", "--noheader"),
    (
        Field("job_id", "%i", text_of),
        Field("word", "%T", text_of),
        Field("nodelist", "%N", text_of),
        Field("nodes", "%D", number_of),
        Field("start", "%S", moment_of),
        Field("end", "%e", moment_of),
        Field("reason", "%r", text_of),
        Field("command", "%o", text_of),
        Field("name", "%j", str),
        Field("comment", "%k", text_of),
    ),
)
QUEUE = Query(
    ("squeue", "--noheader"),
    (
        Field("word", "%T", text_of),
        Field("partition", "%P", text_of),
        Field("nodelist", "%N", text_of),
        Field("planned_nodes", "%Y", text_of),
        Field("start", "%S", moment_of),
        Field("end", "%e", moment_of),
    ),
)
NODES = Query(
    ("sinfo", "--noheader", "--Node", "--exact"),
    (
        Field("name", "%n", text_of),
        Field("partition", "%R", text_of),
        Field("state", "%T", text_of),
        Field("gpus", "%G", gpu_count),
    ),
)
PARTITIONS = Query(
    ("sinfo", "--noheader", "--exact"),
    (
        Field("name", "%R", text_of),
        Field("default", "%P", lambda cell: cell.endswith("*")),
        Field("available", "%a", text_of),
        Field("time_limit", "%l", text_of),
        Field("nodes", "%D", number_of),
        Field("cpus", "%c", number_of),
        Field("memory", "%m", number_of),
        Field("gpus", "%G", gpu_count),
    ),
)
_SACCT = ("sacct", "--noheader", "--allocations", "--parsable2")
FINISHED = AccountingQuery(
    _SACCT,
    (
        Field("job_id", "JobID", text_of),
        Field("word", "State", text_of),
        Field("nodelist", "NodeList", text_of),
        Field("nodes", "NNodes", number_of),
        Field("start", "Start", moment_of),
        Field("end", "End", moment_of),
        Field("exit_code", "ExitCode", exit_code_of),
        Field("reason", "Reason", text_of),
        Field("name", "JobName", str),
        Field("comment", "Comment", text_of),
    ),
)
ENERGY = AccountingQuery(
    _SACCT, (Field("job_id", "JobID", text_of), Field("joules", "ConsumedEnergyRaw", joules_of))
)


# sinfo pads each column to its width, and knows the used GPUs only by this long format.
_GPU_COLUMNS = ("NodeHost", "Partition", "StateLong", "Gres", "GresUsed", "Available")
_GPU_WIDTH = 200
GPUS_ARGV = (
    *("sinfo", "--noheader", "--Node"),
    "--Format=" + ",".join(f"{column}:{_GPU_WIDTH}" for column in _GPU_COLUMNS),
)
RESERVATIONS_ARGV = ("scontrol", "--oneliner", "show", "reservation")


def queue_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[QueueRow, ...]:
    """Return the rows of ``QUEUE``. Slurm ends a job without a time limit one year after its start."""
    result = []
    for cells in rows:
        row = QueueRow(**cells)
        has_no_limit = row.start and row.end and row.end - row.start >= YEAR_SECONDS
        result.append(replace(row, end=None) if has_no_limit else row)
    return tuple(result)


def joules_of_jobs(rows: Iterable[Mapping[str, Any]], job_ids: Sequence[str]) -> int | None:
    """Return the joules of all ``job_ids`` from the rows of ``ENERGY``; None if any value is missing."""
    joules, measured_jobs = 0, set()
    for cells in rows:
        if cells["joules"] is None:
            return None
        joules += cells["joules"]
        measured_jobs.add(cells["job_id"])
    return joules if measured_jobs == set(job_ids) else None


def partition_offers(rows: Iterable[Mapping[str, Any]]) -> tuple[PartitionOffer, ...]:
    """Return one value per partition: the sum of its nodes, and the size of its largest node."""
    offers: dict[str, PartitionOffer] = {}
    for cells in rows:
        row = PartitionOffer(**cells, kinds=((cells["gpus"], cells["cpus"]),))
        if earlier := offers.get(row.name):
            most = {name: max(cells[name], getattr(earlier, name)) for name in ("cpus", "memory", "gpus")}
            row = replace(earlier, nodes=earlier.nodes + row.nodes, kinds=earlier.kinds + row.kinds, **most)
        offers[row.name] = row
    return tuple(offers.values())


def read_gpus(out: str) -> tuple[GpuRow, ...]:
    """Return a row for each node, partition and type of GPU. A node without GPUs has none."""
    rows = []
    for line in out.splitlines():
        starts = range(0, len(_GPU_COLUMNS) * _GPU_WIDTH, _GPU_WIDTH)
        node, partition, state, gres, used, available = (
            line[start : start + _GPU_WIDTH].strip() for start in starts
        )
        used_by_type = gpus_by_type(used)
        for kind, total in gpus_by_type(gres).items():
            # Slurm may count the used GPUs without their type.
            count = used_by_type.get(kind, used_by_type.get("", 0) if len(gpus_by_type(gres)) == 1 else 0)
            is_open = available == "up"
            rows.append(GpuRow(node, partition.rstrip("*"), state, kind, total, count, is_open))
    return tuple(rows)


def read_reservations(out: str) -> tuple[ReservationRow, ...]:
    """Parse the answer to ``RESERVATIONS_ARGV``. Reservations without nodes, of licences, are left out."""
    rows = []
    for line in out.splitlines():
        cells = dict(re.findall(r"(?:^| )(\w+)=(\S*)", line))
        start, end = moment_of(cells.get("StartTime", "")), moment_of(cells.get("EndTime", ""))
        nodelist = text_of(cells.get("Nodes", ""))
        if nodelist and start is not None and end is not None:
            rows.append(ReservationRow(cells.get("ReservationName", ""), nodelist, start, end))
    return tuple(rows)


def _unreadable(line: str, why: str) -> SchedulerError:
    problem = f"Slurm's answer cannot be read ({why}): {line!r}"
    return SchedulerError(problem, "report this line, with the output of: sinfo --version")
