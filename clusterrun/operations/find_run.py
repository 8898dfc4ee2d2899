"""Find the run that a word means. A Slurm job that is not a run is described."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from clusterrun.model.errors import ClusterrunError, NoSuchRun
from clusterrun.model.run_words import LAST, slurm_job
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell, quiet
from clusterrun.slurm.foreign_job import ForeignJob

MOST_LISTED = 8
_OF_CLUSTERRUN = re.compile(r"clusterrun:([^:\s]+):\S+")


def find_run(context: Context, word: str) -> str:
    """Return the id of the run that ``word`` means. Raise ``NoSuchRun``, which describes a Slurm job."""
    try:
        return context.store.find(word)
    except NoSuchRun as error:
        raise _described(context, word, error) from error


def find_run_or_job(context: Context, word: str, tell: Tell = quiet) -> str | ForeignJob:
    """Return the id of the run that ``word`` means, or the Slurm job that clusterrun did not start.

    A run is preferred, unless it has ended or is on another cluster, and a live job has its number. A name
    may mean the only job of this user that runs, and so may ``last`` if there is no run, or if the newest
    had ended before that job started. A check inside a job does not stand for the job after its end.
    ``tell`` gets a notice of that, and one if a live job has the number of a run. Raise ``NoSuchRun``.
    """
    try:
        run_id = context.store.find(word)
    except NoSuchRun as error:
        job = _job(context, word) if slurm_job(word) else _running_job(context, word, error, tell)
        if job is None or run_of_comment(job.comment):
            raise _described(context, word, error) from error
        return job
    if checked_job := _checked_job(context, word, run_id):
        tell(f"the check {run_id} has ended; taking job {checked_job.job_id}, in which it ran")
        return checked_job
    other = _other_job(context, word, run_id)
    state = context.store.state(run_id) if other or word == LAST else None
    ended_at = state.ended_at if state else None
    if word == LAST and ended_at is not None:
        ended = NoSuchRun(f"the run {run_id} has ended", "")
        with suppress(NoSuchRun):
            return _running_job(context, word, ended, tell, since=ended_at) or run_id
    if other and not run_of_comment(other.comment):
        elsewhere = context.other_cluster(context.store.read(run_id))
        if elsewhere or ended_at is not None:
            why = f"is on the cluster {elsewhere}" if elsewhere else "has ended"
            tell(f"the run {run_id} {why}; {_described_job(other, word)}: taking that job")
            return other
    if other:
        tell(f"{word} is taken for the run {run_id}; {_described_job(other, word)}")
    return run_id


def other_job(context: Context, word: str, run_id: str) -> str:
    """Describe the live Slurm job with the number ``word`` that is not of the run ``run_id``; '' for none."""
    from clusterrun.operations.job_step import owner_remedy  # slow to import, so not for runs

    job = _other_job(context, word, run_id)
    if job is None:
        return ""
    may_cancel = not run_of_comment(job.comment) and not owner_remedy(job)
    return _described_job(job, word) + (f" (scancel {word})" if may_cancel else "")


def _other_job(context: Context, word: str, run_id: str) -> ForeignJob | None:
    """Return the live Slurm job with the number ``word`` that is not of the run ``run_id``.

    Slurm counts its jobs from 1 again after its state was lost, and when it has reached MaxJobId.
    """
    job = _job(context, word) if slurm_job(word) == word and run_id != word else None
    if job is None or job.state.ended or f"clusterrun:{run_id}:" in job.comment:
        return None
    return job


def _described_job(job: ForeignJob, word: str) -> str:
    run = run_of_comment(job.comment)
    whose = f"the run {run}" if run else f"{job.name!r}, which clusterrun did not start"
    return f"a Slurm job with that number is {job.word} too: {whose}"


def _checked_job(context: Context, word: str, run_id: str) -> ForeignJob | None:
    """Return the job of the user in which the run ``run_id`` was a check, if ``word`` means that job."""
    if word != LAST and not slurm_job(word):
        return None
    record, state = context.store.read(run_id), context.store.state(run_id)
    if not (record.in_allocation and record.spec.alone and state and state.ended_at is not None):
        return None
    job = _job(context, record.job_id)
    if job is None or run_of_comment(job.comment):
        return None
    went_on = state.state is State.COMPLETED and job.state is State.RUNNING
    return job if went_on or word != LAST else None


def run_of_comment(comment: str) -> str:
    """Return the run that a job's comment names; '' if clusterrun did not start the job."""
    mark = _OF_CLUSTERRUN.search(comment)
    return mark[1] if mark else ""


def _job(context: Context, word: str) -> ForeignJob | None:
    """Return the Slurm job with this number; None if there is none, or if Slurm cannot be asked."""
    job_id = slurm_job(word)
    if not job_id:
        return None
    try:
        return context.slurm().foreign_job(job_id)
    except ClusterrunError:
        return None


def _running_job(
    context: Context, word: str, error: NoSuchRun, tell: Tell, since: float = 0.0
) -> ForeignJob | None:
    """Return the only running job of this user with the name ``word``, or with any name if it is ``last``.

    If no job with the name runs, return the newest that Slurm remembers. Raise ``NoSuchRun``, which names the
    running jobs, if there are several.
    """
    try:
        rows = [row for row in context.slurm().jobs() if not run_of_comment(row.comment)]
    except ClusterrunError:
        return None
    running = [row for row in rows if row.state is State.RUNNING and (row.start or 0.0) >= since]
    named = [row for row in running if word in (row.name, LAST)]
    # Slurm remembers an ended job for some minutes.
    named = named or sorted((row for row in rows if row.name == word), key=lambda row: row.start or 0.0)[-1:]
    if len({slurm_job(row.job_id) for row in named}) == 1:
        tell(
            f"{error.seen}; taking job {named[0].job_id} ({named[0].name!r}), which clusterrun did not start"
        )
        return _job(context, named[0].job_id)
    if running:
        listed = ", ".join(f"{row.job_id} ({row.name!r})" for row in (named or running)[:MOST_LISTED])
        raise NoSuchRun(f"{error.seen}; jobs of yours that run: {listed}", "name one of them by its number")
    if word != LAST:
        raise NoSuchRun(error.seen, f"{error.remedy}; a job that ended long ago: give its number")
    return None


@contextmanager
def describing_foreign_jobs(context: Context, word: str) -> Iterator[None]:
    """Replace a ``NoSuchRun`` for a Slurm job that is not a run by one that describes the job.

    Raise it too if a check ran in the job: status, logs, wait and cancel of its number mean the job.
    """
    run_id, job = "", None
    with suppress(NoSuchRun):
        run_id = context.store.find(word) if slurm_job(word) == word else ""
        job = _checked_job(context, word, run_id) if run_id else None
    if job:
        error = not_a_run(context, job)
        raise NoSuchRun(error.seen, f"{error.remedy}\ncheck   clusterrun report {run_id}")
    try:
        yield
    except NoSuchRun as error:
        raise _described(context, word, error) from error


def _described(context: Context, word: str, error: NoSuchRun) -> NoSuchRun:
    """Return an error that describes the Slurm job of ``word``.

    Return ``error`` if ``word`` names no job, or if Slurm cannot be asked.
    """
    job_id = slurm_job(word)
    if not job_id:
        return error
    try:
        job = context.slurm().foreign_job(job_id)
    except ClusterrunError:
        return error
    if job is None:
        message = f"there is no run {word!r}, and Slurm knows no job {job_id}"
        return NoSuchRun(message, "clusterrun status --all-jobs shows your jobs")
    return not_a_run(context, job)


def not_a_run(context: Context, job: ForeignJob) -> NoSuchRun:
    """Return the error for a command that needs a run. It describes the job."""
    from clusterrun.operations.job_step import owner_remedy  # slow to import, so not for runs

    job_id = job.job_id
    on_nodes = f" on {job.nodelist}" if job.nodelist else ""
    about = f"{job.name!r} of {job.user or 'an unknown user'}, {job.word}{on_nodes}"
    if run := run_of_comment(job.comment):
        home = os.path.dirname(os.path.dirname(os.path.dirname(job.output)))
        message = f"Slurm job {job_id} ({about}) is the run {run}, which is not in {context.store.home}"
        remedy = f"look there: CLUSTERRUN_HOME={shlex.quote(home)} clusterrun status {run}"
    else:
        message = f"clusterrun did not start Slurm job {job_id} ({about}), so it has no run directory"
        remedy = "\n".join(f"{purpose:<7} {command}" for purpose, command in _commands(job))
    return NoSuchRun(message, owner_remedy(job) or remedy)


def _commands(job: ForeignJob) -> Iterator[tuple[str, str]]:
    """Yield the commands of Slurm to type for this job, each with its purpose."""
    files = shlex.join(dict.fromkeys(filter(None, (job.output, job.error_output))))
    # A job of the accounting has no plain number: the controller has forgotten it.
    tool = "scontrol show job" if job.number else "sacct -j"
    if job.state.ended:
        if files:
            yield "output", f"less {files}"
            yield "why", f"clusterrun diagnose {job.job_id}"
        yield "state", f"{tool} {job.job_id}"
        return
    if files and job.state is not State.PENDING:
        yield "output", f"tail -f {files}"
    yield "state", f"{tool} {job.job_id}"
    if job.state is not State.PENDING:
        yield "look", f"clusterrun diagnose {job.job_id}"
        yield "shell", f"clusterrun shell {job.job_id}"
    yield "cancel", f"scancel {job.job_id}"
