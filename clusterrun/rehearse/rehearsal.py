"""Run a rehearsal: several faults in each of a few runs, each run in a copy of the working directory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from clusterrun.api import Run
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunStatus
from clusterrun.model.size import sized
from clusterrun.model.states import State
from clusterrun.rehearse import causes, control_runs
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, Severity, unknown
from clusterrun.rehearse.faults import (
    AFTER_NOTICE,
    INSIDE,
    LATEST,
    MOST_TARGETS,
    SHORT_NOTICE,
    FaultCase,
    Schedule,
    cases_of,
    runs_of,
    schedule,
    schedule_faults,
    select_faults,
)
from clusterrun.rehearse.file_copies import twin_kinds
from clusterrun.rehearse.rank_files import two_writers
from clusterrun.rehearse.rank_trace import RankTrace, Start, kind_of, read
from clusterrun.rehearse.rehearsed_runs import LOOK_EVERY, BudgetSpent, RehearsedRuns
from clusterrun.rehearse.resumption import begins, joined
from clusterrun.rehearse.working_copy import moved, new_files

# Checkpoints that the control must write before it may end.
SAVES_WANTED = 3
LEAST_STEPS = 20
SEVERITY_ORDER = (Severity.OK, Severity.NOTE, Severity.UNKNOWN, Severity.FAIL)
# A run takes this many steps beyond the end of the run with a notice, which shows that it did not end there
# by itself.
BEYOND = 3


@frozen
class Result:
    """One row of the table: a fault or the control, its findings and its seconds."""

    name: str
    title: str
    findings: tuple[Discovery, ...]
    seconds: float
    # For rank 0 and each start: the step from which it continued, and the losses after it.
    curves: tuple[tuple[int, tuple[float, ...]], ...] = ()

    @property
    def level(self) -> Severity:
        levels = (finding.level for finding in self.findings)
        return max(levels, key=SEVERITY_ORDER.index, default=Severity.OK)


class Rehearsal:
    """One rehearsal: ``steps`` of a run (0: the control decides), ``notice`` of a time limit in seconds."""

    def __init__(
        self, runs: RehearsedRuns, tell: Callable[[str], None], steps: int = 0, notice: float = 120.0
    ) -> None:
        self._runs, self._tell, self._steps, self._notice = runs, tell, steps, notice
        self._first_run: Run | None = None
        self._second_run: Run | None = None
        self.control = Start({}), Start({})
        self.plan: Schedule | None = None
        self._twins: Mapping[str, tuple[str, ...]] = {}
        self._base: _DamageBase | None = None
        # Kinds of files that a restart has read.
        self._read_kinds: set[str] = set()

    def rehearse(self, names: Sequence[str], elastic: bool) -> Iterator[Result]:
        """Yield the result of the control, then of each fault, in the order of the table."""
        try:
            yield from self._all(names, elastic)
        finally:
            self._runs.end_all()

    def _all(self, names: Sequence[str], elastic: bool) -> Iterator[Result]:
        began = time.monotonic()
        try:
            result = self._control(began)
        except BudgetSpent:
            trace = read(self._first_run.paths.attempt(0).folder) if self._first_run else Start({})
            late = control_runs.too_slow(trace, self._runs.budget)
            yield Result("control", "control", (late,), time.monotonic() - began)
            return
        yield result
        plan = self.plan
        if plan is None:
            return
        faults = [fault for fault in select_faults(names, elastic) if plan.saves or fault.name == "kill"]
        cases_by_fault = {fault: cases_of(fault, plan) for fault in faults}
        cases = [case for of_fault in cases_by_fault.values() for case in of_fault]
        futures: dict[FaultCase, Future[Result]] = {case: Future() for case in cases}
        if len(plan.targets) > MOST_TARGETS and len(cases) > len(faults):
            skipped = ", ".join(plan.targets[MOST_TARGETS:])
            self._tell(
                f"a checkpoint has {len(plan.targets)} kinds of files; these are not damaged: {skipped}"
            )

        def work(together: Sequence[FaultCase]) -> None:
            try:
                if together[0].of_companion:
                    wait(future for case, future in futures.items() if not case.of_companion)
                    for case in together:
                        if case.target not in self._read_kinds:
                            futures[case].set_result(Result(case.name, case.title, (), 0.0))
                    together = [case for case in together if case.target in self._read_kinds]
                for case, result in self._faults(together, plan):
                    futures[case].set_result(result)
            except BaseException as error:
                for case in together:
                    if not futures[case].done():
                        futures[case].set_exception(error)
                raise

        with ThreadPoolExecutor(self._runs.at_once) as pool:
            for together in runs_of(cases, plan):
                pool.submit(work, together)
            try:
                for fault, own_cases in cases_by_fault.items():
                    yield combined(fault, own_cases, [futures[case].result() for case in own_cases])
            except BaseException:
                self._runs.stop_waiting()
                raise

    # --- the control ---

    def _control(self, began: float) -> Result:
        first, status = self._first(self._runs.copy("control-1"))
        seconds = time.monotonic() - began
        failed = status.state is State.FAILED and bool(first.errors)
        if failed or not first.ranks or first.last < 1:
            message, remedy = control_runs.no_steps(first, status)
            cause = Cause.SCRIPT_FAILS if failed and first.last else Cause.NO_STEPS
            findings = [Discovery(cause, message, remedy)]
            writers = two_writers(first) if failed else None
            if writers:
                findings.insert(0, writers)
            return Result("control", "control", tuple(findings), seconds)
        blind = next((trace.blind for trace in first.ranks.values() if trace.blind), "")
        if blind:
            self._tell(f"not all of this script can be seen: {blind}")
        inside = os.path.realpath(self._runs.folder) + os.sep
        for save in first.saves:
            if not os.path.realpath(save.path).startswith(inside):
                raise BadInput(
                    f"the script writes its checkpoints to {save.path}, outside of its working directory:"
                    " the runs of a rehearsal would disturb each other, and your own checkpoints",
                    "give the script a relative path for its checkpoints",
                )
        for name, size in new_files(self._runs.spec.cwd, os.path.join(self._runs.folder, "control-1"), first):
            notice = f"the script makes {name} of {sized(size)} in its working directory"
            self._tell(f"{notice}, and so does each run: it is quicker if that exists before")
        plan = schedule(first, self._steps or first.last, os.path.join(self._runs.folder, "control-1"))
        limit = 0 if plan.natural else plan.steps
        second_control = self._runs.begin(
            "control-2", self._runs.copy("control-2"), {"steps": limit}, restarts=0
        )
        self._runs.finish(second_control)
        self._second_run, second = second_control, self._runs.lives(second_control)[-1]
        self._twins = twin_kinds(second.saves, os.path.join(self._runs.folder, "control-2"))
        cut = cut_to(first, plan.steps)
        self.control, self.plan = (cut, second), plan
        curves = (curve(cut, 0), curve(second, 0))
        took = time.monotonic() - began
        return Result("control", "control", control_runs.control(cut, second), took, curves)

    def _first(self, folder: str) -> tuple[Start, RunStatus]:
        """Run until some checkpoints are written, or --steps are done, or the script ends by itself."""
        run = self._first_run = self._runs.begin("control-1", folder, {"steps": self._steps}, restarts=0)
        attempt = run.paths.attempt(0).folder
        while not self._runs.over(run):
            self._runs.check_time(run)
            life = read(attempt)
            saved_steps = {save.step for save in life.saves if save.size}
            if not self._steps and len(saved_steps) > SAVES_WANTED and life.last >= LEAST_STEPS:
                self._runs.end(run)
                break
            time.sleep(3 * LOOK_EVERY)
        self._runs.finish(run)
        return read(attempt), run.status()

    # --- a fault ---

    def _faults(self, together: Sequence[FaultCase], plan: Schedule) -> Iterator[tuple[FaultCase, Result]]:
        """Yield the results of faults that follow each other in one run.

        A fault with a finding is repeated in its own run, so that no earlier fault is the cause.
        """
        cases = list(together)
        while cases:
            head, began = cases[0], time.monotonic()
            chain = self._chain(cases, plan)
            try:
                for fault_run in chain:
                    case = cases[0]
                    result = self._judged(case, fault_run, began)
                    is_well = result.level in (Severity.OK, Severity.NOTE)
                    # Each damaged file is damaged in the same folder, as it was before.
                    is_independent = case.name == "damaged"
                    if is_well or is_independent or case is head:
                        yield case, result
                        cases, began = cases[1:], time.monotonic()
                    if not is_well and not is_independent:
                        break
            except BudgetSpent:
                message = f"not done within --budget {self._runs.budget:g} s"
                late = unknown(message, f"give more: --budget {2 * self._runs.budget:g}s")
                took = time.monotonic() - began
                yield from ((case, Result(case.name, case.title, (late,), took)) for case in cases)
                return
            except ClusterrunError as error:
                if cases[0] is head:
                    took = time.monotonic() - began
                    yield head, Result(head.name, head.title, (unknown(error.seen),), took)
                    cases = cases[1:]
            finally:
                chain.close()

    def _judged(self, fault: FaultCase, fault_run: FaultRun, began: float) -> Result:
        first, second = self.control
        different = control_runs.divergence(first, second)
        differs = different.part if different else ""
        reference = causes.expected(first, differs, fault_run.lives[0])
        findings = causes.judge(first, differs, fault_run, second, reference)
        for life in fault_run.lives[1:]:
            self._read_kinds.update(fault_run.kind(path) for path, _ in life.loaded)
        curves = tuple(curve(life, begins(reference, life)) for life in fault_run.lives)
        return Result(fault.name, fault.title, findings, time.monotonic() - began, curves)

    def _chain(self, faults: Sequence[FaultCase], plan: Schedule) -> Generator[FaultRun, None, None]:
        """Yield the run of each of these faults, at least of the first.

        The start after a fault meets the next fault."""
        if self._runs.is_late():
            raise BudgetSpent
        if faults[0].name == "damaged":
            yield from self._damaged(faults, plan)
        elif faults[0].name in INSIDE:
            yield from self._inside(faults, plan)
        else:
            yield from self._outside(faults, plan)

    def _inside(self, faults: Sequence[FaultCase], plan: Schedule) -> Iterator[FaultRun]:
        """Run faults that the ranks inject: each start after a fault meets the next one."""
        folder, places = self._runs.copy(faults[0].name), schedule_faults(faults, plan)
        strikes = [order for place in places for order in place.orders]
        starts = places[-1].last + 2
        orders = {"steps": 0 if plan.natural else plan.steps, "strikes": strikes}
        run = self._runs.begin(faults[0].name, folder, orders, restarts=starts + 1)
        try:
            for place in places:
                ends = place is places[-1]
                self._runs.finish(run, starts, 0 if ends else place.last + 2)
                lives = self._runs.starts(run)
                if place is not places[0] and not any(life.struck for life in lives[place.last :][:1]):
                    return
                last = place.last
                while last > place.first and not any(life.struck for life in lives[last:][:1]):
                    last -= 1  # a restart that did not come as far as its own fault is judged
                past = self._past(*lives[: last + 1])
                after = lives[last + 1 :] if ends else lives[last + 1 : place.last + 2]
                if not ends:
                    after = (*after[:-1], *map(unstruck, after[-1:]))
                starts_of_fault = (past, *(life for life in after if life.ranks))
                yield self._seen(place.fault, place.plan, starts_of_fault, run, folder)
        finally:
            self._runs.end(run)

    def _outside(self, faults: Sequence[FaultCase], plan: Schedule) -> Iterator[FaultRun]:
        """Inject faults from outside while all ranks wait; then another run continues in that folder."""
        folder = self._runs.copy(faults[0].name)
        past: tuple[Start, ...] = ()
        runs: list[Run] = []
        at = plan.between
        run = self._held(faults[0], plan, at, folder, runs)
        try:
            for fault, following in zip(faults, [*faults[1:], None]):
                if fault.name == "node":
                    self._runs.kill_node(run, self._runs.spec.nodes - 1)
                    self._runs.finish(run, 2)
                    held, *after = self._runs.lives(run) or (Start({}),)
                    yield self._seen(fault, plan, (self._past(*past, held), *after), run, folder)
                    return
                until = {"time-limit": self._notice, "preemption": SHORT_NOTICE}.get(fault.name, 0.0)
                took = self._runs.notified(run, until) if until else None
                self._runs.end(run)
                past = (self._past(*past, *self._runs.lives(run)[:1]),)
                runs.append(run)
                if plan.natural and past[0].last >= plan.steps:
                    took = None
                nodes = self._runs.spec.nodes + {"fewer": -1, "more": 1}.get(fault.name, 0)
                after_it = past[0].last + LATEST
                goes_on: tuple[Start, ...] = ()
                if following and after_it + LATEST <= plan.steps:
                    run = self._held(following, plan, after_it, folder, runs)
                    goes_on = self._runs.lives(run)
                if not any(life.last for life in goes_on):
                    run = self._gone_on(fault, plan, past[0].last, folder, runs, nodes)
                    goes_on = self._runs.lives(run)
                fault_run = self._seen(fault, plan, (*past, *goes_on), run, folder)
                elastic = nodes != self._runs.spec.nodes
                yield replace(fault_run, struck_at=at, until=until, took=took, elastic=elastic)
                if self._runs.over(run):
                    return
                at = after_it
        finally:
            self._runs.end(run)

    def _held(self, fault: FaultCase, plan: Schedule, at: int, folder: str, before: Sequence[Run]) -> Run:
        """Start a run whose ranks wait after step ``at``. It has ended if they did not come that far."""
        has_notice = fault.name in ("time-limit", "preemption")
        limit = at + AFTER_NOTICE if has_notice else max(plan.steps, at + BEYOND)
        orders = {
            "steps": 0 if plan.natural else limit,
            "strikes": [{"attempt": 0, "kind": "hold", "step": at}],
            "past": [run.paths.attempts for run in before],
        }
        run = self._runs.begin(fault.name, folder, orders, restarts=3 if fault.name == "node" else 0)
        self._runs.wait_held(run)
        return run

    def _gone_on(
        self,
        fault: FaultCase,
        plan: Schedule,
        steps_done: int,
        folder: str,
        before: Sequence[Run],
        nodes: int = 0,
    ) -> Run:
        """Continue in a folder where other runs have ended, up to the end."""
        limit = max(plan.steps, steps_done + BEYOND)
        orders = {"steps": 0 if plan.natural else limit, "past": [run.paths.attempts for run in before]}
        run = self._runs.begin(fault.name, folder, orders, nodes=nodes)
        self._runs.finish(run)
        return run

    def _past(self, *lives: Start) -> Start:
        return joined(self.control[0], lives or (Start({}),))

    def _damaged(self, faults: Sequence[FaultCase], plan: Schedule) -> Iterator[FaultRun]:
        """Damage a file of a run that has ended, continue the run, and restore it for the next file."""
        if self._base is None:
            ends = {trace.end for trace in self.control[1].ranks.values()}
            if self._second_run and not plan.natural and ends == {"limit"}:
                # The second undisturbed run ended at the limit of steps, so it can still go on. No other
                # fault needs it.
                folder, past = os.path.join(self._runs.folder, "control-2"), self.control[1]
                self._base = _DamageBase(self._second_run, folder, past, past.last)
            else:
                folder = self._runs.copy(faults[0].name)
                run = self._held(faults[0], plan, plan.between, folder, [])
                self._runs.end(run)
                past = self._past(*self._runs.lives(run)[:1])
                self._base = _DamageBase(run, folder, past, plan.between)
            shutil.copytree(self._base.folder, self._base.kept, symlinks=True)
        base = self._base
        for fault in faults:
            shutil.rmtree(base.folder)
            shutil.copytree(base.kept, base.folder, symlinks=True)
            saves = [save for save in base.past.saves if save.size and os.path.exists(save.path)]
            matching = [save for save in saves if kind_of(save.path, base.folder) == fault.target]
            newest = max(matching or saves, key=lambda save: (save.step, save.size), default=None)
            if newest:
                os.truncate(newest.path, newest.size // 2)
            run = self._gone_on(fault, plan, base.past.last, base.folder, [base.run])
            fault_run = self._seen(fault, plan, (base.past, *self._runs.lives(run)), run, base.folder)
            yield replace(
                fault_run,
                struck_at=base.struck_at,
                damaged=(newest.path,) if newest else (),
                damaged_step=newest.step if newest else 0,
                twins=self._twins_of(newest.path, base.folder) if newest else (),
            )

    def _twins_of(self, path: str, folder: str) -> tuple[str, ...]:
        return self._twins.get(kind_of(path, folder), ())

    def _seen(
        self, fault: FaultCase, plan: Schedule, lives: tuple[Start, ...], run: Run, folder: str
    ) -> FaultRun:
        status = run.status()
        tail = f"{status.state.value}: {status.reason}"
        fault_run = FaultRun(fault.name, lives, lives[0].last if lives else 0, tail=tail, folder=folder)
        if fault.name not in ("mid-save", "disk-full") or not plan.saves:
            return fault_run
        file = plan.struck_file(fault)
        # A temporary file is cut off too, but never gets the name of a checkpoint.
        path = "" if file.temp else moved(file.path, plan.root, folder)
        twins = self._twins_of(path, folder)
        damaged = (path,) if path else ()
        own_fields = {"damaged": damaged, "damaged_step": file.step, "of_companion": fault.of_companion}
        return replace(fault_run, twins=twins, **own_fields)


@frozen
class _DamageBase:
    """A run that was ended between two steps, with its folder. Its files are damaged in turn."""

    run: Run
    folder: str
    past: Start
    struck_at: int

    @property
    def kept(self) -> str:
        """Return the copy of the folder as the run left it."""
        return f"{self.folder}.kept"


def combined(fault: FaultCase, cases: Sequence[FaultCase], results: Sequence[Result]) -> Result:
    """Return one row of the table for all files that a fault damaged in turn."""
    if len(results) == 1:
        return results[0]
    worst = max(results, key=lambda result: SEVERITY_ORDER.index(result.level))
    first_findings: dict[tuple[Cause, str], Discovery] = {}
    targets: dict[tuple[Cause, str], list[str]] = {}
    for case, result in zip(cases, results):
        for finding in result.findings:
            if finding.level is not Severity.OK or worst.level is Severity.OK:
                key = (finding.cause, finding.remedy)
                first_findings.setdefault(key, finding)
                targets.setdefault(key, []).append(case.target)
    findings = []
    for key, finding in first_findings.items():
        others = ", ".join(target for target in dict.fromkeys(targets[key]) if target != targets[key][0])
        message = f"{finding.message}; the same with {others}" if others else finding.message
        findings.append(replace(finding, message=message))
    seconds = sum(result.seconds for result in results)
    return Result(fault.name, fault.title, tuple(findings), seconds, worst.curves)


def unstruck(life: Start) -> Start:
    """Return the start without the fault that it met and its errors: it proves the fault before."""
    if not life.struck:
        return life
    no_error = RankTrace(0, {}, ()).error
    return Start({rank: replace(trace, struck=False, error=no_error) for rank, trace in life.ranks.items()})


def cut_to(life: Start, steps: int) -> Start:
    """Return the start as if it had ended after this many steps."""
    ranks = {}
    for rank, trace in life.ranks.items():
        saves = tuple(save for save in trace.saves if save.step <= steps)
        taken = tuple(step for step in trace.steps if step.n <= steps)
        ranks[rank] = replace(trace, steps=taken, saves=saves)
    return Start(ranks)


def curve(life: Start, begin: int | None) -> tuple[int, tuple[float, ...]]:
    """Return the step before the first loss, and the losses of the lowest rank."""
    trace = life.ranks[min(life.ranks)] if life.ranks else None
    losses = tuple(step.loss for step in trace.steps if step.loss is not None) if trace else ()
    return begin or 0, losses
