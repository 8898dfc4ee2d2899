"""Submitting exactly once: what to do with each answer of sbatch; holds the policy and runs nothing itself.

After ten seconds without an answer sbatch says "Socket timed out", and the job may run all the
same. So nothing is ever sent a second time: an answer that leaves the question open is cleared up
by looking for the token that stands in the job's comment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.model.nearest import did_you_mean
from clusterrun.slurm import sbatch_errors
from clusterrun.slurm.client import SlurmClient, SubmitAnswer
from clusterrun.slurm.queries import PartitionOffer
from clusterrun.slurm.sbatch_errors import SbatchAnswer
from clusterrun.system import Clock, notice_if_slow

LOOK_SECONDS = 90.0
"""How long the queue is searched before the question is left to a later ``status``."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
QUIET_SECONDS = 2.0
"""Waiting longer than this is said aloud."""

Log = Callable[[str], None]


def send(
    slurm: SlurmClient, argv: Sequence[str], cwd: str, token: str, partition: str, clock: Clock, log: Log
) -> str:
    """Submit once and return the job's id.

    Raises ``SchedulerError`` when nothing was queued, and ``SchedulerUnreachable`` when that
    could not be found out: then the job, if there is one, carries ``token`` in its comment.
    """
    answer = _asked(slurm, argv, cwd, log)
    if answer.kind is SbatchAnswer.QUEUED:
        return answer.job_id
    if answer.kind is SbatchAnswer.OPEN:
        log(f"Slurm gave no clear answer ({answer.said}): searching the queue for the job")
        return _look(slurm, token, answer.said, clock, log)
    if answer.kind is SbatchAnswer.ABSENT:
        remedy = "try again in a while; `scontrol ping` says whether the controller is up."
        remedy += " To run on this machine instead: --cluster local"
        raise SchedulerError(f"Slurm does not answer, nothing was queued: {answer.said}", remedy)
    return _refused(slurm, token, partition, answer.said)


def _asked(slurm: SlurmClient, argv: Sequence[str], cwd: str, log: Log) -> SubmitAnswer:
    """One sbatch; a long wait for it is said, and what an interrupted one means."""
    waiting = "waiting for Slurm to accept the job (sbatch itself tries for up to 3 minutes)"
    try:
        with notice_if_slow(QUIET_SECONDS, log, waiting):
            return slurm.sbatch(argv, cwd)
    except KeyboardInterrupt:
        log("interrupted while Slurm was asked: the job may be queued, and `clusterrun status` finds out")
        raise


def _look(slurm: SlurmClient, token: str, said: str, clock: Clock, log: Log) -> str:
    """Search the queue, ever more slowly: after one clear "no" the message may still be on its way."""
    began, pause, seen = clock.monotonic(), FIRST_PAUSE, "Slurm did not answer that either"
    log(f"waiting for an answer until {LOOK_SECONDS:g} s are over; nothing is submitted again")
    while clock.monotonic() - began < LOOK_SECONDS:
        try:
            job_id = slurm.find(token)
        except SchedulerError as error:
            seen = f"Slurm did not answer that either ({error.seen})"
        else:
            if job_id:
                return job_id
            seen = "the job is not in the queue so far"
        clock.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
    open_ = f"it is not known whether the job is queued: sbatch said {said!r}, and {seen}"
    remedy = "nothing is submitted again; `clusterrun status` finds the job if it is there. Look yourself:"
    remedy += f" squeue --me --states=all --format='%i %T %k' | grep {token}"
    raise SchedulerUnreachable(open_, remedy)


def _refused(slurm: SlurmClient, token: str, partition: str, said: str) -> str:
    """Words that are not known might be no refusal at all: one look at the queue makes sure."""
    row = sbatch_errors.refusal(said)
    if row is None or not row.sure:
        with suppress(SchedulerError):
            if job_id := slurm.find(token):
                return job_id
    remedy = row.remedy if row else "see man sbatch, or ask the site's staff"
    offer = _offer(slurm, partition) if row and row.offer else ""
    raise SchedulerError(f"Slurm refused the job: {said}", "\n".join(filter(None, (remedy, offer))))


def _offer(slurm: SlurmClient, wanted: str) -> str:
    """What there is to choose from, the wanted partition alone where it exists."""
    try:
        found = slurm.partitions()
    except SchedulerError:
        return ""
    names = [partition.name for partition in found]
    meant = did_you_mean(wanted, names) if wanted and wanted not in names else ""
    chosen = [one for one in found if one.name == wanted or (not wanted and one.default)] or found
    return "\n".join(filter(None, [meant, *map(describe, chosen)]))


def describe(partition: PartitionOffer) -> str:
    each = f"up to {partition.gpus} GPUs, {partition.cpus} CPUs and {partition.memory // 1024} GiB each"
    name = f"{partition.name}{' (default)' if partition.default else ''}"
    return f"partition {name}: {partition.nodes} nodes, {each}, time limit {partition.time_limit}"
