"""Plan the faults of a rehearsal: when each is injected, and by which process; pure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from clusterrun.model.frozen import frozen, replace
from clusterrun.rehearse.rank_trace import SavedFile, Start, kind_of

# Seconds between the notice and the end at a preemption.
SHORT_NOTICE = 2.0
# Seconds for the other ranks to finish their part of a save before a rank is killed in its own.
OTHERS_SECONDS = 1.0
# Steps after a notice within which a script that reacts to it has ended.
AFTER_NOTICE = 24
# Steps of a restart after which it is killed again at the latest.
LATEST = 8
# The ranks inject these. In this order a restart repeats steps of the start before it; with more than two
# ranks only repeated steps can be compared by bits.
BETWEEN_SAVES = ("after-save", "kill")
IN_A_SAVE = ("mid-save", "disk-full")
INSIDE = (*BETWEEN_SAVES, *IN_A_SAVE, "twice")
# Faults that cut off a file. Each kind of file of a save is damaged in turn.
DAMAGING = ("mid-save", "disk-full", "damaged")
# Kinds of files that are damaged in turn; a Trainer's checkpoint has five. Each takes a start per fault.
MOST_TARGETS = 6
# Faults that are injected from outside while all ranks wait. Nothing disturbs the run before the first.
OUTSIDE = ("time-limit", "preemption", "node")


@frozen
class FaultCase:
    """One fault: its name, its head in the table, what it does in a sentence, the kind of file it damages."""

    name: str
    title: str
    does: str
    target: str = ""
    # Whether ``target`` is a kind of companions of the checkpoint. It counts only if a restart reads it.
    of_companion: bool = False
    writer: int = -1  # the rank that writes the damaged file; -1: any


FAULTS = (
    FaultCase("kill", "killed rank", "a rank is killed between two steps"),
    FaultCase(
        "mid-save",
        "killed in save",
        "the rank that writes a checkpoint is killed when half of a file is written, for each file in turn, "
        "also for another file of that moment that a restart reads",
    ),
    FaultCase("after-save", "killed after save", "a rank is killed right after a checkpoint"),
    FaultCase("node", "lost node", "all processes of the last node are killed, its agent too"),
    FaultCase("time-limit", "time limit", "the run gets notice that its time is up, with --notice"),
    FaultCase("preemption", "preemption", f"the run gets notice to make room within {SHORT_NOTICE:g} s"),
    FaultCase(
        "disk-full",
        "disk full",
        "half of a file is written, the rest is refused, for each file in turn; later a rank is killed",
    ),
    FaultCase(
        "damaged",
        "damaged file",
        "the run is ended, and half of a file of its newest checkpoint is cut off, for each file in turn",
    ),
    FaultCase("twice", "killed twice", "a rank is killed, and again after the first save of the restart"),
)
ELASTIC = (
    FaultCase("fewer", "one node fewer", "the run is ended, and continues with one node fewer"),
    FaultCase("more", "one node more", "the run is ended, and continues with one node more"),
)


@frozen
class Schedule:
    """The facts about the control that place the faults: its length, and its saves by step."""

    steps: int
    ranks: int
    natural: bool
    saves: tuple[tuple[int, tuple[SavedFile, ...]], ...]
    group: int  # the save around which faults are placed, from 1: the second if there are two
    root: str = ""  # the working directory of the control
    companions: tuple[SavedFile, ...] = ()  # other files that were written at the steps of these saves

    @property
    def companion_kinds(self) -> tuple[str, ...]:
        return tuple(sorted({kind_of(save.path, self.root) for save in self.companions}))

    def group_at(self, number: int) -> tuple[SavedFile, ...]:
        """Return the files of the save ``number``, counted from 1, and their companions."""
        step, saves = self.saves[number - 1]
        return (*saves, *(save for save in self.companions if save.step == step))

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the kinds of files of a checkpoint, the largest first."""
        size_by_kind: dict[str, int] = {}
        for _, saves in self.saves:
            for save in saves:
                kind = kind_of(save.path, self.root)
                size_by_kind[kind] = max(save.size, size_by_kind.get(kind, 0))
        return tuple(sorted(size_by_kind, key=lambda kind: (-size_by_kind[kind], kind)))

    def around(self, target: str) -> Schedule:
        """Return the schedule around a save with a file of the kind ``target``, preferably a later save."""
        numbers = [*range(self.group, len(self.saves) + 1), *range(self.group - 1, 0, -1)]
        for number in numbers:
            if any(kind_of(save.path, self.root) == target for save in self.group_at(number)):
                return replace(self, group=number)
        return self

    def writers(self, target: str) -> list[int]:
        """Return the ranks that write files of the kind ``target``."""
        ranks = {save.rank for _, saves in self.saves for save in saves if self._is_of(target, save)}
        return sorted(ranks)

    def _is_of(self, target: str, save: SavedFile) -> bool:
        return kind_of(save.path, self.root) == target

    def struck_file(self, fault: FaultCase) -> SavedFile:
        """Return the file of this save that ``fault`` damages: the largest of its kind and writer, or any."""
        matching = [save for save in self.group_at(self.group) if self._is_of(fault.target, save)]
        matching = [save for save in matching if save.rank == fault.writer] or matching
        return max(matching or self.saves[self.group - 1][1], key=lambda save: save.size)

    @property
    def later(self) -> Schedule | None:
        """Return the schedule around the next save; None if too few steps follow it."""
        has_later_save = len(self.saves) > self.group and self.following + LATEST <= self.steps
        return replace(self, group=self.group + 1) if has_later_save else None

    @property
    def saved_at(self) -> int:
        return self.saves[self.group - 1][0] if self.saves else self.steps // 2

    @property
    def following(self) -> int:
        """Return the step of the next save, or of the end."""
        return self.saves[self.group][0] if len(self.saves) > self.group else self.steps

    @property
    def between(self) -> int:
        """Return a step between that save and the next, nearer to the first."""
        third = max(1, (self.following - self.saved_at) // 3)
        return max(self.saved_at + 1, min(self.steps - 2, self.saved_at + third))

    @property
    def second_kill_step(self) -> int:
        """Return the step of the second kill: after the first save of the restart, if there is time for one.

        Only the next start shows whether it finds the files that a restarted run writes.
        """
        if self.following + 1 < self.steps:
            return self.following + 1
        return self.saved_at + min(LATEST, max(1, self.following - self.saved_at - 1))


def schedule(control: Start, limit: int, root: str = "") -> Schedule:
    groups: dict[int, list[SavedFile]] = {}
    for save in control.saves:
        if save.size:
            groups.setdefault(save.step, []).append(save)
    natural = all(trace.end == "exit" for trace in control.ranks.values())
    steps = control.last if natural or not limit else min(control.last, limit)
    before_end = {step: saves for step, saves in groups.items() if step < steps}
    saves_by_step = tuple((step, tuple(saves)) for step, saves in sorted(before_end.items()))
    # A file of one byte cannot be cut in half.
    companions = tuple(
        save
        for save in control.companions
        if save.step in before_end and save.size > 1 and save.path.startswith(root + os.sep)
    )
    group = min(2, len(saves_by_step))
    if repeated := _first_repetition(control):
        # A restart may be right in the first epoch alone. The restart needs a few steps before the end.
        ends = [*(step for step, _ in saves_by_step[1:]), steps]
        later = (
            number
            for number, ((step, _), end) in enumerate(zip(saves_by_step, ends), 1)
            if step >= repeated and end + 1 < steps
        )
        group = max(group, next(later, 0))
    return Schedule(steps, len(control.ranks), natural, saves_by_step, group, root, companions)


def _first_repetition(control: Start) -> int:
    """Return the first step with a sample that an earlier step had, as in a second epoch; 0 for none."""
    samples: set[int] = set()
    for step in next(iter(control.ranks.values())).steps:
        rows = step.rows or [row for _, rows, _ in step.batches for row in rows]
        if not samples.isdisjoint(rows):
            return step.n
        samples.update(rows)
    return 0


def cases_of(fault: FaultCase, plan: Schedule) -> tuple[FaultCase, ...]:
    """Return the fault once, or once for each kind of file that it damages."""
    if fault.name not in DAMAGING:
        return (fault,)
    cases = []
    for target in plan.targets[:MOST_TARGETS]:
        cases.append(replace(fault, target=target))
        writers = plan.writers(target) if fault.name == "mid-save" else []
        if len(writers) > 1:
            # The first may also write the name of the checkpoint, while the last is not done. The last is
            # killed before any other fault, since its file would stay for later starts.
            cases[-1:] = [replace(fault, target=target, writer=rank) for rank in (writers[-1], writers[0])]
    companions = plan.companion_kinds[:MOST_TARGETS] if fault.name in IN_A_SAVE else ()
    cases += [replace(fault, target=kind, of_companion=True) for kind in companions]
    return tuple(cases) or (fault,)


def runs_of(cases: Sequence[FaultCase], plan: Schedule) -> tuple[tuple[FaultCase, ...], ...]:
    """Group the faults that follow each other in one run: a restart proves one and meets the next."""
    in_saves = [(*BETWEEN_SAVES, *IN_A_SAVE)] if plan.later else [BETWEEN_SAVES, IN_A_SAVE]
    parts = [*in_saves, OUTSIDE]
    shared = {name for part in parts for name in part}
    parts += [(name,) for name in dict.fromkeys(case.name for case in cases) if name not in shared]
    of_companions = tuple(case for case in cases if case.of_companion)
    cases = [case for case in cases if not case.of_companion]
    runs = [tuple(case for name in part for case in cases if case.name == name) for part in parts]
    # The restarts of the other runs show which companions are read.
    return tuple(filter(None, (*runs, of_companions)))


@frozen
class ScheduledFault:
    """A fault in a run with several faults; the ranks inject it in the starts ``first`` to ``last``."""

    fault: FaultCase
    first: int
    last: int
    plan: Schedule
    orders: tuple[dict[str, Any], ...]


def schedule_faults(faults: Sequence[FaultCase], plan: Schedule) -> tuple[ScheduledFault, ...]:
    """Place each of these faults in a run that all of them share."""
    scheduled: list[ScheduledFault] = []
    start = 0
    for fault in faults:
        before = {item.fault.name for item in scheduled}
        late = fault.name in IN_A_SAVE and before & set(BETWEEN_SAVES)
        own_plan = plan.later if late and plan.later else plan
        own_plan = own_plan.around(fault.target) if fault.target else own_plan
        orders = rank_orders(fault, own_plan)
        moved = tuple({**item, "attempt": item["attempt"] + start} for item in orders)
        scheduled.append(ScheduledFault(fault, start, moved[-1]["attempt"], own_plan, moved))
        start = scheduled[-1].last + 1
    return tuple(scheduled)


def select_faults(names: Sequence[str], elastic: bool) -> tuple[FaultCase, ...]:
    """Return the faults by name; all if there are no names."""
    all_faults = (*FAULTS, *(ELASTIC if elastic else ()))
    return tuple(fault for fault in all_faults if not names or fault.name in names)


def rank_orders(fault: FaultCase, plan: Schedule) -> list[dict[str, Any]]:
    """Return the orders for the ranks: what they do themselves, or where they wait for the fault."""
    kill = {"attempt": 0, "kind": "kill", "rank": plan.ranks - 1, "step": plan.between}
    if fault.name == "kill":
        return [kill]
    if fault.name == "after-save":
        return [{**kill, "kind": "kill-before", "step": plan.saved_at}]
    if fault.name == "twice":
        return [kill, {**kill, "attempt": 1, "rank": 0, "step": plan.second_kill_step}]
    if fault.name not in ("mid-save", "disk-full"):
        return [{"attempt": 0, "kind": "hold", "step": plan.between}]
    # In the middle of the file.
    file = plan.struck_file(fault)
    where: dict[str, Any] = {"attempt": 0, "rank": file.rank, "step": plan.saved_at, "file": file.nth}
    where["size"] = max(1, file.size // 2)
    if fault.writer >= 0:
        where["pause"] = OTHERS_SECONDS
    return [{**where, "kind": "torn"}] if fault.name == "mid-save" else [{**where, "kind": "full"}, kill]
