"""A collective timed out: who did not join it, or called something else, by the lines of the watchdogs.

A rank that is ended while others still print is silent as well. So silence counts only if one rank is
silent, or if the ranks that did not time out do report how far they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.explain_end import with_printed, with_stacks
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Explain, Hypothesis, Ranks
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import Doing
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.watchdog_lines import WORLD, WatchdogLines, is_timeout
from clusterrun.model.frozen import frozen, replace
from clusterrun.model.states import State

CERTAINTY = 85
LOGS_REMEDY = (
    "clusterrun logs --rank N shows what it did last; clusterrun diagnose while it hangs, or a --hang-after "
    "below the group's time-out, shows its line"
)
LINK_REMEDY = "clusterrun check finds a broken link"
INSIDE = (Doing.COLLECTIVE, Doing.RENDEZVOUS, Doing.UNKNOWN)


def rule(table: CallTable) -> list[Hypothesis]:
    run, error = table.end, first_error(table)
    if not run or run.state is State.COMPLETED or not error or not is_timeout(error):
        return []
    errors = run.errors
    if run.per_node:
        # Several launchers print here. How many ranks each has started is unknown.
        errors = tuple(replace(error, rank=error.inner) for error in errors if error.inner >= 0)
        if error.inner < 0:
            return []
    lines = WatchdogLines(errors)
    if lines.calls:
        return [_of_watchdogs(run, lines)]
    if lines.stuck:
        culprits = lines.stuck if len(lines.stuck) == 1 else ()
        return [_hypothesis(partial(explain_stuck_watchdog, run=run, stuck=lines.stuck), culprits)]
    # gloo's message names no collective. Other messages name the absent ranks.
    explain = partial(explain_gloo_timed_out, run=run, waiting=sorted(lines.timed_out))
    silent = () if run.per_node else tuple(sorted({*range(len(run.nodes))} - lines.spoke))
    outside = outside_of_calls(table)
    if lines.absent:
        why = "others waited for it until they timed out"
        return [_hypothesis(partial(explain, why=why), lines.absent)]
    if len(silent) == 1:
        why = "it printed nothing, while all others timed out or lost their peers"
        return [_hypothesis(partial(explain, why=why), silent)]
    if outside:
        why = "it was in no collective, while others timed out or lost their peers"
        return [_hypothesis(partial(explain, why=why), outside)]
    return [_hypothesis(explain)]


def _hypothesis(explain: Explain, culprits: Ranks = ()) -> Hypothesis:
    return Hypothesis(explain, CERTAINTY, culprits, complete=_with_output)


def _with_output(table: CallTable, diagnosis: Diagnosis) -> Diagnosis:
    diagnosis, run = with_stacks(table, diagnosis), table.end
    return diagnosis if not run or run.per_node else with_printed(diagnosis, run.errors, per_node=False)


@frozen
class TimedOutCall:
    """The newest call in which ranks timed out."""

    sides: Sequence[tuple[str, Ranks]]  # operations, and the ranks that waited in them
    group: str
    number: int  # in the sequence of its group

    @property
    def place(self) -> str:
        return f"collective {self.number}" + (f" of group {self.group}" if self.group else "")

    @property
    def evidence(self) -> tuple[str, ...]:
        until = f"({self.place}) until it timed out"
        return tuple(f"{ranks_in_words(ranks)} waited in {call} {until}" for call, ranks in self.sides)


def _of_watchdogs(run: Remains, lines: WatchdogLines) -> Hypothesis:
    size = 0 if run.per_node else len(run.nodes)
    group, waits = lines.main_group()
    newest = max(call.sequence for call in waits.values())
    vote = RankVote({rank: call.operation for rank, call in waits.items() if call.sequence == newest})
    call = TimedOutCall(vote.sides, group, newest)
    if not vote.is_unanimous:
        return _hypothesis(partial(explain_timed_out_in_different_calls, run=run, call=call), vote.suspects)
    # The ranks that have not begun what others timed out in, as far as that is certain.
    others = [rank for rank in range(size) if rank not in waits]
    if group != WORLD:
        absent = others if len(others) == 1 else []
    else:
        behind = [rank for rank in others if lines.begun.get(rank, {}).get(group, newest) < newest]
        silent = [rank for rank in others if group not in lines.begun.get(rank, {})]
        others_answer = any(rank in lines.begun for rank in others) and 2 * len(silent) < size
        absent = [*behind, *(silent if len(silent) == 1 or others_answer else ())]
    low = {rank: call for rank, call in waits.items() if group and call.sequence < newest}
    if absent:
        begun = {rank: lines.begun.get(rank, {}).get(group) for rank in absent}
        explain = partial(explain_absent_at_time_out, run=run, call=call, begun=begun, low={})
        return _hypothesis(explain, tuple(sorted(absent)))
    if low and 2 * len(low) < len(waits):
        explain = partial(explain_absent_at_time_out, run=run, call=call, begun={}, low=low)
        return _hypothesis(explain, tuple(sorted(low)))
    sides: dict[Call, list[int]] = {}
    for rank, waited in sorted(waits.items()):
        sides.setdefault(replace(waited, rank=-1), []).append(rank)
    calls = [
        TimedOutCall([(side.operation, tuple(ranks))], group, side.sequence) for side, ranks in sides.items()
    ]
    return _hypothesis(partial(explain_timed_out, calls=calls, has_all=len(waits) == size and not low))


def outside_of_calls(table: CallTable) -> tuple[int, ...]:
    """Return the silent ranks outside of collectives at their end, if all ranks share one group only."""
    run = table.end
    if not run or run.per_node:
        return ()
    silent = {*range(len(run.nodes))} - {error.rank for error in run.errors}
    stood = [rank for rank in table.ranks if rank.stacks.main and rank.rank in silent]
    groups = [group for rank in table.ranks for group in rank.groups]
    if {rank.rank for rank in stood} != silent or any(group.size != len(run.nodes) for group in groups):
        return ()
    return tuple(rank.rank for rank in stood if groups and rank.location.doing not in INSIDE)


def explain_timed_out_in_different_calls(
    table: CallTable, blamed: Ranks, run: Remains, call: TimedOutCall
) -> Diagnosis:
    whys = {
        rank: f"it called {operation} as {call.place}"
        for operation, ranks in call.sides
        for rank in ranks
        if rank in blamed
    }
    calls = "; ".join(f"{ranks_in_words(ranks)} called {operation}" for operation, ranks in call.sides)
    sentence = f"ranks called different collectives as {call.place}: {calls}"
    remedy = "let every rank call the same collectives, in the same order, with equal shapes and types"
    return Diagnosis(Verdict.MISMATCH, sentence, _by_rank(run, whys), (), call.evidence, remedy)


def _by_rank(run: Remains, whys: Mapping[int, str]) -> tuple[Culprit, ...]:
    """Return the culprits below a launcher, which does not report the node of a rank."""
    return tuple(Culprit(rank, "" if run.per_node else run.node(rank), why) for rank, why in whys.items())


def _diagnose_absent(
    run: Remains, whys: Mapping[int, str], did: str, evidence: tuple[str, ...], remedy: str = LOGS_REMEDY
) -> Diagnosis:
    culprits = _by_rank(run, whys)
    nodes = {culprit.node for culprit in culprits}
    on_node = f" on {culprits[0].node}" if len(nodes) == 1 and culprits[0].node else ""
    sentence = f"{ranks_in_words(whys)}{on_node} {did}: {culprits[0].why}"
    remedy = remedy.replace("--rank N", f"--rank {culprits[0].rank}")
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, remedy)


def explain_absent_at_time_out(
    table: CallTable,
    blamed: Ranks,
    run: Remains,
    call: TimedOutCall,
    begun: Mapping[int, int | None],
    low: Mapping[int, Call],
) -> Diagnosis:
    """``begun``: collectives that the ranks had begun; None if unknown. ``low``: earlier calls of ranks."""
    whys = {}
    for rank in blamed:
        if rank in low:
            whys[rank] = f"it stands at {low[rank].operation}, collective {low[rank].sequence}"
        elif (count := begun[rank]) is None:
            whys[rank] = f"it printed nothing of {call.place}, which the others waited in"
        else:
            whys[rank] = f"it had begun {max(count, 0)} collectives, and the others waited in {call.place}"
    return _diagnose_absent(run, whys, f"never came to {call.sides[0][0]} ({call.place})", call.evidence)


def explain_timed_out(
    table: CallTable, blamed: Ranks, calls: Sequence[TimedOutCall], has_all: bool
) -> Diagnosis:
    evidence = tuple(line for call in calls for line in call.evidence)
    sentence = "; ".join(evidence)
    if has_all:
        sentence += ": every rank had begun it"
        return Diagnosis(Verdict.LINK, sentence, (), (), evidence, LINK_REMEDY)
    sentence += ": their output does not show which rank did not come"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, (), (), evidence, LOGS_REMEDY)


def explain_stuck_watchdog(table: CallTable, blamed: Ranks, run: Remains, stuck: Ranks) -> Diagnosis:
    why = "the watchdog thread of its NCCL was stuck: a call of CUDA or NCCL does not return"
    remedy = "nvidia-smi and dmesg on that node (Xid); does a thread hold Python's lock in a call of CUDA?"
    if blamed:
        whys = dict.fromkeys(blamed, why)
        return _diagnose_absent(run, whys, "was ended by NCCL's heartbeat monitor", (), remedy)
    sentence = f"NCCL's heartbeat monitor ended {ranks_in_words(stuck)}: "
    sentence += "a call of CUDA or NCCL does not return"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), (), remedy)


def explain_gloo_timed_out(
    table: CallTable, blamed: Ranks, run: Remains, waiting: Sequence[int], why: str = ""
) -> Diagnosis:
    evidence = (f"{ranks_in_words(waiting)} waited in a collective until it timed out",)
    if blamed:
        return _diagnose_absent(run, dict.fromkeys(blamed, why), "never came to a collective", evidence)
    sentence = f"a collective timed out in {ranks_in_words(waiting)}: "
    sentence += "the output does not show which rank did not come"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, (), (), evidence, LOGS_REMEDY)
