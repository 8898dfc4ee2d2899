"""Run what a study asks, one run after another, and note each at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

from clusterrun.api import Run, find, launch
from clusterrun.bench import study_results
from clusterrun.bench.reading import notices, report
from clusterrun.bench.shape import spec_of
from clusterrun.bench.study import Cell, StudySubject
from clusterrun.bench.study_results import AllReduceTiming, MachineInfo, MeasuredRun, StudyResults
from clusterrun.logs.attempt_logs import attempts, read_at, size_of
from clusterrun.model.errors import BadInput, NoSuchRun, SchedulerError, SchedulerUnreachable
from clusterrun.model.frozen import replace
from clusterrun.model.record import RunStatus
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import State
from clusterrun.operations.context import Context, Tell
from clusterrun.operations.wait import RunWait

# Bytes of the end of rank 0's output in which its pace is looked for.
OUTPUT_TAIL_BYTES = 4 << 20
NO_RATE_REPORTED = "it ended well, but rank 0 never printed steps_per_second=…"


class Runner:
    """A study under way: its results file is on disk after every step."""

    def __init__(
        self, subject: StudySubject, path: str, results: StudyResults, context: Context, tell: Tell
    ) -> None:
        self.results = results
        # Seconds of this call, and of its runs from their submission to their end.
        self.elapsed = self.spent = 0.0
        self._shown_notices: set[str] = set()
        self._subject = subject
        self._path = path
        self._context = context
        self._tell = tell

    def measure(self, cells: tuple[Cell, ...], repeats: int) -> None:
        """Run every repeat of every cell that is not measured yet, the cells in turn.

        A cell that fails is noted and left; the others continue. Raises ``SchedulerUnreachable``.
        """
        began = self._context.clock.monotonic()
        remaining = self.left(cells, repeats)
        failed: set[Cell] = set()
        for index, (cell, number) in enumerate(remaining, 1):
            if cell in failed:
                continue
            self._tell(f"[{index}/{len(remaining)}] {cell.name}, run {number + 1} of {repeats}")
            measured = self._measured(cell, number)
            if measured.failed:
                failed.add(cell)
                self._tell(f"  {measured.failed}")
        self.elapsed += self._context.clock.monotonic() - began

    def left(self, cells: tuple[Cell, ...], repeats: int) -> list[tuple[Cell, int]]:
        """Return the runs that are still to be measured, in order."""
        remaining = []
        for cell, number in in_turn(cells, repeats):
            run = self.results.run(cell, number)
            if run is None or run.under_way or run.failed:
                remaining.append((cell, number))
        return remaining

    def check(self, cells: tuple[Cell, ...], repeats: int) -> None:
        """Raise ``BadInput`` where not one cell can run: that is a mistake of the command, not of a cell."""
        from clusterrun.operations.submit import draft

        first: BadInput | None = None
        for cell in dict.fromkeys(cell for cell, _ in self.left(cells, repeats)):
            try:
                draft(spec_of(self._subject, cell), self._context)
                return
            except BadInput as error:
                first = first or error
        if first:
            raise first

    def _measured(self, cell: Cell, number: int) -> MeasuredRun:
        run: Run | None = None
        earlier = self.results.run(cell, number)
        if earlier and earlier.under_way:
            with suppress(NoSuchRun):  # an interrupted call left it behind
                run = find(earlier.run_id, self._context)
        try:
            if run is None:
                run = launch(spec_of(self._subject, cell), self._context, self._tell_once)
                self._note(MeasuredRun(cell, number, run.run_id))
            else:
                self._tell(f"  going on with {run.run_id}, which was under way")
        except SchedulerUnreachable:
            raise  # it may be queued, so no other run is requested
        except (BadInput, SchedulerError) as error:
            return self._note(MeasuredRun(cell, number, "", failed=error.seen))
        return self._note(self._ended(cell, number, run))

    def _ended(self, cell: Cell, number: int, run: Run) -> MeasuredRun:
        status = self._awaited(run)
        text = rank0_output(self._context, run.run_id)
        measured = MeasuredRun(
            cell,
            number,
            run.run_id,
            seconds=_trained(self._context, status),
            wall=max(0.0, (status.ended_at or 0.0) - status.submitted_at),
            report=report(text),
            notices=notices(text),
        )
        self.spent += measured.wall
        if status.state is not State.COMPLETED:
            return replace(measured, report=None, failed=why(run, status))
        line = measured.report
        pace = f"{line.steps_per_second:g} steps per second" if line else NO_RATE_REPORTED
        self._tell(f"  {pace}; {measured.seconds:.1f} s")
        return measured

    def _tell_once(self, sentence: str) -> None:
        """Report a notice once, though every submission repeats it."""
        if sentence not in self._shown_notices:
            self._shown_notices.add(sentence)
            self._tell(sentence)

    def _awaited(self, run: Run) -> RunStatus:
        """Return the end of ``run``; the reason why it is queued is printed; that it trains is not."""
        return RunWait(self._context, run.run_id, self._tell, logs_are_shown=True).wait(None)

    def _note(self, run: MeasuredRun) -> MeasuredRun:
        # It replaces an earlier result of that repeat.
        repeat = (run.cell, run.number)
        others = (other for other in self.results.runs if (other.cell, other.number) != repeat)
        self.results = replace(self.results, runs=(*others, run))
        study_results.save(self._path, self.results)
        return run

    def probe(self, spec: JobSpec, worlds: tuple[int, ...]) -> None:
        """Ask the machines what they are and how fast they sum, unless that is known for all worlds."""
        probed = self.results.probed
        if probed and not probed.failed and all(probed.reduced(world) for world in worlds if world > 1):
            return
        began = self._context.clock.monotonic()
        self._tell(f"a short job first: device, torch version and all-reduce on {spec.world_size} ranks")
        machine = self._probed(spec)
        if machine.failed:
            self._tell(f"  {machine.failed}: no predictions, and device and torch version stay unknown")
        self.results = replace(self.results, probed=machine)
        study_results.save(self._path, self.results)
        self.elapsed += self._context.clock.monotonic() - began

    def _probed(self, spec: JobSpec) -> MachineInfo:
        try:
            run = launch(spec, self._context, self._tell_once)
        except SchedulerUnreachable:
            raise
        except (BadInput, SchedulerError) as error:
            return MachineInfo(failed=error.seen)
        status = self._awaited(run)
        wall = max(0.0, (status.ended_at or 0.0) - status.submitted_at)
        self.spent += wall
        machine = MachineInfo(run.run_id, wall, status.cluster)
        if status.state is not State.COMPLETED:
            return replace(machine, failed=why(run, status))
        return probe_results(rank0_output(self._context, run.run_id), machine)


def in_turn(cells: tuple[Cell, ...], repeats: int) -> Iterator[tuple[Cell, int]]:
    """Yield every cell once per round. Rounds begin with different cells, so a disturbance hits all."""
    for number in range(repeats):
        turn = number % len(cells)
        for cell in cells[turn:] + cells[:turn]:
            yield cell, number


def rank0_output(context: Context, run_id: str) -> str:
    """Return the end of what rank 0 printed in the newest attempt, on both streams."""
    paths = context.store.paths(run_id)
    numbers = attempts(paths.attempts)
    if not numbers:
        return ""
    logs = paths.attempt(numbers[-1])
    texts = []
    for file in (logs.err(0), logs.out(0)):
        start = max(0, size_of(file) - OUTPUT_TAIL_BYTES)
        texts.append(read_at(file, start, OUTPUT_TAIL_BYTES).decode("utf-8", "replace"))
    return "\n".join(texts)


def _trained(context: Context, status: RunStatus) -> float:
    """Return the seconds from the start of the ranks to the end of the run."""
    state = context.store.state(status.run_id)
    began = state.attempts[-1].started_at if state and state.attempts else status.started_at
    return max(0.001, (status.ended_at or 0.0) - (began or 0.0)) if began and status.ended_at else 0.001


def why(run: Run, status: RunStatus) -> str:
    """Return one sentence about a run that did not end well."""
    failure = run.failure
    reason = failure.why if failure else status.reason
    last = failure.last_line if failure else ""
    parts = [status.state.value, *(word for word in (reason, last) if word)]
    return f"{': '.join(parts)} ({run.run_id})"


def probe_results(text: str, machine: MachineInfo) -> MachineInfo:
    """Return ``machine`` with the measurements in the short job's line ``all-reduce {…}``."""
    for line in reversed(text.splitlines()):
        if line.startswith("all-reduce {"):
            answer = json.loads(line.partition(" ")[2])
            groups = tuple(
                AllReduceTiming(g["ranks"], g["latency"], g["bandwidth"]) for g in answer.pop("groups")
            )
            return replace(machine, groups=groups, **answer)
    return replace(machine, failed="the short job printed nothing")
