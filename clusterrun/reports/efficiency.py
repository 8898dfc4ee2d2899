"""Computes how an ended run used its time and resources; pure, None stands for what was not measured.

The coordinator's history tells when attempts began, their ranks ran and they ended, samples of the nodes
what ranks used, the script's own word when it took its first step and saved its newest checkpoint.
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

ENOUGH_SECONDS = 30.0
"""A shorter run gets no advice on a smaller request: it may have been starting all the time."""
HEADROOM = 1.25
"""More may have been used between two samples than was seen."""
WORTH_SAYING = 0.75
"""A smaller request is named where it is below this part of the one that was made."""
CLOCK_SECONDS = 5.0
"""The clocks of nodes may differ by this."""


@frozen
class ProgressMarks:
    """``progress.json``: the newest step and checkpoint, and when the first step and that checkpoint were."""

    step: int | None = None
    checkpoint: int | None = None
    at: float | None = None
    first_step: int | None = None
    first_at: float | None = None
    checkpoint_at: float | None = None


@frozen
class MeasuredAttempt:
    """An attempt with the seconds of its pre-flight check, its nodes' last samples and its script's word."""

    attempt: Attempt
    check: float = 0.0
    uses: tuple[NodeUse, ...] = ()
    marks: ProgressMarks | None = None


@frozen
class EndReport:
    """Times in seconds, memory in bytes, shares of 1; None: not measured.

    Of the time from submission to the end: ``queue`` before and between jobs, and ``allocated``; of that
    ``check``, ``start`` of the ranks, ``between`` attempts in one job, and ``ranks``; of that ``steps``, and
    of these ``counted``: those that no later attempt had to repeat. ``goodput`` is counted / allocated.
    ``cores…`` and ``memory…`` are of a node. ``gpus_idle`` of ``gpus`` in all were never busy.
    ``gpu_joules`` are the GPUs' own count, ``node_joules`` what Slurm measured of all nodes.
    ``smaller`` are options that would have been enough.
    """

    queue: float
    allocated: float
    check: float
    between: float
    nodes: int
    start: float | None = None
    ranks: float | None = None
    steps: float | None = None
    counted: float | None = None
    goodput: float | None = None
    cores_mean: float | None = None
    cores_most: float | None = None
    cores_asked: int | None = None
    memory_most: float | None = None
    memory_asked: int | None = None
    gpus: int | None = None
    gpus_idle: int | None = None
    gpu_busy_mean: float | None = None
    gpu_busy_most: float | None = None
    gpu_memory_most: float | None = None
    gpu_joules: float | None = None
    node_joules: float | None = None
    smaller: tuple[str, ...] = ()


@frozen
class _Stretch:
    """An attempt from ``begin`` to ``end``; its ranks ran from ``ranks_at`` on (None: not known)."""

    measured: MeasuredAttempt
    begin: float
    end: float
    ranks_at: float | None
    job_id: str


def account(
    record: RunRecord, state: State, ended_at: float, attempts: Sequence[MeasuredAttempt]
) -> EndReport:
    """The report of a run that ended as ``state``; there is at least one attempt."""
    stretches = [_stretch(attempt, ended_at if attempt is attempts[-1] else None) for attempt in attempts]
    queue = max(0.0, stretches[0].begin - record.submitted_at)
    between = 0.0
    for stretch, following in zip(stretches, stretches[1:]):
        gap = max(0.0, following.begin - stretch.end)
        if stretch.job_id == following.job_id:
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


def _stretch(measured: MeasuredAttempt, ended_at: float | None) -> _Stretch:
    """``ended_at`` is the end of the run, for the last attempt; another ended when it was last seen."""
    begin = measured.attempt.started_at
    last = max((use.at for use in measured.uses), default=begin)
    end = max(begin, measured.attempt.ended_at or ended_at or last)
    # Without nodes there were no ranks.
    ranks_at = measured.attempt.ranks_at if measured.attempt.nodes else end
    return _Stretch(measured, begin, end, ranks_at, measured.attempt.job_id)


def _steps(state: State, stretches: Sequence[_Stretch]) -> tuple[float | None, float | None]:
    marked = [
        (stretch.measured.marks, stretch) for stretch in stretches if stretch.measured.marks is not None
    ]
    if not marked or not all(_sound(marks, stretch.begin, stretch.end) for marks, stretch in marked):
        return None, None
    steps = counted = 0.0
    whole = True
    following = [marks for marks, _ in marked[1:]]
    for place, (marks, _) in enumerate(marked):
        first_at, at = marks.first_at or 0.0, marks.at or 0.0
        steps += at - first_at
        until = _counts_until(marks, following[place] if place < len(following) else None, state)
        whole = whole and until is not None
        counted += max(0.0, (until or first_at) - first_at)
    return steps, counted if whole else None


def _sound(marks: ProgressMarks, begin: float, end: float) -> bool:
    """Whether the script has said when it took its first step, and within its attempt."""
    if marks.first_at is None or marks.at is None or marks.first_step is None or marks.step is None:
        return False
    saved_at = marks.first_at if marks.checkpoint_at is None else marks.checkpoint_at
    within = begin - CLOCK_SECONDS <= marks.first_at <= marks.at <= end + CLOCK_SECONDS
    return within and saved_at <= marks.at


def _counts_until(marks: ProgressMarks, then: ProgressMarks | None, state: State) -> float | None:
    """Up to when the steps of an attempt count; ``then`` is the next one that took steps."""
    if then is None:
        return marks.at if state is State.COMPLETED else marks.checkpoint_at
    again = then.first_step or 0
    if again >= (marks.step or 0):
        return marks.at
    if marks.checkpoint is not None and marks.checkpoint <= again:
        return marks.checkpoint_at
    return marks.first_at if again <= (marks.first_step or 0) + 1 else None


def _longest(stretches: Sequence[_Stretch]) -> float:
    begins, ends = dict[str, float](), dict[str, float]()
    for stretch in stretches:
        begins.setdefault(stretch.job_id, stretch.begin)
        ends[stretch.job_id] = stretch.end
    return max(ends[job] - begins[job] for job in ends)


def _with_use(report: EndReport, spec: JobSpec, attempts: Sequence[MeasuredAttempt]) -> EndReport:
    """Simulated nodes of one machine all see the same GPUs, so the first one speaks for them."""
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
    """Bytes in what ``--mem`` was given (a bare number is MiB); None for none, and for 0: all of the node."""
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
