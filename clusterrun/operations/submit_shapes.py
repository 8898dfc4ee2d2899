"""One run in several shapes: a job of each is queued, and the first that starts keeps the run.

Which one that is a file decides (``runtime.run_files.claim_shape``), so it is one alone, also where two
start in the same second or nobody can reach Slurm. The one that began cancels the jobs of the others; a
job that starts all the same ends by itself.
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
    """The submission of each shape, checked; makes no file. Raises ``ClusterrunError``."""
    snapshot = look(spec.cwd, spec.snapshot_include) if spec.snapshot else None
    first = ShapeOfRun(*named(spec, context), 0, Offered(context), snapshot)
    shapes = [replace(first, shape=shape) for shape in range(len(spec.shape_words))]
    return [draft(spec.shaped(one.shape), context, of=one) for one in shapes]


def send(spec: JobSpec, context: Context, tell: Tell, files: Files = ()) -> tuple[RunRecord, tuple[str, ...]]:
    """Submit ``spec`` in all its shapes but those that Slurm refuses, which is said."""
    made = drafts(spec, context)
    record = prepare(made[0], context, files=files, others=[one.plan for one in made[1:]])
    jobs: dict[int, str] = {}
    refusals: list[SchedulerError | BadInput] = []
    for one in made:
        if context.store.shape(record.run_id) is not None:
            break  # one of those that were queued has started already
        try:
            jobs[one.plan.shape] = queued(one.plan, context, tell)
        except SchedulerUnreachable as error:
            if not jobs:
                raise  # it may be queued: the record stays, and its token finds the job
            tell(f"shape {spec.shape_words[one.plan.shape]} may not be queued: {error.seen}")
            break
        except (SchedulerError, BadInput) as error:
            refusals.append(error)
            tell(f"shape {spec.shape_words[one.plan.shape]} is left out: {error.seen}")
    if not jobs:
        context.store.discard(record.run_id)
        raise refusals[0]
    for notice in dict.fromkeys(notice for one in made for notice in one.notices):
        tell(notice)
    first, *others = jobs.values()
    asked = {name: getattr(spec, name) for name in spec.said_by_shapes}
    record = replace(record, job_id=first, others=tuple(others), spec=replace(record.spec, **asked))
    try:
        context.store.save(record)
    except DiskRefused as error:
        tell(f"jobs {' '.join(jobs.values())} are queued, but that could not be written ({error.seen})")
    # The one that began may have looked for the others before they were queued.
    begun = context.store.shape(record.run_id)
    if losers := [job_id for shape, job_id in jobs.items() if begun not in (None, shape)]:
        try:
            context.client().cancel(losers)
        except SchedulerError as error:
            tell(f"job {' and '.join(losers)} ends when it starts, for the run has begun: {error.seen}")
    return record, dropped(context.environ)
