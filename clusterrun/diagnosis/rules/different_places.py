"""Every rank waits for the others, and their stacks show different calls. There is no other evidence.

The fewer ranks are odd if they are in one call, the others in another, and both are of the default group.
The root of a broadcast waits in it for the odd rank, and others may have left it, so that call does not
count. One rank in a call of all ranks is odd against all others in one call of any group: a group without it
would not wait. If it is in a call of a smaller group, a member that left that call out may be odd instead.
A rank alone that is further in the script than all others has left out the call in which they wait, and one
that waits for a key of the store before all others has not come to it. Such places need no known group.
If the ranks are in more than two calls, as in the loop of a library, the frames at which their stacks part
are compared instead. Nobody is blamed if a rank is in a send, a receive or a store call, which have two ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from clusterrun.diagnosis.calls import LOCK, CallTable
from clusterrun.diagnosis.explain_rank import key_lines
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.rules import absent_rank
from clusterrun.diagnosis.stacks import (
    BACKWARD,
    GPU_WAIT,
    MOST_FRAMES,
    SOME_WAITS,
    STORE_WAIT,
    Doing,
    short,
    steps_before,
)
from clusterrun.diagnosis.verdict import Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import RankVote
from clusterrun.diagnosis.wording import MOST_LINES, blame, more_is_seen, reasons, verb_s

CERTAINTY = 55
# The part of a frame in which Lightning reduces what a script logged over all ranks.
_LIGHTNING_LOG = "/logger_connector/result.py:"
_COMPARE = "let every rank call the same collectives in the same order: compare the conditions of these lines"
# How ranks parted from the others: what they did, and the remedy.
_PARTINGS = {
    "exit": (
        "{have} left the loop at {place}, in which the others are",
        "let every rank make as many turns of that loop: does a break, continue "
        "or return{lines} or an exception skip calls, or is its data uneven (drop_last, or the Join of DDP)?",
    ),
    "next": (
        "{are} in a later turn of the loop at {place} than the others",
        "let every rank make the same calls in a turn of that loop: did a condition, a retry, a caught "
        "exception or a continue{lines} skip one?",
    ),
    "return": (
        "{have} returned from {place} before that call",
        "let every rank make that call before it returns: see the return{lines}",
    ),
    "branch": (
        "{are} in the branch at {place}, in which no other rank is",
        "does the condition of that branch hold on every rank? If not, move the call out of it",
    ),
    "ahead": ("{are} further in the script", _COMPARE),
}
# Without a culprit, a rule that compares the two ends of a send says more.
UNDECIDED = 35


def rule(table: CallTable) -> list[Hypothesis]:
    if table.end or not table.by_stacks or not table.is_long_still:
        return []
    waits = table.wait_by_rank
    living = [rank.rank for rank in table.living]
    if len(waits) < len(living) or any(not table.location(rank).line for rank in living):
        return []
    if table.awaited.difference(table.by_rank):
        return []  # ranks of nodes that did not answer
    places = {rank: f"{waits[rank].operation} at {waits[rank].line}" for rank in living}
    vote = RankVote(places)
    # Sends in one line differ in their peers only, and so do receives.
    is_half = all(waits[rank].peer >= 0 for rank in living)
    is_alike = is_half and len({table.location(rank) for rank in living}) == 1
    if vote.is_unanimous or is_alike or any(waits[rank].operation in (GPU_WAIT, LOCK) for rank in living):
        return []
    odd, is_parted = _odd_side(table, vote)
    behind, ahead, may_be_passed = _out_of_step(table, vote)
    # A call of all ranks is no call that a rank may rightly pass, whatever branch it is in.
    may_be_passed = may_be_passed and not all(waits[rank].is_of_all for rank in behind)
    if not odd and len(ahead) == 1 < len(behind) and not may_be_passed and _is_collective(table, behind[0]):
        odd = ahead
    if not odd and len(behind) == 1 < len(ahead) and len(vote.sides) == 2 and _is_collective(table, ahead[0]):
        odd = behind if waits[behind[0]].operation.startswith(STORE_WAIT) else ()
    makes_group = behind and {table.location(rank).operation for rank in behind} == {"new_group"}
    if makes_group and not any(table.location(rank).doing is Doing.RENDEZVOUS for rank in ahead):
        # Those who are further have passed a call that they must make, most often also outside the group.
        passed = tuple(rank for rank in ahead if all(rank in waits[other].missing for other in behind))
        explain_group = partial(absent_rank.explain_not_in_new_group, making=behind, inside=passed)
        return [Hypothesis(explain_group, CERTAINTY, passed)] if passed else []
    if is_parted:
        places.update(
            (rank, f"{places[rank]} by way of {short(frame)}")
            for rank, frame in parting_frames(table).items()
            if short(frame) != waits[rank].line
        )
    certainty = CERTAINTY if odd else UNDECIDED
    # Ranks that are further may have come to their branch as usual.
    suspects = [behind] if ahead and not odd else [odd, *(ranks for _, ranks in vote.sides)]
    parted, parting = _how_they_parted(table, odd or ahead, suspects)
    if ahead and not parting:
        parted, parting = ahead, ("ahead", "")
    explain = partial(explain_different_places, places=places, parted=parted, parting=parting)
    return [Hypothesis(explain, certainty, odd)]


def _odd_side(table: CallTable, vote: RankVote) -> tuple[Ranks, bool]:
    """Return the ranks whose call is the odd one, () if unknown, and whether frames of libraries part them.

    In the loop of a library all ranks are in one line of the script.
    """
    waits = table.wait_by_rank
    living = [rank.rank for rank in table.living]
    is_parted = len({waits[rank].line for rank in living}) == 1
    is_key = {rank: waits[rank].operation.startswith(STORE_WAIT) for rank in living}
    if any(waits[rank].peer >= 0 or (is_key[rank] and not waits[rank].is_of_all) for rank in living):
        return (), is_parted
    sides = [ranks for _, ranks in vote.sides]
    odd = _odd(table, sides)
    odd = odd or _odd(table, [ranks for ranks in sides if waits[ranks[0]].root not in ranks])
    if not odd:
        odd = _odd(table, [ranks for _, ranks in RankVote(parting_frames(table)).sides])
        is_parted = is_parted or bool(odd)
    if not odd:
        # Errors or a condition on their number led these ranks to their call. Others make the usual one.
        blocks = {rank.rank: rank.stacks.block for rank in table.living}
        in_block = [rank for rank, block in blocks.items() if block and not block.endswith(": finally")]
        odd = next((ranks for ranks in sides if list(ranks) == in_block), ())
    # A lone rank in a barrier of the script's own may be the only one that is right.
    return (() if any(is_key[rank] for rank in odd) else odd), is_parted


def _how_they_parted(
    table: CallTable, parted: Ranks, suspects: Sequence[Ranks]
) -> tuple[Ranks, tuple[str, ...]]:
    """Return the ranks that parted from the others, and how, as ``_parting``.

    ``parted`` are the ranks that most probably did, ``suspects`` those that may be in a branch of their own.
    """
    parting = _parting(table, parted)
    for ranks in suspects:
        if not parting and not any(table.of(rank).stacks.block for rank in ranks):
            parting = _branch(table, ranks)
            parted = ranks if parting else parted
    if parted and not parting:
        others = tuple(rank.rank for rank in table.living if rank.rank not in parted)
        their_parting = _parting(table, others)
        # They may be a turn further because the others make a call too many.
        if their_parting and their_parting[0] != "next":
            return others, their_parting
    return parted, parting


def _out_of_step(table: CallTable, vote: RankVote) -> tuple[Ranks, Ranks, bool]:
    """Return the ranks in one place of the script, and the others if all of those are further.

    The last value is whether the place is in a branch, so that others may rightly have passed it.
    """
    positions = {rank.rank: rank.stacks.position for rank in table.living}
    for _, behind in vote.sides:
        first, ahead = positions[behind[0]], tuple(rank for rank in positions if rank not in behind)
        steps = [steps_before(first, positions[rank]) for rank in ahead]
        if all(steps) and all(positions[rank] == first for rank in behind):
            return behind, ahead, any(step.startswith("if ") for step in max(steps, key=len))
    return (), (), False


def _parting(table: CallTable, ranks: Ranks) -> tuple[str, ...]:
    """Return how the ways of ``ranks`` and of all others part in the script; () if unknown.

    The first value is a key of ``_PARTINGS``, the second one the loop, function or branch, as
    ``train.py:64 (train)``. The lines that may have led there follow.
    """
    others = [rank.stacks.position for rank in table.living if rank.rank not in ranks]
    partings = {_parting_between(other, table.of(rank).stacks.position) for rank in ranks for other in others}
    return partings.pop() if len(partings) == 1 else ()


def _parting_between(inside: Sequence[str], behind: Sequence[str]) -> tuple[str, ...]:
    """Return what around the place ``inside`` a rank at ``behind`` has certainly left; () if unknown.

    It is a loop, or else a turn of one or a function.
    """
    begin = len(inside) - len(steps_before(inside, behind))
    function = line = ""
    ends: dict[str, list[str]] = {"exit": [], "next": []}
    parting: tuple[str, ...] = ()
    for index, step in enumerate(inside):
        kind, _, text = step.partition(" ")
        file, _, name = function.rpartition(" ")
        if kind == "in":
            function, line, ends = text, "", {"exit": [], "next": []}
        elif kind == "line":
            returns = [number for number in ends["exit"] if not line and int(number) < int(text)]
            if returns and index > begin and not parting:
                parting = ("return", name, *returns[:MOST_LINES])
            line, ends = text, {"exit": [], "next": []}
        elif kind in ends:
            ends[kind].append(text)
        elif kind == "turn" and index > begin:
            numbers = sorted(ends["exit"] + ends["next"], key=int)
            return "exit", short(f"{file}:{line} {name}"), *numbers[:MOST_LINES]
        elif kind == "turn" and index == begin:
            # Another turn of a loop around both places.
            parting = ("next", short(f"{file}:{line} {name}"), *ends["next"][:MOST_LINES])
        elif kind == "if" and index > begin:
            break  # The rank behind it may never have come there.
    return parting


def _branch(table: CallTable, ranks: Ranks) -> tuple[str, ...]:
    """Return the outermost branch that ``ranks`` are in and no other rank is; () if there is none."""
    others = {step for rank in table.living if rank.rank not in ranks for step in rank.stacks.position}
    branches = set()
    for rank in ranks:
        function, places = "", [""]
        for step in table.of(rank).stacks.position:
            kind, _, text = step.partition(" ")
            function = text if kind == "in" else function
            if kind == "if" and step not in others:
                file, _, name = function.rpartition(" ")
                places.append(short(f"{file}:{text.partition(' ')[0]} {name}"))
        branches.add(places[min(1, len(places) - 1)])
    return ("branch", *branches) if len(branches) == 1 and "" not in branches else ()


def _is_collective(table: CallTable, rank: int) -> bool:
    """Return whether a rank is in a call that no rank leaves before all have come, as far as is known."""
    call, operation = table.of(rank).call, table.location(rank).operation
    return not (call.name or call.rooted) and operation not in (*SOME_WAITS, STORE_WAIT)


def parting_frames(table: CallTable) -> dict[int, str]:
    """Return of each living rank the outermost frame that not all of them share; {} if a stack is cut."""
    stacks = {rank.rank: rank.stacks.main[::-1] for rank in table.living}
    if max(map(len, stacks.values())) >= MOST_FRAMES:
        return {}
    for frames in zip(*stacks.values()):
        if len(set(frames)) > 1:
            return dict(zip(stacks, frames))
    return {}


def _odd(table: CallTable, sides: Sequence[Ranks]) -> Ranks:
    """Return the ranks that differ from the largest side, if the calls of the sides can be compared."""
    vote = RankVote({rank: index for index, ranks in enumerate(sides) for rank in ranks})
    known_of_all = [rank for ranks in sides for rank in ranks if table.wait_by_rank[rank].is_of_all]
    is_known = len(sides) == 2 and len(known_of_all) == sum(map(len, sides))
    lone = vote.lone()
    if lone >= 0:
        is_known = lone in known_of_all or table.wait_by_rank[lone].operation == BACKWARD
    if not (is_known and vote.odd):
        return ()
    odd, usual = table.of(vote.odd[0]).call, table.of(vote.sides[0][1][0]).call
    # Ranks leave a call with a root before others come, except the root that sends to all: those in it may
    # wait for any rank, and those outside may have left it.
    comes_first = odd.root in vote.odd and "cast" in odd.rooted.lower()
    is_unclear = (odd.rooted and not comes_first) or (usual.rooted and len(vote.odd) > 1)
    return () if is_unclear else vote.odd


def explain_different_places(
    table: CallTable,
    blamed: Ranks,
    places: Mapping[int, str],
    parted: Ranks = (),
    parting: Sequence[str] = (),
) -> Diagnosis:
    sides = RankVote(places).sides
    lines = {ranks: f"{ranks_in_words(ranks)} wait{verb_s(ranks)} in {place}" for place, ranks in sides}
    sentence = "ranks wait for each other in different calls: " + "; ".join([*lines.values()][:MOST_LINES])
    usual_wait = next(line for ranks, line in lines.items() if not set(ranks) <= set(blamed))
    whys = {rank: f"it waits in {places[rank]}, while {usual_wait}" for rank in blamed}
    remedy = _COMPARE
    if parting:
        kind, place, *numbers = parting
        did, remedy = _PARTINGS[kind]
        have, are = ("has", "is") if len(parted) == 1 else ("have", "are")
        sentence += f"; {ranks_in_words(parted)} {did.format(have=have, are=are, place=place)}"
        remedy = remedy.format(lines=f" in line {' or '.join(numbers)}" * bool(numbers))
    logging = [
        rank.rank for rank in table.living if any(_LIGHTNING_LOG in frame for frame in rank.stacks.main)
    ]
    if logging:
        sentence += f"; {ranks_in_words(logging)} reduce{verb_s(logging)} a value of self.log(sync_dist=True)"
        remedy = "let every rank log the same values in self.log(sync_dist=True), also if it has none; or "
        remedy += "compare the conditions of these lines"
    if not whys:
        sentence += ": stacks alone do not show which of them is wrong"
    stored = [wait for wait in table.waits if wait.operation.startswith(STORE_WAIT)]
    if stored and not whys:
        setting = key_lines(table.of(stored[0].rank))[:MOST_LINES]
        sentence += f"; {'; '.join(setting)}" if setting else ""
        remedy = f"which rank sets the key that {stored[0].line} waits for, under which name and condition?"
    if not whys and more_is_seen(table):
        remedy += (" " if remedy.endswith("?") else ". ") + more_is_seen(table)
    evidence = None if table.waits else reasons(table, places)
    return blame(table, Verdict.MISMATCH, sentence, whys, remedy, evidence)
