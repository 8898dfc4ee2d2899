"""Parse command lines that start ranks (torchrun, srun, mpirun, …): sizes and program."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from clusterrun.model.frozen import frozen, replace
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.script import launcher_options
from clusterrun.script.interpreter_calls import (
    ASSIGNMENT,
    LIMITERS,
    NEEDLESS_BEFORE,
    PYTHON,
    inline_text,
    interpreter_call,
)
from clusterrun.script.launcher_options import LauncherOption
from clusterrun.script.program_table import Trait, with_trait
from clusterrun.script.quoting import DOLLAR, plain_text
from clusterrun.script.sbatch_table import SRUN_REFUSED, USUAL_PLACES

# Launchers that start the Python in their own folder.
_PYTHON_PROGRAMS = ("torchrun", "accelerate", "deepspeed", "colossalai")
PROGRAMS = (*_PYTHON_PROGRAMS, *("mpirun", "mpiexec", "orterun", "ibrun", "horovodrun"))
# Names of the first Python on PATH.
OF_PATH = ("", "python", "python3")
# Folders whose programs use a Python elsewhere.
_WITHOUT_PYTHON = re.compile(r"^/usr/|^/bin$|\.local/bin$")
_SUBCOMMAND = {"accelerate": "launch", "colossalai": "run"}
MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
    "deepspeed.launcher.runner",
)
SCHEDULERS = ("srun", "sbatch", "salloc")
# Commands that prepare the shell for the commands after them. Some systems have programs of the names in the
# first group, which have no effect.
WITHOUT_EFFECT = ("source", ".", "export", "cd", "alias", "ulimit", "umask", "unset")
SETUP_COMMANDS = (*WITHOUT_EFFECT, "pushd", "module", "ml")
ACTIVATORS = ("conda", "mamba", "micromamba")
# They write one file about a program and all that it starts.
_PROFILERS = ("strace", "nsys", "ncu")
WRAPPERS = (*LIMITERS, *_PROFILERS, *with_trait(Trait.WRAPS))
# Wrappers whose container lacks the ranks' variables.
_ISOLATING = ("podman-hpc", "podman", "docker", "enroot")
# Words with which a container runtime starts a command.
_STARTING_VERBS = {
    **dict.fromkeys(_ISOLATING, ("run", "exec")),
    **dict.fromkeys(("singularity", "apptainer"), ("run", "exec", "shell")),
    "enroot": ("start", "exec", "batch"),
}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))", re.ASCII)
_REDIRECTION = re.compile(r"\d*[<>&]+.*")
# Names of variables for the program that a launcher starts.
_OF_SCRIPTS = re.compile(r"(?i)python|script|main\b|prog(?:ram)?\b|(?:entry|train_file)")
_NUMBER = re.compile(r"(?:^|:)(\d+)$", re.ASCII)
# The value of a loop of the script, or of a sweep.
PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}", re.ASCII)
# Launchers whose processes have no GPU unless an option requests it.
_OF_CPUS = ("srun", "mpirun", "mpiexec", "orterun", "ibrun")
# The difference to ``--gpus-per-task``.
SEES_ALL_GPUS = "each rank sees all GPUs of its node: it takes its share by LOCAL_RANK"
_SEES_ONE_PROCESS = (
    "a program that calls MPI (mpi4py, Horovod) sees one process, and trains alone in each rank: let it read "
    "RANK, or keep sbatch for it"
)
TIME_IS_REPORTED = "time: clusterrun status RUN shows how long the run took"
# Arguments that a launcher adds to the script's own.
_LOCAL_RANK = {
    **dict.fromkeys(
        ("deepspeed", "python -m deepspeed.launcher.runner"),
        "deepspeed passes --local_rank to the script: it reads LOCAL_RANK instead",
    ),
    "python -m torch.distributed.launch": "torch.distributed.launch passes --local-rank to the script: it "
    "reads LOCAL_RANK instead",
}


# Options of a step that say something else than those of its job, which has more.
OF_JOB = ("time", "cpus-per-rank", "partition", "account", "mem")
# Fields that are computed from the numbers in a command line.
SIZES = (
    *("nodes", "per_node", "total", "gpus_per_task", "gpus_per_node", "open_sizes"),
    *("step_nodes", "step_per_node", "step_total"),
)


@frozen
class LaunchCommand:
    """A command line of a launcher. A number is 0 if an option is missing or not a number."""

    program: str  # launcher as a message names it
    nodes: int = 0  # nodes that it requests
    per_node: int = 0  # processes or GPUs on each node
    total: int = 0  # processes in all
    max_restarts: int = 0
    on_cpus: bool = False  # whether it requests CPU processes
    command: tuple[str, ...] = ()  # command that it starts in each process; () if unknown
    # Variables that the line sets before the launcher, or by its options.
    environment: tuple[tuple[str, str], ...] = ()
    overlaps: bool = False  # whether it is an srun that runs beside the step of the run
    # (name, value) of options of clusterrun that stand for options of the launcher.
    options: tuple[tuple[str, str], ...] = ()
    # Options of the launcher that nothing of clusterrun stands for, as typed.
    untranslated: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()  # facts that the user needs to know about the translation
    outputs: tuple[str, ...] = ()  # options that say where the output goes, as typed
    needless: tuple[str, ...] = ()  # options of a step that no rank needs, as typed
    image_folder: str = ""  # folder of the container in which the ranks start
    # Whether each node of a step starts a launcher of ranks that does not say how many nodes it has.
    has_several_worlds: bool = False
    # Whether ``command`` holds the launcher: it runs in a container that lacks the variables of ranks, or
    # below a profiler of the launcher and its ranks.
    is_isolated: bool = False
    # Launcher whose processes are ranks, '' if there is none. srun and mpirun start any processes.
    rank_launcher: str = ""
    python: str = ""  # Python of ``command``, a script or a module; '' for ``python``
    gpus_per_task: int = 0  # GPUs of each process of a step
    gpus_per_node: int = 0
    open_sizes: tuple[str, ...] = ()  # options for a number of processes whose value is no number
    says_nodes: bool = False  # whether an option requests nodes
    # Nodes of the step around a launcher of ranks that does not say how many nodes it has.
    step_nodes: int = 0
    # The launchers that the step around one starts on each node, and in all.
    step_per_node: int = 0
    step_total: int = 0

    @property
    def is_scheduler(self) -> bool:
        return self.program in SCHEDULERS

    @property
    def runs_once(self) -> bool:
        """Return whether no launcher starts the command."""
        return bool(self.command) and not self.program

    @property
    def runs_on_one_node(self) -> bool:
        """Return whether it starts ranks on the node of its shell alone."""
        names_hosts = re.search(r"hostfile|(?<!\S)(?:-H|--hosts?)\b", " ".join(self.needless)) is not None
        has_nodes = self.nodes > 1 or self.says_nodes or names_hosts
        return self.runs_once or (self.program == self.rank_launcher != "" and not has_nodes)

    @property
    def starts_one_per_node(self) -> bool:
        """Return whether it is a launcher of torch without an option for the number of processes."""
        is_of_torch = self.rank_launcher == "torchrun" or self.rank_launcher.startswith("python -m torch.")
        is_open = bool(self.open_sizes) or any(word.startswith("$") for word in self.untranslated)
        return is_of_torch and not (self.per_node or self.total or is_open)

    @property
    def keeps_accelerate(self) -> bool:
        """Return whether accelerate has to start the ranks, because only it knows some of its options."""
        return bool(self.untranslated) and "accelerate" in self.rank_launcher

    def options_beside(self, of_job: Collection[str]) -> list[tuple[str, str]]:
        """Return the options of the line that stand for those of the launcher, without sizes and setup lines.

        ``of_job``: the options that the job has.
        """
        options = []
        for name, value in self.options:
            is_known = name in of_job or "$" in value or (name, value) == ("mem", "0")
            if name != "setup" and not (name in OF_JOB and is_known):
                options.append((name, value))
        if self.max_restarts:
            options.append(("max-restarts", str(self.max_restarts)))
        # The variables of a script are known in its setup lines, and not where the line is typed.
        environment = [("env", f"{name}={value}") for name, value in self.environment if "$" not in value]
        return [*options, *environment]

    @property
    def starts_one(self) -> bool:
        """Return whether it starts a single process, according to its options."""
        return max(self.nodes, self.per_node, self.total, 1) == 1


def launch_in(arguments: Sequence[str], reads_inline: bool = True) -> LaunchCommand | None:
    """Return the launcher that ``arguments`` start; None for other commands.

    The launcher may stand behind ``env``, ``numactl``, ``uv run`` and the like. ``reads_inline``: one inside
    ``bash -c TEXT`` counts too.
    """
    arguments = tuple(arguments)
    environment: list[tuple[str, str]] = []
    unset: list[tuple[str, str]] = []
    remarks: list[str] = []
    wrapper: tuple[str, ...] = ()
    place = 0
    while place < len(arguments):
        launch = _launch_at(arguments, place, reads_inline)
        wrapping = set(map(os.path.basename, wrapper))
        if launch and (wrapping & set(_ISOLATING) or (launch.rank_launcher and wrapping & set(_PROFILERS))):
            whole = LaunchCommand(launch.program, command=arguments[place - len(wrapper) :], is_isolated=True)
            sizes = {"nodes": launch.nodes, "per_node": launch.per_node, "total": launch.total}
            return replace(whole, **sizes, environment=tuple(environment))
        if launch:
            return replace(
                launch,
                command=_wrapped(wrapper, launch),
                environment=(*environment, *launch.environment),
                options=(*unset, *launch.options),
                remarks=(*remarks, *launch.remarks),
            )
        word = arguments[place]
        name = os.path.basename(word)
        if ASSIGNMENT.match(word) and not wrapper:
            variable, _, value = word.partition("=")
            environment.append((variable, value))
        elif word in ("-u", "--unset") and "env" in arguments[:place]:
            place += 1
            unset += [("setup", f"unset {variable}") for variable in arguments[place : place + 1]]
        elif word in ("-i", "--ignore-environment") and "env" in arguments[:place]:
            remarks.append(f"env {word}: ranks get all your variables")
        elif name in WRAPPERS:
            end = None if is_image_command(arguments[place:]) else _launcher_behind(arguments, place + 1)
            if end is None:
                return None
            wrapper += arguments[place:end]
            place = end
            continue
        elif name not in NEEDLESS_BEFORE and not word.startswith("-"):
            return None
        elif name == "time":
            remarks.append(TIME_IS_REPORTED)
        place += 1
    return None


def is_image_command(command: Sequence[str]) -> bool:
    """Return whether ``command`` fetches, builds or removes an image of a container: ``docker pull``."""
    verbs = _STARTING_VERBS.get(os.path.basename(command[0])) if command else None
    return verbs is not None and not set(verbs) & set(command[1:3])


def _launcher_behind(arguments: tuple[str, ...], start: int) -> int | None:
    """Return the index of the first launcher from ``start``. It ends at a Python or a script."""
    for index in range(start, len(arguments)):
        name = os.path.basename(arguments[index])
        if _launch_at(arguments, index) or name in WRAPPERS:
            return index
        if PYTHON.fullmatch(name) or name.endswith(".py"):
            return None
    return None


def _wrapped(wrapper: tuple[str, ...], launch: LaunchCommand) -> tuple[str, ...]:
    """Return the command of ``launch`` behind ``wrapper``, which starts a program and no script."""
    command = launch.command
    if not wrapper or not command:
        return command
    is_script = command[0] == "-m" or command[0].endswith(".py")
    starter = "accelerate" if launch.keeps_accelerate else launch.python or "python"
    return (*wrapper, *((starter,) if is_script or launch.keeps_accelerate else ()), *command)


def _launch_at(arguments: tuple[str, ...], place: int, reads_inline: bool = True) -> LaunchCommand | None:
    """Return the launcher whose name stands at ``place``; None if another word does."""
    name = os.path.basename(arguments[place])
    rest = arguments[place + 1 :]
    if name in SCHEDULERS or name in PROGRAMS:
        subcommand = _SUBCOMMAND.get(name, "")
        if subcommand in ("", *rest[:1]):
            folder = os.path.dirname(arguments[place])
            has_python = bool(folder) and name in _PYTHON_PROGRAMS and not _WITHOUT_PYTHON.search(folder)
            python = os.path.join(folder, "python") if has_python else ""
            return _launch(name, rest[1:] if subcommand else rest, reads_inline, python)
        return None
    call = interpreter_call(("python", *arguments[place:]) if name == "-m" else arguments[place:])
    if call and call.module in MODULES:
        return _launch(
            f"python -m {call.module}", call.arguments, reads_inline, own_python(arguments[place:])
        )
    return None


def _launch(program: str, arguments: tuple[str, ...], reads_inline: bool, python: str) -> LaunchCommand:
    options, command, is_module = _split(program, arguments)
    numbers = dict.fromkeys(launcher_options.NUMBERS, 0)
    has_gpus = program not in _OF_CPUS
    overlaps = is_cpu = False
    image_folder = ""
    gpus_per_node = 0
    environment: list[tuple[str, str]] = []
    ours: list[tuple[str, str]] = []
    untranslated: list[str] = []
    outputs: list[str] = []
    needless: list[str] = []
    remarks: list[str] = []
    for typed, name, value, option in options:
        role = option.role
        # Nodes that the script computes are those of its job.
        role = launcher_options.NEEDLESS if name == "nodelist" and "$" in value else role
        number = int(match[1]) if (match := _NUMBER.search(value)) else 0
        overlaps = overlaps or name in ("overlap", "jobid")
        if role == launcher_options.GPUS_PER_NODE:
            is_of_gpus = name != "gres" or re.match(r"(?:gres[/:])?gpu\b", value)
            if is_of_gpus:
                has_gpus, gpus_per_node = True, number or 1
            if not is_of_gpus or (name == "gres" and "," in value):
                untranslated.append(typed)
        has_gpus = has_gpus or name.startswith("gpus")
        if role in numbers:
            if role == launcher_options.NODES and (match := re.match(r"(\d+):", value, re.ASCII)):
                number = int(match[1])
                remarks.append(
                    f"{typed}: the number of nodes is fixed; --nodes MIN-MAX takes what is free at the start"
                )
            numbers[role] = max(numbers[role], number)
        elif role == launcher_options.ON_CPUS:
            is_cpu = True
            environment.append(("ACCELERATE_USE_CPU", "true"))
        elif role in (launcher_options.VARIABLE, launcher_options.VARIABLES):
            pairs = value.split(",") if role == launcher_options.VARIABLES else [value]
            pairs = [value.replace(" ", "=", 1)] if option.values == 2 else pairs
            environment += [(pair.partition("=")[0], pair.partition("=")[2]) for pair in pairs if "=" in pair]
            if role == launcher_options.VARIABLES and "ALL" not in pairs:
                untranslated.append(typed)
        elif role.startswith(launcher_options.SETS):
            environment.append((role.removeprefix(launcher_options.SETS), value))
        elif role.startswith(launcher_options.OURS):
            ours_name = role.removeprefix(launcher_options.OURS)
            is_list = CONFIGURABLE[ours_name].kind == "list"
            # Pyxis starts the image of a registry, with or without this prefix.
            value = value.removeprefix("docker://") if ours_name == "container" else value
            ours += [(ours_name, part) for part in (value.split(",") if is_list else [value])]
        elif role.startswith(launcher_options.UPPER):
            environment.append((role.removeprefix(launcher_options.UPPER), value.upper()))
        elif role == launcher_options.CHDIR:
            folder = value.replace(DOLLAR, "\\$") if "$" in value else shlex.quote(plain_text(value))
            ours.append(("setup", f"cd {folder}"))
        elif role == launcher_options.INCLUDE and (match := re.fullmatch(r"[^:@]+:([\d,]+)", value)):
            environment.append(("CUDA_VISIBLE_DEVICES", match[1]))
            numbers[launcher_options.PER_NODE] = match[1].count(",") + 1
        elif role == launcher_options.OUTPUT:
            outputs.append(typed)
        elif role == launcher_options.SRUN:
            ours.append(("srun", f"{name}={value}" if value else name))
        elif role == launcher_options.FOLDER and "$" not in value:
            image_folder = value
        elif role in (launcher_options.OWN, launcher_options.INCLUDE, launcher_options.FOLDER):
            untranslated.append(typed)
        elif role == launcher_options.STEP:
            remarks.append(f"{typed} is of the step alone: a node's ranks share all that the line asks for")
        elif role == launcher_options.NEEDLESS:
            (untranslated if f"{name}={value}" in SRUN_REFUSED else needless).append(typed)
        elif role == launcher_options.PLACES:
            is_usual = {*value.partition(":")[0].split(",")} <= {*USUAL_PLACES}
            (needless if is_usual else untranslated).append(typed)
    gpus = next((value for _, name, value, _ in options if (program, name) == ("srun", "gpus")), "")
    if match := _NUMBER.search(gpus):
        # The GPUs of a step: those of its node if it has one, else of all.
        nodes = numbers[launcher_options.NODES] or int(numbers[launcher_options.TOTAL] == 1)
        gpus_per_node = int(match[1]) // nodes if nodes else gpus_per_node
        untranslated = [typed for typed in untranslated if not nodes or not re.match(r"(--gpus|-G)\b", typed)]
    size_roles = (launcher_options.PER_NODE, launcher_options.TOTAL)
    sizes = tuple(typed for typed, _, _, option in options if option.role in size_roles)
    has_size = numbers[launcher_options.PER_NODE] or numbers[launcher_options.TOTAL]
    # Launchers of ranks wait for the nodes of the job, and a step may have fewer.
    open_nodes = [
        typed
        for typed, _, value, option in options
        if (program, option.role) == ("srun", launcher_options.NODES) and "$" in value
    ]
    # The value of a loop, in any size.
    of_sizes = (*numbers, launcher_options.GPUS_PER_NODE)
    open_nodes += [
        typed
        for typed, _, value, option in options
        if option.role in of_sizes and PLACEHOLDER.search(value) and (has_size or typed not in sizes)
    ]
    passes_rank = program in _LOCAL_RANK and not any(
        name.startswith(("use", "no-local-rank")) for _, name, _, _ in options
    )
    remarks += [_LOCAL_RANK[program]] if passes_rank else []
    remarks += [SEES_ALL_GPUS] if numbers[launcher_options.GPUS_PER_TASK] else []
    calls_mpi = any(option == "srun" and value.startswith("mpi=pmi") for option, value in ours)
    if calls_mpi or program in (*_OF_CPUS[1:], "horovodrun"):
        remarks.append(_SEES_ONE_PROCESS)
    if is_cpu and max(numbers[launcher_options.TOTAL], numbers[launcher_options.PER_NODE]) > 1:
        remarks.append("with --cpu and without MPI, accelerate starts one process; the line starts all")
    if program == "accelerate" and not any("config" in name for _, name, _, _ in options):
        remarks.append("a default_config.yaml of accelerate, if there is one, is not read: say its values")
    launch = LaunchCommand(
        program,
        nodes=numbers[launcher_options.NODES],
        per_node=numbers[launcher_options.PER_NODE],
        total=numbers[launcher_options.TOTAL],
        max_restarts=numbers[launcher_options.RESTARTS],
        on_cpus=is_cpu or not has_gpus,
        command=("-m", *command) if is_module else without_python(command),
        environment=tuple(environment),
        overlaps=overlaps,
        options=tuple(ours),
        untranslated=tuple(untranslated),
        remarks=tuple(remarks),
        outputs=tuple(outputs),
        needless=tuple(needless),
        image_folder=image_folder,
        gpus_per_task=numbers[launcher_options.GPUS_PER_TASK],
        gpus_per_node=gpus_per_node,
        rank_launcher="" if program in _OF_CPUS else program,
        python=python or own_python(command),
        open_sizes=(*open_nodes, *(() if has_size else sizes)),
        says_nodes=any(option.role == launcher_options.NODES for _, _, _, option in options),
    )
    inner = launch_in(command, reads_inline) if command and not is_module else None
    if inner is None and reads_inline:
        inner = next((launch for _, launch in shell_launches(inline_text(command))), None)
    return joined(launch, inner) if inner else launch


def without_python(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``train.py …`` for ``python -u train.py …``, and ``-m pkg …`` for ``python -m pkg …``.

    A command with other options of Python is kept: the ranks' Python gets ``-u`` alone.
    """
    call = interpreter_call(command)
    if not call or not call.is_python or set(call.options) - {"-u"}:
        return command
    if call.module:
        return ("-m", call.module, *call.arguments)
    return (call.script, *call.arguments) if call.script.endswith(".py") else command


def own_python(command: Sequence[str]) -> str:
    """Return the Python of ``/x/python train.py``; '' for ``python train.py``, and for other commands."""
    command = tuple(command)
    is_own = bool(command) and command[0] != "python" and without_python(command) != command
    return command[0] if is_own else ""


def joined(outer: LaunchCommand, inner: LaunchCommand) -> LaunchCommand:
    """Return ``srun torchrun …`` or ``srun bash -c 'torchrun …'`` as one launcher."""
    if inner.rank_launcher and inner.nodes == 1:
        # Its world is that of one node, on each node of the step.
        inner = replace(inner, per_node=inner.per_node or inner.total, total=0, says_nodes=False)
    return replace(
        outer,
        nodes=max(outer.nodes, inner.nodes),
        # The processes of the outer launcher are launchers.
        per_node=inner.per_node if inner.rank_launcher else max(outer.per_node, inner.per_node),
        total=inner.total or (0 if inner.per_node or inner.rank_launcher else outer.total),
        max_restarts=max(outer.max_restarts, inner.max_restarts),
        on_cpus=outer.on_cpus and inner.on_cpus,
        command=inner.command or outer.command,
        environment=(*outer.environment, *inner.environment),
        options=(*outer.options, *inner.options),
        untranslated=(*outer.untranslated, *inner.untranslated),
        remarks=(*outer.remarks, *inner.remarks),
        outputs=(*outer.outputs, *inner.outputs),
        needless=(*outer.needless, *inner.needless),
        has_several_worlds=bool(inner.rank_launcher) and not inner.says_nodes,
        rank_launcher=outer.rank_launcher or inner.rank_launcher,
        is_isolated=inner.is_isolated,
        python=inner.python or outer.python,
        open_sizes=(*filter(PLACEHOLDER.search, outer.open_sizes), *inner.open_sizes),
        step_nodes=outer.nodes if inner.rank_launcher and inner.nodes in (0, outer.nodes) else 0,
        step_per_node=outer.per_node,
        step_total=outer.total,
    )


def _split(
    program: str, arguments: tuple[str, ...]
) -> tuple[list[tuple[str, str, str, LauncherOption]], tuple[str, ...], bool]:
    """Split ``arguments`` of a launcher.

    Returns (option as typed, name, value, its row) for each option, the command behind them, and whether the
    command is a module.
    """
    table = launcher_options.launcher_options(program)
    options: list[tuple[str, str, str, LauncherOption]] = []
    is_module = False
    place = 0
    while place < len(arguments) and arguments[place] != "-":
        word = arguments[place]
        if _is_open_option(arguments, place, program):
            options.append((word, word, "", LauncherOption(0, launcher_options.OWN)))
            place += 1
            continue
        if not word.startswith("-"):
            break
        place += 1
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        if program in SCHEDULERS and not word.startswith("--"):
            name = launcher_options.SRUN_LETTERS.get(word[1], word[1])
            equals, value = word[2:], word[2:].lstrip("=")
        name = name.replace("_", "-")
        option = table.get(name)
        if option is None:
            candidates = [full_name for full_name in table if full_name.startswith(name)]
            is_value = place < len(arguments) and _is_value(arguments[place], program)
            option = (
                table[candidates[0]]
                if len(candidates) == 1
                else LauncherOption(int(is_value), launcher_options.OWN)
            )
        values = () if equals else arguments[place : place + option.values]
        place += len(values)
        if option.role == launcher_options.MODULE:
            is_module = True
            continue
        options.append((shlex.join((word, *values)), name, value or " ".join(values), option))
    return options, arguments[place:], is_module


def _is_open_option(arguments: Sequence[str], place: int, program: str) -> bool:
    """Return whether a variable stands for options of ``program``: a program or a script follows it."""
    if not re.match(r"\$\{?\w+(?:\[[@*]\])?\}?$", arguments[place], re.ASCII):
        return False
    if _OF_SCRIPTS.search(arguments[place]):
        return False
    for word in arguments[place + 1 :]:
        if word.startswith("$") and _OF_SCRIPTS.search(word):
            return True
        name = os.path.basename(word)
        if word == "-m" or word.endswith((".py", ".sh")) or PYTHON.fullmatch(name) or name in PROGRAMS:
            return True
    return False


def _is_value(word: str, program: str) -> bool:
    """Return whether ``word`` can be the value of an unknown option of ``program``, rather than a command."""
    is_command = bool(word.endswith((".py", ".sh")) or PYTHON.fullmatch(os.path.basename(word)))
    is_command = is_command or os.path.basename(word) in PROGRAMS
    return not (word.startswith("-") or is_command or (program in _OF_CPUS and "/" in word))


def shell_launches(text: str) -> Iterator[tuple[int, LaunchCommand]]:
    """Yield the line number and the launcher of each command in a shell script that starts one.

    A word that is a variable counts as its value if an earlier line sets it.
    """
    lines = text.replace("\r", "").split("\n")
    joined, first = "", 1
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        joined, first = (joined + line, first) if joined else (line, number)
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        for command in _commands(joined):
            expanded = list(_with_values(command, values))
            assignments = expanded[1:] if expanded[:1] in (["export"], ["readonly"], ["local"]) else expanded
            if assignments and all(map(ASSIGNMENT.match, assignments)):
                for name, _, value in (word.partition("=") for word in assignments):
                    before = values.get(name[:-1], "") if name.endswith("+") else ""
                    values[name.rstrip("+")] = before + value
            elif launch := launch_in([*takewhile(lambda word: not _REDIRECTION.fullmatch(word), expanded)]):
                yield first, launch
                break
        joined = ""


def _with_values(words: Iterable[str], values: Mapping[str, str]) -> Iterator[str]:
    """Yield ``words`` with the values of their variables. A word that is a variable may become several."""
    for word in words:
        value = _VARIABLE.sub(lambda match: values.get(match[1] or match[2], match[0]), word)
        if value != word and _VARIABLE.fullmatch(word):
            yield from value.split()
        else:
            yield value


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the simple commands of one line of a shell script."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        tokens = list(lexer)
    except ValueError:  # another line closes the quote
        tokens = line.split()
    command: list[str] = []
    for word in tokens:
        if word and set(word) <= set(";&|()"):
            yield command
            command = []
        else:
            command.append(word)
    yield command
