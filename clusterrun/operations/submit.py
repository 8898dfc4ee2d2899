"""Queue a run from a spec: all checks first, then the record on disk, then one submission."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from clusterrun.local.gpus import count_gpus
from clusterrun.model import contract
from clusterrun.model.document import encode_set
from clusterrun.model.errors import BadInput, ClusterrunError, NoSuchRun, SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.hostlist import fold
from clusterrun.model.paths import RunPaths
from clusterrun.model.phrases import count_of
from clusterrun.model.record import RunRecord
from clusterrun.model.run_words import LAST, default_name
from clusterrun.model.spec import Cluster, JobSpec, OnUnfit
from clusterrun.model.states import State
from clusterrun.notify.notify_address import shortened
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.copied_paths import missing, moved
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
from clusterrun.script.plan import MachineFacts, Plan, about_python, plan, sbatch_arguments
from clusterrun.script.script_texts import job_number_notices, lightning_notices, script_habits
from clusterrun.slurm import node_calendar, partition_limits, submit_once
from clusterrun.slurm.client import SlurmClient
from clusterrun.slurm.queries import PartitionOffer
from clusterrun.slurm_text.reasons import SEE_NODES
from clusterrun.system import RealClock

# Names in the run directory, each with its content.
Files = Sequence[tuple[str, bytes]]
# An srun listens on three ports, and on two more for every 48 hosts (slurm.conf(5)).
SRUN_PORTS, SRUN_PORTS_MORE, SRUN_HOSTS = 3, 2, 48
# Seconds that a submission waits for the partitions' offers. Without them sbatch reports the same errors.
OFFER_SECONDS = 1.0

# The name in the run directory of the standard input that was passed on.
INPUT = os.path.basename(RunPaths("").input)

# The jobs of a dependency that waits for their ends: ``afterok:17:18``. ``after:17`` waits for a start.
_ENDS = re.compile(r"after(?:ok|any|notok|corr):([0-9_:]+)")

# Seconds for which a hint is not repeated.
HINT_SECONDS = 3600
# Options of sbatch that salloc does not have.
OF_A_SCRIPT = ("comment", "output", "open-mode", "requeue", "no-requeue")


@frozen
class SubmitFacts:
    """The facts before planning."""

    spec: JobSpec
    site: MachineFacts
    notices: tuple[str, ...]  # for the user
    of_launch: tuple[str, ...]  # notices about a launch by srun
    offered: Offered | None  # None if no scheduler is queried
    repeats: Callable[[], bool]  # whether it repeats the resources of a run that was just submitted

    def partitions(self) -> tuple[PartitionOffer, ...]:
        return self.offered.partitions() if self.offered else ()

    def check(self, planned: Plan, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the notices about a plan from these facts. Raise ``BadInput`` if it can never run."""
        notices = (*self.notices, *self.of_launch, *about_python(planned, self.site))
        of_command: tuple[str, ...] = ()
        if not planned.spec.alone:
            verb = "run" if self.site.allocation else "submit"
            of_command = check_words(self.spec, verb)
            of_command += check_command(self.spec, planned.spec.cluster is Cluster.SLURM, verb)
            if planned.spec.cluster is Cluster.SLURM and not self.site.allocation:
                notices += lightning_notices(planned.spec, self.site.habits.lightning)
            if planned.spec.goes_on == "chain":
                notices += job_number_notices(self.spec)
        try:
            notices += of_command + check(planned, environ=environ)
        except BadInput as error:
            raise BadInput(error.seen, "\n".join((error.remedy, *of_command))) from error
        partition_limits.check(planned.spec, self.partitions())
        if not planned.spec.alone:
            hints = partition_limits.forgotten_gpus(planned.spec, self.partitions())
            notices += hints if hints and not self.repeats() else ()
        return notices


@frozen
class Draft:
    """A checked submission, before any file is made. ``notices`` are for the user."""

    plan: Plan
    notices: tuple[str, ...]
    snapshot: Snapshot | None = None


def submit_facts(spec: JobSpec, context: Context, allocation: str = "") -> SubmitFacts:
    """Return the facts of this machine and of Slurm for ``spec``.

    ``allocation`` is the job that it starts in.
    """
    sbatch_options.check_entries(spec.sbatch, spec.srun)
    site = _site(spec, context)
    # In an allocation the exit code of the user's own batch script counts.
    site = replace(site, allocation=allocation, requeue_exit="" if allocation else site.requeue_exit)
    spec = replace(spec, after=tuple(_job_ids(spec.after, context)))
    # A dependency waits for one job; a run may have more jobs.
    value = dict(sbatch_options.passed(spec.sbatch, "--sbatch")).get("dependency", "")
    for job_id in (job_id for job_ids in _ENDS.findall(value) for job_id in job_ids.split(":")):
        run_id = context.store.newest_of_job(job_id)
        if run_id and not context.inquiry().statuses([run_id])[0].state.ended:
            _check_keeps_job(context.store.read(run_id), f"--sbatch dependency={value}: the run {run_id}")
    offered = Offered(context) if site.slurm and not allocation else None
    spec, whole_nodes = _whole_nodes(spec, context) if offered else (spec, ())
    avoided: tuple[str, ...] = ()
    if spec.avoid_bad and offered:
        now = context.clock.now()
        records = recall(findings_folder(context.store.home, site.cluster), now - spec.bad_since)
        target = partition_limits.target_partition(spec, offered.partitions())
        spec, avoided = keep_off(spec, records, now, target.nodes if target else 0)
    site, shared = _sharing_cpus(spec, context, site, offered)
    few = _few_ports(spec, context) if site.slurm else ()
    srun_options = [sbatch_options.word(option) for option in sbatch_options.passed(spec.srun, "--srun")]
    if site.slurm and srun_options and (message := context.client().misread_by_srun(srun_options)):
        raise BadInput(f"srun refuses --srun {' --srun '.join(spec.srun)}: {message}", "see man srun")
    notices = (*whole_nodes, *avoided, *shared)
    return SubmitFacts(spec, site, notices, few, offered, partial(_repeats, spec, context))


def _repeats(spec: JobSpec, context: Context) -> bool:
    """Return whether the newest run began here within ``HINT_SECONDS`` with the same GPUs and partition.

    The submissions of a loop give a hint about them once.
    """
    try:
        record = context.store.read(context.store.find(LAST))
    except ClusterrunError:
        return False
    before = record.spec
    is_same = (before.cwd, before.partition, before.gpus) == (spec.cwd, spec.partition, spec.gpus)
    is_same = is_same and (before.sbatch, before.ranks_per_node) == (spec.sbatch, spec.ranks_per_node)
    return is_same and context.clock.now() - record.submitted_at < HINT_SECONDS


def draft(spec: JobSpec, context: Context, allocation: str = "") -> Draft:
    """Return the checked submission of ``spec``. No file is made."""
    facts = submit_facts(spec, context, allocation)
    spec, site = facts.spec, facts.site
    chosen = run_id(spec.name or default_name(spec.command), context.clock.now(), os.urandom(2))
    token = os.urandom(8).hex()
    paths = context.store.paths(chosen)
    as_asked = plan(spec, chosen, token, paths.run_dir, site)
    notices = facts.check(as_asked, context.environ)
    if not spec.snapshot:
        idle = ("--snapshot-include has no effect without --snapshot",) if spec.snapshot_include else ()
        return Draft(as_asked, as_asked.notices + notices + idle)
    snapshot = look(spec.cwd, spec.snapshot_include, context.store.home)
    planned = plan(moved(spec, snapshot, paths.snapshot), chosen, token, paths.run_dir, site)
    where = f"ranks run in the copy: files that they write by a relative path are below {planned.spec.cwd}"
    lost = missing(spec, snapshot, context.environ)
    notices = (*planned.notices, *notices, *snapshot.lines(), *lost, where)
    return Draft(planned, notices, snapshot)


def allocation_argv(
    spec: JobSpec, context: Context, command: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the salloc command for the resources of ``spec``, and notices.

    An empty ``command`` means a shell.
    """
    spec = replace(spec, cluster=Cluster.SLURM, name=spec.name or "interactive")
    facts = submit_facts(spec, context)
    partition_limits.check(facts.spec, facts.partitions())
    options = sbatch_options.job_options(facts.spec, "", RunPaths(spec.cwd), (), facts.site.cpus_per_gpu)
    arguments = [sbatch_options.word((key, value)) for key, value in options if key not in OF_A_SCRIPT]
    return ("salloc", *arguments, *command), (*facts.notices, *sbatch_options.replaced(facts.spec))


class Offered:
    """The offers of the partitions, queried in a thread during the other preparations."""

    def __init__(self, context: Context) -> None:
        self._partitions: tuple[PartitionOffer, ...] = ()
        self._thread = threading.Thread(target=self._ask, args=(context.client(),), daemon=True)
        self._thread.start()

    def _ask(self, client: SlurmClient) -> None:
        with suppress(SchedulerError):  # sbatch reports the error
            self._partitions = client.partitions()

    def partitions(self) -> tuple[PartitionOffer, ...]:
        """Return all offers; none without an answer in time."""
        self._thread.join(OFFER_SECONDS)
        return self._partitions


def _whole_nodes(spec: JobSpec, context: Context) -> tuple[JobSpec, tuple[str, ...]]:
    """Return ``spec`` with the GPUs of whole nodes and a notice if Slurm allocates only whole nodes."""
    if not spec.gpus or spec.gpus_from_node or not context.client().gives_whole_nodes():
        return spec, ()
    message = "Slurm allocates whole nodes here and no GPUs (SelectType=select/linear)"
    if spec.gpu_type:
        remedy = f"name such nodes: --gpus {spec.gpus} --constraint {spec.gpu_type}, or --partition"
        raise BadInput(f"--gpus {spec.gpus_asked}: {message}: it cannot be asked for a type", remedy)
    return replace(spec, gpus_from="node"), (
        f"{message}: those that each node has are used (--gpus-from node)",
    )


def _few_ports(spec: JobSpec, context: Context) -> tuple[str, ...]:
    """Return a notice if ``SrunPortRange`` has too few ports for a launch while another one ends."""
    ports = context.client().srun_ports()
    needed = SRUN_PORTS + SRUN_PORTS_MORE * -(-spec.nodes // SRUN_HOSTS)
    if not ports or ports >= 2 * needed:
        return ()
    return (
        f"SrunPortRange of slurm.conf has {ports} ports, and srun over {spec.nodes} nodes opens {needed}: "
        "a launch may fail for want of ports; Slurm's manual advises 1,000 and more (ask its administrators)",
    )


def _sharing_cpus(
    spec: JobSpec, context: Context, site: MachineFacts, offered: Offered | None
) -> tuple[MachineFacts, tuple[str, ...]]:
    """Return ``site`` with the number of CPUs that a rank on a GPU gets by default, and notices.

    Slurm is asked whether it could start such a job. No list of nodes shows cores that are kept for the
    system (CoreSpecCount), limits of a partition, or memory that is counted by CPU.
    """
    partitions = offered.partitions() if offered and sbatch_options.shares_cpus(spec) else ()
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
        # All nodes are up again. They return one by one after a restart of the controller.
        other_reason = refusal(site)
        now = "Slurm could not start this job as its nodes are now"
        later = "if the job stays in the queue, `clusterrun status` shows what it waits for"
        return site, (f"{now}: {other_reason}; {later}",) if other_reason else ()
    for smaller in sorted({share - 1, share - 2, 3 * share // 4, share // 2} - {share}, reverse=True):
        if smaller > 1 and not refusal(replace(site, cpus_per_gpu=smaller)):
            return replace(site, cpus_per_gpu=smaller), (_smaller_share(smaller, share, reason),)
    return site, (_smaller_share(1, share, reason),)


def _smaller_share(cpus: int, share: int, reason: str) -> str:
    return (
        f"{count_of(cpus, 'CPU')} per rank requested: Slurm refuses {share}, a GPU's share of the node's"
        f" ({reason}); --cpus-per-rank sets another number"
    )


def _waits(spec: JobSpec, context: Context, partitions: Sequence[PartitionOffer]) -> str:
    """Return the notice for a job that only waits for nodes; else ''. ``--test-only`` refuses such a job."""
    try:
        nodes = context.client().nodes()
    except SchedulerError:
        return ""
    target = partition_limits.target_partition(spec, partitions)
    away_nodes = node_calendar.away(nodes, target.name if target else "", spec.least_allocated, spec.nodelist)
    if not away_nodes:
        return ""
    if all(node.state.startswith(node_calendar.UNKNOWN) for node in nodes if node.name in away_nodes):
        return (
            f"this job waits for {fold(away_nodes)}: Slurm's controller has not heard of them since its start"
        )
    reasons = context.client().node_reasons(fold(away_nodes))
    why = f"sinfo -R: {reasons}" if reasons else SEE_NODES
    return f"this job waits for {fold(away_nodes)}: down, drained or reserved; {why}"


def _site(spec: JobSpec, context: Context) -> MachineFacts:
    """Return the facts of this machine. Raise ``SchedulerError`` if Slurm is needed but missing."""
    why = "" if spec.cluster is Cluster.LOCAL else context.client().why_not()
    if why and spec.cluster is Cluster.SLURM:
        message = f"Slurm cannot be used here: {why}"
        raise SchedulerError(message, "run this where Slurm is, or use --cluster local")
    is_local = spec.cluster is Cluster.LOCAL or bool(why)
    if is_local and not sys.platform.startswith("linux"):
        message = f"ranks run on Linux, and this machine has {os.uname().sysname}"
        raise BadInput(
            message, "use your cluster from here: clusterrun --host NAME …; see clusterrun help remote"
        )
    name = Cluster.LOCAL.value if is_local else context.client().cluster_name()
    named = spec.python and not spec.container
    python, why_python, about = (spec.python, "", "") if named else ranks_python(context.environ)
    return MachineFacts(
        slurm=not is_local,
        python=python,
        why_python=why_python,
        about_python=about,
        why=why,
        gpus=count_gpus(context.environ) if is_local and spec.gpus else 0,
        cluster=name,
        findings=findings_folder(context.store.home, name),
        runtimes=runtimes_here(context.environ, slurm=not is_local) if spec.container else (),
        habits=script_habits(spec),
        requeue_exit="" if is_local else context.client().requeue_exit(),
        kill_wait=contract.KILL_WAIT_SECONDS if is_local else context.client().kill_wait(),
        of_a_cluster=context.client().of_a_cluster(os.uname().nodename) if why else "",
    )


def _job_ids(selectors: Sequence[str], context: Context) -> Iterator[str]:
    """Yield the Slurm jobs that must succeed first. A run that has completed already is left out."""
    if not selectors:
        return
    from clusterrun.operations.list_runs import runs_named  # only --after needs it
    from clusterrun.runs.sweep_records import Sweeps

    for word in selectors:
        try:
            run_ids = runs_named(context, [word])
        except NoSuchRun as error:
            remedy = f"{error.remedy}\nany Slurm job: --sbatch dependency=afterok:JOB"
            raise NoSuchRun(error.seen, remedy) from error
        sweep = Sweeps(context.store).find(word)
        if sweep and sweep.run_ids == run_ids and sweep.waiting:
            message = f"--after {word}: {len(sweep.waiting)} points of this sweep are not queued"
            raise BadInput(message, f"queue them first: clusterrun sweep continue {sweep.name}")
        for status in context.inquiry().statuses(run_ids):
            if status.state is not State.COMPLETED:
                run, wait = f"--after {word}: the run {status.run_id}", f"clusterrun wait {status.run_id}"
                if status.state.ended:
                    message = f"{run} has ended as {status.state.value}"
                    raise BadInput(message, "leave --after out, or name a run that can still succeed")
                record = context.store.read(status.run_id)
                if status.cluster != Cluster.SLURM.value or not status.job_id or record.in_allocation:
                    raise BadInput(f"{run} is not in Slurm's queue", f"wait for it first: {wait}")
                if other := context.other_cluster(record):
                    raise BadInput(
                        f"{run} is on the cluster {other}", f"submit there, or wait for it first: {wait}"
                    )
                _check_keeps_job(record, run)
                yield status.job_id


def _check_keeps_job(record: RunRecord, run: str) -> None:
    """Raise ``BadInput`` if the run may continue in a job that a dependency cannot name yet."""
    if record.spec.goes_on == "chain" or record.spec.on_unfit is OnUnfit.RESUBMIT:
        remedy = f"wait for it first: clusterrun wait {record.run_id}"
        raise BadInput(f"{run} may end in a job that is not queued yet", remedy)


def send(spec: JobSpec, context: Context, tell: Tell, files: Files = ()) -> tuple[RunRecord, tuple[str, ...]]:
    """Submit ``spec``. Return the record with its job id, and the inherited variables that were dropped.

    After ``SchedulerUnreachable`` the run may be queued, so its record stays for ``status``. After any other
    error it is not.
    """
    drafted = draft(spec, context)
    record = prepare(drafted, context, files=files)
    record = replace(record, job_id=queue(drafted.plan, record, context, tell))
    for notice in drafted.notices:  # after the submission, so that a refusal is shown alone
        tell(notice)
    try:
        context.store.save(record)
    except DiskRefused as error:
        message = f"job {record.job_id} is queued, but its number could not be written ({error.seen})"
        tell(f"{message}: clusterrun status finds it")
    return record, dropped(context.environ, spec)


def prepare(
    drafted: Draft,
    context: Context,
    sweep: str = "",
    point: str = "",
    sync: bool = True,
    files: Files = (),
    program: str = "",
) -> RunRecord:
    """Write the run directory, the record last. Remove the directory if that fails.

    The record, orders and program are synced to disk if ``sync`` is true, since the queued job needs them
    after a crash. Slurm keeps a copy of the script.
    """
    planned = drafted.plan
    paths = RunPaths(planned.run_dir)
    if planned.spec.input == paths.input and not any(name == INPUT for name, _ in files):
        raise BadInput("--input - is for submit and run on a command line", "name a file: --input FILE")
    record = replace(_record(planned, context), sweep=sweep, point=point)
    context.store.claim(planned.run_id, sync)
    try:
        if drafted.snapshot:
            take(drafted.snapshot, paths.snapshot, paths.snapshot_note)
            os.makedirs(planned.spec.cwd, exist_ok=True)  # a folder without code is not copied
        share(program or program_for_nodes(context), paths.agent)
        empty_file(paths.job_output)  # before Slurm makes it with the mode of the umask
        if planned.orders.preflight.findings:
            private_folder(planned.orders.preflight.findings)
        write_whole(paths.orders, json.dumps(encode_set(planned.orders), indent=1) + "\n", sync=sync)
        write_whole(paths.script, planned.script, 0o700, sync=False)
        for name, content in files:
            write_whole(os.path.join(paths.run_dir, name), content, sync=sync)
        context.store.save(record, sync)
    except BaseException:
        context.store.discard(planned.run_id)
        raise
    return record


def _record(planned: Plan, context: Context) -> RunRecord:
    """Return the record of a planned run."""
    names = [name for name, _ in planned.spec.environment if name not in contract.CODE_VARIABLES]
    environment = tuple((name, "") for name in names)
    notify = tuple(map(shortened, planned.spec.notify))
    return RunRecord(
        run_id=planned.run_id,
        name=planned.spec.name,
        cluster=planned.spec.cluster.value,
        token=planned.token,
        # Users look at the record and share it. Only the orders hold the values of the
        # variables, and the addresses of messages.
        spec=replace(planned.spec, environment=environment, notify=notify),
        submitted_at=context.clock.now(),
        host=os.uname().nodename,
        slurm=context.client().identity() if planned.spec.cluster is Cluster.SLURM else "",
        job_id=planned.allocation,
        in_allocation=bool(planned.allocation),
        # A reader that ignored this field would attribute the run's job to other runs.
        must_understand=("in_allocation",) if planned.allocation else (),
    )


def program_for_nodes(context: Context) -> str:
    """Return the path of the packed program for runs. Raise ``DiskRefused``."""
    from clusterrun.script.pack import agent_program

    cache = os.path.join(context.store.home, "cache")
    try:
        return agent_program(cache)
    except OSError as error:
        raise refusal(cache, error) from error


def queue(planned: Plan, record: RunRecord, context: Context, tell: Tell) -> str:
    """Queue the run. Return the number of its job, or the id of its coordinator's process on this machine."""
    try:
        if planned.spec.cluster is Cluster.LOCAL:
            from clusterrun.local.start_run import start

            return start(planned, scrubbed(context.environ))
        return sent(planned.argv, planned.spec, planned.token, context, tell)
    except SchedulerUnreachable:
        raise  # the job may be queued: the record stays, and its token identifies the job
    except (SchedulerError, BadInput) as error:
        context.store.discard(record.run_id)  # an explicit refusal: nothing is queued
        unused = not_obeyed(context.environ, planned.spec)
        if unused and isinstance(error, SchedulerError):
            error.remedy = "\n".join(filter(None, (error.remedy, unused)))
        raise


def sent(argv: Sequence[str], spec: JobSpec, token: str, context: Context, tell: Tell) -> str:
    """Return the number of the job or array that Slurm accepted. Raise the errors of ``submit_once.send``."""
    slurm = SlurmClient(scrubbed(context.environ))
    return submit_once.send(slurm, argv, spec.cwd, token, spec.partition, RealClock(), tell)
