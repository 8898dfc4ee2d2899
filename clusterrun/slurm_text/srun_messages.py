"""Reads what srun prints about the nodes that it starts tasks on; pure."""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold

HELD_SECONDS = 100
"""How long a step waits for what another one holds: then srun says so, while agents are still waited for."""
BESIDE_SECONDS = 2
"""A step beside those that live has all at once or, where Slurm lets steps share no GPU (before 22.05), not
while they live."""
OF_MEMORY = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU")
"""What the job got: a step that asks for it as well waits, before 22.05, for another that has it."""


def step_on(options: Sequence[str], nodes: Sequence[str], seconds: int) -> list[str]:
    """srun's options ``words`` for a step on these nodes alone, beside what lives there, or for none at once.

    Of two options alike the last one holds, so the node list of ``words`` goes.
    """
    counted = {option: f"{option}{len(nodes)}" for option in ("--nodes=", "--ntasks=")}
    own = [counted.get(word[: word.find("=") + 1], word) for word in options]
    own = [word for word in own if not word.startswith("--nodelist=")]
    return ["--overlap", f"--immediate={seconds}", f"--nodelist={fold(nodes)}", *own]


def words_on(name: str, lines: Sequence[str]) -> list[str]:
    return [line for line in lines if name in line or name in _named(line)[0]]


def ended_on(name: str, lines: Sequence[str]) -> bool:
    """A line says that the agent on this node ended: so the node answers."""
    return any(name in names and what.startswith("task") for names, what in map(_named, lines))


def unreached(lines: Sequence[str]) -> set[str]:
    """The nodes of which a line says that no task could be launched there."""
    return {line.partition(" failed on node ")[2].partition(":")[0] for line in lines} - {""}


def held(lines: Sequence[str]) -> bool:
    """Whether no step was created because another holds its resources; that says nothing about a node."""
    return any("Unable to create step" in line and "Requested nodes are busy" in line for line in lines)


def _named(line: str) -> tuple[tuple[str, ...], str]:
    """The nodes an srun's line begins with, and the rest: ``srun: error: n[1-2]: tasks 0-1: Exited …``."""
    names, _, what = line.partition("srun: error: ")[2].partition(": ")
    try:
        return expand(names), what
    except BadInput:
        return (), ""
