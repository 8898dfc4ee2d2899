"""Compute how an ended run used its time and resources. None stands for a value that was not measured.

The coordinator's history holds the times of attempts and their ranks. Samples of the nodes hold the usage of
the ranks. The script reports its first step and its newest checkpoint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import Attempt, RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import State
from clusterrun.model.usage import NodeUse

# A shorter run gets no advice on a smaller request: most of it may have been start-up.
ENOUGH_SECONDS = 30.0
# Advice leaves this factor, since usage between two samples may exceed both.
HEADROOM = 1.25
# A smaller request is advised only if it is below this part of the actual request.
WORTH_SAYING = 0.75
# The clocks of nodes may differ by this.
CLOCK_SECONDS = 5.0


@frozen
class ProgressMarks:
    """The content of ``progress.json``. Times are seconds since the epoch, None if not reported."""

    step: int | None = None  # newest step
    checkpoint: int | None = None  # step of the newest checkpoint
    at: float | None = None  # time of the newest step
    first_step: int | None = None
    first_at: float | None = None  # time of the first step
    checkpoint_at: float | None = None  # time of the newest checkpoint


@frozen
class MeasuredAttempt:
    """An attempt and its measurements."""

    attempt: Attempt
    check: float = 0.0  # seconds of its pre-flight check
    uses: tuple[NodeUse, ...] = ()  # last sample of each node
    marks: ProgressMarks | None = None  # progress that the script reported


@frozen
class EndReport:
    """Times in seconds, memory in bytes, shares between 0 and 1. None means not measured.

    The time from submission to the end is ``queue`` + ``allocated``. The allocated time is ``check`` +
    ``start`` + ``between`` + ``ranks``. The ranks' time contains ``steps``, which contains ``counted``.
    """

    queue: float  # before and between jobs, and before a job is started again
    allocated: float
    check: float  # pre-flight checks
    between: float  # between attempts in the same allocation
    nodes: int
    start: float | None = None  # start of the ranks
    ranks: float | None = None  # from the start of the ranks to the end of the attempt
    steps: float | None = None  # from the first step to the newest step
    counted: float | None = None  # part of ``steps`` that no later attempt repeated
    goodput: float | None = None  # counted / allocated
    cores_mean: float | None = None  # of a node
    cores_most: float | None = None
    cores_asked: int | None = None
    memory_most: float | None = None  # of a node
    memory_asked: int | None = None
    gpus: int | None = None  # of all nodes
    gpus_idle: int | None = None  # GPUs that were never busy
    gpu_busy_mean: float | None = None
    gpu_busy_most: float | None = None
    gpu_memory_most: float | None = None  # share of a GPU's memory
    gpu_joules: float | None = None  # as the GPUs count
    node_joules: float | None = None  # of all nodes, as Slurm measures
    smaller: tuple[str, ...] = ()  # smaller options that would have been enough


@frozen
class _Stretch:
    """The times of an attempt, in seconds since the epoch."""

    measured: MeasuredAttempt
    begin: float
    end: float
    ranks_at: float | None  # start of the ranks, None if not known
    allocation: tuple[str, int]  # the job, and how often Slurm had started it again


def account(
    record: RunRecord, state: State, ended_at: float, attempts: Sequence[MeasuredAttempt]
) -> EndReport:
    """Return the report of a run that ended as ``state``. It needs at least one attempt."""
    stretches = []
    for attempt in attempts:
        begin = attempt.attempt.started_at
        last = max((use.at for use in attempt.uses), default=begin)
        run_end = ended_at if attempt is attempts[-1] else None
        end = max(begin, attempt.attempt.ended_at or run_end or last)
        # An attempt without nodes had no ranks.
        ranks_at = attempt.attempt.ranks_at if attempt.attempt.nodes else end
        stretches.append(
            _Stretch(attempt, begin, end, ranks_at, (attempt.attempt.job_id, attempt.attempt.job_restarts))
        )
    queue = max(0.0, stretches[0].begin - record.submitted_at)
    between = 0.0
    for stretch, following in zip(stretches, stretches[1:]):
        gap = max(0.0, following.begin - stretch.end)
        if stretch.allocation == following.allocation:
            between += gap
        else:
            queue += gap
    allocated = sum(stretch.end - stretch.begin for stretch in stretches) + between
    rank_seconds = [stretch.end - stretch.ranks_at for stretch in stretches if stretch.ranks_at is not None]
    ranks = sum(rank_seconds) if len(rank_seconds) == len(stretches) else None
    check = sum(min(stretch.measured.check, stretch.end - stretch.begin) for stretch in stretches)
    steps, counted = _steps(state, stretches)
    spec = record.spec
    report = EndReport(
        queue=queue,
        allocated=allocated,
        check=check,
        between=between,
        nodes=spec.nodes + spec.spares,
        start=None if ranks is None else max(0.0, allocated - between - check - ranks),
        ranks=ranks,
        steps=steps,
        counted=counted,
        goodput=counted / allocated if counted is not None and allocated > 0 else None,
        cores_asked=spec.cpus_per_rank * spec.local_size or None,
        memory_asked=asked_memory(spec.mem),
    )
    return _advised(_with_use(report, spec, attempts), spec, state, _longest(stretches))


def _steps(state: State, stretches: Sequence[_Stretch]) -> tuple[float | None, float | None]:
    marked = [
        (stretch.measured.marks, stretch) for stretch in stretches if stretch.measured.marks is not None
    ]
    if not marked or not all(_sound(marks, stretch.begin, stretch.end) for marks, stretch in marked):
        return None, None
    steps = counted = 0.0
    is_complete = True
    following = [marks for marks, _ in marked[1:]]
    for index, (marks, _) in enumerate(marked):
        first_at, at = marks.first_at or 0.0, marks.at or 0.0
        steps += at - first_at
        until = _counts_until(marks, following[index] if index < len(following) else None, state)
        is_complete = is_complete and until is not None
        counted += max(0.0, (until or first_at) - first_at)
    return steps, counted if is_complete else None


def _sound(marks: ProgressMarks, begin: float, end: float) -> bool:
    """Return whether the script reported its first step at a time within its attempt."""
    if marks.first_at is None or marks.at is None or marks.first_step is None or marks.step is None:
        return False
    saved_at = marks.first_at if marks.checkpoint_at is None else marks.checkpoint_at
    within = begin - CLOCK_SECONDS <= marks.first_at <= marks.at <= end + CLOCK_SECONDS
    return within and saved_at <= marks.at


def _counts_until(marks: ProgressMarks, following: ProgressMarks | None, state: State) -> float | None:
    """Return the time until which steps count. ``following`` is the next attempt that took steps."""
    if following is None:
        return marks.at if state is State.COMPLETED else marks.checkpoint_at
    first_repeated = following.first_step or 0
    if first_repeated >= (marks.step or 0):
        return marks.at
    if marks.checkpoint is not None and marks.checkpoint <= first_repeated:
        return marks.checkpoint_at
    return marks.first_at if first_repeated <= (marks.first_step or 0) + 1 else None


def _longest(stretches: Sequence[_Stretch]) -> float:
    begins, ends = dict[tuple[str, int], float](), dict[tuple[str, int], float]()
    for stretch in stretches:
        begins.setdefault(stretch.allocation, stretch.begin)
        ends[stretch.allocation] = stretch.end
    return max(ends[allocation] - begins[allocation] for allocation in ends)


def _with_use(report: EndReport, spec: JobSpec, attempts: Sequence[MeasuredAttempt]) -> EndReport:
    """Add the measured usage. Simulated nodes of a machine share its GPUs, so only the first node counts."""
    timed = [use.whole for attempt in attempts for use in attempt.uses if use.whole and use.whole.seconds > 0]
    speaking = 1 if spec.cluster is Cluster.LOCAL else None
    wholes = [[use.whole for use in attempt.uses[:speaking] if use.whole] for attempt in attempts]
    every = [usage for nodes in wholes for usage in nodes]
    busy = [usage for usage in every if usage.busy >= 0]
    longest = max(wholes, key=lambda nodes: sum(usage.seconds for usage in nodes))
    counted = [usage for usage in longest if usage.idle >= 0]
    return replace(
        report,
        cores_mean=_mean([(usage.cores, usage.seconds) for usage in timed]),
        cores_most=_most([usage.most_cores for usage in timed]),
        memory_most=_most([usage.most_memory for usage in timed]),
        gpus=sum(usage.gpus for usage in counted) if counted else None,
        gpus_idle=sum(usage.idle for usage in counted) if counted else None,
        gpu_busy_mean=_share(_mean([(usage.busy, usage.seconds) for usage in busy])),
        gpu_busy_most=_share(_most([usage.most_busy for usage in busy])),
        gpu_memory_most=_most([usage.most_gpu_memory for usage in every]),
        gpu_joules=_sum([usage.joules for usage in every]),
    )


def _share(per_cent: float | None) -> float | None:
    return None if per_cent is None else per_cent / 100


def _mean(weighted: Sequence[tuple[float, float]]) -> float | None:
    total = sum(weight for _, weight in weighted)
    return sum(value * weight for value, weight in weighted) / total if total > 0 else None


def _most(values: Sequence[float]) -> float | None:
    return max((value for value in values if value >= 0), default=None)


def _sum(values: Sequence[float]) -> float | None:
    measured = [value for value in values if value >= 0]
    return sum(measured) if measured else None


def asked_memory(text: str) -> int | None:
    """Return ``--mem`` in bytes (MiB without a unit), None if it is empty or 0 (the whole node)."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.strip(), re.ASCII | re.IGNORECASE)
    return int(match[1]) * 1024 ** ("KMGT".index(match[2].upper() or "M") + 1) or None if match else None


def _advised(report: EndReport, spec: JobSpec, state: State, longest: float) -> EndReport:
    if state is not State.COMPLETED or (report.ranks or 0.0) < ENOUGH_SECONDS:
        return report
    options = []
    if report.cores_most is not None and spec.cpus_per_rank:
        cores = max(1, math.ceil(report.cores_most / spec.local_size))
        options += [f"--cpus-per-rank {cores}"] if cores < spec.cpus_per_rank else []
    if report.memory_most is not None and report.memory_asked:
        gib = max(1, math.ceil(report.memory_most * HEADROOM / 2**30))
        options += [f"--mem {gib}G"] if gib * 2**30 < report.memory_asked * WORTH_SAYING else []
    if spec.gpus and report.gpus and report.gpus_idle == report.gpus:
        options += [f"--gpus 0 --ranks-per-node {spec.local_size}"]
    minutes = max(1, math.ceil(longest * HEADROOM / 60))
    if minutes * 60 < spec.time * WORTH_SAYING:
        options += [f"--time {minutes}m" if minutes < 120 else f"--time {math.ceil(minutes / 60)}h"]
    return replace(report, smaller=tuple(options))
