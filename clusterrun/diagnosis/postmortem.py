"""Explains why a run failed, from its state, the errors its ranks printed and their last records; pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from clusterrun.diagnosis.explanations import reason
from clusterrun.diagnosis.flight_records import members
from clusterrun.diagnosis.known_errors import PEERS_REMEDY, meaning
from clusterrun.diagnosis.left_mismatches import mismatch, unmet
from clusterrun.diagnosis.own_watchdogs import INSIDE, noticed, of_timers, of_watchdog
from clusterrun.diagnosis.printed_errors import SURVIVED_SECONDS, Error, is_timer
from clusterrun.diagnosis.remains import Remains
from clusterrun.diagnosis.solo_ranks import SILENCE
from clusterrun.diagnosis.stack_location import place, short
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words, unfolded
from clusterrun.diagnosis.watchdog_lines import explain_timeout, is_timeout
from clusterrun.model.frozen import replace
from clusterrun.model.record import Failure
from clusterrun.model.states import State

SAME_MOMENT = 1.0
"""Seconds: the time of a line is known no better."""
MOST_WORDS = 180
MOST_CULPRITS = 16
MOST_ALSO = 2
MOST_NAMED = 8
BEFORE = 60.0
"""Seconds before the first failure: an error that was survived for longer did not end the run."""
DUMPING = 540.0
"""Seconds more from a collective's time-out to the abort: NCCL's watchdog first writes its records."""
_OUT_OF_MEMORY = re.compile(r"(?i:oom[-_ ]kill|out of memory)")
_CHILD_KILLED = re.compile(
    r"is killed by signal: Killed|was killed by signal 9|terminated with signal SIGKILL"
)
_MARK = re.compile(r"^\[rank\d+\]:\s?")
_NUMBERS = re.compile(r"\d+")
_FRAMING = re.compile(r"^[\s─-╿]+|[\s─-╿]+$")
"""What draws a box around a line."""
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
_TOLD_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGABRT)
"""Signals that come after words of one's own, or from whoever ends the others."""
OURS = "clusterrun: "
"""How a line begins that a node adds to the last ones of a rank."""
_BROKEN = "a connection of it broke, and no rank had failed before it"
_BROKEN_REMEDY = (
    "what does that line talk to: a service, a store of files, another rank? "
    "clusterrun check tests the network between the nodes"
)
_CODES = {124: "so does timeout(1) when the time that it was given is over"}
_CLOSED = "Connection closed by peer"
_LEFT_REMEDY = "let every rank make the same collectives, and call destroy_process_group after the last one"
_MEMORY_REMEDY = "ask for more with --mem, use fewer data-loader workers, or a smaller batch"


def explain(left: Remains) -> Diagnosis:
    """What ended the run: the first error in time that is no consequence of another one."""
    timers = tuple(one for one in left.errors if is_timer(one))
    left = _by_origin(replace(left, errors=tuple(one for one in left.errors if not is_timer(one))))
    root = _root(left)
    if left.state is State.COMPLETED:
        return _of_lost_code(left, root) if root else _without_failure(left)
    if held := (None if root else of_timers(left, timers)) or of_watchdog(left, noticed(left, root)):
        return _with_consequences(left, held)
    if root and is_timeout(root) and (root.inner >= 0 or not left.per_node):
        return _with_stacks(left, _of_timeout(left))
    found = (mismatch(left, root) or unmet(left, root) or _of_error(left, root)) if root else _of_end(left)
    return _with_consequences(left, _with_stacks(left, found))


def _of_lost_code(left: Remains, root: Error) -> Diagnosis:
    """A rank's Python ended of an exception, and what ran it returned 0."""
    found = _of_error(left, root)
    said = f"the run ended with exit code 0, though {found.said}"
    remedy = "a pipe or a wrapper hides the exit code: set -o pipefail (bash), or let Python be the last "
    remedy += "program that runs"
    return _with_consequences(left, replace(found, said=said, remedy=remedy))


def _by_origin(left: Remains) -> Remains:
    """The same, where an error that every rank was told of is that of the rank in which it happened."""
    if left.per_node:
        return left
    ranks = range(len(left.nodes))
    errors = [replace(one, rank=one.origin) if one.origin in ranks else one for one in left.errors]
    found = {(one.rank, one.text, one.frame) if one.origin >= 0 else one: one for one in reversed(errors)}
    return replace(left, errors=tuple(reversed(found.values())))


def _with_stacks(left: Remains, diagnosis: Diagnosis) -> Diagnosis:
    """The same, with where those stood whom the others had waited for: they print nothing themselves."""
    stood = {one.rank: place(one.stack).line for one in left.stood if place(one.stack).line}
    lines = {rank: f"; when it was told to end it was at {line}" for rank, line in stood.items()}
    seen = [one for one in left.stood if any(one.rank == culprit.rank for culprit in diagnosis.culprits)]
    if diagnosis.verdict is not Verdict.NEVER_ARRIVED or not lines or not seen:
        return diagnosis
    culprits = tuple(replace(one, why=one.why + lines.get(one.rank, "")) for one in diagnosis.culprits)
    said = diagnosis.said
    if len(culprits) == 1:
        said = f"{said.partition(diagnosis.culprits[0].why)[0].rstrip(': ')}: {culprits[0].why}"
    return replace(diagnosis, said=said, culprits=culprits, remedy=reason(seen[0]).remedy)


def _outside(left: Remains) -> tuple[int, ...]:
    """The ranks that were in no collective when they were told to end, where all have one group only."""
    silent = {*range(len(left.nodes))} - {one.rank for one in left.errors}
    stood = [one for one in left.stood if one.rank in silent]
    groups = [group for one in left.last for group in one.groups]
    if {one.rank for one in stood} != silent or any(group.size != len(left.nodes) for group in groups):
        return ()
    return tuple(one.rank for one in stood if groups and place(one.stack).doing not in INSIDE)


def _of_timeout(left: Remains) -> Diagnosis:
    """A collective's time-out; how many ranks a launcher starts on each node is not known here."""
    if left.per_node:
        ranks = tuple(replace(one, rank=one.inner) for one in left.errors if one.inner >= 0)
        return explain_timeout(ranks, ())
    found = explain_timeout(left.errors, left.nodes, _outside(left))
    return with_printed(found, left.errors, per_node=False)


def with_printed(diagnosis: Diagnosis, errors: Iterable[Error], per_node: bool) -> Diagnosis:
    """The same, with errors of those to blame that did not end the run by themselves."""
    told = [one for one in errors if not one.consequence and not is_timer(one)]
    said = {one.inner if per_node else one.rank: one for one in told}
    blamed = {one.rank for one in diagnosis.culprits if one.rank >= 0}
    own = [rank for rank in sorted(blamed & said.keys()) if not is_timeout(said[rank])]
    printed = [f"rank {rank} has printed: {said[rank].said}" for rank in own]
    return replace(diagnosis, evidence=(*diagnosis.evidence, *printed))


def ended_by_timeout(left: Remains) -> bool:
    """Whether the first error is a collective's time-out: what was seen before it tells more."""
    root = _root(left)
    return root is not None and is_timeout(root)


def _root(left: Remains) -> Error | None:
    """The earliest error that was not survived; of one moment the known one, then that of who ended first."""
    since = left.failure.at - BEFORE if left.failure else 0.0
    ended = unfolded(left.failure.ended) if left.failure else ()  # with exit code 0, whatever they printed
    roots = [one for one in left.errors if not one.consequence and one.rank not in ended]
    roots = [one for one in roots if not one.at or one.at >= since - (DUMPING if is_timeout(one) else 0.0)]
    if not roots or _killed(left):
        return None
    roots = _without_overcome(left, [one for one in roots if not one.survived] or roots)
    roots = _without_logged(left, roots)
    earliest = min(one.at for one in roots)
    first = left.failure.rank if left.failure else -1
    together = [one for one in roots if one.at <= earliest + SAME_MOMENT]
    # A rank's own exception may be what the others' collective waited for, never the other way round.
    return min(
        together, key=lambda one: (is_timeout(one), one.row is None, one.rank != first, one.at, one.rank)
    )


def _without_logged(left: Remains, roots: list[Error]) -> list[Error]:
    """Without what other ranks had logged long before the one that failed first ended of an error of its own.

    What several ranks end of may be the consequence of what one of them printed before.
    """
    failure = left.failure
    several = {one.text for one in roots if failure and one.rank != failure.rank}
    own = [one for one in roots if failure and one.rank == failure.rank and not is_timeout(one)]
    own = [one for one in own if one.text not in several]
    own = [one for one in own if one.ends or (failure and failure.at - one.at <= SURVIVED_SECONDS)]
    if not own or left.per_node:
        return roots
    since, first = max(one.at for one in own) - SURVIVED_SECONDS, own[0].rank
    return [one for one in roots if one.rank == first or one.ends or one.at > since]


def _without_overcome(left: Remains, roots: list[Error]) -> list[Error]:
    """Without what several ranks printed, where the one that failed first printed another error after it."""
    first = left.failure.rank if left.failure else -1
    own = [one for one in roots if one.rank == first]
    if left.per_node or len(own) < 2:
        return roots
    last = max(own, key=lambda one: one.at)
    others = {one.text for one in roots if one.rank != first}
    overcome = {one.text for one in own if one.text in others and one.text != last.text}
    return [one for one in roots if one.text not in overcome]


def _killed(left: Remains) -> bool:
    """A rank that a signal ended says nothing, and what others say follows from it."""
    failure = left.failure
    number = 0 if failure is None else -failure.code if failure.code < 0 else failure.code - 128
    if failure is None or failure.rank < 0 or number <= 0 or number in _TOLD_TO_END:
        return False
    if number != signal.SIGKILL and any(one.rank == failure.rank for one in left.errors):
        return False
    own = (one.at for one in left.errors if not one.consequence)
    return not any(at and at < failure.at - SAME_MOMENT for at in own)


def _of_error(left: Remains, root: Error) -> Diagnosis:
    who = left.who(root.rank, root.inner)
    memory = _memory(left) if _CHILD_KILLED.search(root.text) else ()
    verdict = Verdict.OUT_OF_MEMORY if memory else root.row.verdict if root.row else Verdict.CRASHED
    cause = f": {root.row.cause}" if root.row else ""
    by = left.name(root.rank) if root.inner >= 0 else "it"
    remedy = root.row.remedy if root.row else f"clusterrun logs --rank {root.rank} shows all that {by} said"
    remedy = _MEMORY_REMEDY if memory else remedy
    unnumbered = _NUMBERS.sub("#", root.text)  # the rank's own number may stand among others
    others = [one for one in left.errors if one.rank != root.rank]
    same = [one for one in others if _NUMBERS.sub("#", one.text) == unnumbered]
    evidence = (left.quoted(root), *memory)
    evidence += (f"{left.several(same)} said the same",) if same else ()
    evidence += _also_printed(left, root)
    if root.row and root.row.shared:
        said, culprits = _of_file_system(left, root, root.row.cause)
        return Diagnosis(verdict, said, culprits, (), evidence, remedy)
    everywhere = _everywhere(left, root, same)
    culprits = tuple(Culprit(left.rank(one), left.node(one.rank), one.said) for one in everywhere or [root])
    said = f"{who} failed first{cause}"
    if everywhere:
        nodes = {left.node(one.rank) for one in everywhere}
        whole = len(everywhere) == len(left.nodes)
        of = "" if whole else f" of {', '.join(sorted(nodes)[:MOST_NAMED])}"
        said = f"all {len(everywhere)} ranks{of} failed with the same error{cause}"
    return Diagnosis(verdict, said, culprits[:MOST_CULPRITS], (), evidence, remedy)


def _everywhere(left: Remains, root: Error, same: list[Error]) -> list[Error]:
    """One error of each rank where all of them, or all several of some nodes and no other, ended of it."""
    found = {one.rank: one for one in reversed([*same, root])}
    nodes = {left.node(rank) for rank in found}
    meant = {rank for rank, node in enumerate(left.nodes) if node in nodes}
    several = all(left.nodes.count(node) > 1 for node in nodes) or len(found) == len(left.nodes) > 1
    whole = not left.per_node and several and meant == set(found)
    return [one for _, one in sorted(found.items())] if whole else []


def _of_file_system(left: Remains, root: Error, cause: str) -> tuple[str, tuple[Culprit, ...]]:
    """Who says it first is no culprit: the node is, or where others meet it too, what they share."""
    met = [one for one in left.errors if one.row is root.row]
    nodes = sorted({left.node(one.rank) for one in met})
    where = f"on {nodes[0]}" if len(nodes) == 1 else f"that {', '.join(nodes[:MOST_NAMED])} use"
    said = f"{cause} {where}: {left.name(root.rank, root.inner)} met it first"
    why = f"{cause}; {left.name(root.rank, root.inner)} said: {root.said}"
    return said, (Culprit(-1, nodes[0], why),) if len(nodes) == 1 else ()


def _also_printed(left: Remains, root: Error) -> tuple[str, ...]:
    """Other errors of the same process, which it did not outlive by long."""
    own = [one for one in left.errors if (one.rank, one.inner) == (root.rank, root.inner)]
    also = [one for one in own if one.text != root.text and not one.consequence and not one.survived]
    name = left.name(root.rank, root.inner)
    return tuple(f"{name} also printed: {_cut(one.said)}" for one in also[-MOST_ALSO:])


def _memory(left: Remains) -> tuple[str, ...]:
    """Words of the kernel's, or of Slurm's, about memory that ran out."""
    lines = left.failure.last_lines if left.failure else ()
    return tuple(note for note in (*left.notes, left.reason, *lines) if _OUT_OF_MEMORY.search(note))


def _of_end(left: Remains) -> Diagnosis:
    """Nobody printed an error of its own."""
    failure = left.failure
    if failure is None:
        return _without_failure(left)
    if failure.ended:
        return _of_early_end(left, failure)
    who = left.who(failure.rank) if failure.rank >= 0 else failure.node
    why = failure.why[len(who) + 1 :] if failure.why.startswith(f"{who} ") else failure.why
    rank = -1 if left.per_node else failure.rank
    memory = _memory(left)
    culprit = Culprit(rank, failure.node, why)
    if left.state is State.OUT_OF_MEMORY or (failure.code in _KILLED and memory):
        said = f"{who} was killed because memory ran out"
        return Diagnosis(Verdict.OUT_OF_MEMORY, said, (culprit,), (), (failure.why, *memory), _MEMORY_REMEDY)
    return _of_last_words(left, failure, culprit)


def _of_last_words(left: Remains, failure: Failure, culprit: Culprit) -> Diagnosis:
    """A rank or a node that failed, and what it printed last; its code alone where that is nothing."""
    remedy = f"clusterrun logs --rank {failure.rank} shows all that it said"
    if failure.rank < 0:
        remedy = "clusterrun report shows what the pre-flight check found; --exclude leaves a node out"
        if not failure.node:
            remedy = "job.out in the run directory holds what the launcher said; --srun adds an option to it"
            if "has expired" in failure.why:  # srun, of a job that has ended
                remedy = "Slurm ended the job; where a node's prolog failed, sinfo -R shows such a node"
        return Diagnosis(Verdict.CRASHED, failure.why, (culprit,), (), (), remedy)
    if failure.code in _KILLED:
        remedy = "nothing there says that memory ran out: who sends kill -9, a script, a scheduler, a person,"
        remedy += " or the kernel at a limit of processor time (ulimit -t)?"
    told = _last_word(failure.last_lines)
    last = told.removeprefix(OURS)
    known = meaning(last)
    own = [one for one in left.errors if one.rank == failure.rank]
    if known and known.consequence and not failure.peer and not _killed(left):
        if left_early := _who_left(left, own):
            return left_early
        if known.remedy == PEERS_REMEDY:  # nobody failed before: what it lost need not be another rank
            known = replace(known, cause=_BROKEN, remedy=_BROKEN_REMEDY)
        culprit = replace(culprit, why=f"{culprit.why}; {own[0].said}") if own else culprit
    cause = last if told != last else known.cause if known else _CODES.get(failure.code, "")
    said = failure.why + (f": {cause}" if cause else "")
    evidence = _printed(left, failure, own, told)
    if failure.peer:
        evidence = (*evidence, f"its message names an address of {failure.peer}")
    if last and not own:
        how = "" if told != last else "it printed last: "
        culprit = replace(culprit, why=f"{culprit.why}; {how}{_cut(last)}")
    return Diagnosis(Verdict.CRASHED, said, (culprit,), (), evidence, known.remedy if known else remedy)


def _who_left(left: Remains, errors: list[Error]) -> Diagnosis | None:
    """The one rank that lived on outside of all collectives, where the first to fail read a connection's end.

    A process closes a connection like that; what a network cuts is reset, or times out.
    """
    outside = _outside(left)
    if len(outside) != 1 or not any(_CLOSED in one.text for one in errors):
        return None
    rank = outside[0]
    at = next(place(one.stack).line for one in left.stood if one.rank == rank)
    why = f"it closed its connections and lived on; when it was told to end it was at {at}"
    said = f"{left.who(rank)} left the group while the others still used it"
    evidence = tuple(f"{left.name(one.rank)}: {one.said}" for one in errors[:1])
    return Diagnosis(Verdict.CRASHED, said, left.culprits({rank: why}), (), evidence, _LEFT_REMEDY)


def _printed(left: Remains, failure: Failure, own: list[Error], last: str) -> tuple[str, ...]:
    """What a rank said of its end, or its node for it."""
    name = left.name(failure.rank)
    if last.startswith(OURS):
        return (f"{failure.node}: {last[len(OURS) :]}",)
    if own:
        return (f"{name}: {own[0].said}",)
    return (f"{name} printed last: {_cut(last)}" if last else f"{name} printed nothing",)


def _last_word(lines: tuple[str, ...]) -> str:
    """The last line with words in it, without marks and frames around them."""
    words = (_FRAMING.sub("", _MARK.sub("", line)) for line in reversed(lines))
    return next((word for word in words if any(map(str.isalnum, word))), "")


def _of_early_end(left: Remains, failure: Failure) -> Diagnosis:
    """Ranks ended with exit code 0 while others still waited for them."""
    together = unfolded(failure.ended)
    ended = _awaited(left, together) or together
    others = len(left.nodes) - len(together)
    noun = "node" if left.per_node else "rank"
    early = ranks_in_words(ended, noun)
    odd = ended if len(ended) <= others or ended != together else (failure.rank,)
    why = "it ended with exit code 0 while others waited for it"
    remedy = "let all ranks make the same number of steps: uneven data, or an exit in one rank only"
    if odd != ended:
        remedy = "does only that rank come to that line? let all ranks make the same calls, or none"
        why = f"it went on after {early} had ended with exit code 0"
        at = [one.frame for one in left.errors if one.rank == failure.rank and one.frame]
        why += f", and failed at {short(at[0])}" if at else ""
    culprits = tuple(
        Culprit(-1 if left.per_node else rank, left.node(rank), why) for rank in odd[:MOST_CULPRITS]
    )
    all_ended = ranks_in_words(together, noun)
    evidence = [f"{all_ended} ended with exit code 0, then {left.who(failure.rank)} failed"]
    if ended != together:
        evidence.append(f"of these, {early} alone was in the groups in which the others failed")
    evidence += [f"its message names an address of {failure.peer}"] if failure.peer else []
    printed = {one.rank: one for one in left.errors if one.rank in odd and not one.consequence}
    evidence += [f"{left.name(rank)} had printed: {_cut(one.said)}" for rank, one in sorted(printed.items())]
    said = f"{early} ended with exit code 0 before the others"
    return Diagnosis(Verdict.CRASHED, said, culprits, (), tuple(evidence), remedy)


def _awaited(left: Remains, ended: tuple[int, ...]) -> tuple[int, ...]:
    """Of those that had ended, the members of the groups in whose newest calls others failed."""
    found: set[int] = set()
    for one in left.last:
        if one.rank not in ended and one.records:
            newest = max(one.records, key=lambda record: record.at)
            found.update(members(one, newest.group, left.last))
    return tuple(sorted(found & set(ended)))


def _without_failure(left: Remains) -> Diagnosis:
    prefix = f"{Verdict.ALONE.value}: "
    alone = [note[len(prefix) :] for note in left.notes if note.startswith(prefix)]
    if alone:
        remedy = "clusterrun help frameworks says what a framework needs to join its ranks"
        remedy += "" if alone[0].endswith(SILENCE) else SILENCE
        return Diagnosis(Verdict.ALONE, alone[0], (), (), tuple(alone[1:]), remedy)
    if left.state is State.COMPLETED:
        return Diagnosis(Verdict.NOTHING, "the run ended well")
    return Diagnosis(Verdict.NOT_RUNNING, left.reason or f"the run is {left.state.value}")


def _cut(text: str) -> str:
    return text if len(text) <= MOST_WORDS else f"{text[:MOST_WORDS].rpartition(' ')[0]} …"


def _with_consequences(left: Remains, diagnosis: Diagnosis) -> Diagnosis:
    blamed = {(one.node, one.rank) for one in diagnosis.culprits}
    others = [one for one in left.errors if (left.node(one.rank), left.rank(one)) not in blamed]
    noticed = [one for one in others if one.consequence]
    # A launcher's own words add nothing to those of its ranks.
    noticed = [one for one in noticed if one.inner >= 0] or noticed
    if not noticed:
        return diagnosis
    first = min(noticed, key=lambda one: (one.rank, one.inner))
    line = f"a consequence only, of {left.several(noticed)}: {_cut(first.text)}"
    line += f", at {short(first.frame)}" if first.frame else ""
    return replace(diagnosis, evidence=(*diagnosis.evidence, line))
