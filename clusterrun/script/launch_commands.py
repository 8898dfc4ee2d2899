"""Parses command lines that start ranks (torchrun, srun, mpirun, …): sizes and program."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.spec import UNSAID, JobSpec
from clusterrun.script import submit_again

PROGRAMS = (
    *("torchrun", "accelerate", "deepspeed", "colossalai"),
    *("mpirun", "mpiexec", "orterun", "horovodrun"),
)
_SUBCOMMAND = {"accelerate": "launch", "colossalai": "run"}
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
SCHEDULERS = ("srun", "sbatch", "salloc")
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
# Words that may stand before a launcher.
_WRAPPERS = (
    *("env", "time", "nohup", "nice", "numactl", "taskset", "stdbuf", "setsid", "exec", "command", "timeout"),
    *("uv", "poetry", "pdm", "pixi", "conda", "mamba", "micromamba", "hatch", "pipenv", "run"),
    *("if", "then", "else", "elif", "do", "while", "until", "!", "{"),
)
PYTHON = re.compile(r"python[\d.]*", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_TIME = re.compile(r"\d+[smhd]?", re.ASCII)
_GLUED = re.compile(r"-([nN])(\d+)", re.ASCII)
_REDIRECTION = re.compile(r"\d*[<>&]+.*")
_NODES = ("nnodes", "num-machines", "num-nodes", "nodes", "N")
_GPUS_PER_NODE = ("nproc-per-node", "nproc", "num-gpus", "gpus-per-node", "gres")
_PER_NODE = (*_GPUS_PER_NODE, "ntasks-per-node", "npernode", "ppn")
_TOTAL = ("num-processes", "np", "n", "ntasks")
# Words before a command that change nothing about it, or that other fields of a launch hold.
_NEUTRAL = (
    *("env", "time", "nohup", "setsid", "exec", "command", *SHELLS),
    *("if", "then", "else", "elif", "do", "while", "until", "!", "{"),
)
# Options about the sizes and the meeting of ranks, which clusterrun decides. They have no meaning without the
# launcher.
_NEEDLESS = (
    *(*_NODES, *_PER_NODE, *_TOTAL, "max-restarts", "cpu", "multi-gpu", "use-env", "standalone", "G", "gpus"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "machine-rank", "local-addr"),
    *("master-addr", "master-port", "main-process-ip", "main-process-port", "same-network", "hostfile"),
    *("gpus-per-task", "jobid", "overlap", "kill-on-bad-exit", "K", "label", "l", "unbuffered", "u"),
)
# Launchers whose processes have no GPU unless an option requests it.
_OF_CPUS = ("srun", "mpirun", "mpiexec", "orterun")


@frozen
class LaunchCommand:
    """A command line of a launcher. A number is 0 if an option is missing or not a number."""

    # Launcher as a message names it.
    program: str
    # Nodes that it requests.
    nodes: int = 0
    # Processes or GPUs on each node.
    per_node: int = 0
    total: int = 0  # processes in all
    max_restarts: int = 0
    # Whether it requests CPU processes.
    on_cpus: bool = False
    # Command that it starts in each process; () if unknown.
    command: tuple[str, ...] = ()
    # Variables that the line sets before the launcher.
    environment: tuple[tuple[str, str], ...] = ()
    # Whether it is an srun that runs beside the step of the run.
    overlaps: bool = False
    # Words that ``instead`` does not translate: ``numactl --localalloc``, ``--config_file a.yaml``.
    omitted: tuple[str, ...] = ()

    @property
    def is_scheduler(self) -> bool:
        return self.program in SCHEDULERS

    @property
    def starts_one(self) -> bool:
        """Return whether it starts a single process, according to its options."""
        return max(self.nodes, self.per_node, self.total, 1) == 1


def launch_in(arguments: Sequence[str]) -> LaunchCommand | None:
    """Return the launcher that ``arguments`` start, also behind ``env`` and the like; None for other
    commands.
    """
    environment: list[tuple[str, str]] = []
    place = 0
    while place < len(arguments):
        name = os.path.basename(arguments[place])
        rest = arguments[place + 1 :]
        module = _module(arguments[place:])
        if name in SCHEDULERS or (name in PROGRAMS and _SUBCOMMAND.get(name, "") in ("", *rest[:1])):
            launch = _launch(name, rest)
        elif module in MODULES:
            launch = _launch(f"python -m {module}", arguments[list(arguments).index(module) + 1 :])
        else:
            launch = None
        if launch is not None:
            omitted = (*_omitted(arguments[:place]), *launch.omitted)
            environment += launch.environment
            return replace(launch, environment=tuple(environment), omitted=omitted)
        if _ASSIGNMENT.match(arguments[place]):
            variable, _, value = arguments[place].partition("=")
            environment.append((variable, value))
        elif not (name in _WRAPPERS or arguments[place].startswith("-") or _TIME.fullmatch(arguments[place])):
            is_value = place > 1 and arguments[place - 1].startswith("-")
            if not is_value:
                return None
        place += 1
    return None


def _module(arguments: Sequence[str]) -> str:
    """Return the module of ``python -u -m MODULE`` or ``-m MODULE``, if ``arguments`` begin with it;
    else ''.
    """
    rest = arguments[1:] if PYTHON.fullmatch(os.path.basename(arguments[0])) else arguments
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
        rest = rest[1:]
    return rest[1] if len(rest) > 1 and rest[0] == "-m" else ""


def _launch(program: str, arguments: Sequence[str]) -> LaunchCommand:
    end = next(
        (place for place, word in enumerate(arguments) if _REDIRECTION.fullmatch(word)), len(arguments)
    )
    place, command = _inner_command(program, arguments[:end])
    options = arguments[:place]
    nodes = per_node = total = max_restarts = 0
    has_gpus = program not in _OF_CPUS
    counts_per_node = program in ("mpirun", "mpiexec", "orterun")  # -N is per node for them
    for key, value in _options(options):
        number = int(match[1]) if (match := re.search(r"(?:^|:)(\d+)$", value)) else 0
        if key == "gres" and not value.startswith("gpu"):
            continue
        has_gpus = has_gpus or key in _GPUS_PER_NODE or key.startswith("gpus")
        if key in _PER_NODE or (key == "N" and counts_per_node):
            per_node = max(per_node, number)
        elif key in _NODES:
            nodes = max(nodes, number)
        elif key in _TOTAL:
            total = max(total, number)
        elif key == "max-restarts":
            max_restarts = number
    overlaps = any(word == "--overlap" or word.startswith("--jobid") for word in options)
    on_cpus = "--cpu" in options or not has_gpus
    omitted = _omitted(options)
    launch = LaunchCommand(
        program, nodes, per_node, total, max_restarts, on_cpus, command, (), overlaps, omitted
    )
    for _, inner in shell_launches(inline_text(command)):
        return _joined(launch, inner)
    return launch


def _joined(outer: LaunchCommand, inner: LaunchCommand) -> LaunchCommand:
    """Return ``srun bash -c 'torchrun …'`` as one launcher."""
    return replace(
        outer,
        nodes=max(outer.nodes, inner.nodes),
        per_node=max(outer.per_node, inner.per_node),
        total=max(outer.total, inner.total),
        max_restarts=max(outer.max_restarts, inner.max_restarts),
        on_cpus=outer.on_cpus and inner.on_cpus,
        command=inner.command or outer.command,
        environment=(*outer.environment, *inner.environment),
        omitted=(*outer.omitted, *inner.omitted),
    )


def _omitted(words: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of ``words``, which stand before a program, that ``instead`` does not translate.

    A part is an option with its value, or a wrapper (``numactl``) with its options.
    """
    parts: list[list[str]] = []
    wrapper: list[str] | None = None
    place = 0
    while place < len(words):
        word, name = words[place], os.path.basename(words[place])
        place += 1
        is_starter = PYTHON.fullmatch(name) or name in (*PROGRAMS, *SCHEDULERS, *_NEUTRAL)
        if name == "run" and wrapper is not None:  # uv run, conda run
            wrapper.append(word)
        elif is_starter or name in _SUBCOMMAND.values() or _ASSIGNMENT.match(word):
            wrapper = None
        elif not word.startswith("-"):
            if wrapper is None or name in _WRAPPERS:
                parts.append(wrapper := [])
            wrapper.append(word)
        else:
            following = words[place] if place < len(words) else "-"
            is_program = PYTHON.fullmatch(following) or following in (*PROGRAMS, *SCHEDULERS, *_WRAPPERS)
            is_program = is_program and following not in _NEUTRAL  # conda run -n env
            option = [word]
            if "=" not in word and not following.startswith("-") and not is_program:
                option.append(following)
                place += 1
            glued = _GLUED.fullmatch(word)
            key = glued[1] if glued else word.lstrip("-").partition("=")[0].replace("_", "-")
            if wrapper is not None:
                wrapper += option
            elif key == "m" or option[-1] in MODULES:
                continue
            elif key not in _NEEDLESS or (key == "gres" and "gpu" not in option[-1]):
                parts.append(option)
    return tuple(map(" ".join, parts))


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option's name in ``arguments``, with dashes for underscores, and its possible value."""
    for place, word in enumerate(arguments):
        if not word.startswith("-"):
            continue
        if glued := _GLUED.fullmatch(word):
            yield glued[1], glued[2]
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals and place + 1 < len(arguments):
            value = arguments[place + 1]
        yield name.replace("_", "-"), value


def _inner_command(program: str, arguments: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return the command that the launcher starts, and the index where the launcher's own options end.

    A script is recognized by its name, a module by ``-m``. Any other program is the first argument that is
    neither an option nor a value.
    """
    has_module = program not in SCHEDULERS
    for place, word in enumerate(arguments):
        name = os.path.basename(word)
        is_text = bool(inline_text(arguments[max(0, place - 2) : place + 1]))
        if word.endswith(".py") and not is_text:
            return place, tuple(arguments[place:])
        if name in PROGRAMS:
            has_module = True
        if has_module and word in ("-m", "--module") and place + 1 < len(arguments):
            return place, ("-m", *arguments[place + 1 :])
        if word == "--":
            return place, tuple(arguments[place + 1 :])
        if PYTHON.fullmatch(name):
            module = _module(arguments[place:])
            if module in MODULES:
                has_module = True
                continue
            if module:
                return place, ("-m", *arguments[list(arguments).index(module) :])
            script = next((inner for inner in arguments[place + 1 :] if not inner.startswith("-")), "")
            if not script.endswith(".py"):
                return place, tuple(arguments[place:])
    for place, word in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        is_value = before.startswith("-") and "=" not in before and not _GLUED.fullmatch(before)
        is_program = not word.startswith("-") and word not in _SUBCOMMAND.values()
        if is_program and (not is_value or "/" in word) and os.path.basename(word) not in PROGRAMS:
            return place, tuple(arguments[place:])
    return len(arguments), ()


def inline_text(command: Sequence[str]) -> str:
    """Return the text of ``bash -c TEXT``; '' for other commands."""
    if not command or os.path.basename(command[0]) not in SHELLS:
        return ""
    for option, word in zip(command[1:], command[2:]):
        if re.fullmatch(r"-\w*c\w*", option):
            return word
    return ""


def shell_launches(text: str) -> Iterator[tuple[int, LaunchCommand]]:
    """Yield the line number and the launcher of each command in a shell script that starts one."""
    lines = text.replace("\r", "").split("\n")
    joined, first = "", 1
    for number, line in enumerate(lines, 1):
        joined, first = (joined + line, first) if joined else (line, number)
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        for command in _commands(joined):
            if launch := launch_in(command):
                yield first, launch
                break
        joined = ""


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


def instead(spec: JobSpec, launch: LaunchCommand, verb: str = "submit") -> str:
    """Return the line to type for ``launch`` as the command of ``spec``; '' if its program is unknown."""
    if not launch.command:
        return ""
    if spec.shapes:  # scheduler commands contain the numbers of nodes and GPUs
        spec = replace(spec, nodes=1, gpus=0, gpu_type="")
        launch = replace(launch, nodes=0, per_node=0, total=0)
    nodes = launch.nodes if spec.nodes == 1 and launch.nodes else spec.nodes
    environment = (*spec.environment, *launch.environment)
    sized = replace(spec, nodes=nodes, command=launch.command, environment=environment)
    per_node = launch.per_node or launch.total // nodes
    if per_node and not (spec.gpus or spec.ranks_per_node):
        field = "ranks_per_node" if launch.on_cpus else "gpus"
        sized = replace(sized, **{field: per_node})
    if launch.max_restarts and spec.max_restarts == UNSAID:
        sized = replace(sized, max_restarts=launch.max_restarts)
    return submit_again.line(sized, verb, with_values=True)


def not_in_line(launch: LaunchCommand, separator: str = "\n") -> str:
    """Return what the line of ``instead`` lacks, after ``separator``; '' if it lacks nothing."""
    return f"{separator}not in that line: {'; '.join(launch.omitted)}" if launch.omitted else ""


def refuse(spec: JobSpec, launch: LaunchCommand, many: bool, verb: str) -> BadInput:
    """Return the refusal of ``launch`` as COMMAND. ``many``: more than one process would start it."""
    name = launch.program
    if launch.is_scheduler:
        problem = f"{name!r} as COMMAND asks Slurm for another job or step from inside the job of this run"
    elif many:
        problem = f"{name!r} as COMMAND: each rank would start it, and each {name} would train a copy"
    else:
        problem = f"{name!r} as COMMAND starts several ranks, and this run has one"
    line = instead(spec, launch, verb)
    remedy = "clusterrun starts the ranks itself: " + (line or "name the program that it starts")
    remedy += not_in_line(launch) if line else ""
    if not launch.is_scheduler:
        remedy += "\nto keep the launcher, start it once per node: --per-node (clusterrun help frameworks)"
    return BadInput(problem, remedy)
