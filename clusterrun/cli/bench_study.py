"""Builds a scaling study from the options and this machine, and measures it through one Runner."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from typing import Any

from clusterrun.bench import study_results as book
from clusterrun.bench.result import Table, build_table
from clusterrun.bench.runner import Runner
from clusterrun.bench.shape import THREADS, names_strategy, spec_of
from clusterrun.bench.sizes import count
from clusterrun.bench.study import (
    AS_IS,
    Cell,
    Growth,
    StudySubject,
    cells,
    read_strategies,
    read_worlds,
    worlds_up_to,
)
from clusterrun.bench.study_results import StudyResults
from clusterrun.cli.error_output import say
from clusterrun.model.contract import ExitCode
from clusterrun.model.errors import BadInput
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.spec import Cluster, JobSpec
from clusterrun.operations.context import Context, Tell
from clusterrun.runs.store import file_name
from clusterrun.shipped import folder

ON_SLURM = (1, 2, 4, 8)
"""Worlds where nothing says how large a node is."""


@frozen
class LocalMachine:
    """The machine, as far as the study runs on it; zeros where it runs on Slurm's nodes."""

    local: bool
    cores: int
    gpus: int


class Study:
    def __init__(
        self,
        context: Context,
        here: LocalMachine,
        subject: StudySubject,
        wanted: tuple[Cell, ...],
        own: dict[str, Any],
    ) -> None:
        self.subject = subject
        self.cells = wanted
        self.here = here
        self.name = own["study"] or f"{file_name(_called(subject.spec.command))}-{subject.digest}"
        self.path = book.path_of(context.store.home, file_name(self.name))
        self.repeats: int = own["repeats"]
        self.parameters = round(count(own["parameters"], "--parameters")) if own["parameters"] else 0
        self._probes = not own["no_probe"]
        fresh = StudyResults(shlex.join(subject.spec.command), subject.digest, subject.growth.value)
        known = fresh if own["fresh"] else book.open_results(self.path, fresh)
        self.runner = Runner(subject, self.path, known, context, say)

    def left(self) -> list[tuple[Cell, int]]:
        return self.runner.left(self.cells, self.repeats)

    def crowded(self) -> str:
        """Why the largest world is too large for this machine; empty if it is not, or is elsewhere."""
        threads = max(1, self.subject.spec.cpus_per_rank)
        most = max(cell.world for cell in self.cells)
        if not self.here.local or self.subject.spec.gpus or most * threads <= self.here.cores:
            return ""
        need = f"{most} ranks × {threads} cores" if threads > 1 else f"{most} ranks"
        return f"{need} are more than the {self.here.cores} cores of this machine, which they would share"

    def measure(self, tell: Tell) -> None:
        if not self.left():
            tell(f"everything was measured before: {self.path} (--fresh measures anew)")
            return
        self.runner.check(self.cells, self.repeats)
        if self._probes:
            self.runner.probe(self._probe(), tuple(cell.world for cell in self.cells if not cell.one_process))
        self.runner.measure(self.cells, self.repeats)

    def _probe(self) -> JobSpec:
        """The short job, on the largest world that can be run."""
        script = os.path.join(folder("jobs"), "allreduce.py")
        worlds = sorted({cell.world for cell in self.cells if not self._planned(cell)[1]})
        groups = ",".join(str(world) for world in worlds if world > 1) or "1"
        command = (script, "--groups", groups)
        plain = replace(self.subject, spec=replace(self.subject.spec, command=command), reference=False)
        return replace(spec_of(plain, Cell(AS_IS, worlds[-1])), name="all-reduce")

    def table(self) -> Table:
        spec = self.subject.spec
        devices, threads = spec.gpus or spec.ranks_per_node, max(1, spec.cpus_per_rank)
        return build_table(self.runner.results, self.cells, devices, threads, self.parameters)

    def shown(self, as_json: bool) -> int:
        crowded = self.crowded()
        if crowded:
            say(f"notice: {crowded}")
        say(f"would measure {len(self.left())} runs and keep them in {self.path}")
        planned = [(cell, *self._planned(cell)) for cell in self.cells]
        if as_json:
            rows = [{"configuration": cell.name, "command": w, "refused": no} for cell, w, no in planned]
            print(json.dumps(rows))
        else:
            print("\n".join(f"{c.name}: {f'refused: {no}' if no else shlex.join(w)}" for c, w, no in planned))
        return ExitCode.DONE

    def _planned(self, cell: Cell) -> tuple[tuple[str, ...], str]:
        try:
            return spec_of(self.subject, cell).command, ""
        except BadInput as error:
            return (), error.seen


def prepared(
    context: Context, spec: JobSpec, script: str | None, words: tuple[str, ...], own: dict[str, Any]
) -> Study:
    command = _command(script, words)
    reference = _is_reference(command[0], spec.cwd)
    here = _local_machine(context, spec)
    spec = _placed(replace(spec, command=command), here, context)
    content, gpus = _content(command[0], spec.cwd), here.gpus if here.local else -1
    subject = StudySubject(spec, Growth(own["growth"]), reference, content, gpus)
    strategies = _strategies(own["strategies"], subject)
    worlds = read_worlds(own["worlds"]) if own["worlds"] else _worlds(spec, here)
    return Study(context, here, subject, cells(strategies, worlds, spec.gpus), own)


def _command(script: str | None, words: tuple[str, ...]) -> tuple[str, ...]:
    """The command: ``--script`` and its arguments, or as in submit, or the shipped train.py."""
    if script:
        return (script, *words)
    if words and (words[0] == "-m" or not words[0].startswith("-")):
        return words
    return (os.path.join(folder("jobs"), "train.py"), *words)


def _is_reference(first: str, cwd: str) -> bool:
    """Whether it is the shipped train.py, wherever it lies."""
    shipped = os.path.join(folder("jobs"), "train.py")
    return first.endswith("train.py") and _content(first, cwd) == _content(shipped, cwd)


def _content(first: str, cwd: str) -> str:
    try:
        with open(os.path.join(cwd, first), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""  # a module, a program on PATH, or a mistake that submitting will name


def _local_machine(context: Context, spec: JobSpec) -> LocalMachine:
    from clusterrun.local.gpus import count_gpus

    if spec.cluster is not Cluster.LOCAL and not context.client().why_not():
        return LocalMachine(False, 0, 0)
    return LocalMachine(True, len(os.sched_getaffinity(0)), count_gpus(context.environ))


def _placed(spec: JobSpec, here: LocalMachine, context: Context) -> JobSpec:
    """With the devices of this machine by default, and as many threads for every CPU rank."""
    if here.local:
        spec = replace(spec, cluster=Cluster.LOCAL)
    if here.local and here.gpus and not spec.gpus and not spec.ranks_per_node:
        say(f"this machine has {here.gpus} GPU{'s' if here.gpus > 1 else ''}: they are measured")
        return replace(spec, gpus=here.gpus)
    said = {*context.environ, *(name for name, _ in spec.environment)}
    if spec.gpus or THREADS in said:
        return spec
    # A lone rank would take all cores and several one each: then one device would be no measure.
    return replace(spec, environment=(*spec.environment, (THREADS, str(max(1, spec.cpus_per_rank)))))


def _strategies(asked: str | None, subject: StudySubject) -> tuple[str, ...]:
    """What to compare; a script that cannot be told its strategy has none. Raises ``BadInput``."""
    if asked is None:
        return ("single", "dp", "ddp") if subject.reference else (AS_IS,)
    wanted = read_strategies(asked, subject.reference)
    if not subject.reference and not names_strategy(subject.spec):
        seen = f"--strategies {asked}: the script is not told which one it runs"
        raise BadInput(seen, "put {strategy} among its arguments, or in an --env NAME={strategy}")
    return wanted


def _worlds(spec: JobSpec, here: LocalMachine) -> tuple[int, ...]:
    said = spec.gpus or spec.ranks_per_node
    return worlds_up_to(said or here.cores) if said or here.local else ON_SLURM


def _called(command: tuple[str, ...]) -> str:
    first = command[1] if command[0] == "-m" and len(command) > 1 else command[0]
    return os.path.basename(first).removesuffix(".py") or sys.argv[0]
