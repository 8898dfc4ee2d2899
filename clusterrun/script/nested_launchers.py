"""Detect launchers inside the ranks: in COMMAND, in a shell script, in a Python script.

It runs no code of them.

Every rank runs the same command. A command that starts ranks creates a separate world in each rank. A
script that exits if it sees too few GPUs does so in every rank.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import replace
from clusterrun.model.spec import JobSpec
from clusterrun.script import batch_scripts
from clusterrun.script.batch_scripts import Conversion
from clusterrun.script.directives import OF_TASK, conversion_of
from clusterrun.script.interpreter_calls import inline_text, interpreter_call, shell_script, unwrapped
from clusterrun.script.launch_commands import (
    MODULES,
    PROGRAMS,
    SCHEDULERS,
    LaunchCommand,
    launch_in,
    shell_launches,
)
from clusterrun.script.python_launches import python_launches
from clusterrun.script.recipes import recipe_lines
from clusterrun.script.sbatch_lines import read_directives
from clusterrun.script.script_texts import text_of_script

STARTERS = ("spawn", "start_processes", "elastic_launch", "notebook_launcher", "launch_agent")
_GPUS = re.compile(r"device_count|gpu_count|num_gpus|n_gpus", re.IGNORECASE)
_OF_A_RANK = re.compile(rf"\$\{{?(?:{'|'.join(OF_TASK)}|RANK|LOCAL_RANK)\b")
_LEAVES = ("exit", "sys.exit", "os._exit", "quit")


def check_command(spec: JobSpec, on_slurm: bool, verb: str = "submit") -> tuple[str, ...]:
    """Return warnings about launchers that the script of ``spec`` starts. ``verb``: what the user typed.

    Raises ``BadInput`` if COMMAND is a batch script or a launcher. A launcher is allowed with ``--per-node``,
    and in a lone rank if it starts no second process.
    """
    many = spec.world_size > 1 and not spec.per_node
    launch = launch_in(spec.command)
    is_job = launch is not None and launch.program == "sbatch"
    if launch and launch.is_scheduler and not launch.overlaps and (on_slurm or many or is_job):
        if launch.program == "sbatch" and (name := _shell_batch_script(launch.command, spec.cwd)):
            raise _refusal(spec, name, launch.command, verb, launch.untranslated)
        if conversion := _of_wrap(launch, spec.cwd):
            problem = "'sbatch' as COMMAND asks Slurm for another job from inside the job of this run"
            raise BadInput(problem, batch_scripts.line_to_type(spec, conversion, verb))
        raise _refusal_of_launch(spec, launch, many, verb)
    if launch and not launch.is_scheduler and not spec.per_node and (many or not launch.starts_one):
        raise _refusal_of_launch(spec, launch, many, verb)
    if name := _shell_batch_script(spec.command, spec.cwd):
        text = text_of_script(os.path.join(spec.cwd, name))
        variable = _OF_A_RANK.search(text)
        if not (many and variable) or [*shell_launches(text)]:
            raise _refusal(spec, name, spec.command, verb)
        return (f"the #SBATCH lines of {name} are not read: it reads {variable[0]}, so each rank runs it",)
    if conversion := _python_batch_script(spec):
        script = _python_script(spec.command, spec.cwd)
        instead = batch_scripts.instead(spec, conversion, verb)
        notice = f"clusterrun does not read the batch options in {script[0]}: {instead}"
        has_size = spec.nodes > 1 or spec.gpus or spec.ranks_per_node or spec.per_node
        if not has_size and {"nodes", "gpus", "ranks-per-node"} & {name for name, _ in conversion.options}:
            raise batch_scripts.refuse(spec, script, conversion, verb)
        is_followed = conversion.command == script and not conversion.missing_in(spec)
        return (*(() if is_followed else (notice,)), *_in_script(spec, on_slurm, many, verb))
    if launch is None:
        return tuple(_in_script(spec, on_slurm, many, verb))
    line = _line_of_launch(spec, launch, verb)
    if spec.per_node or launch.is_scheduler or not line:
        return ()
    omitted = _not_in_line(launch, "; ")
    if ("gpus", "1") in conversion_of((), launch).missing_in(spec):
        return (f"{launch.program} is not needed, and no option asks for its GPU: instead {line}{omitted}",)
    return (f"{launch.program} is not needed: {line} starts the same{omitted}",)


def _shell_batch_script(command: tuple[str, ...], cwd: str) -> str:
    """Return the batch script that ``command`` runs by a shell; '' for other commands."""
    command = unwrapped(command)
    name = shell_script(command) if command and not _python_script(command, cwd) else ""
    if not name or name == "-m" or name.endswith(".py"):
        return ""
    return name if read_directives(text_of_script(os.path.join(cwd, name))) else ""


def _of_wrap(launch: LaunchCommand, cwd: str) -> Conversion | None:
    """Return the conversion of ``sbatch --wrap TEXT``; None for other commands."""
    options = [shlex.split(option) for option in launch.untranslated]
    wrapped = [option for option in options if option[0].partition("=")[0] == "--wrap"]
    if not wrapped:
        return None
    text = wrapped[-1][0].partition("=")[2] or wrapped[-1][-1]
    others = " ".join(shlex.join(option) for option in options if option not in wrapped)
    return _converted(f"#!/bin/sh\n#SBATCH {others}\n{text}\n", cwd, ())


def _refusal(
    spec: JobSpec, name: str, command: tuple[str, ...], verb: str, options: tuple[str, ...] = ()
) -> BadInput:
    """Return the refusal of the batch script ``name``, which ``command`` runs with its arguments.

    ``options``: those of the command line of sbatch, which override the script's.
    """
    arguments = command[command.index(name) + 1 :]
    conversion = _conversion(name, spec.cwd, arguments, options)
    return batch_scripts.refuse(spec, (name, *arguments), conversion, verb)


def _conversion(name: str, cwd: str, arguments: tuple[str, ...], options: tuple[str, ...]) -> Conversion:
    text = text_of_script(os.path.join(cwd, name))
    if options:
        # On the line of the last directive, so that the numbers of lines stay.
        lines = text.split("\n")
        last = read_directives(text)[-1].line - 1
        lines[last] = " ".join((re.sub(r"\s#.*", "", lines[last]), *options))
        text = "\n".join(lines)
    return _converted(text, cwd, arguments)


def _converted(text: str, cwd: str, arguments: tuple[str, ...]) -> Conversion:
    try:
        from clusterrun.script.conversion import convert  # loads a parser
    except ImportError:  # the extra ``convert`` is absent
        launches = [launch for _, launch in shell_launches(text) if launch.command]
        launch = launches[-1] if launches else LaunchCommand("")
        return conversion_of(read_directives(text), launch)
    return convert(text, lambda path: text_of_script(os.path.join(cwd, path)), arguments)


def _line_of_launch(spec: JobSpec, launch: LaunchCommand, verb: str) -> str:
    """Return the line to type for ``launch`` as the command of ``spec``; '' if its program is unknown."""
    if not launch.command:
        return ""
    if spec.ranks_per_node:
        launch = replace(launch, on_cpus=True)
        # ``--gpus 0`` alone is one rank; the launcher says how many.
        spec = replace(spec, ranks_per_node=spec.ranks_per_node if spec.ranks_per_node > 1 else 0)
    return batch_scripts.line(spec, conversion_of((), launch), verb)


def _not_in_line(launch: LaunchCommand, separator: str = "\n") -> str:
    """Return what the line of `_line_of_launch` lacks, after ``separator``; '' if it lacks nothing."""
    lacking = [*launch.untranslated, *launch.remarks]
    per_node = launch.per_node or launch.gpus_per_node
    if per_node and launch.total not in (0, per_node * max(launch.nodes, 1)):
        lacking.append(f"{launch.program} starts {launch.total} processes")
    return f"{separator}not in that line: {'; '.join(lacking)}" if lacking else ""


def _refusal_of_launch(spec: JobSpec, launch: LaunchCommand, many: bool, verb: str) -> BadInput:
    """Return the refusal of ``launch`` as COMMAND. ``many``: more than one process would start it."""
    name = launch.program
    if launch.is_scheduler:
        problem = f"{name!r} as COMMAND asks Slurm for another job or step from inside the job of this run"
    elif many:
        problem = f"{name!r} as COMMAND: each rank would start it, and each {name} would train a copy"
    else:
        problem = f"{name!r} as COMMAND starts several ranks, and this run has one"
    line = _line_of_launch(spec, launch, verb)
    remedy = "clusterrun starts the ranks itself: " + (line or "name the program that it starts")
    remedy += _not_in_line(launch) if line else ""
    if not launch.is_scheduler:
        remedy += "\nto keep the launcher, start it once per node: --per-node (clusterrun help frameworks)"
    return BadInput(problem, remedy)


def _python_batch_script(spec: JobSpec) -> Conversion | None:
    """Return the conversion of the Python script with ``#SBATCH`` lines that COMMAND runs; None for others.

    Its command is the training script that it starts, or the script itself if it starts none.
    """
    python = _python_script(spec.command, spec.cwd)
    source = text_of_script(os.path.join(spec.cwd, python[0])) if python else ""
    directives = read_directives(source)
    if not directives:
        return None
    start = LaunchCommand("", command=python)  # sbatch starts it once
    for _, launch in _python_launches(source):
        trains = launch.command[:1] == ("-m",) or "".join(launch.command[:1]).endswith(".py")
        if trains and (launch.is_scheduler or not spec.per_node):
            start = launch
    return conversion_of(directives, start)


def _python_script(command: tuple[str, ...], cwd: str) -> tuple[str, ...]:
    """Return the Python script that ``command`` runs, and its arguments; () for other commands."""
    call = interpreter_call(command)
    if call and call.is_python:
        return (call.script, *call.arguments) if call.script else ()
    if not command or command[0] == "-m":
        return ()
    if command[0].endswith(".py"):
        return command
    first_line = text_of_script(os.path.join(cwd, command[0])).partition("\n")[0]
    return command if first_line.startswith("#!") and "python" in first_line else ()


def _python_launches(source: str) -> tuple[tuple[int, LaunchCommand], ...]:
    if not any(name in source for name in (*SCHEDULERS, *PROGRAMS, *MODULES)):
        return ()  # parsing a long script is slow
    try:
        return tuple(python_launches(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _in_script(spec: JobSpec, on_slurm: bool, many: bool, verb: str) -> Iterator[str]:
    """Yield a warning for each launcher that the script or the shell line of COMMAND starts."""
    command = unwrapped(spec.command) or spec.command
    inline = inline_text(command)
    python = _python_script(command, spec.cwd)
    name = python[0] if python else shell_script(command)
    text = inline or (text_of_script(os.path.join(spec.cwd, name)) if name and name != "-m" else "")
    recipe_file, recipes = recipe_lines(command, spec.cwd)
    name, text = (recipe_file, recipes) if recipe_file else (name, text)
    is_shell = bool(inline) or name != command[0]
    is_shell = is_shell or name.endswith(".sh") or (text.startswith("#!") and "sh" in text.partition("\n")[0])
    launches: Iterable[tuple[int, LaunchCommand]] = ()
    if python:
        launches = _python_launches(text)
        if many:
            yield from in_python(name, text)
    elif is_shell:
        launches = shell_launches(text)
    launches = tuple(launches)
    has_own_file = bool(launches) and is_shell and not (python or inline or recipe_file)
    line_of_script = _line_of_script(spec, name, command, verb) if has_own_file else ""
    for number, launch in launches:
        where = "the shell line" if inline else f"{name}, line {number}"
        line = _line_of_launch(spec, launch, verb)
        remedy = f": instead {line}{_not_in_line(launch, '; ')}" if line else ""
        if line and line_of_script:
            remedy = f": {line_of_script}"
        if launch.program == "sbatch" and launch.command and on_slurm:
            yield f"{where} queues another job: clusterrun convert {launch.command[0]} prints its line"
        elif launch.is_scheduler and on_slurm and not launch.overlaps:
            yield f"{where} calls {launch.program} inside the job of this run, whose nodes are in use{remedy}"
        elif not launch.is_scheduler and not spec.per_node and (many or not launch.starts_one):
            message = f"{where} starts {launch.program}, which starts ranks of its own, in every rank"
            yield f"{message}{remedy or ': start it once per node with --per-node'}"


def _line_of_script(spec: JobSpec, name: str, command: Sequence[str], verb: str) -> str:
    """Return the advice to type the line for the shell script ``name``; '' if it is no single run."""
    with suppress(BadInput):
        conversion = _conversion(name, spec.cwd, tuple(command[command.index(name) + 1 :]), ())
        if conversion.command:
            return batch_scripts.instead(spec, conversion, verb)
    return ""


def in_python(name: str, source: str) -> Iterator[str]:
    """Yield a warning for each place in a Python script that starts ranks itself.

    It also warns of a place that leaves the script if too few GPUs are visible.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for sentence in _of_call(node):
                yield f"{name}, {sentence}"
        elif isinstance(node, ast.If) and _leaves_without_gpus(node):
            leaves = f"{name}, line {node.lineno} leaves the script if it sees too few GPUs"
            yield f"{leaves}: a rank sees the GPUs of its node, and with --gpus 0 none"


def _of_call(call: ast.Call) -> Iterator[str]:
    name = _name(call.func)
    last = name.rpartition(".")[2]
    module = name.rpartition(".")[0]
    # ``mp.spawn`` and ``torch.multiprocessing.spawn``, not the ``spawn`` of another module.
    is_multiprocessing = module in ("", "mp") or module.endswith(("multiprocessing", "xmp"))
    if last in STARTERS and (last != "spawn" or is_multiprocessing):
        calls = f"line {call.lineno} calls {name}(): it starts ranks of its own in every rank"
        yield f"{calls}: call what it starts, or start the script once per node with --per-node"


def _leaves_without_gpus(node: ast.If) -> bool:
    if not _GPUS.search(ast.unparse(node.test)):
        return False
    calls = (inner for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.Call))
    return any(_name(call.func) in _LEAVES for call in calls)


def _name(function: ast.expr) -> str:
    try:
        return ast.unparse(function)
    except (ValueError, RecursionError):
        return ""
