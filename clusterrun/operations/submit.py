"""From a spec to a queued run: every check first, the record on disk before the queue, never twice."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from clusterrun.local.gpus import count_gpus
from clusterrun.model import contract
from clusterrun.model.document import encode_set
from clusterrun.model.errors import BadInput, SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.paths import RunPaths
from clusterrun.model.record import RunRecord
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.copied_paths import missing, moved
from clusterrun.operations.find_run import find_run
from clusterrun.operations.node_history import keep_off
from clusterrun.runs.code_snapshot import Snapshot, look, take
from clusterrun.runs.node_records import findings_folder, recall
from clusterrun.runs.private_files import DiskRefused, empty_file, private_folder, refusal, share, write_whole
from clusterrun.runs.store import run_id
from clusterrun.script import sbatch_options
from clusterrun.script.checks import check, ranks_python
from clusterrun.script.command_words import check_words
from clusterrun.script.containers import runtimes_here
from clusterrun.script.environment import dropped, not_obeyed, scrubbed
from clusterrun.script.nested_launchers import check_command
from clusterrun.script.own_output import opens_own_output
from clusterrun.script.plan import (
    MachineFacts,
    Plan,
    about_python,
    default_name,
    marked,
    plan,
    sbatch_arguments,
)
from clusterrun.slurm import node_calendar, partition_limits, submit_once
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm.queries import PartitionOffer
from clusterrun.system import RealClock

Files = Sequence[tuple[str, bytes]]
"""Names in the run directory, and what stands there."""
SRUN_PORTS, SRUN_PORTS_MORE, SRUN_HOSTS = 3, 2, 48
"""An srun listens on three ports, and on two more for every 48 hosts (slurm.conf(5))."""
OFFER_SECONDS = 1.0
"""How long a submission waits for the partitions' offers; what is wrong then, sbatch says too, if later."""

# The name in the run directory of the standard input that was passed on.
INPUT = os.path.basename(RunPaths("").input)

OF_A_SCRIPT = ("comment", "output", "open-mode", "requeue", "no-requeue")
"""Options of sbatch that mean nothing to salloc."""


@frozen
class SubmitFacts:
    """What is known before planning: ``said`` is for the person, ``of_launch`` of a launch by srun."""

    spec: JobSpec
    site: MachineFacts
    said: tuple[str, ...]
    of_launch: tuple[str, ...]
    offered: Offered | None
    """None if no scheduler is asked."""

    def check(self, planned: Plan, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Notices about a plan that is made of it. Raises ``BadInput`` if it can never run."""
        said = (*self.said, *self.of_launch, *about_python(planned, self.site))
        if not planned.spec.alone:
            verb = "run" if self.site.allocation else "submit"
            said += check_words(self.spec, verb)
            said += check_command(self.spec, planned.spec.cluster is Cluster.SLURM, verb)
        said += check(planned, environ=environ)
        partition_limits.check(planned.spec, _partitions(self.offered))
        if not planned.spec.alone:
            said += partition_limits.forgotten_gpus(planned.spec, _partitions(self.offered))
        return said


@frozen
class Draft:
    """A submission before anything was touched; ``notices`` are for the person who submits."""

    plan: Plan
    notices: tuple[str, ...]
    snapshot: Snapshot | None = None


@frozen
class ShapeOfRun:
    """Which of the shapes of a run is drafted, and what was found out once for all of them."""

    run_id: str
    token: str
    shape: int
    offered: Offered
    snapshot: Snapshot | None


def submit_facts(
    spec: JobSpec, context: Context, allocation: str = "", known: Offered | None = None
) -> SubmitFacts:
    """What this machine and Slurm say before ``spec`` is planned; ``allocation``: the job it starts in."""
    site = replace(_site(spec, context), allocation=allocation)
    spec = replace(spec, after=tuple(_job_ids(spec.after, context)))
    offered = (known or Offered(context)) if site.slurm and not allocation else None
    spec, whole = _whole_nodes(spec, context) if offered else (spec, ())
    spec, avoided = _without_unfit_nodes(spec, context, site, offered)
    site, shared = _sharing_cpus(spec, context, site, offered)
    few = _few_ports(spec, context) if site.slurm else ()
    return SubmitFacts(spec, site, (*whole, *avoided, *shared), few, offered)


def named(spec: JobSpec, context: Context) -> tuple[str, str]:
    """A new run id, and a token for its jobs."""
    name = spec.name or default_name(spec.command)
    return run_id(name, context.clock.now(), os.urandom(2)), os.urandom(8).hex()


def draft(spec: JobSpec, context: Context, allocation: str = "", of: ShapeOfRun | None = None) -> Draft:
    """The whole submission of ``spec``, ``of`` a run in several shapes or alone, checked; makes no file."""
    found = submit_facts(spec, context, allocation, of.offered if of else None)
    spec, site = found.spec, found.site
    chosen, token, shape = (of.run_id, of.token, of.shape) if of else (*named(spec, context), -1)
    paths = context.store.paths(chosen)
    as_asked = plan(spec, chosen, token, paths.run_dir, site, shape)
    said = found.check(as_asked, context.environ)
    if not spec.snapshot:
        idle = ("--snapshot-include has no effect without --snapshot",) if spec.snapshot_include else ()
        return Draft(as_asked, as_asked.notices + said + idle)
    snapshot = (of and of.snapshot) or look(spec.cwd, spec.snapshot_include)
    planned = plan(moved(spec, snapshot, paths.snapshot), chosen, token, paths.run_dir, site, shape)
    where = f"ranks run in the copy: files that they write by a relative path are below {planned.spec.cwd}"
    said = (*planned.notices, *said, *snapshot.lines(), *missing(spec, snapshot), where)
    return Draft(planned, said, snapshot)


def allocation_argv(
    spec: JobSpec, context: Context, command: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The salloc that gives ``command`` (none: a shell) what a job of ``spec`` would get, and what to say."""
    spec = replace(spec, cluster=Cluster.SLURM, name=spec.name or "interactive")
    found = submit_facts(spec, context)
    partition_limits.check(found.spec, _partitions(found.offered))
    wanted = sbatch_options.job_options(found.spec, "", RunPaths(spec.cwd), (), found.site.cpus_per_gpu)
    words = [sbatch_options.word((key, value)) for key, value in wanted if key not in OF_A_SCRIPT]
    return ("salloc", *words, *command), found.said


class Offered:
    """What the partitions offer; queried in a thread while the rest is prepared."""

    def __init__(self, context: Context) -> None:
        self._found: tuple[PartitionOffer, ...] = ()
        self._thread = threading.Thread(target=self._ask, args=(context.client(),), daemon=True)
        self._thread.start()

    def _ask(self, client: SlurmClient) -> None:
        with suppress(SchedulerError):  # sbatch will say what is wrong
            self._found = client.partitions()

    def partitions(self) -> tuple[PartitionOffer, ...]:
        """All of them; none if no answer came in time."""
        self._thread.join(OFFER_SECONDS)
        return self._found


def _partitions(offered: Offered | None) -> tuple[PartitionOffer, ...]:
    return offered.partitions() if offered else ()


def _whole_nodes(spec: JobSpec, context: Context) -> tuple[JobSpec, tuple[str, ...]]:
    """``spec`` with the GPUs of whole nodes where Slurm hands out nothing smaller, and a notice."""
    if not spec.gpus or spec.gpus_from_node or not context.client().gives_whole_nodes():
        return spec, ()
    seen = "Slurm gives whole nodes here and none of their GPUs (SelectType=select/linear)"
    if spec.gpu_type:
        remedy = f"name such nodes: --gpus {spec.gpus} --constraint {spec.gpu_type}, or --partition"
        raise BadInput(f"--gpus {spec.gpus_asked}: {seen}: it cannot be asked for a type", remedy)
    return replace(spec, gpus_from="node"), (f"{seen}: those that each node has are used (--gpus-from node)",)


def _few_ports(spec: JobSpec, context: Context) -> tuple[str, ...]:
    """A notice where the ports of ``SrunPortRange`` are too few for a launch beside one that still ends."""
    ports = context.client().srun_ports()
    needed = SRUN_PORTS + SRUN_PORTS_MORE * -(-spec.nodes // SRUN_HOSTS)
    if not ports or ports >= 2 * needed:
        return ()
    return (
        f"SrunPortRange of slurm.conf has {ports} ports, and srun over {spec.nodes} nodes opens {needed}: "
        "a launch may fail for want of ports; Slurm's manual advises 1,000 and more (ask its administrators)",
    )


def _without_unfit_nodes(
    spec: JobSpec, context: Context, site: MachineFacts, offered: Offered | None
) -> tuple[JobSpec, tuple[str, ...]]:
    """``spec`` without nodes that were lately unfit, where that is wanted, and what to say about it."""
    if not spec.avoid_bad or offered is None:
        return spec, ()
    now = context.clock.now()
    known = recall(findings_folder(context.store.home, site.cluster), now - spec.bad_since)
    target = partition_limits.target_partition(spec, offered.partitions())
    return keep_off(spec, known, now, target.nodes if target else 0)


def _sharing_cpus(
    spec: JobSpec, context: Context, site: MachineFacts, offered: Offered | None
) -> tuple[MachineFacts, tuple[str, ...]]:
    """Return ``site`` with the number of CPUs that a rank on a GPU gets by default, and notices.

    Slurm is asked whether it could start such a job. No list of nodes shows cores that are kept for the
    system (CoreSpecCount), limits of a partition, or memory that is counted by CPU.
    """
    partitions = _partitions(offered) if sbatch_options.shares_cpus(spec) else ()
    share = partition_limits.cpus_per_gpu(spec, partitions)
    if share < 2:
        return site, ()
    named_spec = replace(spec, name=spec.name or default_name(spec.command))

    def refusal(facts: MachineFacts) -> str:
        return context.client().could_not_start(sbatch_arguments(named_spec, "x", "x", "/", facts), spec.cwd)

    reason = refusal(replace(site, cpus_per_gpu=share))
    if not reason:
        return replace(site, cpus_per_gpu=share), ()
    if refusal(site):  # one CPU per rank is refused too
        if waiting := _waits(spec, context, partitions):
            return site, (waiting,)
        # The nodes have all come back: after a restart of the controller they do so while we ask.
        other_reason = refusal(site)
        now = "Slurm could not start this job as its nodes are now"
        later = "if the job stays in the queue, `clusterrun status` says what it waits for"
        return site, (f"{now}: {other_reason}; {later}",) if other_reason else ()
    for smaller in sorted({share - 1, share - 2, 3 * share // 4, share // 2} - {share}, reverse=True):
        if smaller > 1 and not refusal(replace(site, cpus_per_gpu=smaller)):
            return replace(site, cpus_per_gpu=smaller), (_smaller_share(smaller, share, reason),)
    return site, (_smaller_share(1, share, reason),)


def _smaller_share(cpus: int, share: int, reason: str) -> str:
    noun = "CPU" if cpus == 1 else "CPUs"
    return (
        f"{cpus} {noun} per rank requested: Slurm refuses {share}, a GPU's share of the node's ({reason}); "
        "--cpus-per-rank sets another number"
    )


def _waits(spec: JobSpec, context: Context, there: Sequence[PartitionOffer]) -> str:
    """The notice for a job that only waits for nodes, which ``--test-only`` calls impossible; else ''."""
    try:
        nodes = context.client().nodes()
    except SchedulerError:
        return ""
    target = partition_limits.target_partition(spec, there)
    away = node_calendar.away(nodes, target.name if target else "", spec.least_allocated, spec.nodelist)
    if not away:
        return ""
    if all(node.state.startswith(node_calendar.UNKNOWN) for node in nodes if node.name in away):
        return f"this job waits for {fold(away)}: Slurm's controller has not heard of them since its start"
    return f"this job waits for {fold(away)}: down, drained or reserved; see sinfo -R"


def _site(spec: JobSpec, context: Context) -> MachineFacts:
    why = "" if spec.cluster is Cluster.LOCAL else context.client().why_not()
    if why and spec.cluster is Cluster.SLURM:
        seen = f"Slurm cannot be used here: {why}"
        raise SchedulerError(seen, "run this where Slurm is, or use --cluster local")
    here = spec.cluster is Cluster.LOCAL or bool(why)
    name = Cluster.LOCAL.value if here else context.client().cluster_name()
    named = spec.python and not spec.container
    python, why_python, about = (spec.python, "", "") if named else ranks_python(context.environ)
    return MachineFacts(
        slurm=not here,
        python=python,
        why_python=why_python,
        about_python=about,
        why=why,
        gpus=count_gpus(context.environ) if here and spec.gpus else 0,
        cluster=name,
        findings=findings_folder(context.store.home, name),
        runtimes=runtimes_here(context.environ, slurm=not here) if spec.container else (),
        opens_own_output=opens_own_output(spec),
        kill_wait=contract.KILL_WAIT_SECONDS if here else context.client().kill_wait(),
        of_a_cluster=context.client().of_a_cluster(os.uname().nodename) if why else "",
    )


def _job_ids(words: Iterable[str], context: Context) -> Iterable[str]:
    """The Slurm jobs that must end well first; a run that has ended well already needs no waiting for."""
    for word in words:
        status = context.inquiry().statuses([find_run(context, word)])[0]
        if status.state is State.COMPLETED:
            continue
        run, wait = f"--after {word}: the run {status.run_id}", f"clusterrun wait {status.run_id}"
        if status.state.ended:
            seen = f"{run} has ended as {status.state.value}"
            raise BadInput(seen, "leave --after out, or name a run that can still succeed")
        record = context.store.read(status.run_id)
        if status.cluster != Cluster.SLURM.value or not status.job_id or record.in_allocation:
            raise BadInput(f"{run} is not in Slurm's queue", f"wait for it first: {wait}")
        if other := context.other_cluster(record):
            raise BadInput(f"{run} is on the cluster {other}", f"submit there, or wait for it first: {wait}")
        if record.spec.goes_on == "chain" or record.spec.shapes:
            raise BadInput(f"{run} may end in a job that is not queued yet", f"wait for it first: {wait}")
        yield status.job_id


def send(spec: JobSpec, context: Context, tell: Tell, files: Files = ()) -> tuple[RunRecord, tuple[str, ...]]:
    """Submit ``spec``: the record with its job id, and the inherited variables that were left behind.

    Only after ``SchedulerUnreachable`` may a run be queued: its record stays, so that ``status`` finds out.
    """
    made = draft(spec, context)
    record = prepare(made, context, files=files)
    record = replace(record, job_id=queue(made.plan, record, context, tell))
    for notice in made.notices:  # a refusal stands alone: what surely is wrong, without what may be
        tell(notice)
    try:
        context.store.save(record)
    except DiskRefused as error:
        seen = f"job {record.job_id} is queued, but its number could not be written ({error.seen})"
        tell(f"{seen}: clusterrun status finds it")
    return record, dropped(context.environ)


def prepare(
    made: Draft,
    context: Context,
    sweep: str = "",
    point: str = "",
    sync: bool = True,
    files: Files = (),
    program: str = "",
    others: Sequence[Plan] = (),
) -> RunRecord:
    """Everything in the run directory, the record last; nothing of it is left where that fails.

    With ``sync`` record, orders and program outlive a crash once this has returned: the job that is queued
    then needs them. Slurm keeps a copy of the script. ``others`` are the run's further shapes.
    """
    planned = made.plan
    paths = RunPaths(planned.run_dir)
    if planned.spec.input == paths.input and not any(name == INPUT for name, _ in files):
        raise BadInput("--input - is for submit and run on a command line", "name a file: --input FILE")
    record = replace(_record(planned, context), sweep=sweep, point=point)
    context.store.claim(planned.run_id, sync)
    try:
        if made.snapshot:
            take(made.snapshot, paths.snapshot, paths.snapshot_note)
            os.makedirs(planned.spec.cwd, exist_ok=True)  # a folder without code is not copied
        share(program or program_for_nodes(context), paths.agent)
        _write_plans((planned, *others), paths, sync)
        for name, content in files:
            write_whole(os.path.join(paths.run_dir, name), content, sync=sync)
        context.store.save(record, sync)
    except BaseException:
        context.store.discard(planned.run_id)
        raise
    return record


def _record(planned: Plan, context: Context) -> RunRecord:
    names = [name for name, _ in planned.spec.environment if name not in contract.CODE_VARIABLES]
    environment = tuple((name, "") for name in names)
    return RunRecord(
        run_id=planned.run_id,
        name=planned.spec.name,
        cluster=planned.spec.cluster.value,
        token=planned.token,
        # What people look at and send around names the variables; only the orders hold their values.
        spec=replace(planned.spec, environment=environment),
        submitted_at=context.clock.now(),
        host=os.uname().nodename,
        slurm=context.client().identity() if planned.spec.cluster is Cluster.SLURM else "",
        job_id=planned.allocation,
        in_allocation=bool(planned.allocation),
        # Without these a reader would take the run's jobs for others.
        must_understand=("in_allocation",)
        if planned.allocation
        else ("others",)
        if planned.shape >= 0
        else (),
    )


def _write_plans(plans: Sequence[Plan], paths: RunPaths, sync: bool) -> None:
    empty_file(paths.job_output)  # before Slurm makes it with the mode that the umask leaves
    for planned in plans:
        if planned.orders.preflight.findings:
            private_folder(planned.orders.preflight.findings)
        own = paths.shape(planned.shape) if planned.shape >= 0 else paths
        if own is not paths:
            private_folder(own.run_dir)
        write_whole(own.orders, json.dumps(encode_set(planned.orders), indent=1) + "\n", sync=sync)
        write_whole(own.script, planned.script, 0o700, sync=False)


def program_for_nodes(context: Context) -> str:
    """The path of the packed program that runs are given. Raises ``DiskRefused``."""
    from clusterrun.script.pack import agent_program

    cache = os.path.join(context.store.home, "cache")
    try:
        return str(agent_program(cache))
    except OSError as error:
        raise refusal(cache, error) from error


def queue(planned: Plan, record: RunRecord, context: Context, tell: Tell) -> str:
    """Slurm's number of the job, or the id of the coordinator's process on this machine."""
    try:
        if planned.spec.cluster is Cluster.LOCAL:
            from clusterrun.local.start_run import start

            return start(planned, scrubbed(context.environ))
        return queued(planned, context, tell)
    except SchedulerUnreachable:
        raise  # it may be queued: the record stays, and its token finds the job
    except (SchedulerError, BadInput) as error:
        context.store.discard(record.run_id)  # refused in plain words: nothing is queued
        unused = not_obeyed(context.environ, planned.spec)
        if unused and isinstance(error, SchedulerError):
            error.remedy = "\n".join(filter(None, (error.remedy, unused)))
        raise


def queued(planned: Plan, context: Context, tell: Tell) -> str:
    """The number of the job that Slurm has taken. Raises as ``submit_once.send``."""
    return sent(planned.argv, planned.spec, marked(planned.token, planned.shape), context, tell)


def sent(argv: Sequence[str], spec: JobSpec, token: str, context: Context, tell: Tell) -> str:
    """The number of the job, or array, that Slurm has taken. Raises as ``submit_once.send``."""
    slurm = SlurmClient(scrubbed(context.environ))
    return submit_once.send(slurm, argv, spec.cwd, token, spec.partition, RealClock(), tell)
