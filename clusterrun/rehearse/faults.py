"""The faults of a rehearsal: when each is injected, as the control run showed, and by whom; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterrun.model.frozen import frozen, replace
from clusterrun.rehearse.rank_trace import SavedFile, Start

SHORT_NOTICE = 2.0
"""Seconds of a preemption that comes almost without notice."""
AFTER_NOTICE = 24
"""Steps after a notice within which a script that reacts to it has ended."""
LATEST = 8
"""Steps of a restart after which it is killed again at the latest."""
INSIDE = ("after-save", "kill", "twice", "mid-save", "disk-full")
"""Injected by the ranks. In this order a restart takes steps again that the start before it took:
with more than two ranks only these can be compared by bits."""
OUTSIDE = ("time-limit", "preemption", "node")
"""Faults injected from outside while all ranks wait; before the first, nothing has disturbed the run."""


@frozen
class FaultCase:
    """One fault: its name, its head in the table, and what it does in a sentence."""

    name: str
    title: str
    does: str


FAULTS = (
    FaultCase("kill", "killed rank", "a rank is killed between two steps"),
    FaultCase(
        "mid-save", "killed in save", "the rank that writes a checkpoint is killed when half of it is written"
    ),
    FaultCase("after-save", "killed after save", "a rank is killed right after a checkpoint"),
    FaultCase("node", "lost node", "all processes of the last node are killed, its agent too"),
    FaultCase("time-limit", "time limit", "the run is told that its time is up, with --notice"),
    FaultCase("preemption", "preemption", f"the run is told to make room within {SHORT_NOTICE:g} s"),
    FaultCase(
        "disk-full",
        "disk full",
        "half of a checkpoint is written, the rest is refused; later a rank is killed",
    ),
    FaultCase("damaged", "damaged file", "the run is ended, and half of its newest checkpoint is cut off"),
    FaultCase("twice", "killed twice", "a rank is killed, and again soon after the restart"),
)
ELASTIC = (
    FaultCase("fewer", "one node fewer", "the run is ended, and goes on with one node fewer"),
    FaultCase("more", "one node more", "the run is ended, and goes on with one node more"),
)


@frozen
class Schedule:
    """What the control showed that faults need: how long it was, when it saved, and what.

    ``group``: the save around which faults are placed, counted from 1: the second, where there are two.
    """

    steps: int
    ranks: int
    natural: bool
    saves: tuple[tuple[int, tuple[SavedFile, ...]], ...]
    group: int

    @property
    def later(self) -> Schedule | None:
        """The same around the next save, where there is one with steps enough after it."""
        there = len(self.saves) > self.group and self.following + LATEST <= self.steps
        return replace(self, group=self.group + 1) if there else None

    @property
    def saved_at(self) -> int:
        return self.saves[self.group - 1][0] if self.saves else self.steps // 2

    @property
    def following(self) -> int:
        """After how many steps the next save comes, or the end."""
        return self.saves[self.group][0] if len(self.saves) > self.group else self.steps

    @property
    def between(self) -> int:
        """Between that save and the next, nearer to the first."""
        third = max(1, (self.following - self.saved_at) // 3)
        return max(self.saved_at + 1, min(self.steps - 2, self.saved_at + third))

    @property
    def second_kill_step(self) -> int:
        """After how many steps the second kill comes, soon after the restart: before its first save."""
        return self.saved_at + min(LATEST, max(1, self.following - self.saved_at - 1))


def schedule(control: Start, limit: int) -> Schedule:
    groups: dict[int, list[SavedFile]] = {}
    for save in control.saves:
        if save.size:
            groups.setdefault(save.step, []).append(save)
    natural = all(trace.end == "exit" for trace in control.ranks.values())
    steps = control.last if natural or not limit else min(control.last, limit)
    before_end = {step: saves for step, saves in groups.items() if step < steps}
    found = tuple((step, tuple(saves)) for step, saves in sorted(before_end.items()))
    return Schedule(steps, len(control.ranks), natural, found, min(2, len(found)))


def runs_of(wanted: Sequence[FaultCase], plan: Schedule) -> tuple[tuple[FaultCase, ...], ...]:
    """Which faults follow each other in one run: a restart proves one and is hit by the next."""
    names = {fault.name: fault for fault in wanted}
    parts = [INSIDE, OUTSIDE] if plan.later else [INSIDE[:3], INSIDE[3:], OUTSIDE]
    runs = [tuple(names.pop(name) for name in part if name in names) for part in parts]
    return (*filter(None, runs), *((fault,) for fault in names.values()))


@frozen
class ScheduledFault:
    """A fault in a run that has several; its ranks inject it in the starts ``first`` to ``last``."""

    fault: FaultCase
    first: int
    last: int
    plan: Schedule
    orders: tuple[dict[str, Any], ...]


def schedule_faults(faults: Sequence[FaultCase], plan: Schedule) -> tuple[ScheduledFault, ...]:
    """Where each of these faults comes, in a run that all of them share."""
    found: list[ScheduledFault] = []
    start = 0
    for fault in faults:
        before = {one.fault.name for one in found}
        late = fault.name in INSIDE[3:] and before & set(INSIDE[:3])
        here = plan.later if late and plan.later else plan
        orders = rank_orders(fault, here)
        if fault.name == "twice" and "kill" in before:
            orders = [{**orders[1], "attempt": 0}]
        moved = tuple({**one, "attempt": one["attempt"] + start} for one in orders)
        found.append(ScheduledFault(fault, start, moved[-1]["attempt"], here, moved))
        start = found[-1].last + 1
    return tuple(found)


def select_faults(names: Sequence[str], elastic: bool) -> tuple[FaultCase, ...]:
    """The faults by these names, all where there are none."""
    known = (*FAULTS, *(ELASTIC if elastic else ()))
    return tuple(fault for fault in known if not names or fault.name in names)


def rank_orders(fault: FaultCase, plan: Schedule) -> list[dict[str, Any]]:
    """What the ranks themselves are to do, or where they are to wait for the fault."""
    kill = {"attempt": 0, "kind": "kill", "rank": plan.ranks - 1, "step": plan.between}
    if fault.name == "kill":
        return [kill]
    if fault.name == "after-save":
        return [{**kill, "kind": "kill-before", "step": plan.saved_at}]
    if fault.name == "twice":
        return [kill, {**kill, "attempt": 1, "rank": 0, "step": plan.second_kill_step}]
    if fault.name not in ("mid-save", "disk-full"):
        return [{"attempt": 0, "kind": "hold", "step": plan.between}]
    # In the middle of the largest file that the rank with the most bytes writes.
    most = max(plan.saves[plan.group - 1][1], key=lambda save: save.size)
    where = {"attempt": 0, "rank": most.rank, "step": plan.saved_at, "file": most.nth}
    where["size"] = max(1, most.size // 2)
    return [{**where, "kind": "torn"}] if fault.name == "mid-save" else [{**where, "kind": "full"}, kill]
