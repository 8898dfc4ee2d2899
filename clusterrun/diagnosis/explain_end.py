"""Explain what ended a run: the sentence, a reason per culprit, the evidence and the remedy; pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.diagnosis.calls import Call, CallTable
from clusterrun.diagnosis.explain_rank import WAIT_REMEDY, reason
from clusterrun.diagnosis.first_error import was_killed
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.known_errors import PEERS_REMEDY, KnownError, meaning
from clusterrun.diagnosis.printed_errors import OURS, Error, is_timer, last_message
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.rules import (
    different_model,
    different_sizes,
    ended_rank,
    error_in_rank,
    noticed_hang,
    timed_out,
    unmet,
)
from clusterrun.diagnosis.rules.different_sizes import SIZES
from clusterrun.diagnosis.rules.ended_rank import KILLED
from clusterrun.diagnosis.solo_ranks import SILENCE
from clusterrun.diagnosis.stacks import short
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.watchdog_lines import is_timeout
from clusterrun.model.frozen import replace
from clusterrun.model.record import Failure
from clusterrun.model.states import State

MOST_WORDS = 180
MOST_CULPRITS = 16
MOST_ALSO = 2
MOST_NAMED = 8
_CHILD_KILLED = re.compile(
    r"is killed by signal: Killed|was killed by signal 9|terminated with signal SIGKILL"
)
_BROKEN = "a connection of it broke, and no rank had failed before it"
_BROKEN_REMEDY = (
    "what does that line talk to: a service, a store of files, another rank? "
    "clusterrun check tests the network between the nodes"
)
_CODES = {124: "so does timeout(1) when the time that it was given is over"}
_LEFT_REMEDY = "let every rank make the same collectives, and call destroy_process_group after the last one"
_MEMORY_REMEDY = "ask for more with --mem, use fewer data-loader workers, or a smaller batch"
_LOGS_REMEDY = (
    "clusterrun logs --rank N shows what it did last; clusterrun diagnose while it hangs, or a --hang-after "
    "below the group's time-out, says where it stands"
)

Rule = Callable[[CallTable], list[Hypothesis]]
Explanation = Callable[[CallTable, Remains, Hypothesis], Diagnosis]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS].rpartition(' ')[0]} …"


# --- what is added to several explanations ---


def with_printed(diagnosis: Diagnosis, errors: Iterable[Error], per_node: bool) -> Diagnosis:
    """Add the errors of the culprits that did not end the run by themselves."""
    own = [error for error in errors if not error.is_consequence and not is_timer(error)]
    newest = {error.inner if per_node else error.rank: error for error in own}
    blamed = sorted({culprit.rank for culprit in diagnosis.culprits if culprit.rank >= 0} & newest.keys())
    printed = [
        f"rank {rank} has printed: {newest[rank].message}" for rank in blamed if not is_timeout(newest[rank])
    ]
    return replace(diagnosis, evidence=(*diagnosis.evidence, *printed))


def with_logged(diagnosis: Diagnosis, complaints: Mapping[int, str]) -> Diagnosis:
    """Add what the culprits logged of an error that did not end them, by rank."""
    ranks = sorted({culprit.rank for culprit in diagnosis.culprits} & complaints.keys())
    lines = [f"rank {rank} has logged: {_cut(complaints[rank])}" for rank in ranks]
    shown = "\n".join(diagnosis.evidence)
    new = tuple(line for line in lines if line.partition(": ")[2] not in shown)
    return replace(diagnosis, evidence=(*diagnosis.evidence, *new))


def _with_stacks(table: CallTable, diagnosis: Diagnosis) -> Diagnosis:
    """Add where the awaited ranks were when they were told to end: they print nothing themselves."""
    stood = {rank.rank: rank for rank in table.ranks if rank.stacks.main}
    lines = {
        rank: f"; when it was asked to end, it was at {seen.location.line}"
        for rank, seen in stood.items()
        if seen.location.line
    }
    seen = [stood[culprit.rank] for culprit in diagnosis.culprits if culprit.rank in stood]
    if diagnosis.verdict is not Verdict.NEVER_ARRIVED or not lines or not seen:
        return diagnosis
    culprits = tuple(
        replace(culprit, why=culprit.why + lines.get(culprit.rank, "")) for culprit in diagnosis.culprits
    )
    sentence = diagnosis.said
    if len(culprits) == 1:
        sentence = f"{sentence.partition(diagnosis.culprits[0].why)[0].rstrip(': ')}: {culprits[0].why}"
    return replace(diagnosis, said=sentence, culprits=culprits, remedy=reason(seen[0]).remedy)


def _with_consequences(run: Remains, diagnosis: Diagnosis) -> Diagnosis:
    """Add what other ranks printed because of it."""
    blamed = {(culprit.node, culprit.rank) for culprit in diagnosis.culprits}
    others = [error for error in run.errors if (run.node(error.rank), run.rank(error)) not in blamed]
    noticed = [error for error in others if error.is_consequence]
    # A launcher's own message adds nothing to those of its ranks.
    noticed = [error for error in noticed if error.inner >= 0] or noticed
    if not noticed:
        return diagnosis
    first = min(noticed, key=lambda error: (error.rank, error.inner))
    line = f"a consequence only, of {run.several(noticed)}: {_cut(first.text)}"
    line += f", at {short(first.frame)}" if first.frame else ""
    return replace(diagnosis, evidence=(*diagnosis.evidence, line))


# --- an error of a rank ---


def _error_in_rank(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root: Error = hypothesis.facts["root"]
    everywhere: list[Error] = hypothesis.facts["everywhere"]
    cause = f": {root.row.cause}" if root.row else ""
    sentence = f"{run.who(root.rank, root.inner)} failed first{cause}"
    if everywhere:
        nodes = sorted({run.node(error.rank) for error in everywhere})
        of = "" if len(everywhere) == len(run.nodes) else f" of {', '.join(nodes[:MOST_NAMED])}"
        sentence = f"all {len(everywhere)} ranks{of} failed with the same error{cause}"
    if run.state is State.COMPLETED:
        sentence = f"the run ended with exit code 0, though {sentence}"
    culprits = tuple(
        Culprit(run.rank(error), run.node(error.rank), error.message) for error in everywhere or [root]
    )
    return _of_error(run, hypothesis, sentence, culprits[:MOST_CULPRITS])


def _file_system(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    """The node is to blame, or what several nodes share; no rank is."""
    root: Error = hypothesis.facts["root"]
    cause = root.row.cause if root.row else ""
    nodes = sorted({run.node(error.rank) for error in run.errors if error.row is root.row})
    where = f"on {nodes[0]}" if len(nodes) == 1 else f"that {', '.join(nodes[:MOST_NAMED])} use"
    name = run.name(root.rank, root.inner)
    culprits = (Culprit(-1, nodes[0], f"{cause}; {name} printed: {root.message}"),) if len(nodes) == 1 else ()
    return _of_error(run, hypothesis, f"{cause} {where}: {name} met it first", culprits)


def _of_error(
    run: Remains, hypothesis: Hypothesis, sentence: str, culprits: tuple[Culprit, ...]
) -> Diagnosis:
    root: Error = hypothesis.facts["root"]
    same: list[Error] = hypothesis.facts["same"]
    verdict, remedy = Verdict.CRASHED, ""
    if root.row:
        verdict, remedy = root.row.verdict, root.row.remedy
    else:
        who = run.name(root.rank) if root.inner >= 0 else "it"
        remedy = f"clusterrun logs --rank {root.rank} shows all that {who} printed"
    memory = run.memory_notes if _CHILD_KILLED.search(root.text) else ()
    if memory:
        verdict, remedy = Verdict.OUT_OF_MEMORY, _MEMORY_REMEDY
    if run.state is State.COMPLETED:
        remedy = "a pipe or a wrapper hides the exit code: set -o pipefail (bash), or let Python be the last "
        remedy += "program that runs"
    evidence = [run.quoted(root), *memory]
    if same:
        evidence.append(f"{run.several(same)} printed the same")
    own = [error for error in run.errors if (error.rank, error.inner) == (root.rank, root.inner)]
    also = [
        error for error in own if error.text != root.text and not error.is_consequence and not error.survived
    ]
    name = run.name(root.rank, root.inner)
    evidence += [f"{name} also printed: {_cut(error.message)}" for error in also[-MOST_ALSO:]]
    return Diagnosis(verdict, sentence, culprits, (), tuple(evidence), remedy)


# --- ranks that did not agree ---


def _mismatch(
    run: Remains,
    root: Error,
    sentence: str,
    whys: Mapping[int, str] | None = None,
    remedy: str = "",
    evidence: Sequence[str] = (),
) -> Diagnosis:
    """Evidence and remedy are those of the first error, unless others are passed."""
    lines = tuple(evidence) or (run.quoted(root),)
    remedy = remedy or (root.row.remedy if root.row else "")
    return Diagnosis(Verdict.MISMATCH, sentence, run.culprits(whys or {}), (), lines, remedy)


def _line(table: CallTable, rank: int, call: Call | None = None) -> str:
    """Return the line of a rank that complained of sizes, or that was still in ``call`` at the end."""
    errors = table.end.errors if table.end else ()
    frames = [
        error.frame for error in errors if error.rank == rank and error.frame and SIZES.search(error.text)
    ]
    seen = table.by_rank.get(rank)
    if seen and call and seen.stacks.main and table.history[rank] and table.history[rank][-1] == call:
        frames.append(seen.location.frame)
    return f" at {short(frames[-1])}" if frames and frames[-1] else ""


def _different_calls(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root, sides = hypothesis.facts["root"], hypothesis.facts["sides"]
    lines = [f"{ranks_in_words(ranks)} called {call.arguments}" for call, ranks in sides]
    number = f"collective {sides[0][0].sequence} of its group"
    whys = {
        rank: f"it called {call.arguments}{_line(table, rank, call)}, {number}"
        for call, ranks in sides
        for rank in ranks
        if rank in hypothesis.culprits
    }
    sentence = f"ranks did not call the same collective: {'; '.join(lines)}"
    remedy = ""
    if not root.row or root.row.verdict is not Verdict.MISMATCH:
        remedy = "let all ranks call the same collectives with equal shapes, and lists of equal length"
    return _mismatch(run, root, sentence, whys, remedy, [*lines, f"rank {root.rank}: {root.message}"])


def _smaller(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root, called, together = (hypothesis.facts[name] for name in ("root", "called", "together"))
    what = f"{called.operation} of {called.sizes} {called.types}" if called else ""
    others = f"the others' {what}" if what else "what the others called"
    others += _width(hypothesis.facts["pairs"])
    whys = {
        rank: f"it called something smaller than {others}{_line(table, rank)}" for rank in hypothesis.culprits
    }
    sentence = f"{ranks_in_words(whys)} did not call the same collective as {ranks_in_words(together)}"
    calls = [f"{ranks_in_words(together)} called {what}"] if what else []
    return _mismatch(run, root, sentence, whys, "", [*calls, f"rank {root.rank}: {root.message}"])


def _width(pairs: Sequence[tuple[int, int]]) -> str:
    """Which type it may have been, if the rank expected a whole part of what it was sent."""
    times = {sent // wanted for sent, wanted in pairs if wanted and sent % wanted == 0}
    part = {2: "half", 4: "a quarter of", 8: "an eighth of"}.get(next(iter(times), 0), "")
    if len(set(pairs)) != 1 or not part:
        return ""
    return f" ({part} the bytes: a type of {part} the width, or a smaller shape)"


def _sent_too_much(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    """A rank aborted, and nothing shows whether it, the sender or a third rank is wrong."""
    root, called = hypothesis.facts["root"], hypothesis.facts.get("called")
    together, agreeing = hypothesis.facts.get("together", ()), hypothesis.facts.get("agreeing", ())
    sentence = f"{run.who(root.rank, root.inner)} was sent more than it expected"
    evidence = [run.quoted(root)]
    whys: dict[int, str] = {}
    remedy = "compare the shapes and types that both ends of that call give"
    if agreeing:
        alike = hypothesis.facts["alike"]
        others = [rank for rank in range(len(run.nodes)) if rank not in agreeing]
        who = ranks_in_words(others) if others else "another rank"
        sentence += f"{_line(table, root.rank)}: the records do not show by whom; {who} left no record of "
        sentence += "what they called" if len(others) > 1 else "what it called"
        evidence.insert(0, f"of that size is {alike.arguments}, which is in the records that are left")
    elif together:
        did = f"called {called.arguments}" if called else "called something larger"
        sentence += f"{_line(table, root.rank)}; {ranks_in_words(together)} {did}"
        if hypothesis.culprits:
            aborted = ranks_in_words(hypothesis.facts["aborted"])
            whys = dict.fromkeys(hypothesis.culprits, f"it {did}, and {aborted} expected less")
        else:
            sentence += ": the records do not show which of them is wrong"
    else:
        if called:  # In this call each pair of ranks has a size of its own.
            sentence += f" in {called.operation}"
            remedy = "compare what the ranks pass as input and output sizes there: each pair must agree"
        sentence += f"{_line(table, root.rank)}: the records do not show whether it or the sender is wrong"
    return _mismatch(run, root, sentence, whys, remedy, evidence)


def _changed_its_size(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root, call, usual = (hypothesis.facts[name] for name in ("root", "call", "usual"))
    why = f"it called {call.arguments}, collective {call.sequence} "
    why += f"of its group, where the others called it of {usual}, as it had before"
    sentence = f"rank {call.rank} on {run.node(call.rank)} did not bring what the others expected: {why}"
    return _mismatch(run, root, sentence, {call.rank: why})


def _stood_elsewhere(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root, there, here, calls = (hypothesis.facts[name] for name in ("root", "there", "here", "calls"))
    (rank,) = hypothesis.culprits
    operation = next(iter(calls)) if len(calls) == 1 else "collectives"
    why = f"it was at {short(there)} where the others were in {operation} at {short(here)}"
    sentence = f"rank {rank} on {run.node(rank)} did not call what the others called: {why}"
    return _mismatch(run, root, sentence, {rank: why})


def _different_lists(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    sides, root = hypothesis.facts["sides"], hypothesis.facts["root"]
    lines = [
        f"{ranks_in_words(ranks)} pass{'es' if len(ranks) == 1 else ''} {length} objects"
        for length, ranks in sides
    ]
    sentence = f"ranks give broadcast_object_list lists of different length: {', '.join(lines)}"
    sentence += f"; its root is rank {root}" if root >= 0 else ""
    whys = {
        rank: f"its list has {length} objects, that of others {sides[0][0]}"
        for length, ranks in sides[1:]
        for rank in ranks
        if rank in hypothesis.culprits
    }
    remedy = "every rank passes a list of the root's length, for example [None] * n"
    evidence = tuple(run.quoted(error) for error in run.errors if SIZES.search(error.text))
    return Diagnosis(Verdict.MISMATCH, sentence, run.culprits(whys), (), evidence[:1], remedy)


def _different_models(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    sides = hypothesis.facts["sides"]
    usual = sides[0][0]
    whys = {
        rank: f"its model has {number} parameters, those of others {usual}"
        for number, ranks in sides
        for rank in ranks
        if rank in hypothesis.culprits
    }
    lines = [
        f"{ranks_in_words(ranks)} {'has' if len(ranks) == 1 else 'have'} {number}" for number, ranks in sides
    ]
    sentence = f"the ranks' models differ in their number of parameters: {'; '.join(lines)}"
    return _mismatch(run, hypothesis.facts["root"], sentence, whys)


def _second_server(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root: Error = hypothesis.facts["root"]
    at = f" at {short(root.frame)}" if root.frame else ""
    why = f"it opens the store of all ranks, as rank 0 alone does{at}, and its port is taken"
    sentence = f"{run.who(root.rank)} says perhaps that it is rank 0: {why}"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there; if it opens "
    remedy += "a store of its own, another process has that port"
    return _mismatch(
        run, root, sentence, {root.rank: why}, remedy, [f"{run.name(root.rank)}: {root.message}"]
    )


def _unmet(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    root, came, size = (hypothesis.facts[name] for name in ("root", "came", "size"))
    counts = f": {came} of {size} came" if size else ""
    sentence = f"ranks did not meet in init_process_group{counts}"
    if hypothesis.culprits:
        sentence = f"{ranks_in_words(hypothesis.culprits)} never came to init_process_group{counts}"
    why = "it printed nothing, while the others waited for it in init_process_group"
    culprits = run.culprits(dict.fromkeys(hypothesis.culprits, why))
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), (run.quoted(root),), root.row.remedy)


# --- time-outs ---


def _where(hypothesis: Hypothesis) -> str:
    group = hypothesis.facts["group"]
    return f"collective {hypothesis.facts['number']}" + (f" of group {group}" if group else "")


def _waited_until(hypothesis: Hypothesis) -> tuple[str, ...]:
    until = f"({_where(hypothesis)}) until it timed out"
    return tuple(
        f"{ranks_in_words(ranks)} waited in {call} {until}" for call, ranks in hypothesis.facts["sides"]
    )


def _timed_out_in_different_calls(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
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


def _absent(
    run: Remains, whys: Mapping[int, str], did: str, evidence: tuple[str, ...], remedy: str = _LOGS_REMEDY
) -> Diagnosis:
    culprits = _by_rank(run, whys)
    nodes = {culprit.node for culprit in culprits}
    on = f" on {culprits[0].node}" if len(nodes) == 1 and culprits[0].node else ""
    sentence = f"{ranks_in_words(whys)}{on} {did}: {culprits[0].why}"
    remedy = remedy.replace("--rank N", f"--rank {culprits[0].rank}")
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, remedy)


def _absent_at_time_out(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
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
    return _absent(run, whys, did, _waited_until(hypothesis))


def _timed_out(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
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


def _stuck_watchdog(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    why = "the watchdog thread of its NCCL was stuck: a call of CUDA or NCCL does not return"
    remedy = "nvidia-smi and dmesg on that node (Xid); does a thread hold Python's lock in a call of CUDA?"
    if hypothesis.culprits:
        whys = dict.fromkeys(hypothesis.culprits, why)
        return _absent(run, whys, "was ended by NCCL's heartbeat monitor", (), remedy)
    stuck = ranks_in_words(hypothesis.facts["stuck"])
    sentence = f"NCCL's heartbeat monitor ended {stuck}: a call of CUDA or NCCL does not return"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), (), remedy)


def _gloo_timed_out(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
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
        return _absent(run, why, f"never came to {place}", evidence)
    sentence = f"a collective timed out in {waiting}: the output does not show which rank did not come"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, (), (), evidence, _LOGS_REMEDY)


# --- watchdogs of the script ---


def _noticed_hang(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    call, failure = hypothesis.facts["call"], run.failure
    reasons = {rank: reason(table.of(rank)) for rank in hypothesis.culprits}
    first = reasons[hypothesis.culprits[0]]
    sentence = f"{ranks_in_words(reasons)} never came to {call.title}, in which others had waited "
    evidence: tuple[str, ...] = (hypothesis.facts["message"],)
    if failure:
        sentence += f"{failure.at - call.at:.0f} s when {run.who(failure.rank)} ended the run: {first.why}"
        evidence = tuple(dict.fromkeys((failure.why, *evidence)))
    culprits = tuple(Culprit(rank, table.of(rank).node, why.why) for rank, why in reasons.items())
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, first.remedy)


def _timer(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    timers = hypothesis.facts["timers"]
    elsewhere = "it was elsewhere when a timer of the script ended it"
    culprits = run.culprits({rank: f"{elsewhere}: {timers[rank].message}" for rank in hypothesis.culprits})
    sentence = f"{ranks_in_words(hypothesis.culprits)} held the others up: {culprits[0].why}"
    evidence = tuple(f"rank {rank}: {timers[rank].message}" for rank in hypothesis.facts["waiting"][:4])
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), evidence, WAIT_REMEDY)


# --- ends without an error ---


def _early_end(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    ended, together, failure = hypothesis.facts["ended"], hypothesis.facts["together"], run.failure
    early = ranks_in_words(ended, run.noun)
    odd = hypothesis.culprits
    why = "it ended with exit code 0 while others waited for it"
    remedy = "let all ranks make the same number of steps: uneven data, or an exit in one rank only"
    if odd != ended:
        remedy = "does only that rank come to that line? let all ranks make the same calls, or none"
        why = f"it went on after {early} had ended with exit code 0"
        frames = [error.frame for error in run.errors if error.rank == odd[0] and error.frame]
        why += f", and failed at {short(frames[0])}" if frames else ""
    culprits = tuple(Culprit(-1 if run.per_node else rank, run.node(rank), why) for rank in odd)
    all_ended = ranks_in_words(together, run.noun)
    evidence = []
    if failure:
        evidence.append(f"{all_ended} ended with exit code 0, then {run.who(failure.rank)} failed")
    if ended != together:
        evidence.append(f"of these, {early} alone was in the groups in which the others failed")
    if failure and failure.peer:
        evidence.append(f"its message names an address of {failure.peer}")
    printed = {error.rank: error for error in run.errors if error.rank in odd and not error.is_consequence}
    evidence += [
        f"{run.name(rank)} had printed: {_cut(error.message)}" for rank, error in sorted(printed.items())
    ]
    sentence = f"{early} ended with exit code 0 before the others"
    return Diagnosis(Verdict.CRASHED, sentence, culprits[:MOST_CULPRITS], (), tuple(evidence), remedy)


def _left_the_group(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    (rank,) = hypothesis.culprits
    at = table.line(rank)
    why = f"it closed its connections and lived on; when it was asked to end, it was at {at}"
    sentence = f"{run.who(rank)} left the group while the others still used it"
    failed = run.failure.rank if run.failure else -1
    own = [error for error in run.errors if error.rank == failed]
    evidence = tuple(f"{run.name(error.rank)}: {error.message}" for error in own[:1])
    return Diagnosis(Verdict.CRASHED, sentence, run.culprits({rank: why}), (), evidence, _LEFT_REMEDY)


def _culprit_of(run: Remains, failure: Failure) -> Culprit:
    who = run.who(failure.rank) if failure.rank >= 0 else failure.node
    return Culprit(-1 if run.per_node else failure.rank, failure.node, failure.why.removeprefix(f"{who} "))


def _killed_for_memory(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    failure = run.failure
    if not failure:
        return _no_failure(table, run, hypothesis)
    who = run.who(failure.rank) if failure.rank >= 0 else failure.node
    evidence = (failure.why, *run.memory_notes)
    sentence = f"{who} was killed because memory ran out"
    return Diagnosis(
        Verdict.OUT_OF_MEMORY, sentence, (_culprit_of(run, failure),), (), evidence, _MEMORY_REMEDY
    )


def _ended_rank(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    """A rank or a node that failed, with what it printed last."""
    failure = run.failure
    if not failure:
        return _no_failure(table, run, hypothesis)
    culprit = _culprit_of(run, failure)
    if failure.rank < 0:
        return Diagnosis(Verdict.CRASHED, failure.why, (culprit,), (), (), _node_remedy(failure))
    remedy = f"clusterrun logs --rank {failure.rank} shows all that it printed"
    if failure.code in KILLED:
        remedy = "nothing there says that memory ran out: who sends kill -9, a script, a scheduler, a person,"
        remedy += " or the kernel at a limit of processor time (ulimit -t)?"
    last = last_message(failure.last_lines)
    is_ours = any(line.startswith(OURS) and line.endswith(last) for line in failure.last_lines) and last != ""
    own = [error for error in run.errors if error.rank == failure.rank]
    row = meaning(last)
    if row and row.consequence and not failure.peer and not was_killed(run):
        row = _of_broken_connection(row)
        if own:
            culprit = replace(culprit, why=f"{culprit.why}; {own[0].message}")
    cause = last if is_ours else row.cause if row else _CODES.get(failure.code, "")
    sentence = failure.why + (f": {cause}" if cause else "")
    name = run.name(failure.rank)
    if is_ours:
        evidence = [f"{failure.node}: {last}"]
    elif own:
        evidence = [f"{name}: {own[0].message}"]
    else:
        evidence = [f"{name} printed last: {_cut(last)}" if last else f"{name} printed nothing"]
    if failure.peer:
        evidence.append(f"its message names an address of {failure.peer}")
    if last and not own:
        how = "" if is_ours else "it printed last: "
        culprit = replace(culprit, why=f"{culprit.why}; {how}{_cut(last)}")
    remedy = row.remedy if row else remedy
    return Diagnosis(Verdict.CRASHED, sentence, (culprit,), (), tuple(evidence), remedy)


def _of_broken_connection(row: KnownError) -> KnownError:
    """No rank failed before: what the rank lost need not be another rank."""
    if row.remedy != PEERS_REMEDY:
        return row
    return replace(row, cause=_BROKEN, remedy=_BROKEN_REMEDY)


def _node_remedy(failure: Failure) -> str:
    if failure.node:
        return "clusterrun report shows what the pre-flight check found; --exclude leaves a node out"
    if "has expired" in failure.why:  # srun's message about a job that has ended
        return "Slurm ended the job; where a node's prolog failed, sinfo -R shows such a node"
    return "job.out in the run directory holds what the launcher said; --srun adds an option to it"


def _no_failure(table: CallTable, run: Remains, hypothesis: Hypothesis) -> Diagnosis:
    prefix = f"{Verdict.ALONE.value}: "
    alone = [note[len(prefix) :] for note in run.notes if note.startswith(prefix)]
    if alone:
        remedy = "clusterrun help frameworks says what a framework needs to join its ranks"
        remedy += "" if alone[0].endswith(SILENCE) else SILENCE
        return Diagnosis(Verdict.ALONE, alone[0], (), (), tuple(alone[1:]), remedy)
    if run.state is State.COMPLETED:
        return Diagnosis(Verdict.NOTHING, "the run ended well")
    return Diagnosis(Verdict.NOT_RUNNING, run.reason or f"the run is {run.state.value}")


# The rules of ended runs. Their order decides nothing.
END_RULES: tuple[Rule, ...] = (
    different_model.rule,
    different_sizes.rule,
    ended_rank.rule,
    error_in_rank.rule,
    noticed_hang.rule,
    timed_out.rule,
    unmet.rule,
)
_TIMEOUTS: dict[str, Explanation] = {
    "timed out in different calls": _timed_out_in_different_calls,
    "absent at time-out": _absent_at_time_out,
    "timed out": _timed_out,
    "stuck watchdog": _stuck_watchdog,
    "absent from barrier": _gloo_timed_out,
    "silent at time-out": _gloo_timed_out,
    "outside at time-out": _gloo_timed_out,
    "gloo timed out": _gloo_timed_out,
}
_OTHERS: dict[str, Explanation] = {
    "error in rank": _error_in_rank,
    "file system": _file_system,
    "different calls at the end": _different_calls,
    "called something smaller": _smaller,
    "sent too much": _sent_too_much,
    "changed its size": _changed_its_size,
    "stood elsewhere": _stood_elsewhere,
    "different lists": _different_lists,
    "different models": _different_models,
    "second server": _second_server,
    "unmet": _unmet,
    "noticed hang": _noticed_hang,
    "timer of the script": _timer,
    "early end": _early_end,
    "left the group": _left_the_group,
    "killed for memory": _killed_for_memory,
    "ended rank": _ended_rank,
    "no failure": _no_failure,
}
END_KINDS = frozenset((*_TIMEOUTS, *_OTHERS))


def explain_end(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    """Return the diagnosis of a hypothesis about an ended run."""
    run = table.end
    if run is None:
        raise ValueError(f"{hypothesis.kind} explains an ended run only")
    if hypothesis.kind in _TIMEOUTS:
        diagnosis = _with_stacks(table, _TIMEOUTS[hypothesis.kind](table, run, hypothesis))
        return diagnosis if run.per_node else with_printed(diagnosis, run.errors, per_node=False)
    diagnosis = _OTHERS[hypothesis.kind](table, run, hypothesis)
    if hypothesis.kind not in ("noticed hang", "timer of the script"):
        diagnosis = _with_stacks(table, diagnosis)
    return _with_consequences(run, diagnosis)
