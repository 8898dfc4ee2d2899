"""A collective timed out: who did not join it, or called something else, by the lines of the watchdogs.

A rank that is ended while others still print is silent as well. So silence counts only if one rank is
silent, or if the ranks that did not time out do report how far they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.first_error import first_error
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.stacks import Doing
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.watchdog_lines import WORLD, WatchdogLines, is_timeout
from clusterrun.model.frozen import replace
from clusterrun.model.states import State

CERTAINTY = 85
_LOGS_REMEDY = (
    "clusterrun logs --rank N shows what it did last; clusterrun diagnose while it hangs, or a --hang-after "
    "below the group's time-out, shows its line"
)
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
        return _of_watchdogs(lines, 0 if run.per_node else len(run.nodes))
    if lines.stuck:
        culprits = lines.stuck if len(lines.stuck) == 1 else ()
        return [Hypothesis("stuck watchdog", CERTAINTY, culprits, {"stuck": lines.stuck})]
    # gloo's message names no collective. A monitored barrier lists the absent ranks.
    facts: dict[str, object] = {"waiting": tuple(sorted(lines.timed_out))}
    silent = () if run.per_node else tuple(sorted({*range(len(run.nodes))} - lines.spoke))
    for kind, ranks in (
        ("absent from barrier", lines.absent),
        ("silent at time-out", silent if len(silent) == 1 else ()),
        ("outside at time-out", outside_of_calls(table)),
    ):
        if ranks:
            return [Hypothesis(kind, CERTAINTY, ranks, facts)]
    return [Hypothesis("gloo timed out", CERTAINTY, (), facts)]


def _of_watchdogs(lines: WatchdogLines, size: int) -> list[Hypothesis]:
    group, waits = lines.main_group()
    newest = max(call.sequence for call in waits.values())
    vote = RankVote({rank: call.operation for rank, call in waits.items() if call.sequence == newest})
    facts = {
        "sides": vote.sides,
        "group": group,
        "number": newest,
        "waiting": tuple(waits),
        "begun": {},
        "low": {},
    }
    if not vote.is_unanimous:
        return [Hypothesis("timed out in different calls", CERTAINTY, vote.suspects, facts)]
    absent = _absent(lines, group, waits, newest, size)
    low = {rank: call for rank, call in waits.items() if group and call.sequence < newest}
    if absent:
        facts["begun"] = {rank: lines.begun.get(rank, {}).get(group) for rank in absent}
        return [Hypothesis("absent at time-out", CERTAINTY, tuple(sorted(absent)), facts)]
    if low and 2 * len(low) < len(waits):
        return [Hypothesis("absent at time-out", CERTAINTY, tuple(sorted(low)), {**facts, "low": low})]
    facts["everybody"] = len(waits) == size and not low
    return [Hypothesis("timed out", CERTAINTY, (), facts)]


def _absent(lines: WatchdogLines, group: str, waits: dict[int, Call], newest: int, size: int) -> list[int]:
    """The ranks that have not begun what others timed out in, as far as that is certain."""
    others = [rank for rank in range(size) if rank not in waits]
    if group != WORLD:
        return others if len(others) == 1 else []
    behind = [rank for rank in others if lines.begun.get(rank, {}).get(group, newest) < newest]
    silent = [rank for rank in others if group not in lines.begun.get(rank, {})]
    others_answer = any(rank in lines.begun for rank in others) and 2 * len(silent) < size
    return [*behind, *(silent if len(silent) == 1 or others_answer else ())]


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


def _where(hypothesis: Hypothesis) -> str:
    group = hypothesis.facts["group"]
    return f"collective {hypothesis.facts['number']}" + (f" of group {group}" if group else "")


def _waited_until(hypothesis: Hypothesis) -> tuple[str, ...]:
    until = f"({_where(hypothesis)}) until it timed out"
    return tuple(
        f"{ranks_in_words(ranks)} waited in {call} {until}" for call, ranks in hypothesis.facts["sides"]
    )


def explain_timed_out_in_different_calls(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    sides, where = hypothesis.facts["sides"], _where(hypothesis)
    whys = {
        rank: f"it called {call} as {where}"
        for call, ranks in sides
        for rank in ranks
        if rank in hypothesis.culprits
    }
    calls = "; ".join(f"{ranks_in_words(ranks)} called {call}" for call, ranks in sides)
    sentence = f"ranks called different collectives as {where}: {calls}"
    remedy = "let every rank call the same collectives, in the same order, with equal shapes and types"
    return Diagnosis(Verdict.MISMATCH, sentence, _by_rank(run, whys), (), _waited_until(hypothesis), remedy)


def _by_rank(run: Remains, whys: Mapping[int, str]) -> tuple[Culprit, ...]:
    """Culprits below a launcher: the node of a rank is unknown."""
    return tuple(Culprit(rank, "" if run.per_node else run.node(rank), why) for rank, why in whys.items())


def _diagnose_absent(
    run: Remains, whys: Mapping[int, str], did: str, evidence: tuple[str, ...], remedy: str = _LOGS_REMEDY
) -> Diagnosis:
    culprits = _by_rank(run, whys)
    nodes = {culprit.node for culprit in culprits}
    on = f" on {culprits[0].node}" if len(nodes) == 1 and culprits[0].node else ""
    sentence = f"{ranks_in_words(whys)}{on} {did}: {culprits[0].why}"
    remedy = remedy.replace("--rank N", f"--rank {culprits[0].rank}")
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, remedy)


def explain_absent_at_time_out(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    begun, low, where = hypothesis.facts["begun"], hypothesis.facts["low"], _where(hypothesis)
    whys = {}
    for rank in hypothesis.culprits:
        if rank in low:
            whys[rank] = f"it stands at {low[rank].operation}, collective {low[rank].sequence}"
        elif begun[rank] is None:
            whys[rank] = f"it printed nothing of {where}, which the others waited in"
        else:
            whys[rank] = f"it had begun {max(begun[rank], 0)} collectives, and the others waited in {where}"
    did = f"never came to {hypothesis.facts['sides'][0][0]} ({where})"
    return _diagnose_absent(run, whys, did, _waited_until(hypothesis))


def explain_timed_out(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    everybody = hypothesis.facts["everybody"]
    call = hypothesis.facts["sides"][0][0]
    who = ranks_in_words(hypothesis.facts["waiting"])
    sentence = f"{who} waited in {call} ({_where(hypothesis)}) until it timed out"
    if everybody:
        sentence += ": every rank had begun it"
        remedy = "clusterrun check finds a broken link"
        return Diagnosis(Verdict.LINK, sentence, (), (), _waited_until(hypothesis), remedy)
    sentence += ": their output does not show which rank did not come"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, (), (), _waited_until(hypothesis), _LOGS_REMEDY)


def explain_stuck_watchdog(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    why = "the watchdog thread of its NCCL was stuck: a call of CUDA or NCCL does not return"
    remedy = "nvidia-smi and dmesg on that node (Xid); does a thread hold Python's lock in a call of CUDA?"
    if hypothesis.culprits:
        whys = dict.fromkeys(hypothesis.culprits, why)
        return _diagnose_absent(run, whys, "was ended by NCCL's heartbeat monitor", (), remedy)
    stuck = ranks_in_words(hypothesis.facts["stuck"])
    sentence = f"NCCL's heartbeat monitor ended {stuck}: a call of CUDA or NCCL does not return"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), (), remedy)


def explain_gloo_timed_out(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    waiting = ranks_in_words(hypothesis.facts["waiting"])
    evidence = (f"{waiting} waited in a collective until it timed out",)
    whys = {
        "absent from barrier": "it did not come to the monitored barrier",
        "silent at time-out": "it printed nothing, while all others timed out or lost their peers",
        "outside at time-out": "it was in no collective, while others timed out or lost their peers",
    }
    if hypothesis.culprits:
        place = "monitored_barrier" if hypothesis.kind == "absent from barrier" else "a collective"
        why = dict.fromkeys(hypothesis.culprits, whys[hypothesis.kind])
        return _diagnose_absent(run, why, f"never came to {place}", evidence)
    sentence = f"a collective timed out in {waiting}: the output does not show which rank did not come"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, (), (), evidence, _LOGS_REMEDY)


END_EXPLANATIONS = {
    "timed out in different calls": explain_timed_out_in_different_calls,
    "absent at time-out": explain_absent_at_time_out,
    "timed out": explain_timed_out,
    "stuck watchdog": explain_stuck_watchdog,
    "absent from barrier": explain_gloo_timed_out,
    "silent at time-out": explain_gloo_timed_out,
    "outside at time-out": explain_gloo_timed_out,
    "gloo timed out": explain_gloo_timed_out,
}
