"""Submit a job exactly once: decide what follows from each answer of sbatch.

After ten seconds without an answer sbatch prints "Socket timed out", and the job may run all the same. A
submission is therefore never repeated. If the answer leaves it open, the queue is searched for the token in
the job's comment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from clusterrun.model.errors import SchedulerError, SchedulerUnreachable
from clusterrun.model.nearest import did_you_mean
from clusterrun.slurm import sbatch_errors
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm.queries import PartitionOffer
from clusterrun.slurm.sbatch_errors import SbatchAnswer
from clusterrun.system import Clock, notice_if_slow

# Seconds of searching the queue. After that a later ``status`` answers the question.
LOOK_SECONDS = 90.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
# Seconds of waiting after which the user is informed.
QUIET_SECONDS = 2.0

Log = Callable[[str], None]


def send(
    slurm: SlurmClient, argv: Sequence[str], cwd: str, token: str, partition: str, clock: Clock, log: Log
) -> str:
    """Submit once and return the job's id.

    Raises ``SchedulerError`` if nothing was queued. Raises ``SchedulerUnreachable`` if that cannot be
    determined; then the job, if it exists, carries ``token`` in its comment.
    """
    waiting = "waiting for Slurm to accept the job (sbatch itself tries for up to 3 minutes)"
    try:
        with notice_if_slow(QUIET_SECONDS, log, waiting):
            answer = slurm.sbatch(argv, cwd)
    except KeyboardInterrupt:
        log("interrupted while sbatch ran: the job may be queued, which `clusterrun status` shows")
        raise
    if answer.kind is SbatchAnswer.QUEUED:
        if answer.message:
            # A site's rules answer here too (job_submit plugins).
            log(f"sbatch warns: {answer.message}")
        return answer.job_id
    if answer.kind is SbatchAnswer.OPEN:
        log(f"Slurm gave no clear answer ({answer.message}): searching the queue for the job")
        return _look(slurm, token, answer.message, clock, log)
    if answer.kind is SbatchAnswer.ABSENT:
        remedy = "try again in a while; `scontrol ping` says whether the controller is up."
        remedy += " To run on this machine instead: --cluster local"
        raise SchedulerError(f"Slurm does not answer, nothing was queued: {answer.message}", remedy)
    row = sbatch_errors.refusal(answer.message)
    if row is None or not row.sure:
        with suppress(SchedulerError):
            if job_id := slurm.find(token):
                return job_id
    remedy = row.remedy if row else "see man sbatch, or ask the site's staff"
    offer = _offer(slurm, partition) if row and row.offer else ""
    raise SchedulerError(f"Slurm refused the job: {answer.message}", "\n".join(filter(None, (remedy, offer))))


def _look(slurm: SlurmClient, token: str, message: str, clock: Clock, log: Log) -> str:
    """Search the queue at growing intervals. After a "no" the message may still be on its way."""
    began, pause, last_answer = clock.monotonic(), FIRST_PAUSE, "Slurm did not answer that either"
    log(f"waiting for an answer until {LOOK_SECONDS:g} s are over; nothing is submitted again")
    while clock.monotonic() - began < LOOK_SECONDS:
        try:
            job_id = slurm.find(token)
        except SchedulerError as error:
            last_answer = f"Slurm did not answer that either ({error.seen})"
        else:
            if job_id:
                return job_id
            last_answer = "the job is not in the queue so far"
        clock.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
    problem = f"it is not known whether the job is queued: sbatch said {message!r}, and {last_answer}"
    remedy = "nothing is submitted again; `clusterrun status` finds the job if it is there. Look yourself:"
    remedy += f" squeue --me --states=all --format='%i %T %k' | grep {token}"
    raise SchedulerUnreachable(problem, remedy)


def _offer(slurm: SlurmClient, partition_name: str) -> str:
    """Return the partitions to choose from, or only the requested partition if it exists."""
    try:
        offers = slurm.partitions()
    except SchedulerError:
        return ""
    names = [partition.name for partition in offers]
    meant = did_you_mean(partition_name, names) if partition_name and partition_name not in names else ""
    chosen = [
        offer for offer in offers if offer.name == partition_name or (not partition_name and offer.default)
    ] or offers
    return "\n".join(filter(None, [meant, *map(describe, chosen)]))


def describe(partition: PartitionOffer) -> str:
    offer = f"up to {partition.gpus} GPUs, {partition.cpus} CPUs and {partition.memory // 1024} GiB each"
    name = f"{partition.name} (default)" if partition.default else partition.name
    return f"partition {name}: {partition.nodes} nodes, {offer}, time limit {partition.time_limit}"
