"""No rank is in a known call, and nothing moves: the ranks wait for something outside of torch, or compute.

A rank that waits for its GPU looks busy, and without records nothing distinguishes it from one that computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import STOPPED, CallTable
from clusterrun.diagnosis.evidence import START_PATIENCE, ChildProcess, PythonStacks, RankSnapshot
from clusterrun.diagnosis.explain_rank import WAIT_REMEDY, reason, waits_for_idle_pool
from clusterrun.diagnosis.explain_rank import at as at_line
from clusterrun.diagnosis.hypothesis import Explain, Hypothesis, Ranks
from clusterrun.diagnosis.kernel_waits import KernelWait, kernel_wait
from clusterrun.diagnosis.rules import absent_rank, different_places
from clusterrun.diagnosis.stacks import (
    TOGETHER,
    Doing,
    joins_processes,
    location,
    polls_for_lock_file,
    script_has_ended,
    waits_for_ray,
    works_for_a_loader,
)
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import MOST_LINES, reasons, verb_s
from clusterrun.model.frozen import replace

CERTAINTY = 10
_Started = tuple[RankSnapshot, ChildProcess]  # a rank and a process that it started


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or table.waits:
        return []
    doing = {rank.location.doing for rank in table.ranks}
    if doing and doing <= set(TOGETHER):
        explain_meeting: Explain = explain_met_in_vain
        places = {rank.rank: f"{rank.location.operation} at {rank.location.line}" for rank in table.ranks}
        if table.is_long_still and not RankVote(places).is_unanimous:
            # torch's checks of a collective (``TORCH_DISTRIBUTED_DEBUG``) wait before it is recorded.
            explain_meeting = partial(different_places.explain_different_places, places=places)
        return [Hypothesis(explain_meeting, CERTAINTY, final=table.is_long_still)]
    writing = tuple(rank.rank for rank in table.ranks if rank.writes)
    if writing:
        sentence = f"{ranks_in_words(writing)} write{verb_s(writing)} a file that grows"
        evidence = tuple(reasons(table, writing))
        return [Hypothesis(partial(explain_rest, sentence=sentence, evidence=evidence), CERTAINTY)]
    busy = tuple(rank.rank for rank in table.ranks if rank.works or rank.compiles)
    if busy and table.stalled and any(table.of(rank).may_spin for rank in busy):
        return [Hypothesis(partial(explain_busy_without_progress, busy=busy), CERTAINTY)]
    if busy:
        sentence = f"{ranks_in_words(busy)} compute{verb_s(busy)}"
        return [Hypothesis(partial(explain_rest, sentence=sentence), CERTAINTY, final=bool(table.stalled))]
    if not table.ranks:
        verdict, sentence = Verdict.UNDETERMINED, "no rank was seen"
        return [Hypothesis(partial(explain_rest, sentence=sentence, verdict=verdict), CERTAINTY)]
    if not table.is_long_still:
        explain = partial(explain_rest, sentence="the ranks pause outside of collectives")
        return [Hypothesis(explain, CERTAINTY, final=False)]
    living = table.living
    if not living:
        sentence = f"all {len(table.ranks)} ranks have ended, and what started them has not"
        explain = partial(explain_rest, sentence=sentence)
        if table.stalled >= START_PATIENCE:
            nodes = ", ".join(sorted({rank.node for rank in table.ranks})[:MOST_LINES])
            remedy = f"what does the launcher wait for? clusterrun exec --node NODE -- ps -ef, on {nodes}"
            explain = partial(explain_rest, sentence=sentence, verdict=Verdict.WAITING, remedy=remedy)
        return [Hypothesis(explain, CERTAINTY)]
    if all(script_has_ended(rank.stacks.main) for rank in living):
        culprits = tuple(rank.rank for rank in living)
        # The outermost frame of each rank is gone, which proves it.
        return [Hypothesis(absent_rank.explain_never_arrived, absent_rank.CERTAINTY, culprits)]
    if all(_stands_for_others(rank) for rank in living) and (processes := _below(living)):
        return processes
    alone = RankVote({rank.rank: rank.location.line for rank in living})
    is_known = alone.lone() >= 0 and all(line for line, _ in alone.sides)
    explain = partial(explain_waiting_outside, sides=alone.sides if is_known else [])
    return [Hypothesis(explain, CERTAINTY, final=not _all_sleep(living))]


def _all_sleep(ranks: Sequence[RankSnapshot]) -> bool:
    """Return whether all ranks are in a sleep. It ends by itself: a simulator of a slow step is no hang."""
    return all(kernel_wait(rank.process.waits_in) is KernelWait.SLEEP for rank in ranks)


def _stands_for_others(rank: RankSnapshot) -> bool:
    """Return whether it waits for processes that it started, as far as its stack shows."""
    is_unknown = rank.location.doing is Doing.UNKNOWN
    return (
        bool(rank.process.children)
        and not rank.answered
        and not waits_for_idle_pool(rank)
        and (is_unknown or joins_processes(rank.stacks.main))
    )


def _below(living: list[RankSnapshot]) -> list[Hypothesis]:
    """The processes that ranks started may be the ranks of torch. Only py-spy shows their stacks."""
    pairs = [
        (rank, child)
        for rank in living
        for child in rank.process.children
        if not works_for_a_loader(child.stack)
    ]
    inside = [pair for pair in pairs if location(pair[1].stack).doing in TOGETHER]
    late = [
        pair
        for pair in pairs
        if pair[1].stack and location(pair[1].stack).doing not in TOGETHER and location(pair[1].stack).frame
    ]
    late += [pair for pair in pairs if pair[1].state in STOPPED]
    if not inside or not late:
        is_known = not inside and any(child.stack for _, child in pairs)
        return [] if is_known else [Hypothesis(explain_unknown_processes, CERTAINTY)]
    return [Hypothesis(partial(explain_late_process, inside=inside, late=late), CERTAINTY)]


def explain_met_in_vain(table: CallTable, blamed: Ranks) -> Diagnosis:
    place = table.ranks[0].location
    sentence = f"all ranks seen wait in {place.operation} at {place.line}"
    absent = sorted({*range(table.size)}.difference(table.by_rank))
    if (
        absent
        and not table.mute
        and all(rank.request.world == rank.request.started == table.size for rank in table.ranks)
    ):
        sentence += f", for {ranks_in_words(absent)} as well, which had already ended"
        remedy = f"how did it end? clusterrun logs --rank {absent[0]}; behind a pipe an exit code is lost: "
        remedy += "set -o pipefail"
        verdict = Verdict.NEVER_ARRIVED
    else:
        remedy = "clusterrun check tests the way to rank 0; is WORLD_SIZE what init_process_group is given?"
        verdict = Verdict.LINK if table.owed else Verdict.UNDETERMINED
    return Diagnosis(verdict if table.is_long_still else Verdict.NOTHING, sentence, remedy=remedy)


def explain_rest(
    table: CallTable,
    blamed: Ranks,
    sentence: str,
    verdict: Verdict = Verdict.NOTHING,
    evidence: tuple[str, ...] = (),
    remedy: str = "",
) -> Diagnosis:
    return Diagnosis(verdict, sentence, (), (), evidence, remedy)


def explain_busy_without_progress(table: CallTable, blamed: Ranks, busy: Ranks) -> Diagnosis:
    sentence = (
        f"{ranks_in_words(busy)} keep{verb_s(busy)} a processor busy, but no rank has begun a collective "
    )
    sentence += f"or printed for {table.stalled:.0f} s: it computes, or waits for its GPU"
    records = "torch keeps no flight records here: it is too old, or TORCH_NCCL_TRACE_BUFFER_SIZE is 0"
    remedy = "clusterrun top shows whether the GPUs work; ranks that print now and then are not taken to hang"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), (*reasons(table, busy), records), remedy)


def explain_waiting_outside(table: CallTable, blamed: Ranks, sides: Sequence[tuple[str, Ranks]]) -> Diagnosis:
    living = table.living
    ended = [rank.rank for rank in table.ranks if not rank.state]
    lines = {rank.location.line for rank in living} - {""}
    where = ""
    if len(lines) == 1:
        where = f", all at {lines.pop()}" if len(living) > 1 else f", at {lines.pop()}"
    subject = f"all {len(living)} ranks that are left wait" if ended else f"all {len(living)} ranks wait"
    if len(living) == 1:
        subject = (
            f"rank {living[0].rank}, the only one left, waits" if ended else f"rank {living[0].rank} waits"
        )
    sentence = f"{subject} outside of collectives{where}"
    if sides:
        (line, ranks), (lone_line, (lone,)) = sides
        sentence += f": {ranks_in_words(ranks)} at {line}, rank {lone} alone at {lone_line}. "
        sentence += "Either they wait for it, or it waits for them"
    evidence = reasons(table, [rank.rank for rank in living], 2 * MOST_LINES)
    if ended:
        have = "has" if len(ended) == 1 else "have"
        evidence.append(f"{ranks_in_words(ended)} {have} ended")
    # A rank that builds an extension lets the others wait for its lock file.
    first = min(living, key=lambda rank: polls_for_lock_file(rank.stacks.main))
    verdict, remedy = Verdict.WAITING, reason(first).remedy
    if table.by_stacks and _all_sleep(living) and not any(rank.stacks.loop for rank in living):
        verdict, remedy = Verdict.UNDETERMINED, "how long is that sleep? look again after it"
        sentence += ", in a sleep, which ends by itself"
    if all(waits_for_ray(rank.stacks.main) for rank in living):
        verdict = Verdict.UNDETERMINED
        sentence += ", for tasks or objects of Ray, which may still work"
    return Diagnosis(verdict, sentence, (), (), tuple(evidence), remedy)


def explain_late_process(
    table: CallTable, blamed: Ranks, inside: Sequence[_Started], late: Sequence[_Started]
) -> Diagnosis:
    culprits = tuple(
        Culprit(-1, rank.node, f"its process {child.pid} {_does(rank, child)}")
        for rank, child in late[:MOST_LINES]
    )
    rank, child = late[0]
    sentence = f"process {child.pid} on {rank.node} holds the others up: it {_does(rank, child)}"
    first = location(inside[0][1].stack)
    where = f"{first.operation}{at_line(inside[0][1].stack)}"
    lines = [f"process {child.pid} on {rank.node} waits in {where}" for rank, child in inside[:MOST_LINES]]
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), tuple(lines), WAIT_REMEDY)


def _does(rank: RankSnapshot, child: ChildProcess) -> str:
    """Describe a process below a rank like a rank."""
    process = replace(rank.process, pid=child.pid, state=child.state, children=(), busy=0.0)
    same = replace(rank, process=process, stacks=PythonStacks(child.stack))
    return reason(same).why.partition(" ")[2]


def explain_unknown_processes(table: CallTable, blamed: Ranks) -> Diagnosis:
    living = table.living
    subject = ranks_in_words(rank.rank for rank in living)
    sentence = f"{subject} wait{verb_s(living)} for processes whose stacks cannot be read"
    evidence = []
    for rank in living[:MOST_LINES]:
        children = ", ".join(
            f"{child.name} (process {child.pid})" for child in rank.process.children[:MOST_LINES]
        )
        evidence.append(f"rank {rank.rank} on {rank.node} has started {children}")
    remedy = f"on {living[0].node}: py-spy dump --pid N of each shows where it is"
    remedy += " (ranks of torchrun need none)"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), tuple(evidence), remedy)
