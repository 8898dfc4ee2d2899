"""Plan a submission from a spec: script, argument list, orders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from clusterrun import container_runtimes
from clusterrun.model import contract
from clusterrun.model.container import PYTHON, Container
from clusterrun.model.errors import BadInput, SchedulerError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.option_table import IGNORED, REFUSED
from clusterrun.model.orders import Interpreter, Level, Orders, Preflight, WatchOrders
from clusterrun.model.paths import RunPaths
from clusterrun.model.phrases import count_of
from clusterrun.model.run_words import default_name
from clusterrun.model.spec import Cluster, JobSpec, OnUnfit
from clusterrun.script import containers, quoting, requeue_options, sbatch_options
from clusterrun.script.interpreter_calls import inline_text
from clusterrun.script.script_texts import ScriptHabits
from clusterrun.slurm_text.srun_messages import HELD_SECONDS

NAMED = "named by --python"
# A tenth of Slurm's KillWait, within these bounds, remains to record the end and to hand the run over.
LEAST_KILL_MARGIN_SECONDS, MOST_KILL_MARGIN_SECONDS = 1.0, 10.0
LEAST_KILL_WAIT_SECONDS = 1.0
# Limit on agents and ranks of a run on this machine. A typing error must not overload it.
MOST_PROCESSES_HERE = 5000


@frozen
class MachineFacts:
    """Facts about this machine that planning depends on."""

    slurm: bool  # whether Slurm can be used
    python: str  # the Python that ranks use by default, inside a container its own
    why: str = ""  # reason why Slurm cannot be used
    gpus: int = 0  # GPUs of this machine
    cluster: str = ""
    findings: str = ""  # folder that keeps findings about nodes
    why_python: str = ""  # reason for ``python``
    about_python: str = ""  # notice about ``python``
    of_a_cluster: str = ""  # evidence that this machine belongs to a cluster
    cpus_per_gpu: int = 0  # default CPUs of a rank on a GPU; 0: unknown, one CPU
    runtimes: tuple[str, ...] = ()  # container runtimes of this machine
    inside: Container = Container()  # the container of the ranks
    allocation: str = ""  # the user's job in which the run starts; '': a job is queued
    habits: ScriptHabits = ScriptHabits()  # of the command's scripts
    requeue_exit: str = ""  # exit codes for which Slurm queues a job again
    kill_wait: float = contract.KILL_WAIT_SECONDS  # seconds from SIGTERM to SIGKILL when Slurm ends a job


@frozen
class Plan:
    """One complete submission. ``submit`` sends it, ``--dry-run`` prints it."""

    run_id: str
    token: str
    run_dir: str
    spec: JobSpec  # resolved: name, Python, cluster and GPUs are set
    script: str
    argv: tuple[str, ...]  # command that submits: sbatch, or the script itself without a queue
    orders: Orders
    notices: tuple[str, ...] = ()
    cpus: str = ""  # CPUs of a rank, with the reason, as text
    allocation: str = ""  # job id of the user's allocation, if the run starts in one


def plan(spec: JobSpec, run_id: str, token: str, run_dir: str, site: MachineFacts) -> Plan:
    """Return the submission for ``spec``. ``spec.after`` holds Slurm job ids."""
    cluster = spec.cluster
    if cluster is Cluster.AUTO:
        cluster = Cluster.SLURM if site.slurm else Cluster.LOCAL
    is_off = spec.level is Level.OFF
    submitted = spec
    inside = containers.container_of(spec, cluster, site.runtimes, run_dir)
    python, input_file = spec.python, spec.input
    if "/" in python:  # a name without a slash is searched on PATH
        python = os.path.normpath(os.path.join(spec.cwd, python))
    if input_file == "-":
        input_file = RunPaths(run_dir).input
    elif input_file:
        input_file = os.path.join(spec.cwd, os.path.expanduser(input_file))
    spec = requeue_options.settled(
        replace(
            spec,
            cluster=cluster,
            name=spec.name or default_name(spec.command),
            python=site.python if inside.image else python or site.python,
            container=inside.image,
            container_runtime=inside.runtime,
            input=input_file,
            preflight=spec.level.value,
            on_unfit=OnUnfit.FAIL if is_off else spec.on_unfit,
        )
    )
    if submitted.python and not inside.image:
        site = replace(site, python=spec.python, why_python=NAMED)
    if inside.image:
        why = NAMED if submitted.python else "the image's"
        site = replace(site, inside=inside, python=submitted.python or PYTHON, why_python=why)
    if site.allocation:
        # The script runs on this machine, and no job is queued. The step of the user's terminal may hold all
        # resources: srun reports it if that step does not share them.
        beside = (("overlap", ""), ("immediate", f"{HELD_SECONDS}"), ("nodelist", spec.nodelist))
        orders = _orders(spec, run_id, site, _launch(spec, RunPaths(run_dir), site, beside))
        planned = _started_here(spec, run_id, token, run_dir, replace(orders, in_allocation=True))
        planned = replace(planned, allocation=site.allocation)
    elif cluster is Cluster.LOCAL:
        planned = _local(spec, run_id, token, run_dir, site)
    else:
        planned = _slurm(spec, run_id, token, run_dir, site)
    notices = (_idle(submitted) if is_off else ()) + requeue_options.notices(submitted, planned.spec)
    return replace(planned, notices=planned.notices + notices)


def _idle(spec: JobSpec) -> tuple[str, ...]:
    """Return notices about options that have no effect because no check is made."""
    spares = ["--spares"] if spec.spares and not spec.restarts else []
    idle = [*spares, *(["--on-unfit"] if spec.on_unfit is OnUnfit.RESUBMIT else [])]
    idle += ["--check-command"] if spec.check_command else []
    condition = "with --preflight off and no restarts" if spares else "with --preflight off"
    return requeue_options.ignored(idle, condition)


def rank_command(command: tuple[str, ...], python: str) -> tuple[str, ...]:
    """Return the final argument list of a rank.

    Scripts and modules are run by the ranks' Python, unbuffered.
    """
    if command[0] == "-m":
        return (python, "-u", *command)
    if command[0].endswith(".py"):
        script = command[0] if not command[0].startswith("-") else f"./{command[0]}"
        return (python, "-u", script, *command[1:])
    return command


def interpreter(spec: JobSpec) -> str:
    """Return the ranks' Python; '' if they run another program, which may bring its own."""
    # ``convert`` writes such a shell line for arguments that a rank's shell expands.
    in_shell = re.match(r'(?:eval "set -- \$ARGUMENTS"\n)?exec (\S+)', inline_text(spec.command))
    first = in_shell[1] if in_shell else rank_command(spec.command, spec.python)[0]
    named = re.fullmatch(r"python(\d+(\.\d+)?)?", os.path.basename(first))
    return spec.python if spec.alone else first if named or first == spec.python else ""


def ranks_python(spec: JobSpec, site: MachineFacts) -> Interpreter:
    """Return the ranks' Python before the job's setup lines.

    The setup does not replace it if the user named a Python.
    """
    path = interpreter(spec)
    is_users_choice = path == spec.python
    why = site.why_python if is_users_choice else "as the command says"
    set_up = bool(spec.setup or spec.template) and is_users_choice and site.why_python != NAMED
    set_up = set_up and not site.inside.image  # setup lines run on the host, outside the container
    return Interpreter(path, why, set_up) if path else Interpreter()


def about_python(submission: Plan, site: MachineFacts) -> tuple[str, ...]:
    """Return notices about the ranks' Python if users may expect another one."""
    python = submission.orders.interpreter
    if submission.orders.container.image:
        return ()
    if not python.by_setup:
        is_ours = python.path and python.why == site.why_python
        return (site.about_python,) if site.about_python and is_ours else ()
    planned = Interpreter(python.path, python.why)
    if contract.PATH_BEFORE_VARIABLE not in submission.script:
        how = f"the template does not export {contract.PATH_BEFORE_VARIABLE}, see clusterrun help templates"
        return (f"ranks use {planned}, whatever Python the setup brings: {how}; --python names another one",)
    brought = f"ranks use the Python that the setup puts first on PATH, else {planned}"
    return (f"{brought}; --python names another one",)


def comment(run_id: str, token: str) -> str:
    """Return the comment of the job. It identifies a job whose id was lost."""
    return f"clusterrun:{run_id}:{token}"


def sbatch_arguments(spec: JobSpec, run_id: str, token: str, run_dir: str, site: MachineFacts) -> list[str]:
    job_comment, paths = comment(run_id, token), RunPaths(run_dir)
    ending = requeue_options.sbatch_words(spec)
    options = sbatch_options.job_options(spec, job_comment, paths, ending, site.cpus_per_gpu)
    return [sbatch_options.word(option) for option in options]


def _slurm(spec: JobSpec, run_id: str, token: str, run_dir: str, site: MachineFacts) -> Plan:
    paths = RunPaths(run_dir)
    arguments = sbatch_arguments(spec, run_id, token, run_dir, site)
    values = _values(spec, run_id, paths, [word for word in arguments if quoting.carries(word)])
    argv = ("sbatch", "--parsable", *(word for word in arguments if not quoting.carries(word)), paths.script)
    script = _rendered(spec, values, token)
    orders = _orders(spec, run_id, site, _launch(spec, paths, site), argv)
    planned = Plan(run_id, token, run_dir, spec, script, argv, orders)
    notices = sbatch_options.replaced(spec)
    granted = _kill_wait(spec, site)
    if granted < spec.kill_wait:
        problem = f"--kill-wait {spec.kill_wait} s: Slurm kills {site.kill_wait:g} s after SIGTERM (KillWait)"
        notices += (f"{problem}, so ranks get {granted:g} s when Slurm ends the job",)
    if sbatch_options.asks_for_cpus(spec):
        cpus = "as --sbatch says"
    elif spec.cpus_per_rank:
        cpus = f"{spec.cpus_per_rank} (--cpus-per-rank)"
    elif site.cpus_per_gpu and sbatch_options.shares_cpus(spec):
        cpus = f"{site.cpus_per_gpu} (a GPU's share of the node's; --cpus-per-rank asks for another number)"
    else:
        cpus = "1 (--cpus-per-rank asks for another number)"
    return replace(planned, notices=notices, cpus=cpus)


def _launch(
    spec: JobSpec, paths: RunPaths, site: MachineFacts, more: tuple[sbatch_options.Option, ...] = ()
) -> tuple[str, ...]:
    container_options = container_runtimes.srun_options(site.inside)
    if container_options:  # the container has only the image's Python
        spec = replace(spec, python=site.python)
    return sbatch_options.launch_argv(spec, paths, (*container_options, *more))


def _started_here(spec: JobSpec, run_id: str, token: str, run_dir: str, orders: Orders) -> Plan:
    """Return the plan of a run without a queue: its script runs directly."""
    paths = RunPaths(run_dir)
    script = _rendered(replace(spec, template=""), _values(spec, run_id, paths, ()), "")
    return Plan(run_id, token, run_dir, spec, script, ("/bin/bash", paths.script), orders)


def _values(
    spec: JobSpec, run_id: str, paths: RunPaths, directives: Sequence[str]
) -> dict[str, quoting.Value]:
    """Return the variables of a template, those of ``render.VARIABLES``."""
    own_fields = ("setup", "python", "name", "cwd", "command", "nodes", "gpus")
    values = {name: getattr(spec, name) for name in own_fields}
    values |= {name: getattr(paths, name) for name in ("agent", "run_dir", "job_output")}
    return {**values, "directives": directives, "run_id": run_id, "ranks_per_node": spec.local_size}


def _rendered(spec: JobSpec, values: Mapping[str, quoting.Value], token: str) -> str:
    """Render the user's template or the shipped one.

    Raises ``BadInput`` if the script of the user's template lacks the token or does not start the
    coordinator.
    """
    from clusterrun.script.render import render  # slow to import, so only for submissions

    if not spec.template:
        return render(values)
    script = render(values, os.path.join(spec.cwd, spec.template))
    lost = [name for name, text in {"directives": token, "agent": "agent.pyz"}.items() if text not in script]
    if lost:
        problem = f"the template {spec.template!r} does not use {' and '.join(lost)}"
        raise BadInput(problem, "start from the shipped one: clusterrun help templates shows how")
    return script


def _orders(
    spec: JobSpec, run_id: str, site: MachineFacts, launch: tuple[str, ...] = (), argv: tuple[str, ...] = ()
) -> Orders:
    spec = replace(spec, python=site.python) if site.inside.image else spec
    kill_wait = _kill_wait(spec, site) if launch else float(spec.kill_wait or contract.KILL_WAIT_SECONDS)
    if spec.level is Level.OFF:
        preflight = Preflight()
    else:
        preflight = Preflight(
            level=spec.level,
            budget=float(spec.preflight_budget or Preflight().budget),
            alone=spec.alone,
            all_pairs=spec.all_pairs,
            table=spec.table,
            burn=float(spec.burn),
            limits=spec.preflight_limit,
            check_commands=spec.check_command,
            cluster=site.cluster,
            findings=site.findings,
            python=interpreter(spec),
            resubmit=sbatch_options.resubmit_argv(spec, argv) if argv else (),
        )
    return Orders(
        run_id=run_id,
        run_name=spec.name,
        nodes=spec.nodes,
        ranks_per_node=spec.local_size,
        gpus_per_node=spec.gpus,
        cpus_per_rank=spec.cpus_per_rank,
        command=rank_command(spec.command, spec.python),
        cwd=spec.cwd,
        environment=spec.environment,
        launch=launch,
        per_node=spec.per_node,
        numa_binding=spec.numa_binding,
        max_restarts=spec.restarts,
        spares=spec.spares,
        min_nodes=spec.min_nodes,
        elastic=spec.elastic,
        preflight=preflight,
        watch=WatchOrders(on=not spec.alone, hang_seconds=float(spec.hang_after), on_hang=spec.on_hang),
        survival=requeue_options.orders(spec, argv, site.requeue_exit),
        time_limit=0.0 if launch else float(spec.time),
        # A restart waits for ranks that hang in a collective. Without restarts they have time to save.
        grace=contract.GRACE_SECONDS if spec.restarts else max(contract.GRACE_SECONDS, kill_wait),
        kill_wait=kill_wait,
        interpreter=ranks_python(spec, site),
        node_gpus=spec.gpus_from_node and bool(launch),
        container=site.inside,
        input=spec.input,
        pipes_output=site.habits.opens_own_output,
        hide_gpus=not sbatch_options.asks_for_gpus(spec) if launch else not spec.gpus,
    )


def _kill_wait(spec: JobSpec, site: MachineFacts) -> float:
    """Return the seconds from TERM to clusterrun's KILL.

    It is shorter than Slurm's, so that the end is recorded and the run handed over.
    """
    margin = min(MOST_KILL_MARGIN_SECONDS, max(LEAST_KILL_MARGIN_SECONDS, site.kill_wait / 10))
    most = max(LEAST_KILL_WAIT_SECONDS, site.kill_wait - margin)
    return min(float(spec.kill_wait), most) if spec.kill_wait else most


def _refuse_locally(spec: JobSpec, site: MachineFacts) -> None:
    """Raise ``BadInput`` if options need Slurm, and ``SchedulerError`` on a machine like a login node."""
    if spec.after:
        raise BadInput(
            "--after needs Slurm; this run stays on this machine", "wait for it first: clusterrun wait RUN"
        )
    if spec.allocated + spec.world_size > MOST_PROCESSES_HERE:
        many = f"{spec.allocated} simulated nodes with {spec.world_size} ranks in all"
        remedy = f"stay below {MOST_PROCESSES_HERE} processes, or submit to Slurm"
        raise BadInput(f"{many} are too many for this machine", remedy)
    if site.why:
        remedy = (
            "submit where Slurm is (on a login node: module load slurm, SLURM_CONF); or say --cluster local"
        )
        if options := sbatch_options.affected_options(spec, REFUSED):
            raise BadInput(f"{', '.join(options)} needs Slurm, which cannot be used here: {site.why}", remedy)
        if spec.gpus * spec.allocated > site.gpus:
            problem = f"{_short_of(spec, site.gpus)}, and Slurm cannot be used here: {site.why}"
            raise BadInput(problem, f"{remedy}, which starts CPU ranks in their place")
        if site.of_a_cluster:
            alike = f"no ranks are started on a machine that looks like a login node ({site.of_a_cluster})"
            raise SchedulerError(f"Slurm cannot be used here: {site.why}; and {alike}", remedy)


def _local(spec: JobSpec, run_id: str, token: str, run_dir: str, site: MachineFacts) -> Plan:
    _refuse_locally(spec, site)
    notices = [f"{site.why}: the run stays on this machine"] if site.why else []
    if spec.gpus * spec.allocated > site.gpus:
        notice = _short_of(spec, site.gpus)
        ranks = spec.ranks_per_node or spec.gpus
        notice += f": {count_of(ranks, 'CPU rank')} on each simulated node"
        if site.gpus:
            devices = ",".join(map(str, range(site.gpus)))
            shared = f"--gpus 0 --ranks-per-node {ranks} --env CUDA_VISIBLE_DEVICES={devices}"
            notice += f"; {shared} shares the GPUs that are here"
        notices.append(notice)
        spec = replace(spec, gpus=0, gpu_type="", ranks_per_node=spec.ranks_per_node or spec.gpus)
    idle = [f"the type in --gpus {spec.gpus_asked}"] if spec.gpu_type else []
    requested = replace(spec, requeue=spec.requeue or None)  # no local run is requeued
    idle += sbatch_options.affected_options(requested, IGNORED, REFUSED)
    notices += requeue_options.ignored(idle, "in local runs")
    spec = replace(spec, requeue=None, requeue_by="", min_nodes=0)
    planned = _started_here(spec, run_id, token, run_dir, _orders(spec, run_id, site))
    return replace(planned, notices=tuple(notices))


def _short_of(spec: JobSpec, available: int) -> str:
    needed = spec.allocated * spec.gpus
    available_text = {0: "none", 1: "only 1"}.get(available, f"only {available}")
    return f"{count_of(needed, 'GPU')} requested, and this machine has {available_text}"
