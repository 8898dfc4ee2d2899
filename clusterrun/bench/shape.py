"""From a configuration to the spec of its run: nodes, ranks, the script's arguments; pure."""

from __future__ import annotations

import re

from clusterrun.bench.study import AS_IS, STARTS_ITS_RANKS, Cell, Growth, StudySubject
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.spec import JobSpec

# The default global batch of train.py.
REFERENCE_BATCH = 64
THREADS = "OMP_NUM_THREADS"
_PLACEHOLDER = re.compile(r"\{(?:(strategy)|(world)|(\d+)([*/])world)\}")


@frozen
class Shape:
    """Nodes, and devices on each."""

    nodes: int
    each: int


def shape(world: int, per_node: int) -> Shape:
    """Return how a world fits nodes of ``per_node`` devices (0: any number fits). Raises ``BadInput``."""
    if not per_node or world <= per_node:
        return Shape(1, world)
    if world % per_node:
        raise BadInput(
            f"a world of {world} does not fill nodes of {per_node} ranks",
            f"take worlds up to {per_node}, or multiples of {per_node}",
        )
    return Shape(world // per_node, per_node)


def spec_of(subject: StudySubject, cell: Cell) -> JobSpec:
    """Return the run that measures ``cell``. Raises ``BadInput`` for a world that the nodes cannot hold."""
    base = subject.spec
    laid = shape(cell.world, base.gpus or base.ranks_per_node)
    is_one_process = cell.one_process or cell.strategy == STARTS_ITS_RANKS
    if is_one_process and laid.nodes > 1:
        raise BadInput(
            f"{cell.strategy} is one process on one machine, and a world of {cell.world} takes {laid.nodes}"
        )
    if base.gpus and 0 <= subject.gpus_here < cell.world:
        raise BadInput(f"a world of {cell.world} GPUs: this machine has {subject.gpus_here}")
    return replace(
        base,
        command=command(subject, cell),
        environment=tuple((name, fill_placeholders(value, cell)) for name, value in base.environment),
        nodes=laid.nodes,
        gpus=laid.each if base.gpus else 0,
        ranks_per_node=0 if base.gpus else (1 if cell.one_process else laid.each),
        per_node=cell.world > 1 and is_one_process,
    )


def command(subject: StudySubject, cell: Cell) -> tuple[str, ...]:
    """Return the command of ``cell`` with its placeholders filled in, and the options of train.py."""
    arguments = tuple(fill_placeholders(word, cell) for word in subject.spec.command)
    return arguments + train_options(subject, cell, arguments) if subject.reference else arguments


def train_options(subject: StudySubject, cell: Cell, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the options that make train.py run ``cell``. They come last, since the last of two counts."""
    options: list[str] = []
    if cell.strategy != AS_IS:
        options += ["--strategy", cell.strategy]
    if cell.strategy == STARTS_ITS_RANKS:
        options += ["--ranks", str(cell.world)]
    batch = batch_size(arguments)
    if subject.growth is Growth.WEAK and batch:
        options += ["--batch-size", str(batch * cell.world)]
    return tuple(options)


def batch_size(arguments: tuple[str, ...]) -> int:
    """Return the global batch that train.py gets; 0 if it finds one by itself."""
    text = str(REFERENCE_BATCH)
    for word, after in zip(arguments, (*arguments[1:], "")):
        if word == "--batch-size":
            text = after
        elif word.startswith("--batch-size="):
            text = word.partition("=")[2]
    return int(text) if text.isdecimal() else 0


def fill_placeholders(text: str, cell: Cell) -> str:
    """Return ``text`` with ``{strategy}``, ``{world}``, ``{64*world}`` and ``{64/world}`` filled in.

    Other braces do not change. Raise ``BadInput`` if a division leaves a rest.
    """

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return cell.strategy
        if match[2]:
            return str(cell.world)
        if match[4] == "*":
            return str(int(match[3]) * cell.world)
        share, rest = divmod(int(match[3]), cell.world)
        if rest or not share:
            raise BadInput(
                f"{match[0]}: {match[3]} cannot be divided by a world of {cell.world}",
                "take a number that every world divides",
            )
        return str(share)

    return _PLACEHOLDER.sub(value, text)


def names_strategy(spec: JobSpec) -> bool:
    """Return whether a placeholder passes the strategy to the script."""
    texts = (*spec.command, *(value for _, value in spec.environment))
    return any("{strategy}" in word for word in texts)
