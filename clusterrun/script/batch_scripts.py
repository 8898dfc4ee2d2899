"""Reads a batch script (a file with ``#SBATCH`` lines) and writes the submit line that asks for the same."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.option_table import CONFIGURABLE
from clusterrun.model.spec import UNSAID, JobSpec
from clusterrun.script import submit_again
from clusterrun.script.launch_commands import LaunchCommand, shell_launches
from clusterrun.script.sbatch_table import OPTIONS, full_name, option_of_letter

_SIZES = ("nodes", "ntasks", "ntasks-per-node", "tasks-per-node", "cpus-per-task", "cpus-per-gpu")
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
# Directives without use: clusterrun keeps the output itself, and exports the environment.
_NEEDLESS = ("output", "error", "open-mode", "parsable", "export", "quiet", "verbose", "wait")
_PYTHON_LINE = re.compile(r"\s*(?:python[\d.]*)\s+(?:-[uOBE]\s+)*(-m\s+\S+|\S+\.py)(.*)", re.ASCII)


@frozen
class BatchScript:
    """A batch script of the user."""

    # Path as the user typed it.
    path: str
    # (long name, value) of each option on an ``#SBATCH`` line, in their order.
    directives: tuple[tuple[str, str], ...]
    # The last command that starts ranks, or the last Python command; None if there is none.
    launch: LaunchCommand | None
    # Whether it is a Python script, which clusterrun can run as COMMAND.
    is_python: bool = False


def batch_script(path: str, text: str) -> BatchScript | None:
    """Return the batch script in ``text``; None if it has no directive before its first command."""
    directives: list[tuple[str, str]] = []
    for line in text.replace("\r", "").split("\n"):
        if line.startswith("#SBATCH"):
            directives += _read_directive(line[len("#SBATCH") :])
        elif line.strip() and not line.startswith("#"):
            break
    if not directives:
        return None
    launches = [launch for _, launch in shell_launches(text) if launch.command]
    return BatchScript(path, tuple(directives), launches[-1] if launches else _python_line(text))


def _read_directive(text: str) -> list[tuple[str, str]]:
    try:
        arguments = shlex.split(text, comments=True)
    except ValueError:
        arguments = text.split()
    options = []
    while arguments:
        word = arguments.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            option = OPTIONS.get(full_name(name))
        elif len(word) > 1 and word.startswith("-"):
            option = option_of_letter(word[1])
            name, equals, value = word[1], word[2:], word[2:].removeprefix("=")
        else:
            continue
        if not equals and option is not None and option.takes == "required" and arguments:
            value = arguments.pop(0)
        options.append((option.name if option else name, value))
    return options


def _python_line(text: str) -> LaunchCommand | None:
    lines = [match for line in text.split("\n") if (match := _PYTHON_LINE.match(line))]
    if not lines:
        return None
    try:
        return LaunchCommand("python", command=tuple(shlex.split(lines[-1][1] + lines[-1][2], comments=True)))
    except ValueError:
        return None


def refuse(spec: JobSpec, script: BatchScript, verb: str = "submit") -> BadInput:
    """Return the refusal of a batch script as COMMAND, with the line to type instead."""
    problem = (
        f"{script.path!r} is a batch script: each rank would run it, and its #SBATCH lines have no effect"
    )
    line, notes = instead(spec, script, verb)
    remedy = f"clusterrun writes the batch script itself; give it the program and the options:\n  {line}\n"
    remedy += "other lines of the script (module load, source, export) go into --setup 'LINE'"
    remedy += "".join(f"\nnot in that line: {note}" for note in notes)
    remedy += f"\nor queue it as it is: sbatch {shlex.quote(script.path)}"
    return BadInput(problem, remedy)


def notice(spec: JobSpec, script: BatchScript, verb: str = "submit") -> str:
    """Return the notice about a Python script with ``#SBATCH`` lines as COMMAND, with the line to type."""
    line, notes = instead(spec, script, verb)
    omitted = "".join(f"; not in that line: {note}" for note in notes)
    return f"clusterrun does not read the #SBATCH lines of {script.path}: instead {line}{omitted}"


def instead(spec: JobSpec, script: BatchScript, verb: str) -> tuple[str, list[str]]:
    """Return the submit line for ``script``, and notes on the options that the line omits.

    Options before COMMAND take precedence over directives.
    """
    values = dict(script.directives)
    launch = script.launch or LaunchCommand("")
    nodes = _number(values.get("nodes", "")) or launch.nodes or 1
    tasks_per_node = _number(values.get("ntasks-per-node", values.get("tasks-per-node", "")))
    tasks_per_node = tasks_per_node or _number(values.get("ntasks", "")) // nodes or launch.total // nodes
    gpus = _gpus_per_node(values, nodes, tasks_per_node)
    per_node = max(gpus, tasks_per_node, launch.per_node)
    options: dict[str, str] = {}
    if values.get("nodes"):
        options["nodes"] = values["nodes"]
    elif nodes > 1:
        options["nodes"] = str(nodes)
    if gpus:
        kinds = [re.search(r"(\w+):\d+(?:,|$)", values.get(name, "")) for name in _GPUS]
        kind = next((match[1] for match in kinds if match and match[1] != "gpu"), "")
        options["gpus"] = f"{kind}:{per_node}" if kind else str(per_node)
    elif per_node > 1:
        options["ranks-per-node"] = str(per_node)
    if cpus := _number(values.get("cpus-per-task", "")):
        options["cpus-per-rank"] = str(max(1, cpus * max(tasks_per_node, 1) // max(per_node, 1)))
    elif cpus := _number(values.get("cpus-per-gpu", "")):
        options["cpus-per-rank"] = str(cpus)
    passed_on: list[str] = []
    notes = list(launch.omitted)
    for name, value in script.directives:
        ours = "name" if name == "job-name" else name
        if name in (*_SIZES, *_NEEDLESS) or (name in _GPUS and (name != "gres" or value.startswith("gpu"))):
            continue
        if ours in CONFIGURABLE:
            options[ours] = value
        elif name in OPTIONS and OPTIONS[name].refused:
            notes.append(f"--{name} ({OPTIONS[name].refused})")
        else:
            passed_on += ["--sbatch", f"{name}={value}" if value else name]
    plain = JobSpec(spec.command, spec.cwd)
    arguments: list[str] = []
    for name, value in options.items():
        field = CONFIGURABLE[name].field
        if getattr(spec, field) == getattr(plain, field):
            arguments += [f"--{name}", value] if value else [f"--{name}"]
    if launch.max_restarts and spec.max_restarts == UNSAID:
        arguments += ["--max-restarts", str(launch.max_restarts)]
    command = [word for word in launch.command if word not in ("$@", "$*")] or ["COMMAND"]
    environment = (*spec.environment, *launch.environment)
    per_node_asked = spec.per_node and script.is_python
    spec = replace(spec, command=("COMMAND",), per_node=per_node_asked, environment=environment)
    typed = submit_again.line(spec, verb, with_values=True).removesuffix(" COMMAND")
    return f"{typed} {shlex.join((*arguments, *passed_on, *command))}", notes


def _gpus_per_node(values: dict[str, str], nodes: int, tasks_per_node: int) -> int:
    gres = values.get("gres", "")
    if gres.startswith("gpu"):
        return _number(gres.partition(",")[0]) or 1
    if "gpus-per-node" in values:
        return _number(values["gpus-per-node"])
    if "gpus-per-task" in values:
        return _number(values["gpus-per-task"]) * max(tasks_per_node, 1)
    return -(-_number(values.get("gpus", "")) // nodes)


def _number(value: str) -> int:
    """Return the number at the end of ``4``, ``a100:4`` or ``2-4``; 0 for anything else."""
    match = re.search(r"(?:^|[:-])(\d+)$", value)
    return int(match[1]) if match else 0


def script_of(command: Sequence[str], shells: Sequence[str]) -> str:
    """Return the file that a shell runs for ``command`` (``job.sh``, ``bash -x job.sh``); '' for
    ``-c``, ``-s``.
    """
    if os.path.basename(command[0]) not in shells:
        return command[0]
    arguments = list(command[1:])
    while arguments and arguments[0][:1] in ("-", "+"):
        if set("cs") & set(arguments[0]) and not arguments[0].startswith("--"):
            return ""
        arguments = (
            arguments[2:]
            if arguments[0] in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file")
            else arguments[1:]
        )
    return arguments[0] if arguments else ""
