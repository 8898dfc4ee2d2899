"""Rehearses: each fault in a run of its own, on this machine, in a copy of the working directory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from clusterrun import proc
from clusterrun.api import Run, launch
from clusterrun.local import processes
from clusterrun.local.gpus import count_gpus
from clusterrun.model.errors import BadInput, ClusterrunError
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.record import RunStatus
from clusterrun.model.spec import JobSpec
from clusterrun.model.states import State
from clusterrun.operations.context import Context
from clusterrun.rehearse import causes, control_runs
from clusterrun.rehearse.causes import Cause, Discovery, Observed, Severity
from clusterrun.rehearse.faults import (
    AFTER_NOTICE,
    SHORT_NOTICE,
    Schedule,
    Strike,
    chosen,
    runs_of,
    schedule,
    strikes,
)
from clusterrun.rehearse.rank_trace import TRACE, Life, SavedFile, read
from clusterrun.rehearse.resumption import begins, reference
from clusterrun.rehearse.working_copy import copy_folder, made, moved

VARIABLE = "CLUSTERRUN_REHEARSAL"
LOOK_EVERY = 0.1
SAVES_WANTED = 3
"""Checkpoints that the control is to write before it may end."""
LEAST_STEPS = 20
END_SECONDS = 20.0
BEYOND = 3
"""Steps that a run takes beyond the end of the one that had notice: so that was not the natural end."""
WAIT_FOR_END = 300.0
"""Seconds for a save to end that a notice began."""


@frozen
class Result:
    """One row: a fault (or the control), what was found, how long it took."""

    name: str
    title: str
    findings: tuple[Discovery, ...]
    seconds: float
    curves: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """Of rank 0, per start: the step from which it went on, and the losses after it."""

    @property
    def level(self) -> Severity:
        """The worst of the findings."""
        order = [Severity.OK, Severity.NOTE, Severity.UNKNOWN, Severity.FAIL]
        return max((one.level for one in self.findings), key=order.index, default=Severity.OK)


class BudgetSpent(Exception):
    """The budget is used up."""


@frozen
class RehearsalLimits:
    """How long all of it may take, a run's optimizer steps (0: found out), what a time limit's notice is."""

    budget: float
    steps: int = 0
    notice: float = 120.0


class Rehearsal:
    """One rehearsal: ``spec`` is the run as the user means it, ``folder`` takes everything that is made."""

    at_once = 2
    """Runs beside each other: part of a fault is waiting."""

    def __init__(
        self,
        spec: JobSpec,
        folder: str,
        environ: dict[str, str],
        limits: RehearsalLimits,
        tell: Callable[[str], None],
    ) -> None:
        self._spec, self._folder, self._tell = spec, folder, tell
        self._budget, self._steps, self._notice = limits.budget, limits.steps, limits.notice
        self._context = Context({**environ, "CLUSTERRUN_HOME": os.path.join(folder, "home")})
        self._until = time.monotonic() + limits.budget
        self._live: set[str] = set()
        self._first_run: Run | None = None
        self.control: tuple[Life, Life] | None = None
        self.plan: Schedule | None = None

    def fit(self, nodes: int) -> None:
        """Refuse what there is no place for, before anything is copied. Raises ``BadInput``."""
        wanted = nodes * self._spec.gpus
        there = count_gpus(self._context.environ) if wanted else 0
        if wanted > there:
            raise BadInput(
                f"{nodes} nodes of {self._spec.gpus} GPUs are wanted; this machine has {there} GPUs",
                "leave --gpus out for ranks on the CPU, or rehearse where GPUs are: --cluster slurm",
            )

    def rehearse(self, names: Sequence[str], elastic: bool) -> Iterator[Result]:
        """The control, then each fault, in the order of the table; each result as soon as it is there."""
        try:
            yield from self._all(names, elastic)
        finally:
            self.end()

    def _all(self, names: Sequence[str], elastic: bool) -> Iterator[Result]:
        began = time.monotonic()
        try:
            result = self._control(began)
        except BudgetSpent:
            late = control_runs.too_slow(self._seen_of_control(), self._budget)
            yield Result("control", "control", (late,), time.monotonic() - began)
            return
        yield result
        plan = self.plan
        if plan is None:
            return
        wanted = [fault for fault in chosen(names, elastic) if plan.saves or fault.name == "kill"]
        with ThreadPoolExecutor(self.at_once) as pool:
            jobs = {}
            for together in runs_of(wanted):
                job = pool.submit(self._faults, together, plan)
                jobs.update(dict.fromkeys((fault.name for fault in together), job))
            try:
                for fault in wanted:
                    yield next(one for one in jobs[fault.name].result() if one.name == fault.name)
            except BaseException:
                self._until = 0.0
                raise

    def _seen_of_control(self) -> Life:
        """What the first run has shown so far."""
        return read(self._first_run.paths.attempt(0).folder) if self._first_run else Life({})

    def _late(self, what: str) -> Discovery:
        said = f"not done within --budget {self._budget:g} s"
        return Discovery(
            Severity.UNKNOWN, Cause.UNDETERMINED, said, f"give more: --budget {2 * self._budget:g}s"
        )

    # --- the control ---

    def _control(self, began: float) -> Result:
        first, status = self._first(self._copy("control-1"))
        seconds = time.monotonic() - began
        failed = status.state is State.FAILED and bool(first.errors)
        if failed or not first.ranks or first.last < 1:
            said, remedy = control_runs.no_steps(first, status, self._spec)
            cause = Cause.SCRIPT_FAILS if failed and first.last else Cause.NO_STEPS
            return Result("control", "control", (Discovery(Severity.FAIL, cause, said, remedy),), seconds)
        blind = next((one.blind for one in first.ranks.values() if one.blind), "")
        if blind:
            self._tell(f"not all of this script can be seen: {blind}")
        self._refuse_escapes(first)
        for name, size in made(self._root(), os.path.join(self._folder, "control-1"), first):
            here = f"the script makes {name} of {control_runs.amount(size)} in its working directory"
            self._tell(f"{here}, and so does each run: quicker if it lies here before")
        plan = schedule(first, self._steps or first.last)
        limit = 0 if plan.natural else plan.steps
        again = self._run("control-2", self._copy("control-2"), {"steps": limit}, restarts=0)
        self._finish(again)
        second = self._lives(again)[-1]
        cut = cut_to(first, plan.steps)
        self.control, self.plan = (cut, second), plan
        findings = control_runs.control(cut, second)
        return Result(
            "control", "control", findings, time.monotonic() - began, (curve(cut, 0), curve(second, 0))
        )

    def _first(self, folder: str) -> tuple[Life, RunStatus]:
        """Runs until some checkpoints are written, or --steps are done, or it ends by itself."""
        run = self._first_run = self._run("control-1", folder, {"steps": self._steps}, restarts=0)
        attempt = run.paths.attempt(0).folder
        while not self._over(run):
            self._check_time(run)
            life = read(attempt)
            kept = {save.step for save in life.saves if save.size}
            if not self._steps and len(kept) > SAVES_WANTED and life.last >= LEAST_STEPS:
                self._end(run)
                break
            time.sleep(3 * LOOK_EVERY)
        self._live.discard(self._process(run))
        return read(attempt), run.status()

    def _refuse_escapes(self, life: Life) -> None:
        """Files outside of the copy would be shared by all runs. Raises ``BadInput``."""
        inside = os.path.realpath(self._folder) + os.sep
        for save in life.saves:
            if not os.path.realpath(save.path).startswith(inside):
                raise BadInput(
                    f"the script writes its checkpoints to {save.path}, outside of its working directory:"
                    " the runs of a rehearsal would disturb each other, and your own checkpoints",
                    "give the script a relative path for its checkpoints",
                )

    # --- a fault ---

    def _faults(self, together: Sequence[Strike], plan: Schedule) -> tuple[Result, ...]:
        """The results of faults that share a run: what the last one showed holds for those before it.

        A fault before it that is not well there gets a run of its own, so that nothing else explains it.
        """
        began = time.monotonic()
        *before, last = together
        try:
            if time.monotonic() > self._until:
                raise BudgetSpent
            seen = self._observed(last, plan)
        except BudgetSpent:
            late = time.monotonic() - began
            return tuple(Result(one.name, one.title, (self._late(one.title),), late) for one in together)
        except ClusterrunError as error:
            took = time.monotonic() - began
            return tuple(Result(one.name, one.title, (causes.unknown(error.seen),), took) for one in together)
        found: list[Result] = []
        for fault in before:
            result = self._judged(fault, causes.up_to_the_first(fault.name, seen), began)
            well = result.level is Severity.OK
            found += [result] if well else self._faults((fault,), plan)
        return (*found, self._judged(last, seen, began))

    def _judged(self, fault: Strike, seen: Observed, began: float) -> Result:
        assert self.control is not None
        first, second = self.control
        different = control_runs.divergence(first, second)
        findings = causes.judge(first, different.part if different else "", seen, second)
        known = reference(first, seen.lives[0])
        curves = tuple(curve(life, begins(known, life)) for life in seen.lives)
        return Result(fault.name, fault.title, findings, time.monotonic() - began, curves)

    def _observed(self, fault: Strike, plan: Schedule) -> Observed:
        if fault.name == "damaged" and self._cut_off(plan):
            return self._damaged(fault, plan)
        folder = self._copy(fault.name)
        limit = 0 if plan.natural else plan.steps
        orders: dict[str, Any] = {"steps": limit, "strikes": strikes(fault, plan), "known": self._known(plan)}
        held = any(one["kind"] == "hold" for one in orders["strikes"])
        if not held:
            run = self._run(fault.name, folder, orders)
            self._finish(run, 3 if fault.name == "twice" else 2)
            return self._seen(fault, plan, self._lives(run), run)
        return self._held(fault, plan, folder, orders)

    def _held(self, fault: Strike, plan: Schedule, folder: str, orders: dict[str, Any]) -> Observed:
        """Faults that come from outside, while all ranks wait after the same step."""
        told = fault.name in ("time-limit", "preemption")
        if told and not plan.natural:
            orders = {**orders, "steps": plan.between + AFTER_NOTICE}
        run = self._run(fault.name, folder, orders, restarts=3 if fault.name == "node" else 0)
        self._wait_held(run)
        took: float | None = None
        until = {"time-limit": self._notice, "preemption": SHORT_NOTICE}.get(fault.name, 0.0)
        if fault.name == "node":
            self._kill_node(run, self._spec.nodes - 1)
            self._finish(run, 2)
            return self._seen(fault, plan, self._lives(run), run)
        if told:
            took = self._notified(run, until)
        else:
            self._end(run)
        lives = self._lives(run)
        damaged = cut_newest(lives[0]) if fault.name == "damaged" else ()
        nodes = self._spec.nodes + {"fewer": -1, "more": 1}.get(fault.name, 0)
        seen = self._gone_on(fault, plan, lives, folder, nodes)
        return replace(
            seen,
            struck_at=plan.between,
            until=until,
            took=took,
            damaged=(*seen.damaged, *damaged),
            elastic=nodes != self._spec.nodes,
        )

    def _gone_on(
        self, fault: Strike, plan: Schedule, lives: tuple[Life, ...], folder: str, nodes: int = 0
    ) -> Observed:
        """A further run where one has ended."""
        limit = max(plan.steps, max((life.last for life in lives), default=0) + BEYOND)
        after = {"steps": 0 if plan.natural else limit, "known": self._known(plan, lives)}
        run = self._run(fault.name, folder, after, nodes=nodes)
        self._finish(run)
        return self._seen(fault, plan, (*lives, *self._lives(run)), run)

    def _cut_off(self, plan: Schedule) -> bool:
        """Whether the second undisturbed run was ended by us: it would have gone on, so it still can."""
        assert self.control is not None
        ends = {trace.end for trace in self.control[1].ranks.values()}
        return not plan.natural and ends == {"limit"}

    def _damaged(self, fault: Strike, plan: Schedule) -> Observed:
        """The second undisturbed run goes on, its newest checkpoint damaged; nobody needs its folder more."""
        assert self.control is not None
        lives = (self.control[1],)
        damaged = cut_newest(lives[0])
        seen = self._gone_on(fault, plan, lives, os.path.join(self._folder, "control-2"))
        return replace(seen, damaged=damaged)

    def _seen(self, fault: Strike, plan: Schedule, lives: tuple[Life, ...], run: Run) -> Observed:
        torn = plan.saves[plan.group - 1][1] if fault.name in ("mid-save", "disk-full") and plan.saves else ()
        damaged = torn_paths(
            torn, os.path.join(self._folder, "control-1"), os.path.join(self._folder, fault.name)
        )
        status = run.status()
        tail = f"{status.state.value}: {status.reason}"
        return Observed(fault.name, lives, lives[0].last if lives else 0, damaged=damaged, tail=tail)

    def _known(self, plan: Schedule, lives: Sequence[Life] = ()) -> dict[str, dict[str, int]]:
        """By what a restarted rank knows how many steps were done: the parameters after each of them."""
        assert self.control is not None
        found: dict[str, dict[str, int]] = {}
        for life, last in ((self.control[0], plan.between + 1), *((life, life.last) for life in lives[:1])):
            for rank, trace in life.ranks.items():
                known = {str(step.parameters): step.n for step in trace.steps if step.n <= last}
                found.setdefault(str(rank), {}).update(known)
        return found

    def _wait_held(self, run: Run) -> None:
        """Return when every rank waits. Raises ``BudgetSpent``."""
        folder = run.paths.attempt(0).folder
        while True:
            self._check_time(run)
            names = (
                [name for name in os.listdir(folder) if name.endswith(TRACE)] if os.path.isdir(folder) else []
            )
            held = sum('"t": "hold"' in text(os.path.join(folder, name)) for name in names)
            if held >= self._spec.world_size or self._over(run):
                return
            time.sleep(LOOK_EVERY)

    def _notified(self, run: Run, seconds: float) -> float | None:
        """Give notice; seconds until the run has ended by itself, or None where it had to be ended."""
        folder = run.paths.attempt(0)
        self._give_notice(run)
        began = time.monotonic()
        while not os.path.exists(folder.notice) and time.monotonic() - began < END_SECONDS:
            time.sleep(LOOK_EVERY / 4)
        told = time.monotonic()
        with open(folder.beside("rehearsal.go"), "w"):
            pass
        while not self._over(run) and time.monotonic() - told < min(seconds, WAIT_FOR_END):
            self._check_time(run)
            time.sleep(LOOK_EVERY / 4)
        took = time.monotonic() - told
        if not self._over(run):
            self._end(run)
            return None
        life = read(folder.folder)
        by_itself = all(trace.end == "exit" for trace in life.ranks.values())
        return took if by_itself and life.last < self._planned_end() else None

    def _give_notice(self, run: Run) -> None:
        """As Slurm gives it: a signal to the coordinator."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(self._process(run).partition(".")[0]), signal.SIGUSR2)

    def _planned_end(self) -> int:
        return self.plan.steps if self.plan and self.plan.natural else 1 << 60

    # --- runs ---

    def _run(self, name: str, folder: str, orders: dict[str, Any], restarts: int = 3, nodes: int = 0) -> Run:
        inside = os.path.join(folder, os.path.relpath(self._spec.cwd, self._root()))
        spec = replace(
            self._spec,
            name=f"rehearse-{name}",
            cwd=inside,
            command=tuple(moved(word, self._root(), folder) for word in self._spec.command),
            nodes=nodes or self._spec.nodes,
            max_restarts=restarts,
            environment=(*self._spec.environment, (VARIABLE, json.dumps(orders))),
        )
        run = self._launch(spec)
        self._live.add(self._process(run))
        return run

    def _launch(self, spec: JobSpec) -> Run:
        return launch(spec, self._context)

    def _process(self, run: Run) -> str:
        """The process of its coordinator, which is on this machine."""
        return run.record.coordinator

    def _kill_node(self, run: Run, node: int) -> None:
        kill_node(run.job_id, node)

    def _root(self) -> str:
        return self._spec.cwd

    def _copy(self, name: str) -> str:
        target = os.path.join(self._folder, name)
        copy_folder(self._root(), target)
        return target

    def _over(self, run: Run) -> bool:
        return not processes.alive(self._process(run))

    def _finish(self, run: Run, starts: int = 1) -> None:
        """Wait for the end of a run, at most until its ranks were started twice more than ``starts`` times.

        Raises ``BudgetSpent``.
        """
        while not self._over(run):
            self._check_time(run)
            there = os.path.isdir(run.paths.attempts) and len(os.listdir(run.paths.attempts))
            if there > starts + 1:
                self._end(run)
            time.sleep(LOOK_EVERY)
        self._live.discard(self._process(run))

    def _end(self, run: Run) -> None:
        processes.end(self._process(run), self._context.clock, END_SECONDS)
        self._live.discard(self._process(run))

    def _check_time(self, run: Run) -> None:
        if time.monotonic() > self._until:
            self._end(run)
            raise BudgetSpent

    def _lives(self, run: Run) -> tuple[Life, ...]:
        folder = run.paths.attempts
        found = [read(os.path.join(folder, name)) for name in sorted(os.listdir(folder))]
        return tuple(life for life in found if life.ranks)

    def end(self) -> None:
        """End every run that still lives."""
        self._until = 0.0
        for process in list(self._live):
            processes.end(process, self._context.clock, END_SECONDS)


def text(path: str) -> str:
    """A file's text; '' where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def cut_to(life: Life, steps: int) -> Life:
    """The same life, as if it had ended after so many steps."""
    ranks = {
        rank: replace(
            trace,
            steps=tuple(step for step in trace.steps if step.n <= steps),
            saves=tuple(save for save in trace.saves if save.step <= steps),
        )
        for rank, trace in life.ranks.items()
    }
    return Life(ranks)


def curve(life: Life, begin: int | None) -> tuple[int, tuple[float, ...]]:
    """The losses of the lowest rank, and after which step they begin."""
    trace = life.ranks[min(life.ranks)] if life.ranks else None
    losses = tuple(step.loss for step in trace.steps if step.loss is not None) if trace else ()
    return begin or 0, losses


def cut_newest(life: Life) -> tuple[str, ...]:
    """Cut off half of the largest file of the newest checkpoint that is still there."""
    there = [save for save in life.saves if save.size and os.path.exists(save.path)]
    if not there:
        return ()
    newest = max(save.step for save in there)
    save = max((save for save in there if save.step == newest), key=lambda save: save.size)
    os.truncate(save.path, save.size // 2)
    return (save.path,)


def torn_paths(planned: Sequence[SavedFile], control: str, folder: str) -> tuple[str, ...]:
    """The file that a fault in the middle of a save cuts off under its final name, in ``folder``."""
    biggest = max(planned, key=lambda save: save.size, default=None)
    if biggest is None or biggest.temp:
        return ()
    return (moved(biggest.path, control, folder),)


def kill_node(job_id: str, node: int) -> None:
    """Kill every process of one simulated node, its agent first; the node's ranks carry its number."""
    agents = [one for one in proc.descendants(int(job_id.partition(".")[0])) if is_agent(one.pid)]
    for agent in agents:
        below = proc.descendants(agent.pid)
        if any(proc.environment(one.pid).get("NODE_RANK") == str(node) for one in below):
            for one in (agent, *below):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            return


def is_agent(pid: int) -> bool:
    """Whether a process is the agent of a node (or the shim below it)."""
    words = text(f"/proc/{pid}/cmdline").split("\0")
    return "agent" in words[:7] and any(word.endswith("agent.pyz") for word in words)
