"""Detects launchers inside the ranks: in COMMAND, in a shell script, in a Python script; runs no code of
them.

Every rank runs the same command. A command that starts ranks creates a separate world in each rank. A
script that exits if it sees too few GPUs does so in every rank.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from clusterrun.model.spec import JobSpec
from clusterrun.script import batch_scripts, launch_commands
from clusterrun.script.launch_commands import PROGRAMS, SHELLS, launch_in, shell_launches

STARTERS = ("spawn", "start_processes", "elastic_launch", "notebook_launcher", "launch_agent")
# Characters. A longer file is a program, or data.
MAX_SCRIPT = 1 << 18
_GPUS = re.compile(r"device_count|gpu_count|num_gpus|n_gpus", re.IGNORECASE)
_LEAVES = ("exit", "sys.exit", "os._exit", "quit")


def check_command(spec: JobSpec, on_slurm: bool, verb: str = "submit") -> tuple[str, ...]:
    """Return warnings about launchers that the script of ``spec`` starts. ``verb``: what the user typed.

    Raises ``BadInput`` if COMMAND is a batch script or a launcher. A launcher is allowed with ``--per-node``,
    and in a lone rank if it starts no second process.
    """
    many = spec.world_size > 1 and not spec.per_node
    launch = launch_in(spec.command)
    if launch and launch.is_scheduler and not launch.overlaps and (on_slurm or many):
        script = _batch_script(launch.command, spec.cwd) if launch.program == "sbatch" else None
        raise (
            batch_scripts.refuse(spec, script, verb)
            if script
            else launch_commands.refuse(spec, launch, many, verb)
        )
    if launch and not launch.is_scheduler and not spec.per_node and (many or not launch.starts_one):
        raise launch_commands.refuse(spec, launch, many, verb)
    if script := _batch_script(spec.command, spec.cwd):
        raise batch_scripts.refuse(spec, script, verb)
    if launch is None:
        return tuple(_in_shell_script(spec, on_slurm, many, verb))
    line = launch_commands.instead(spec, launch, verb)
    if spec.per_node or launch.is_scheduler or not line:
        return ()
    return (f"{launch.program} is not needed: {line} starts the same",)


def _batch_script(command: tuple[str, ...], cwd: str) -> batch_scripts.BatchScript | None:
    name = batch_scripts.script_of(command, SHELLS) if command else ""
    if not name or name == "-m" or name.endswith(".py"):
        return None
    return batch_scripts.batch_script(name, _text(name, cwd))


def _text(name: str, cwd: str) -> str:
    """Return the text of a script; '' for other files, such as a compiled program."""
    path = os.path.join(cwd, name)
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_SCRIPT)
    except OSError:
        return ""
    return "" if "\0" in text else text


def _in_shell_script(spec: JobSpec, on_slurm: bool, many: bool, verb: str) -> Iterator[str]:
    name = batch_scripts.script_of(spec.command, SHELLS)
    if name == "-m" or name.endswith(".py"):
        return
    inline = launch_commands.inline_text(spec.command)
    is_inline = bool(inline)
    text = inline or (_text(name, spec.cwd) if name else "")
    is_shell = (
        is_inline or name != spec.command[0] or (text.startswith("#!") and "sh" in text.partition("\n")[0])
    )
    for number, launch in shell_launches(text) if is_shell else ():
        where = "the shell line" if is_inline else f"{name}, line {number}"
        line = launch_commands.instead(spec, launch, verb)
        remedy = f": instead {line}" if line else ""
        if launch.is_scheduler and on_slurm and not launch.overlaps:
            yield f"{where} calls {launch.program} inside the job of this run, whose nodes are in use{remedy}"
        elif not launch.is_scheduler and many:
            each = f"{where} starts {launch.program}, which starts ranks by itself, in every rank"
            yield f"{each}{remedy or ': start it once per node with --per-node'}"


def in_python(name: str, source: str) -> Iterator[str]:
    """Yield a sentence for each place in a Python script that starts ranks, or leaves without GPUs."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for sentence in _of_call(node):
                yield f"{name}, {sentence}"
        elif isinstance(node, ast.If) and _leaves_without_gpus(node):
            leaves = f"{name}, line {node.lineno} leaves the script where it sees too few GPUs"
            yield f"{leaves}: a rank sees the GPUs of its node, and with --gpus 0 none"


def _of_call(call: ast.Call) -> Iterator[str]:
    name = _name(call.func)
    last = name.rpartition(".")[2]
    module = name.rpartition(".")[0]
    # ``mp.spawn`` and ``torch.multiprocessing.spawn``, not the ``spawn`` of another module.
    is_multiprocessing = module in ("", "mp") or module.endswith(("multiprocessing", "xmp"))
    if last in STARTERS and (last != "spawn" or is_multiprocessing):
        calls = f"line {call.lineno} calls {name}(): it starts ranks by itself, in every rank"
        yield f"{calls}: call what it starts, or start the script once per node with --per-node"
    first = call.args[0] if call.args and name.startswith(("subprocess.", "os.")) else None
    if isinstance(first, (ast.List, ast.Tuple)) and first.elts:
        first = first.elts[0]
    text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    program = os.path.basename(text.split()[0]) if text.strip() else ""
    if program in PROGRAMS:
        yield f"line {call.lineno} starts {program}, which starts ranks by itself, in every rank"


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
