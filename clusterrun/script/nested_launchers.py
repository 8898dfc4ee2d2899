"""Finds launchers inside our launcher, in a command line and a script's text: pure, runs nothing.

Every rank is started with the same command: what starts ranks by itself would start a world of its
own in each of them, and a script that leaves where it sees too few GPUs does so in every rank.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence

PROGRAMS = ("torchrun", "accelerate", "deepspeed", "colossalai", "mpirun", "mpiexec", "horovodrun")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
SCHEDULERS = ("srun", "sbatch")
STARTERS = ("spawn", "start_processes", "elastic_launch", "notebook_launcher", "launch_agent")
_GPUS = re.compile(r"device_count|gpu_count|num_gpus|n_gpus", re.IGNORECASE)
_LEAVES = ("exit", "sys.exit", "os._exit", "quit")


def found(argv: Sequence[str], source: str = "") -> tuple[str, ...]:
    """Sentences about launchers in ``argv`` (as typed) and in the script's ``source``.

    Not for a command that is started once per node: that is what launchers are for.
    """
    name = os.path.basename(argv[0])
    return (*_in_command(argv), *(f"{name}, {said}" for said in _in_source(source)))


def _in_command(argv: Sequence[str]) -> Iterator[str]:
    name = os.path.basename(argv[0])
    starts = name in PROGRAMS and (name != "accelerate" or "launch" in argv[1:3])
    module = argv[1] if argv[0] == "-m" and len(argv) > 1 else ""
    if name.startswith("python") and "-m" in argv[:-1]:
        module = argv[list(argv).index("-m") + 1]
    if starts or module in MODULES:
        starts_them = f"{module or name} starts ranks by itself, and every rank would start it"
        yield f"{starts_them}: name the script alone, or start it once per node with --per-node"
    elif name in SCHEDULERS:
        yield f"{name} inside a rank would start the job in the job: name the script alone"


def _in_source(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.If) and _leaves_without_gpus(node):
            leaves = f"line {node.lineno} leaves the script where it sees too few GPUs"
            yield f"{leaves}: a rank sees the GPUs of its node, and with --gpus 0 none"


def _of_call(call: ast.Call) -> Iterator[str]:
    name = _name(call.func)
    last = name.rpartition(".")[2]
    if last in STARTERS and (last != "spawn" or _of_multiprocessing(name)):
        calls = f"line {call.lineno} calls {name}(): it starts ranks by itself, in every rank"
        yield f"{calls}: call what it starts, or start the script once per node with --per-node"
    words = _first_strings(call.args[:1]) if name.startswith(("subprocess.", "os.")) else []
    program = next((os.path.basename(word.split()[0]) for word in words if word.strip()), "")
    if program in PROGRAMS:
        yield f"line {call.lineno} starts {program}, which starts ranks by itself, in every rank"


def _of_multiprocessing(name: str) -> bool:
    """``mp.spawn`` and ``torch.multiprocessing.spawn``, not the ``spawn`` of something else."""
    before = name.rpartition(".")[0]
    return before in ("", "mp") or before.endswith(("multiprocessing", "xmp"))


def _first_strings(items: list[ast.expr]) -> list[str]:
    """The first argument, or the first item of it, where it is a text."""
    if items and isinstance(items[0], (ast.List, ast.Tuple)):
        items = items[0].elts[:1]
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]


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
