"""Runs inside an allocation that is there: its nodes shared out, the coordinator begun on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping

from clusterrun.local import processes
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

SILENT_SECONDS = 120.0
"""Ranks are dead once their coordinator was silent for this long: far longer than a lease and the kill."""
_KEPT = ("SLURM_RESTART_COUNT",)


def allocation(context: Context) -> Allocation:
    """The allocation that this process is in. Raises ``BadInput`` if there is none."""
    job_id = context.environ.get("SLURM_JOB_ID", "")
    if not job_id:
        ways = "salloc makes one, or name one of yours: SLURM_JOB_ID=ID clusterrun run …; clusterrun submit"
        raise BadInput("this shell is in no allocation: SLURM_JOB_ID is not set", f"{ways} queues a job")
    return context.client().allocation(job_id)


def fit_to_allocation(
    spec: JobSpec, explicit: Collection[str], there: Allocation, held: Mapping[str, str] | None = None
) -> JobSpec:
    """``spec`` on nodes of ``there`` not ``held`` by runs; what is not ``explicit`` is the allocation's."""
    held = held or {}
    if "gpus" not in explicit and not spec.ranks_per_node:
        spec = replace(spec, gpus=there.gpus, gpu_type="")
    if spec.gpus > there.gpus > 0:
        remedy = f"give --gpus {there.gpus} or fewer"
        raise BadInput(f"--gpus {spec.gpus}: job {there.job_id} has {there.gpus} on each node", remedy)
    pool = _pool(spec, there)
    wanted = spec.allocated if "nodes" in explicit else max(len(pool), 1 + spec.spares)
    if spec.min_nodes:
        room = sum(name not in held for name in pool)
        wanted = max(spec.least_allocated, min(wanted, room))
    if wanted > len(pool):
        has = f"job {there.job_id} has {len(pool)} for it: {fold(pool) or 'none'}"
        fewer = f"give --nodes {max(1, len(pool) - spec.spares)}"
        raise BadInput(
            f"{wanted} nodes are wanted; {has}", f"{fewer}, or queue a larger job: clusterrun submit"
        )
    free = [name for name in pool if name not in held]
    if wanted > len(free):
        taken = [name for name in pool if name in held]
        runs = list(dict.fromkeys(held[name] for name in taken))
        some, names = f"take the others with --nodes {len(free)}, " if free else "", " ".join(runs)
        seen = f"of the nodes {fold(pool)} other runs have {fold(taken)}: {', '.join(runs)}"
        raise BadInput(seen, f"{some}wait (clusterrun wait {names}), or end it: clusterrun cancel {names}")
    nodes, nodelist = wanted - spec.spares, fold(free[:wanted])
    return replace(spec, cluster=Cluster.SLURM, nodes=nodes, min_nodes=0, nodelist=nodelist, exclude="")


def _pool(spec: JobSpec, there: Allocation) -> list[str]:
    """The nodes of the allocation that ``--nodelist`` and ``--exclude`` leave, in Slurm's order."""
    chosen = expand(spec.nodelist) if spec.nodelist else there.nodes
    if strange := [name for name in chosen if name not in there.nodes]:
        seen = f"--nodelist: job {there.job_id} does not have {fold(strange)}"
        raise BadInput(seen, f"it has {fold(there.nodes)}")
    excluded = expand(spec.exclude) if spec.exclude else ()
    return [name for name in there.nodes if name in chosen and name not in excluded]


def held(context: Context, there: Allocation) -> dict[str, str]:
    """Which nodes other runs have, by their ids; none a run whose job once had the allocation's number."""
    found: dict[str, str] = {}
    now, jobs = context.clock.now(), context.matching([there.row])
    for record in _of_job(context, there.job_id, context.store.current(0)):
        (status,) = context.inquiry().statuses([record.run_id], ask=False)
        silent = now - (status.heard_at or record.submitted_at) > SILENT_SECONDS
        if status.state.ended or (silent if record.in_allocation else not jobs.of(record)):
            continue
        nodes = expand(record.spec.nodelist) if record.in_allocation else there.nodes
        found.update(dict.fromkeys(nodes, record.run_id))
    return found


def _of_job(context: Context, job_id: str, ids: Iterable[str]) -> Iterable[RunRecord]:
    for run_id in ids:
        try:
            record = context.store.read(run_id)
        except ClusterrunError:
            continue
        if record.job_id == job_id and not context.other_cluster(record):
            yield record


def planned(spec: JobSpec, explicit: Collection[str], context: Context) -> tuple[Draft, Allocation]:
    """What ``begin`` would start; makes no file. Raises ``ClusterrunError``."""
    there = allocation(context)
    return _drafted(spec, explicit, context, there)[0], there


def _drafted(
    spec: JobSpec, explicit: Collection[str], context: Context, there: Allocation
) -> tuple[Draft, Files]:
    """The run, without a check of its own where an earlier one counts, and what is put into its directory."""
    made = draft(fit_to_allocation(spec, explicit, there, held(context, there)), context, there.job_id)
    planned = made.plan
    level, nodes = planned.orders.preflight.level, planned.spec.nodelist
    if level is Level.OFF:
        return made, ()
    key, check = checked_before.key(planned, context.environ), None
    if "preflight" not in explicit and not planned.spec.restarts and not planned.spec.spares:
        ids = checked_before.recent_ids(context.store.ids(), context.clock.now())
        others = (one for one in _of_job(context, there.job_id, ids) if one.in_allocation)
        check = checked_before.earlier(planned, key, others, context)
    if check:
        ago = spoken(max(0.0, context.clock.now() - check.at))
        passed = f"pre-flight not repeated: {nodes} passed that of {check.run_id} {ago} ago"
        notice = f"{passed}; --preflight {level} makes it again"
        planned = checked_before.without_own_check(planned, check, context.environ)
        made = replace(made, plan=planned, notices=(*made.notices, notice))
    asked = CheckedFor(key, check.run_id if check else "")
    path = RunPaths(planned.run_dir).checked_for
    return made, ((path, json.dumps(encode_set(asked)).encode() + b"\n"),)


def begin(
    spec: JobSpec, explicit: Collection[str], context: Context, tell: Tell, files: Files = ()
) -> RunRecord:
    """Start ``spec`` in the allocation around us; it ends with this process. Raises ``ClusterrunError``."""
    there = allocation(context)
    with turn(os.path.join(context.store.cache, f"allocation-{there.job_id}"), context.clock):
        made, own_files = _drafted(spec, explicit, context, there)
        record = prepare(made, context, files=(*own_files, *files))
    environment = batch_environment(context.environ, there.job_id, expand(made.plan.spec.nodelist))
    try:
        started = start_bound(made.plan.argv, environment, made.plan.spec.cwd)
    except OSError as error:
        context.store.discard(record.run_id)
        seen = f"the run could not be started: {error}"
        raise SchedulerError(seen, "look whether /bin/bash runs") from error
    record = replace(record, process=processes.identity(started))
    for notice in made.notices:
        tell(notice)
    context.store.save(record)
    return record


def batch_environment(environ: Mapping[str, str], job_id: str, nodes: Collection[str]) -> dict[str, str]:
    """The environment of a batch step on these nodes of the job, whatever step this process is of."""
    names, count = fold(list(nodes)), str(len(nodes))
    return {
        **unfiltered(scrubbed(environ)),
        **{name: environ[name] for name in _KEPT if name in environ},
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NODELIST": names,
        "SLURM_NODELIST": names,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
    }


def end(record: RunRecord, context: Context) -> None:
    """End the run, and see its coordinator go; the allocation stays. Raises ``ClusterrunError``."""
    context.store.ask_cancel(record.run_id)
    limit = context.client().kill_wait() + processes.AFTER_RANKS_SECONDS
    processes.end(record.process, context.clock, limit)
