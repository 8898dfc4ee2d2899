"""Parse srun's messages about the nodes of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterrun.model.errors import BadInput
from clusterrun.model.hostlist import expand, fold

# Seconds that a step waits for busy resources. Then srun reports it, before the join limit of the agents.
HELD_SECONDS = 100
# A step beside live ones starts at once. Before 22.05 Slurm shares no GPU between steps, so it may never
# start.
BESIDE_SECONDS = 2
# Variables of the job's memory. Before 22.05 a step that requests it again waits for the other step.
OF_MEMORY = ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU")
# A step whose processes were killed for their memory, by slurmstepd (``OverMemoryKill``) or by the kernel.
_MEMORY_KILL = re.compile(
    r"slurmstepd(?:-(\S+))?: error: .* (?:exceeded (?:virtual )?memory limit \(|oom[-_]kill event)"
    r"|srun: error: (\S+): tasks? [0-9,-]+: Out Of Memory"
)


def step_on(options: Sequence[str], nodes: Sequence[str], seconds: int) -> list[str]:
    """Return srun's ``options`` for a step on these nodes only, beside live steps, without waiting.

    The last of two equal options counts, so the node list in ``options`` is removed.
    """
    counted = {option: f"{option}{len(nodes)}" for option in ("--nodes=", "--ntasks=")}
    resized = (counted.get(option[: option.find("=") + 1], option) for option in options)
    arguments = [option for option in resized if not option.startswith("--nodelist=")]
    return ["--overlap", f"--immediate={seconds}", f"--nodelist={fold(nodes)}", *arguments]


def words_on(name: str, lines: Sequence[str]) -> list[str]:
    """Return the lines about a node. The line before the end of its task is what the task printed last."""
    lines_on_node: list[str] = []
    for before, line in zip(("", *lines), lines):
        names, event = _named(line)
        if name in line or name in names:
            is_output = event.startswith("task") and before and not before.startswith("srun: ")
            lines_on_node += [before, line] if is_output and before not in lines_on_node else [line]
    return lines_on_node


def ended_on(name: str, lines: Sequence[str]) -> bool:
    """Return whether a line reports the end of the agent on this node. The node is then reachable."""
    return any(name in names and message.startswith("task") for names, message in map(_named, lines))


def unreached(lines: Sequence[str]) -> set[str]:
    """Return the nodes on which no task could be launched, according to the lines."""
    return {line.partition(" failed on node ")[2].partition(":")[0] for line in lines} - {""}


def held(lines: Sequence[str]) -> bool:
    """Return whether no step was created because another one holds its resources.

    No node is to blame then.
    """
    return any("Unable to create step" in line and "Requested nodes are busy" in line for line in lines)


def lacks_nodes(lines: Sequence[str]) -> bool:
    """Return whether no step was created because Slurm took a node of the step out of the job."""
    refusal = "Requested node configuration is not available"
    return any("Unable to create step" in line and refusal in line for line in lines)


def failed_nodes(lines: Sequence[str]) -> list[str]:
    """Return the nodes that Slurm took out of the job because they failed."""
    names: list[str] = []
    for line in lines:
        try:
            names += expand(line.partition("srun: error: Node failure on ")[2].strip())
        except BadInput:
            pass
    return names


def memory_kill(line: str) -> str | None:
    """Return the node on which a step exceeded its memory, '' for an unnamed node; None for other lines."""
    match = _MEMORY_KILL.match(line)
    return (match[1] or match[2] or "") if match else None


def cancelled_step(lines: Sequence[str]) -> str:
    """Return the step that ``scancel JOB.STEP`` ended; '' if none. Slurm names other causes in the line.

    srun itself cancels a step if it does not reach a node, and Slurm does if the step exceeds its memory.
    """
    if unreached(lines) or any(memory_kill(line) is not None for line in lines):
        return ""
    ends = (re.search(r"\*\*\* STEP (\S+) ON \S+ CANCELLED AT \S+ \*\*\*", line) for line in lines)
    return next((end[1] for end in ends if end), "")


def _named(line: str) -> tuple[tuple[str, ...], str]:
    """Return the nodes at the start of a line of srun, and the rest of the line.

    ``srun: error: n[1-2]: tasks 0-1: Exited …``
    """
    names, _, message = line.partition("srun: error: ")[2].partition(": ")
    try:
        return expand(names), message
    except BadInput:
        return (), ""
