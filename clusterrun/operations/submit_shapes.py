"""Submit a run in several shapes: queue a job for each shape, and let the first job that starts keep the run.

A file decides which job is first (``runtime.run_files.claim_shape``). So exactly one job keeps the run, even
if two start in the same second or Slurm is unreachable. The job that keeps the run cancels the other jobs.
Another job that starts nevertheless ends by itself.
"""

from __future__ import annotations

from clusterrun.model.errors import BadInput, SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import JobSpec
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.submit import Draft, Files, Offered, ShapeOfRun, draft, named, prepare, queued
from clusterrun.runs.code_snapshot import look
from clusterrun.runs.private_files import DiskRefused
from clusterrun.script.environment import dropped


def drafts(spec: JobSpec, context: Context) -> list[Draft]:
    """Return the checked submission of each shape. No file is made."""
    snapshot = look(spec.cwd, spec.snapshot_include) if spec.snapshot else None
    first = ShapeOfRun(*named(spec, context), 0, Offered(context), snapshot)
    shapes = [replace(first, shape=shape) for shape in range(len(spec.shape_words))]
    return [draft(spec.shaped(part.shape), context, of=part) for part in shapes]


def send(spec: JobSpec, context: Context, tell: Tell, files: Files = ()) -> tuple[RunRecord, tuple[str, ...]]:
    """Submit ``spec`` in all its shapes, and report the shapes that Slurm refuses."""
    submissions = drafts(spec, context)
    record = prepare(
        submissions[0], context, files=files, others=[submission.plan for submission in submissions[1:]]
    )
    jobs: dict[int, str] = {}
    refusals: list[SchedulerError | BadInput] = []
    for submission in submissions:
        if context.store.shape(record.run_id) is not None:
            break  # a queued job has started already
        try:
            jobs[submission.plan.shape] = queued(submission.plan, context, tell)
        except SchedulerUnreachable as error:
            if not jobs:
                raise  # the job may be queued: the record stays, and its token identifies the job
            tell(f"shape {spec.shape_words[submission.plan.shape]} may not be queued: {error.seen}")
            break
        except (SchedulerError, BadInput) as error:
            refusals.append(error)
            tell(f"shape {spec.shape_words[submission.plan.shape]} is left out: {error.seen}")
    if not jobs:
        context.store.discard(record.run_id)
        raise refusals[0]
    for notice in dict.fromkeys(notice for submission in submissions for notice in submission.notices):
        tell(notice)
    first, *others = jobs.values()
    requested = {name: getattr(spec, name) for name in spec.shape_fields}
    record = replace(record, job_id=first, others=tuple(others), spec=replace(record.spec, **requested))
    try:
        context.store.save(record)
    except DiskRefused as error:
        tell(f"jobs {' '.join(jobs.values())} are queued, but that could not be written ({error.seen})")
    # The job that started may have cancelled the others before all of them were queued.
    begun = context.store.shape(record.run_id)
    if losers := [job_id for shape, job_id in jobs.items() if begun not in (None, shape)]:
        try:
            context.client().cancel(losers)
        except SchedulerError as error:
            tell(f"job {' and '.join(losers)} ends when it starts, for the run has begun: {error.seen}")
    return record, dropped(context.environ)
