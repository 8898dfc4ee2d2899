"""All ranks have begun a call, and it does not end: a link, or arguments that no record shows.

Over TCP, unacknowledged bytes name the two ends of the link. Over RDMA nothing does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from clusterrun.diagnosis.calls import HALF, Call, CallTable, sends
from clusterrun.diagnosis.habits import departs
from clusterrun.diagnosis.hypothesis import Hypothesis, Ranks
from clusterrun.diagnosis.rules.outside import explain_rest
from clusterrun.diagnosis.stacks import STORE_WAIT
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Verdict, ranks_in_words
from clusterrun.diagnosis.vote import one_only
from clusterrun.diagnosis.wording import MOST_LINES, at_place, blame, more_is_seen, verb_s, waited

CERTAINTY = 20
# Above different places that name nobody.
CERTAINTY_OF_ONE_SIDED = 36
# The kernel sent the same bytes again and again to another node of the job.
CUT = 100
MOST_COUNTS = 16
_PAIRS = "let one of each two ranks receive first, or use sendrecv; a large send to the own rank never ends"
# Calls that another rank must answer by another call: how ranks wait in it, what that other rank does, and
# the remedy.
_ONE_SIDED = {
    STORE_WAIT: (
        "for a key of the store",
        "sets it",
        "which line sets that key, and on which rank? It was not run: an if around it, or another key",
    ),
    "send": ("in a send", "receives", _PAIRS),
    "recv": (
        "in a receive",
        "sends",
        "which line sends to them? It was not run: an if around it, another rank or tag",
    ),
}
_QUEUED = "to begin it is to queue it: a GPU that hangs in a kernel before it looks the same from outside"


def rule(table: CallTable) -> list[Hypothesis]:
    one_sided = _one_sided(table)
    if one_sided:
        return [Hypothesis(partial(explain_one_sided, name=one_sided), CERTAINTY_OF_ONE_SIDED)]
    stuck = [] if table.end else [wait for wait in table.waits if not wait.missing]
    if not table.end and not stuck and (table.cut_links or not table.is_long_still):
        stuck = table.waits
    if not stuck:
        return []
    if not table.owed and not table.is_long_still:
        sentence = "all ranks are in a collective that may yet end"
        explain = partial(explain_rest, sentence=sentence, evidence=waited(table))
        return [Hypothesis(explain, CERTAINTY, final=False)]
    if all(wait.operation == HALF for wait in stuck):
        departing = {wait.rank: departs(table, wait) for wait in table.waits}
        odd = one_only(rank for rank, departure in departing.items() if departure)
        is_known = len(table.waits) == table.size and None not in departing.values() and odd >= 0
        explain = partial(explain_unanswered, stuck=stuck)
        return [Hypothesis(explain, CERTAINTY, (odd,) if is_known else ())]
    uses_tcp = all(_is_over_tcp(table, wait) for wait in stuck)
    certainty = CUT if table.cut_links else CERTAINTY
    return [Hypothesis(partial(explain_unended, stuck=stuck, uses_tcp=uses_tcp), certainty)]


def _one_sided(table: CallTable) -> str:
    """Return the key in ``_ONE_SIDED`` of the call that all ranks wait in; '' if there is none."""
    if not (table.by_stacks and table.is_long_still) or table.end or table.owed or table.mute:
        return ""
    names = set()
    for wait in table.waits:
        operation, call = table.location(wait.rank).operation, table.of(wait.rank).call
        is_store = operation == STORE_WAIT
        # A rank that waits for one of several requests may have begun the other half as well.
        function = operation.replace("MPI_", "").lower() if operation.startswith("MPI_") else ""
        names.add(operation if is_store else call.name or function)
    name = names.pop() if len(names) == 1 else ""
    # A rank whose call is unknown is in the same one if it is in the same line. Ranks that wait for keys in
    # several lines may wait for each other, which ``different_places.py`` shows.
    are_together = len({rank.location.line for rank in table.living}) == 1
    is_known = len(table.waits) == len(table.living) and name != STORE_WAIT
    return name if name in _ONE_SIDED and (is_known or are_together) else ""


def explain_one_sided(table: CallTable, blamed: Ranks, name: str) -> Diagnosis:
    wait_for, answers, remedy = _ONE_SIDED[name]
    where = at_place(table, *table.wait_by_rank)
    sentence = f"all ranks wait {wait_for}{where}, so no rank is left that {answers}"
    return Diagnosis(Verdict.MISMATCH, sentence, (), (), waited(table), remedy)


def _is_over_tcp(table: CallTable, wait: Call) -> bool:
    """Return whether the call uses only TCP, where lost data shows as unacknowledged.

    The group of a send or receive is unknown: all groups of the rank must use TCP.
    """
    rank = table.of(wait.rank)
    groups = [group for group in rank.groups if group.name == wait.group] or list(rank.groups)
    return bool(groups) and all(group.backend == "gloo" for group in groups)


def explain_unanswered(table: CallTable, blamed: Ranks, stuck: Sequence[Call]) -> Diagnosis:
    ranks = [wait.rank for wait in stuck]
    sentence = f"{ranks_in_words(ranks)} wait{verb_s(ranks)} for {HALF} that is not answered"
    sentence += at_place(table, *ranks)
    if blamed:
        (odd,) = blamed
        why = f"it is in {table.wait_by_rank[odd].operation}{at_place(table, odd)}, and since its last "
        why += "collective has begun another number of sends and receives than ever before, where all others "
        why += "have begun as many as ever"
        sentence += f": rank {odd} on {table.of(odd).node} is odd: {why}"
        remedy = (
            "let every send have its recv, in the same turn: mind the first and the last rank, and branches"
        )
        return blame(table, Verdict.MISMATCH, sentence, {odd: why}, remedy)
    remedy = "does the rank that is its peer call the other half, with the same tag and in the same order?"
    counts = [f"rank {rank.rank} {sends(rank)}" for rank in table.ranks[:MOST_COUNTS] if sends(rank)]
    evidence = [*waited(table)]
    if counts:
        evidence.append(f"begun were sends and receives: {', '.join(counts)}")
    if not any(table.of(rank).call.posts for rank in ranks):
        remedy += " The list for batch_isend_irecv is shown if a variable holds it"
    return blame(table, Verdict.UNDETERMINED, sentence, {}, remedy, evidence)


def explain_unended(table: CallTable, blamed: Ranks, stuck: Sequence[Call], uses_tcp: bool) -> Diagnosis:
    operation = min(stuck, key=lambda wait: wait.at).operation
    if table.by_stacks and not table.owed:
        lines = {wait.line for wait in stuck}
        where = f" at {lines.pop()}" if len(lines) == 1 else ""
        unknown = sorted({rank.rank for rank in table.living}.difference(table.wait_by_rank))
        subject = ranks_in_words(table.wait_by_rank) if unknown else "all ranks"
        sentence = f"not enough seen: {subject} wait in {operation}{where}, and it does not end"
        if len({wait.operation for wait in table.waits}) > 1:
            sentence = f"not enough seen: {'; '.join(waited(table)[:MOST_LINES])}; these calls do not end"
        sentence += f"; where {ranks_in_words(unknown)} wait{verb_s(unknown)} is unknown" if unknown else ""
        remedy = (
            "does every rank make the same calls in the same order, also those with async_op, with equal "
        )
        remedy += "shapes and groups? If so, is a link broken (clusterrun check tests it)? "
        remedy = (remedy + more_is_seen(table)).rstrip()
        return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), waited(table), remedy)
    sentence = f"all ranks have begun {operation}, and it does not end"
    evidence = [*waited(table)]
    remedy = "clusterrun check finds the link; until it is mended, leave one of its ends out (--exclude)"
    if table.owed:
        links = sorted({tuple(sorted((rank.node, table.node_at(debt.peer)))) for rank, debt in table.owed})
        # A lost answer looks like a lost question, so both ends are named, unless one end is of every link.
        shared = set.intersection(*map(set, links))
        culprits = tuple(
            Culprit(-1, node, f"its link to {other} is broken")
            for link in links
            for node, other in (link, link[::-1])
            if len(links) == 1 or not shared or node in shared
        )
        named = " and between ".join(f"{node} and {other}" for node, other in links[:MOST_LINES])
        if any(wait.missing for wait in stuck):
            sentence = f"{ranks_in_words(wait.rank for wait in stuck)} wait{verb_s(stuck)} in {operation}"
        sentence += f": the link between {named} is broken"
        return Diagnosis(Verdict.LINK, sentence, culprits, (), tuple(evidence), remedy)
    if uses_tcp:
        sentence += ", though no connection owes an answer"
        remedy = f"does every rank give {operation} the same root (src, dst) and equal shapes? else: {remedy}"
        return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), tuple(evidence), remedy)
    if any("nccl" in group.backend for wait in stuck for group in table.of(wait.rank).groups):
        evidence.append(_QUEUED)
        remedy += "; nvidia-smi and dmesg | grep -i xid on each node show a GPU that is stuck"
    evidence.append("no TCP connection owes an answer: where ranks use RDMA, its counters may tell more")
    return Diagnosis(Verdict.LINK, sentence, (), (), tuple(evidence), remedy)
