"""Translate ``#SBATCH`` lines to options of submit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen
from clusterrun.model.hostlist import expand, fold
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.model.world import own_variables
from clusterrun.script.batch_scripts import IN_LOGS, Conversion, Part, PartOutcome
from clusterrun.script.launch_commands import OF_PATH, SEES_ALL_GPUS, LaunchCommand
from clusterrun.script.quoting import literal
from clusterrun.script.sbatch_lines import NO_OPTION, Directive
from clusterrun.script.sbatch_table import CONTAINER_FOLDER, OPTIONS, PLACES_TASKS, USUAL_PLACES

# A value that is not empty, and otherwise known only when the script runs.
SOME_VALUE = "\ue025"
# Variables that differ between the tasks of a step.
OF_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")
# Variables that differ between the script's shell and a rank.
OF_PLACE = (
    *(*OF_TASK, "SLURM_TASK_PID", "SLURMD_NODENAME", "HOSTNAME", "RANDOM"),
    *("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"),
)
_TASKS = ("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-gpu")
_SIZES = (*_TASKS, "cpus-per-task", "cpus-per-gpu")
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
# Values of ``--time`` for no limit: words, and zero in any form.
_NO_LIMIT = re.compile(r"(?i)unlimited|infinite|-1|[0:-]+")
# An item of ``--gres`` that asks for GPUs.
_OF_GRES = re.compile(r"(?:gres[/:])?gpu\b")
# A type may begin with a digit, or be a number: ``gpu:2080ti``, ``gpu:3090:2``.
_GPU_TYPE = re.compile(r".*?\bgpu:(\w[\w.-]*(?=:)|[\w.-]*[A-Za-z][\w.-]*)")
# Options with which the CPUs of a node are not those of its tasks.
_COUNTS_CPUS = {"exclusive", "cpus-per-gpu", "mincpus", "hint", "threads-per-core", "tres-per-task"}
# Names of submit's options that differ. The plugin Pyxis brings the last two.
_OTHER_NAMES = {"job-name": "name", "container-image": "container", "container-mounts": "mount"}
# Directives that ask for what clusterrun does anyway, each with the reason.
_NEEDLESS = {
    **dict.fromkeys(("output", "error"), IN_LOGS),
    "open-mode": "clusterrun logs has the output of each attempt",
    **dict.fromkeys(("parsable", "quiet", "verbose"), "submit prints the run id alone"),
    "wait": "clusterrun wait waits for the run",
}


@frozen
class Translated:
    """The options of clusterrun that ask for the same."""

    options: tuple[tuple[str, str], ...]  # (name, value); the value is '' for a switch
    # (directive, reason) for those without an option: clusterrun does it anyway.
    needless: tuple[tuple[Directive, str], ...]
    refused: tuple[tuple[Directive, str], ...]  # (directive, what to do) for those that clusterrun cannot do
    # (directive, difference) for those whose option does not do quite the same.
    changed: tuple[tuple[Directive, str], ...]
    # Tasks, GPUs and CPUs of each node, as the directives ask. CPUs are 0 if Slurm counts them otherwise.
    tasks_per_node: int
    gpus_per_node: int
    cpus_per_node: int

    def parts(self, directives: Sequence[Directive], others: Collection[str] = ()) -> Iterator[Part]:
        """Yield what becomes of each directive. ``others``: names of those that other code translates."""
        needless, refused, changed = dict(self.needless), dict(self.refused), dict(self.changed)
        for directive in directives:
            outcome, reason = PartOutcome.OPTION, changed.get(directive, "")
            if directive in needless:
                outcome, reason = PartOutcome.NEEDLESS, needless[directive]
            elif directive in refused and directive.name not in others:
                outcome, reason = PartOutcome.UNTRANSLATED, refused[directive]
            yield Part(directive.line, directive.text, outcome, reason)


@frozen
class _Size:
    """The nodes, GPUs and ranks that the directives and the launcher ask for together."""

    values: dict[str, str]  # of the directives; the launcher's own GPUs and CPUs replace theirs
    allocated: int  # nodes of the job
    nodes: int  # nodes with ranks
    tasks_per_node: int
    gpus: int  # of each node
    ranks: int  # of each node
    has_other_gpus: bool  # the number of GPUs differs from that of the ranks


def _size(values: dict[str, str], launch: LaunchCommand) -> _Size:
    tasks_per_node = _tasks_per_node(values)
    nodes = _nodes(values) or launch.nodes or 1
    tasks_per_node = tasks_per_node or last_number(values.get("ntasks", "")) // nodes
    allocated, per_node = nodes, launch.per_node
    # A step may take a part of the job.
    if launch.program == "srun" and not launch.rank_launcher:
        nodes = min(nodes, launch.nodes or nodes, launch.total or nodes)
        # Beside a total, ``--ntasks-per-node`` is the most for each node.
        per_node = launch.total // nodes or per_node
        tasks_per_node = per_node or tasks_per_node
    elif launch.step_nodes:
        nodes = min(nodes, launch.step_nodes)
    of_step = {"gpus-per-task": launch.gpus_per_task, "gpus-per-node": launch.gpus_per_node}
    if any(of_step.values()):
        gpu_type = _gpu_type(values)
        values = {name: value for name, value in values.items() if name not in _GPUS}
        values.update((name, f"{gpu_type}{number}") for name, number in of_step.items() if number)
    values.update(
        ("cpus-per-task", value)
        for name, value in launch.options
        if name == "cpus-per-rank" and last_number(value)
    )
    gpus = _gpus_per_node(values, nodes, tasks_per_node)
    nodes = 1 if launch.runs_on_one_node else nodes
    started = per_node or tasks_per_node or launch.total // nodes
    if launch.rank_launcher or launch.runs_once:
        is_one = launch.runs_once or launch.starts_one_per_node
        started = per_node or launch.total // nodes or int(is_one)
    # One process beside several GPUs may start its own processes.
    has_other_gpus = gpus > 0 and started not in (0, gpus) and (started > 1 or launch.rank_launcher != "")
    ranks = started if has_other_gpus else max(gpus, started, per_node)
    return _Size(values, allocated, nodes, tasks_per_node, gpus, ranks, has_other_gpus)


def _size_options(size: _Size, launch: LaunchCommand) -> dict[str, str]:
    """Return the options of clusterrun that ask for ``size``."""
    values, nodes, allocated, ranks = size.values, size.nodes, size.allocated, size.ranks
    options: dict[str, str] = {}
    nodes_text = str(nodes) if nodes < allocated else values.get("nodes") or str(nodes)
    if not launch.runs_on_one_node and (nodes_text != "1" or "nodes" in values or nodes < allocated):
        options["nodes"] = nodes_text
    has_gpu_ranks = launch.per_node or (launch.total and launch.rank_launcher)
    if not size.has_other_gpus and (size.gpus or (has_gpu_ranks and not launch.on_cpus)):
        options["gpus"] = f"{_gpu_type(values)}{ranks}"
    elif ranks > 1:
        options["ranks-per-node"] = str(ranks)
    # A command that no step starts has the CPUs of all tasks.
    is_in_step = launch.program != launch.rank_launcher
    cpus = last_number(values.get("cpus-per-task", "")) or int(size.tasks_per_node > ranks and not is_in_step)
    cpus_per_node = cpus * max(size.tasks_per_node, 1)
    if cpus and cpus_per_node % max(ranks, 1):
        options["sbatch"] = f"cpus-per-task={cpus_per_node}"
    elif cpus:
        options["cpus-per-rank"] = str(cpus_per_node // max(ranks, 1))
    elif cpus := last_number(values.get("cpus-per-gpu", "")):
        options["cpus-per-rank"] = str(cpus)
    return options


def translate(directives: Sequence[Directive], launch: LaunchCommand) -> Translated:
    """Return what asks clusterrun for the same as ``directives``, for ranks that ``launch`` starts."""
    size = _size(_values(directives), launch)
    values, nodes, tasks_per_node, gpus = size.values, size.nodes, size.tasks_per_node, size.gpus
    options = _size_options(size, launch)
    passed_on: list[tuple[str, str]] = []
    needless: list[tuple[Directive, str]] = []
    refused: list[tuple[Directive, str]] = []
    changed: list[tuple[Directive, str]] = []
    last = {directive.name: directive for directive in directives}
    for directive in directives:
        name, value = directive.name, directive.value
        # A plugin of sbatch may have an option with the name of another one of submit.
        ours = _OTHER_NAMES.get(name, name if name in OPTIONS and not OPTIONS[name].refused else "")
        ours = "" if ours == "time" and _NO_LIMIT.fullmatch(value) else ours
        is_gpus = name in _GPUS and name != "gres"
        if name in OPTIONS and OPTIONS[name].takes == "required" and not value:
            refused.append((directive, "it has no value"))
        elif name in _NEEDLESS:
            needless.append((directive, _NEEDLESS[name]))
        elif "$" in value and (name in _SIZES or name in _GPUS):
            refused.append((directive, "sbatch expands no variable in it: say the number in the line"))
        elif last[name] is not directive and name in OPTIONS and not OPTIONS[name].joined:
            needless.append((directive, f"a later --{name} replaces it"))
        elif name == "requeue":
            options[name] = ""
            changed.append(
                (directive, "the run also continues after its time limit, and restarts failed ranks")
            )
        elif (
            launch.runs_on_one_node
            and name in _TASKS
            and last_number(value) > 1
            and (launch.runs_once or name == "nodes")
        ):
            reason = "without srun the command runs once, on the first node"
            if name == "nodes":
                changed.append((directive, f"{reason}: give --nodes if it starts processes on the others"))
            else:
                needless.append((directive, f"{reason}: it has the CPUs of its tasks"))
        elif name == "nodes" and values[name] != value:
            changed.append((directive, f"Slurm gives a node to each task: {values[name]}"))
        elif name == "container-image":
            # Pyxis starts the image of a registry, with or without this prefix.
            options[ours] = value.removeprefix("docker://")
            changed.append((directive, "ranks run in it, and --setup lines on the host"))
        elif name == "ntasks" and "-" in values.get("nodes", ""):
            reason = (
                f"it counts all tasks of {values['nodes']} nodes: the line starts {tasks_per_node} on each"
            )
            refused.append((directive, reason))
        elif name == "ntasks" and nodes == 1 < last_number(value) and not (_nodes(values) or launch.nodes):
            changed.append((directive, "the line puts them on one node: --nodes N spreads them"))
        elif name == "ntasks" and nodes > 1 and not _nodes(values):
            changed.append((directive, f"Slurm may put them on one node, and the line asks for {nodes}"))
        elif name == "ntasks-per-gpu" and max(gpus, last_number(value)) > 1 and not launch.runs_once:
            number = last_number(value)
            of_several = f"each rank sees all GPUs of its node: it takes LOCAL_RANK // {number}"
            changed.append((directive, of_several if number > 1 else SEES_ALL_GPUS))
        elif size.has_other_gpus and values.keys() & {*_GPUS} == {name} == {"gpus-per-task"}:
            passed_on.append(("sbatch", f"gpus-per-node={_gpu_type(values)}{gpus}"))
        elif name == "gpus-per-task" and gpus > last_number(value) and not tasks_per_node:
            changed.append((directive, "no line gives the number of tasks: say --ranks-per-node N"))
        elif name == "gpus-per-task" and gpus > 1 and tasks_per_node != 1:
            changed.append((directive, SEES_ALL_GPUS))
        elif name == "export":
            pairs = [("env", word) for word in value.split(",") if "=" in word]
            passed_on += pairs
            if "ALL" not in value.upper().split(","):
                refused.append(
                    (directive, "ranks get all your variables: unset unwanted ones in a --setup line")
                )
            elif not pairs:
                needless.append((directive, "all variables are exported"))
        elif name == "ntasks" and tasks_per_node * nodes not in (0, last_number(value)):
            reason = f"each of the {nodes} nodes starts {tasks_per_node} of them: choose a multiple"
            if launch.program == "srun" and launch.total:
                reason = f"the command starts {launch.total} of them"
            refused.append((directive, reason))
        elif name == "nodelist" and nodes < len(_named_nodes(value)):
            options[name] = fold(_named_nodes(value)[:nodes])
            changed.append(
                (directive, f"the command runs on {nodes} of them: the line names {options[name]}")
            )
        elif name == "nodes" and nodes < size.allocated:
            refused.append((directive, f"the command runs on {nodes} of them"))
        elif name == "gpus" and "-" in values.get("nodes", ""):
            refused.append(
                (
                    directive,
                    f"it counts all GPUs of {values['nodes']} nodes: the line asks for {gpus} on each",
                )
            )
        elif size.has_other_gpus and name in (*_GPUS, "tres-per-node"):
            passed_on.append(("sbatch", f"{name}={value}"))
        elif name in ("gres", "tres-per-node"):
            others = [item for item in value.split(",") if not _OF_GRES.match(item)]
            passed_on += [("sbatch", f"{name}={','.join(others)}")] if others else []
        elif name in PLACES_TASKS:
            is_usual = value.partition(":")[0] in USUAL_PLACES
            (needless if is_usual else refused).append((directive, PLACES_TASKS[name]))
        elif name in _SIZES or is_gpus:
            continue
        elif ours == "mount":
            passed_on += [(ours, mount) for mount in value.split(",")]
        elif ours in CONFIGURABLE:
            options[ours] = value
        elif name.startswith("#") and "ignore-pbs" in values:
            needless.append((directive, "--ignore-pbs leaves it out"))
        elif not name:
            refused.append((directive, NO_OPTION))
        elif name.startswith("#"):
            reason = "for another scheduler: give the option of submit that asks for the same"
            refused.append((directive, reason))
        elif name == "container-workdir":
            refused.append((directive, CONTAINER_FOLDER))
        elif name not in OPTIONS:
            # Pyxis reads its options in a batch script too, and clusterrun starts the container by srun.
            command = "srun" if re.match(r"(?:no-)?container-", name) else "sbatch"
            passed_on.append((command, f"{name}={value}" if value else name))
            changed.append((directive, f"{command} refuses it, unless a plugin of Slurm has such an option"))
        elif OPTIONS[name].refused:
            refused.append((directive, OPTIONS[name].refused))
        else:
            passed_on.append(("sbatch", f"{name}={value}" if value else name))
    cpus_per_node = last_number(_values(directives).get("cpus-per-task", "1")) * max(tasks_per_node, 1)
    return Translated(
        tuple((name, literal(value)) for name, value in (*options.items(), *passed_on)),
        tuple(needless),
        tuple(refused),
        tuple(changed),
        tasks_per_node,
        gpus,
        0 if _COUNTS_CPUS & values.keys() else cpus_per_node,
    )


def runs_per_node(launch: LaunchCommand, translated: Translated) -> bool:
    """Return whether COMMAND runs once per node.

    A program that starts once per node, beside several GPUs, starts its own processes there.
    """
    if launch.keeps_accelerate or launch.is_isolated:
        return True
    if launch.per_node > 1 or launch.rank_launcher or (launch.total and not launch.is_scheduler):
        return False
    tasks = 1 if launch.runs_once else max(launch.per_node or translated.tasks_per_node, 1)
    return tasks == 1 and translated.gpus_per_node > 1


def conversion_of(directives: tuple[Directive, ...], launch: LaunchCommand) -> Conversion:
    """Return the conversion of a script by its directives and the launcher that it starts."""
    translated = translate(directives, launch)
    options = [*translated.options]
    if launch.python not in OF_PATH:
        options.append(("python", launch.python))
    if runs_per_node(launch, translated):
        options.append(("per-node", ""))
    own = {f"{name}=" for name in own_variables()}
    of_launch = launch.options_beside(dict(options))
    options += [pair for pair in of_launch if pair[0] != "env" or pair[1][: pair[1].find("=") + 1] not in own]
    options += [pair for pair in launch.options if pair[0] == "setup"]
    return Conversion("submit", tuple(options), launch.command, tuple(translated.parts(directives)))


def _values(directives: Sequence[Directive]) -> dict[str, str]:
    """Return the values by name."""
    values = {directive.name: directive.value for directive in directives}
    tasks = last_number(values.get("ntasks", ""))
    if 0 < tasks < last_number(values.get("nodes", "")) and not _tasks_per_node(values):
        values["nodes"] = str(tasks)  # Slurm gives no node without a task
    gpus_per_task = last_number(values.get("gpus-per-task", ""))
    nodes = _nodes(values)
    if tasks and nodes and tasks < nodes * _tasks_per_node(values) and tasks % nodes == 0:
        # Beside a total, it is the most for each node.
        values["ntasks-per-node"] = str(tasks // nodes)
    if "ntasks" not in values and not _tasks_per_node(values):
        gpus_per_node = _gpus_per_node(values, _nodes(values) or 1, 1)
        if tasks_per_gpu := last_number(values.get("ntasks-per-gpu", "")):
            values["ntasks-per-node"] = str(tasks_per_gpu * gpus_per_node)
        elif gpus_per_task and last_number(values.get("gpus", "")) >= gpus_per_task:
            values["ntasks"] = str(last_number(values["gpus"]) // gpus_per_task)
    return values


def _tasks_per_node(values: dict[str, str]) -> int:
    return last_number(values.get("ntasks-per-node", values.get("tasks-per-node", "")))


def _named_nodes(text: str) -> tuple[str, ...]:
    """Return the nodes of ``--nodelist``; () if it names a file, or cannot be read."""
    try:
        return () if "/" in text else expand(text)
    except BadInput:
        return ()


def _nodes(values: dict[str, str]) -> int:
    """Return the nodes that the directives ask for, also by tasks or GPUs on each; 0 if they do not."""
    per_node = _tasks_per_node(values)
    tasks, gpus = last_number(values.get("ntasks", "")), last_number(values.get("gpus", ""))
    gpus_per_node = last_number(values.get("gpus-per-node", ""))
    by_tasks = -(-tasks // per_node) if per_node else 0
    by_gpus = -(-gpus // gpus_per_node) if gpus_per_node else 0
    names = len(_named_nodes(values.get("nodelist", "")))
    by_names = names if tasks == 0 or tasks >= names else 0
    return last_number(values.get("nodes", "")) or by_tasks or by_gpus or by_names


def task_counts(directives: Sequence[Directive]) -> dict[str, str]:
    """Return the variables in which Slurm counts the tasks of a batch script, as far as directives say."""
    values = _values(directives)
    nodes = _nodes(values) or 1
    per_node = _tasks_per_node(values)
    as_written = _tasks_per_node({directive.name: directive.value for directive in directives})
    is_range = "-" in values.get("nodes", "")
    total = last_number(values.get("ntasks", "")) or (0 if is_range else nodes * per_node)
    counts = {
        "SLURM_NTASKS": total,
        "SLURM_NPROCS": total,
        "SLURM_NTASKS_PER_NODE": as_written or per_node,
        "SLURM_CPUS_PER_TASK": last_number(values.get("cpus-per-task", "")),
        "SLURM_GPUS": values.get("gpus"),
        "SLURM_GPUS_PER_NODE": values.get("gpus-per-node"),
        "SLURM_GPUS_PER_TASK": values.get("gpus-per-task"),
    }
    return {name: str(number) for name, number in counts.items() if number}


def job_variables(directives: Sequence[Directive]) -> dict[str, str]:
    """Return the variables that describe the job in its batch script, as far as directives say."""
    values = _values(directives)
    nodes = 0 if "-" in values.get("nodes", "") else _nodes(values) or 1
    gpus = _gpus_per_node(values, nodes or 1, _tasks_per_node(values))
    names = ("JOB_ID", "JOBID", "JOB_NODELIST", "NODELIST", "SUBMIT_DIR", "SUBMIT_HOST", "CLUSTER_NAME")
    variables = {
        **{f"SLURM_{name}": SOME_VALUE for name in (*names, "CPUS_ON_NODE", "JOB_USER", "JOB_CPUS_PER_NODE")},
        **dict.fromkeys(("SLURMD_NODENAME", "HOME", "USER", "PWD", "HOSTNAME"), SOME_VALUE),
        **dict.fromkeys(OF_TASK, "0"),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes or SOME_VALUE)),
        "0": "/var/spool/slurmd/job/slurm_script",
        "SLURM_JOB_NAME": values.get("job-name", SOME_VALUE),
        "SLURM_JOB_PARTITION": values.get("partition", SOME_VALUE),
    }
    if gpus:
        variables |= {"SLURM_GPUS_ON_NODE": str(gpus)}
        variables |= dict.fromkeys(("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"), SOME_VALUE)
    if "array" in values:
        variables["SLURM_ARRAY_JOB_ID"] = SOME_VALUE
    if "," in variables["SLURM_JOB_PARTITION"]:
        variables["SLURM_JOB_PARTITION"] = SOME_VALUE
    return variables


def _gpu_items(values: dict[str, str]) -> list[str]:
    """Return the items of ``--gres`` and ``--tres-per-node`` that ask for GPUs: ``gpu:a100:2``."""
    items = ",".join(values.get(name, "") for name in ("gres", "tres-per-node")).split(",")
    return [item.replace("=", ":") for item in items if _OF_GRES.match(item)]


def _gpu_type(values: dict[str, str]) -> str:
    """Return the type of the requested GPUs, as in front of their number: ``a100:``; '' for any."""
    requests = [*_gpu_items(values), *(f"gpu:{values[name]}" for name in _GPUS[:3] if name in values)]
    return next((f"{match[1]}:" for item in requests if (match := _GPU_TYPE.match(item))), "")


def _gpus_per_node(values: dict[str, str], nodes: int, tasks_per_node: int) -> int:
    for item in _gpu_items(values):
        return last_number(item) if re.search(r":\d+$", item) else 1
    if "gpus-per-node" in values:
        return last_number(values["gpus-per-node"])
    if "gpus-per-task" in values:
        return last_number(values["gpus-per-task"]) * max(tasks_per_node, 1)
    return -(-last_number(values.get("gpus", "")) // nodes)


def last_number(value: str) -> int:
    """Return the number at the end of ``4``, ``a100:4`` or ``2-4``; 0 for anything else."""
    match = re.search(r"(?:^|[:-])(\d+)$", value)
    return int(match[1]) if match else 0
