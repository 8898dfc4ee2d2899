"""Start runs inside an existing allocation:

share out its nodes, and start the coordinator on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping

from clusterrun.local import processes
from clusterrun.model import contract
from clusterrun.model.document import encode_set
from clusterrun.model.duration import spoken
from clusterrun.model.errors import BadInput, ClusterrunError, SchedulerError
from clusterrun.model.frozen import replace
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.orders import Level
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations import checked_before
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.submit import Draft, Files, draft, prepare
from clusterrun.runs.store import CheckedFor
from clusterrun.script.environment import scrubbed
from clusterrun.slurm.allocation import Allocation
from clusterrun.slurm.job_cache import turn
from clusterrun.slurm.queries import unfiltered
from clusterrun.system import start_bound

# Ranks are dead after this many seconds of silence of their coordinator, which far exceed a lease and the
# kill.
SILENT_SECONDS = 120.0
# Variables that describe the job. The others describe the size of a step, and srun would read them.
_OF_THE_JOB = ("SLURM_JOB_", "SLURM_SUBMIT_", "SLURM_ARRAY_", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT")


def allocation(context: Context) -> Allocation:
    """Return the allocation of this process, without the nodes that ``check --export`` left out.

    Raise ``BadInput`` if there is none.
    """
    job_id = context.environ.get("SLURM_JOB_ID", "")
    if not job_id:
        ways = "salloc makes one, or name one of yours: SLURM_JOB_ID=ID clusterrun run …; clusterrun submit"
        raise BadInput("this shell is in no allocation: SLURM_JOB_ID is not set", f"{ways} queues a job")
    result, fit = context.client().allocation(job_id), context.environ.get(contract.FIT_VARIABLE)
    if not fit or fit != context.environ.get("SLURM_JOB_NODELIST"):  # sbatch passes on that of another job
        return result
    fit_nodes = expand(fit)
    return replace(result, nodes=tuple(name for name in result.nodes if name in fit_nodes))


def fit_to_allocation(
    spec: JobSpec, explicit: Collection[str], allocation: Allocation, held: Mapping[str, str] | None = None
) -> JobSpec:
    """Return ``spec`` on nodes of ``allocation`` that no run in ``held`` has.

    Options that are not ``explicit`` follow the allocation. Raise ``BadInput`` if the nodes do not suffice.
    """
    held = held or {}
    if "gpus" not in explicit and not spec.ranks_per_node:
        spec = replace(spec, gpus=allocation.gpus, gpu_type="")
    if spec.gpus > allocation.gpus > 0:
        remedy = f"give --gpus {allocation.gpus} or fewer"
        raise BadInput(
            f"--gpus {spec.gpus}: job {allocation.job_id} has {allocation.gpus} on each node", remedy
        )
    chosen = expand(spec.nodelist) if spec.nodelist else allocation.nodes
    if strange := [name for name in chosen if name not in allocation.nodes]:
        message = f"--nodelist: job {allocation.job_id} does not have {fold(strange)}"
        raise BadInput(message, f"it has {fold(allocation.nodes)}")
    excluded = expand(spec.exclude)
    pool = [name for name in allocation.nodes if name in chosen and name not in excluded]
    count = spec.allocated if "nodes" in explicit else max(len(pool), 1 + spec.spares)
    if spec.min_nodes:
        room = sum(name not in held for name in pool)
        count = max(spec.least_allocated, min(count, room))
    if count > len(pool):
        has = f"job {allocation.job_id} has {len(pool)} for it: {fold(pool) or 'none'}"
        fewer = f"give --nodes {max(1, len(pool) - spec.spares)}"
        raise BadInput(
            f"{count} nodes are requested; {has}", f"{fewer}, or queue a larger job: clusterrun submit"
        )
    free = [name for name in pool if name not in held]
    if count > len(free):
        taken = [name for name in pool if name in held]
        runs = list(dict.fromkeys(held[name] for name in taken))
        offer, names = f"take the others with --nodes {len(free)}, " if free else "", " ".join(runs)
        message = f"of the nodes {fold(pool)} other runs have {fold(taken)}: {', '.join(runs)}"
        raise BadInput(
            message, f"{offer}wait (clusterrun wait {names}), or end it: clusterrun cancel {names}"
        )
    nodes, nodelist = count - spec.spares, fold(free[:count])
    return replace(spec, cluster=Cluster.SLURM, nodes=nodes, min_nodes=0, nodelist=nodelist, exclude="")


def held(context: Context, allocation: Allocation) -> dict[str, str]:
    """Return the run id by node for the nodes that live runs of the allocation have.

    A run whose earlier job had the same number is not one of them.
    """
    run_by_node: dict[str, str] = {}
    now, jobs = context.clock.now(), context.matching([allocation.row])
    for record in _of_job(context, allocation.job_id, context.store.current(0)):
        (status,) = context.inquiry().statuses([record.run_id], ask=False)
        silent = now - (status.heard_at or record.submitted_at) > SILENT_SECONDS
        if status.state.ended or (silent if record.in_allocation else not jobs.of(record)):
            continue
        nodes = expand(record.spec.nodelist) if record.in_allocation else allocation.nodes
        run_by_node.update(dict.fromkeys(nodes, record.run_id))
    return run_by_node


def _of_job(context: Context, job_id: str, ids: Iterable[str]) -> Iterable[RunRecord]:
    """Yield the records of the runs ``ids`` that are in the job ``job_id`` of this cluster."""
    for run_id in ids:
        try:
            record = context.store.read(run_id)
        except ClusterrunError:
            continue
        if record.job_id == job_id and not context.other_cluster(record):
            yield record


def planned(spec: JobSpec, explicit: Collection[str], context: Context) -> tuple[Draft, Allocation]:
    """Return the draft that ``begin`` would start, and the allocation. No file is made."""
    own_allocation = allocation(context)
    return _drafted(spec, explicit, context, own_allocation)[0], own_allocation


def _drafted(
    spec: JobSpec, explicit: Collection[str], context: Context, allocation: Allocation
) -> tuple[Draft, Files]:
    """Return the draft of the run and the files for its directory. An earlier check may replace its own."""
    result = draft(
        fit_to_allocation(spec, explicit, allocation, held(context, allocation)), context, allocation.job_id
    )
    planned = result.plan
    level, nodes = planned.orders.preflight.level, planned.spec.nodelist
    if level is Level.OFF:
        return result, ()
    key, check = checked_before.key(planned, context.environ), None
    if "preflight" not in explicit and not planned.spec.restarts and not planned.spec.spares:
        ids = checked_before.recent_ids(context.store.ids(), context.clock.now())
        others = (record for record in _of_job(context, allocation.job_id, ids) if record.in_allocation)
        check = checked_before.earlier(planned, key, others, context)
    if check:
        ago = spoken(context.clock.now() - check.at)
        passed = f"pre-flight not repeated: {nodes} passed that of {check.run_id} {ago} ago"
        notice = f"{passed}; --preflight {level} makes it again"
        planned = checked_before.without_own_check(planned, check, context.environ)
        result = replace(result, plan=planned, notices=(*result.notices, notice))
    checked_for = CheckedFor(key, check.run_id if check else "")
    path = RunPaths(planned.run_dir).checked_for
    return result, ((path, json.dumps(encode_set(checked_for)).encode() + b"\n"),)


def begin(
    spec: JobSpec, explicit: Collection[str], context: Context, tell: Tell, files: Files = ()
) -> RunRecord:
    """Start ``spec`` in the allocation of this process. The run ends with this process."""
    own_allocation = allocation(context)
    with turn(os.path.join(context.store.cache, f"allocation-{own_allocation.job_id}"), context.clock):
        drafted, own_files = _drafted(spec, explicit, context, own_allocation)
        record = prepare(drafted, context, files=(*own_files, *files))
    environment = batch_environment(
        context.environ, own_allocation.job_id, expand(drafted.plan.spec.nodelist)
    )
    try:
        started = start_bound(drafted.plan.argv, environment, drafted.plan.spec.cwd)
    except OSError as error:
        context.store.discard(record.run_id)
        message = f"the run could not be started: {error}"
        raise SchedulerError(message, "look whether /bin/bash runs") from error
    record = replace(record, process=processes.identity(started))
    for notice in drafted.notices:
        tell(notice)
    context.store.save(record)
    return record


def batch_environment(environ: Mapping[str, str], job_id: str, nodes: Collection[str]) -> dict[str, str]:
    """Return the environment of a batch step of the job on these nodes."""
    names, count = fold(list(nodes)), str(len(nodes))
    return {
        **unfiltered(scrubbed(environ)),
        **{name: value for name, value in environ.items() if name.startswith(_OF_THE_JOB)},
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
    }


def end(record: RunRecord, context: Context) -> None:
    """End the run and wait for the end of its coordinator. The allocation stays."""
    context.store.ask_cancel(record.run_id)
    limit = context.client().kill_wait() + processes.AFTER_RANKS_SECONDS
    processes.end(record.process, context.clock, limit)
