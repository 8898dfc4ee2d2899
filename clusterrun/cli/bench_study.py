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

# World sizes if the size of a node is not known.
ON_SLURM = (1, 2, 4, 8)


@frozen
class LocalMachine:
    """The size of this machine. All sizes are 0 if the study runs on Slurm's nodes."""

    local: bool  # the study runs on this machine
    cores: int
    gpus: int


class Study:
    def __init__(
        self,
        context: Context,
        machine: LocalMachine,
        subject: StudySubject,
        cells: tuple[Cell, ...],
        options: dict[str, Any],
    ) -> None:
        command = subject.spec.command
        program = command[1] if command[0] == "-m" and len(command) > 1 else command[0]
        script_name = os.path.basename(program).removesuffix(".py") or sys.argv[0]
        self.subject = subject
        self.cells = cells
        self.machine = machine
        self.name = options["study"] or f"{file_name(script_name)}-{subject.digest}"
        self.path = book.path_of(context.store.home, file_name(self.name))
        self.repeats: int = options["repeats"]
        self.parameters = round(count(options["parameters"], "--parameters")) if options["parameters"] else 0
        self._probes = not options["no_probe"]
        fresh = StudyResults(shlex.join(subject.spec.command), subject.digest, subject.growth.value)
        results = fresh if options["fresh"] else book.open_results(self.path, fresh)
        self.runner = Runner(subject, self.path, results, context, say)

    def remaining(self) -> list[tuple[Cell, int]]:
        return self.runner.left(self.cells, self.repeats)

    def crowded(self) -> str:
        """Return why the largest world is too large for this machine, '' if it is not or runs elsewhere."""
        threads = max(1, self.subject.spec.cpus_per_rank)
        most = max(cell.world for cell in self.cells)
        if not self.machine.local or self.subject.spec.gpus or most * threads <= self.machine.cores:
            return ""
        need = f"{most} ranks × {threads} cores" if threads > 1 else f"{most} ranks"
        return f"{need} are more than the {self.machine.cores} cores of this machine, which they would share"

    def measure(self, report: Tell) -> None:
        if not self.remaining():
            report(f"everything was measured before: {self.path} (--fresh measures anew)")
            return
        self.runner.check(self.cells, self.repeats)
        if self._probes:
            self.runner.probe(self._probe(), tuple(cell.world for cell in self.cells if not cell.one_process))
        self.runner.measure(self.cells, self.repeats)

    def _probe(self) -> JobSpec:
        """Return the short all-reduce job for the largest possible world."""
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

    def print_plan(self, as_json: bool) -> int:
        crowded = self.crowded()
        if crowded:
            say(f"notice: {crowded}")
        say(f"would measure {len(self.remaining())} runs and keep them in {self.path}")
        planned = [(cell, *self._planned(cell)) for cell in self.cells]
        if as_json:
            rows = []
            for cell, command, refusal in planned:
                rows.append({"configuration": cell.name, "command": command, "refused": refusal})
            print(json.dumps(rows))
            return ExitCode.DONE
        for cell, command, refusal in planned:
            text = f"refused: {refusal}" if refusal else shlex.join(command)
            print(f"{cell.name}: {text}")
        return ExitCode.DONE

    def _planned(self, cell: Cell) -> tuple[tuple[str, ...], str]:
        try:
            return spec_of(self.subject, cell).command, ""
        except BadInput as error:
            return (), error.seen


def prepared(
    context: Context,
    spec: JobSpec,
    script: str | None,
    command_line: tuple[str, ...],
    options: dict[str, Any],
) -> Study:
    from clusterrun.local.gpus import count_gpus

    command = _command(script, command_line)
    shipped = os.path.join(folder("jobs"), "train.py")
    is_shipped = _content(command[0], spec.cwd) == _content(shipped, spec.cwd)
    reference = command[0].endswith("train.py") and is_shipped
    if spec.cluster is not Cluster.LOCAL and not context.client().why_not():
        machine = LocalMachine(False, 0, 0)
    else:
        machine = LocalMachine(True, len(os.sched_getaffinity(0)), count_gpus(context.environ))
    spec = _placed(replace(spec, command=command), machine, context)
    content, gpus = _content(command[0], spec.cwd), machine.gpus if machine.local else -1
    subject = StudySubject(spec, Growth(options["growth"]), reference, content, gpus)
    text = options["strategies"]
    strategies: tuple[str, ...]
    if text is None:
        strategies = ("single", "dp", "ddp") if subject.reference else (AS_IS,)
    else:
        strategies = read_strategies(text, subject.reference)
        if not subject.reference and not names_strategy(subject.spec):
            message = f"--strategies {text}: the script is not told which one it runs"
            raise BadInput(message, "put {strategy} among its arguments, or in an --env NAME={strategy}")
    devices = spec.gpus or spec.ranks_per_node
    if options["worlds"]:
        worlds = read_worlds(options["worlds"])
    elif devices or machine.local:
        worlds = worlds_up_to(devices or machine.cores)
    else:
        worlds = ON_SLURM
    return Study(context, machine, subject, cells(strategies, worlds, spec.gpus), options)


def _command(script: str | None, command_line: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``--script`` with its arguments, else a command as in submit, else the shipped train.py."""
    if script:
        return (script, *command_line)
    if command_line and (command_line[0] == "-m" or not command_line[0].startswith("-")):
        return command_line
    return (os.path.join(folder("jobs"), "train.py"), *command_line)


def _content(first: str, cwd: str) -> str:
    try:
        with open(os.path.join(cwd, first), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""  # a module, a program on PATH, or an error that submitting reports


def _placed(spec: JobSpec, machine: LocalMachine, context: Context) -> JobSpec:
    """Return ``spec`` with this machine's devices by default, and equal threads for every CPU rank."""
    if machine.local:
        spec = replace(spec, cluster=Cluster.LOCAL)
    if machine.local and machine.gpus and not spec.gpus and not spec.ranks_per_node:
        counted = "1 GPU: it is" if machine.gpus == 1 else f"{machine.gpus} GPUs: they are"
        say(f"this machine has {counted} measured")
        return replace(spec, gpus=machine.gpus)
    variables = {*context.environ, *(name for name, _ in spec.environment)}
    if spec.gpus or THREADS in variables:
        return spec
    # A single rank would use all cores and each of several ranks one, so they could not be compared.
    return replace(spec, environment=(*spec.environment, (THREADS, str(max(1, spec.cpus_per_rank)))))
