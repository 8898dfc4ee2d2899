"""Turn a hypothesis into a diagnosis: the sentence, a reason per culprit, evidence and remedy; pure.

``RULES`` lists the rules, ``EXPLANATIONS`` one function per kind of hypothesis. It decides nothing.
``explain_rank.py`` explains one rank, ``explain_end.py`` what ended a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from clusterrun.diagnosis.calls import HALF, KEY, LOCK, STOPPED, Call, CallTable, sends, set_line
from clusterrun.diagnosis.evidence import ChildProcess, MainCall, PostedOp, PythonStacks, RankSnapshot
from clusterrun.diagnosis.explain_end import END_KINDS, END_RULES, Rule, explain_end
from clusterrun.diagnosis.explain_rank import WAIT_REMEDY, reason
from clusterrun.diagnosis.explain_rank import at as at_line
from clusterrun.diagnosis.hypothesis import Hypothesis
from clusterrun.diagnosis.rules import (
    absent_rank,
    circle,
    different_arguments,
    different_collective,
    different_places,
    group_request,
    held_lock,
    left_out_call,
    moving_ranks,
    no_stacks,
    order_of_groups,
    outside,
    posted_ops,
    stopped_rank,
    two_threads,
    unended_call,
    unset_key,
    writing_rank,
    wrong_peer,
)
from clusterrun.diagnosis.stacks import is_library, location, short
from clusterrun.diagnosis.verdict import Culprit, Diagnosis, Stacks, Verdict, folded, ranks_in_words, unfolded
from clusterrun.diagnosis.vote import RankVote
from clusterrun.model.frozen import replace

# Ranks with a line of their own.
MOST = 4
MOST_GROUPS = 16
MOST_COUNTS = 16
MORE_IS_SEEN = "clusterrun submit starts it so that flight records show each rank's calls"


def explain(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    """Return the diagnosis of a hypothesis, with the stacks and circumstances of running ranks."""
    if hypothesis.kind in END_KINDS:
        return explain_end(table, hypothesis)
    diagnosis = EXPLANATIONS[hypothesis.kind](table, hypothesis)
    if table.end:
        return diagnosis
    evidence = (*diagnosis.evidence, *_threads_that_lack(table), *circumstances(table))
    return replace(diagnosis, groups=stack_groups(table), evidence=evidence)


def either(table: CallTable, hypotheses: Sequence[Hypothesis]) -> Diagnosis:
    """Return the diagnosis of equally certain hypotheses with different culprits. It blames no rank."""
    diagnoses = [explain(table, hypothesis) for hypothesis in hypotheses]
    verdicts = {diagnosis.verdict for diagnosis in diagnoses}
    sentence = "either " + ", or ".join(diagnosis.said for diagnosis in diagnoses)
    evidence = tuple(dict.fromkeys(line for diagnosis in diagnoses for line in diagnosis.evidence))
    remedy = "; or: ".join(dict.fromkeys(diagnosis.remedy for diagnosis in diagnoses if diagnosis.remedy))
    verdict = verdicts.pop() if len(verdicts) == 1 else Verdict.UNDETERMINED
    return Diagnosis(verdict, sentence, (), diagnoses[0].groups, evidence, remedy)


# --- what several explanations share ---


def _s(ranks: Sequence[object]) -> str:
    """The ending of a verb: ``rank 1 waits``, ``ranks 1-2 wait``."""
    return "s" if len(ranks) == 1 else ""


def _at(table: CallTable, *ranks: int) -> str:
    """`` at train.py:33 (step)`` if all ``ranks`` are in one line."""
    line = table.line(*ranks)
    return f" at {line}" if line else ""


def _culprits(table: CallTable, whys: Mapping[int, str]) -> tuple[Culprit, ...]:
    return tuple(Culprit(rank, table.of(rank).node, why) for rank, why in whys.items())


def _blame(
    table: CallTable,
    verdict: Verdict,
    sentence: str,
    whys: Mapping[int, str],
    remedy: str,
    evidence: Sequence[str] | None = None,
) -> Diagnosis:
    """The evidence is who waits for whom, unless another is passed."""
    lines = waited(table) if evidence is None else tuple(evidence)
    return Diagnosis(verdict, sentence, _culprits(table, whys), (), lines, remedy)


def _first(table: CallTable, whys: Mapping[int, str]) -> tuple[str, str]:
    """``rank 3 on n1`` and why, of the first culprit."""
    rank = next(iter(whys))
    return f"rank {rank} on {table.of(rank).node}", whys[rank]


def waited(table: CallTable) -> tuple[str, ...]:
    """A line per call: which ranks wait in it, for how long, and for whom. () for an ended run."""
    if table.end:
        return ()
    calls: dict[tuple[str, int, str], list[Call]] = {}
    for wait in table.waits:
        calls.setdefault(wait.key, []).append(wait)
    lines = []
    for _, together in sorted(calls.items()):
        members = [wait.rank for wait in together]
        doing = f"wait{_s(members)}"
        if together[0].at:
            since = max(max(0.0, table.of(wait.rank).clock - wait.at) for wait in together)
            doing = f"{'has' if len(members) == 1 else 'have'} waited {since:.0f} s"
        places = {wait.line for wait in together} - {""}
        at = f" at {places.pop()}" if len(places) == 1 else ""
        line = f"{ranks_in_words(members)} {doing} in {together[0].title}{at}"
        missing = {rank for wait in together for rank in wait.missing}
        lines.append(line + (f", for {ranks_in_words(missing)}" if missing else ""))
    return tuple(lines)


def _reasons(table: CallTable, ranks: Iterable[int], most: int = MOST) -> list[str]:
    seen = [table.of(rank) for rank in ranks][:most]
    return [f"rank {rank.rank} on {rank.node}: {reason(rank).why}" for rank in seen]


def circumstances(table: CallTable) -> Iterator[str]:
    """Facts that decide nothing, but should be known."""
    for node, why in table.mute:
        yield f"no answer from {node}: {why}"
    for rank, debt in table.owed[:MOST_GROUPS]:
        sent = f"rank {rank.rank} on {rank.node} sent {debt.waiting} bytes to {table.node_at(debt.peer)}"
        yield f"{sent} ({debt.peer}) {debt.retries} times without an answer"
    silent = [rank.rank for rank in table.living if not rank.answered and rank.state not in STOPPED]
    if silent and not table.by_stacks:
        yield f"{ranks_in_words(silent)} did not report groups (no Python, no prelude, or too busy)"
    yield from (f"ncclras: {line}" for line in table.ras)
    beyond = [rank for _, ranks in _by_stack(table)[MOST_GROUPS:] for rank in ranks]
    if beyond:
        yield f"{MOST_GROUPS} stacks are shown: that of {ranks_in_words(beyond)} is not"
    if table.stalled:
        yield f"nothing has moved for {table.stalled:.0f} s"


def _threads_that_lack(table: CallTable) -> Iterator[str]:
    """A thread that all ranks have except one: it may have died of an error that nobody saw."""
    ranks = [rank for rank in table.living if rank.stacks.main]
    entries = {}
    for rank in ranks:
        own = [thread.entry for thread in rank.stacks.threads if not is_library(thread.entry)]
        entries[rank.rank] = {_function(entry) for entry in own}
    for entry in sorted(set().union(*entries.values())):
        vote = RankVote({rank: entry in its_entries for rank, its_entries in entries.items()})
        if vote.lone() >= 0 and vote.sides[0][0]:
            others = ranks_in_words(vote.sides[0][1])
            lacks = f"rank {vote.lone()} has no thread in {entry}, as {others} have"
            yield f"{lacks}: did it end, and of what error?"


def _function(frame: str) -> str:
    """``upload (train.py)`` of the frame in which a thread began: the line moves, the function stays."""
    where, _, function = frame.rpartition(" ")
    return f"{function} ({where.rpartition(':')[0].rpartition('/')[2]})"


def _by_stack(table: CallTable) -> list[tuple[tuple[str, ...], list[int]]]:
    ranks_by_stack: dict[tuple[str, ...], list[int]] = {}
    for rank in table.ranks:
        ranks_by_stack.setdefault(rank.stacks.main, []).append(rank.rank)
    return sorted(ranks_by_stack.items(), key=lambda item: (len(item[1]), item[1]))


def stack_groups(table: CallTable) -> tuple[Stacks, ...]:
    """Ranks with equal stacks, the smallest group first: the few are the suspects."""
    return tuple(Stacks(folded(ranks), stack) for stack, ranks in _by_stack(table)[:MOST_GROUPS])


# --- progress ---


def _progress(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    printing = hypothesis.facts["printing"]
    if printing:
        sentence = f"the others wait for {ranks_in_words(printing)}, still printing"
        return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *_reasons(table, printing)))
    first = table.ranks[0]
    seconds = first.process.seconds
    count = sum(record.at >= first.clock - seconds for record in first.records)
    evidence: tuple[str, ...] = ()
    if count:
        evidence = (
            f"rank {first.rank} began {count} collectives within {seconds:.1f} s",
            f"the longest pause between two of the last ones was {table.longest_pause:.1f} s",
        )
    return Diagnosis(Verdict.NOTHING, "the ranks are making progress", evidence=evidence)


def _slow_rank(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    slow = hypothesis.facts["straggler"]
    rank = table.of(slow.rank)
    sentence = f"the others wait for rank {slow.rank} on {rank.node} {slow.share * 100:.0f} % of the time"
    last = f"it came last to {slow.last} of the last {slow.of} that were waited for"
    last += f", within {slow.seconds:.1f} s"
    why = f"it is slow: {last}"
    samples = rank.stacks.samples
    if samples:
        line = max(samples, key=samples.count)
        looks = f"{samples.count(line)} of {len(samples)} looks"
        why += f"; outside of collectives it was at {short(line)} in {looks}"
    remedy = "has every rank the same work? if so: clusterrun check compares that node with others"
    return _blame(table, Verdict.SLOW, sentence, {slow.rank: why}, remedy, [last])


def _writing(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks = hypothesis.facts["writing"]
    sentence = f"the others wait for {ranks_in_words(ranks)}, which write{_s(ranks)} a file that grows"
    return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *_reasons(table, ranks)))


def _may_come(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    late = hypothesis.facts["late"]
    sentence = f"the others wait for {ranks_in_words(late)}, which may yet come"
    return Diagnosis(Verdict.NOTHING, sentence, evidence=(*waited(table), *_reasons(table, late)))


def _may_end(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    return Diagnosis(
        Verdict.NOTHING, "all ranks are in a collective that may yet end", evidence=waited(table)
    )


# --- absent ranks ---


def _never_arrived(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks = [table.of(rank) for rank in hypothesis.culprits]
    whys = {rank.rank: reason(rank).why for rank in ranks}
    on = f" on {ranks[0].node}" if len({rank.node for rank in ranks}) == 1 else ""
    waits = [wait for wait in table.waits if ranks[0].rank in wait.missing]
    did = f" hold{_s(ranks)} the others up"
    if waits:
        # A collective says more than a send.
        wait = max(waits, key=lambda wait: wait.sequence > 0)
        did = f" never came to {wait.title}" if wait.sequence else f" never called {_other_half(wait)}"
        if table.by_stacks and wait.peer < 0:
            verb = "has" if len(ranks) == 1 else "have"
            did = f" {verb} not come to {wait.operation}"
    sentence = f"{ranks_in_words(whys)}{on}{did}: {_all_whys(whys)}"
    late = [
        f"rank {rank} on {table.of(rank).node} has not come either: {reason(table.of(rank)).why}"
        for rank in hypothesis.facts["late_too"]
    ]
    remedies = list(dict.fromkeys(reason(rank).remedy for rank in ranks))[:MOST]
    remedy = "; ".join([*remedies, *_meant_for_some(table, ranks)])
    return _blame(table, Verdict.NEVER_ARRIVED, sentence, whys, remedy, (*waited(table), *late[:MOST]))


def _all_whys(whys: Mapping[int, str]) -> str:
    (first, why), *others = whys.items()
    if not others:
        return why
    if {other for _, other in others} == {why}:
        return f"{_named_why(first, why)}, the others too"
    more = f"; {len(whys) - MOST} more" if len(whys) > MOST else ""
    return "; ".join(_named_why(rank, why) for rank, why in list(whys.items())[:MOST]) + more


def _named_why(rank: int, why: str) -> str:
    it, _, does = why.partition(" ")
    return f"rank {rank} {does}" if it == "it" else f"rank {rank}: {why}"


def _meant_for_some(table: CallTable, ranks: Sequence[RankSnapshot]) -> list[str]:
    """Few have come, and the many that have not are in one line: perhaps the call is not meant for them."""
    lines = {rank.location.line for rank in ranks}
    is_held = any(rank.works or rank.state in STOPPED for rank in ranks)
    if not table.waits or len(table.waits) > len(ranks) or len(lines) > 1 or "" in lines or is_held:
        return []
    inside = [wait.rank for wait in table.waits]
    where = f"{table.waits[0].operation}{_at(table, *inside)}"
    return [f"or is {where} called by {ranks_in_words(inside)} only, where every rank must call it?"]


def _silent_node(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    culprits = tuple(Culprit(-1, node, why) for node, why in table.mute)
    nodes = ", ".join(node for node, _ in table.mute)
    sentence = f"the others wait for {ranks_in_words(hypothesis.facts['missing'])}; {nodes} did not answer"
    remedy = "is that node alive? sinfo -R, and clusterrun check"
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), waited(table), remedy)


def _not_in_new_group(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    making, inside = hypothesis.facts["making"], hypothesis.facts["inside"]
    meets = table.location(making[0]).operation
    operation = table.wait_by_rank[inside[0]].operation
    are = "it is" if len(inside) == 1 else "they are"
    sentence = f"{ranks_in_words(making)} wait in {meets}{_at(table, *making)} for {ranks_in_words(inside)}, "
    sentence += f"and {are} in {operation}{_at(table, *inside)}"
    sentence += "" if hypothesis.culprits else ": nothing shows which of the two is wrong"
    whys = {
        rank: f"it is in {table.wait_by_rank[rank].operation}{_at(table, rank)} and has not called {meets}"
        for rank in hypothesis.culprits
    }
    remedy = f"every rank must call {meets}, members of the new group or not, in the same order"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy)


# --- calls that do not fit ---


def _different_collectives(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sides: list[tuple[Call, tuple[int, ...]]] = hypothesis.facts["sides"]
    lines = [f"{ranks_in_words(ranks)} called {call.arguments}{_at(table, *ranks)}" for call, ranks in sides]
    rest = "; ".join(f"{ranks_in_words(ranks)} {call.arguments}" for call, ranks in sides[1:])
    sentence = f"ranks called different collectives: {lines[0]}, {rest}"
    whys = {}
    for rank in (rank for _, ranks in sides for rank in ranks if rank in hypothesis.culprits):
        mine = next(call for call, ranks in sides if rank in ranks)
        other, others = next((call, ranks) for call, ranks in sides if rank not in ranks)
        where = f"where {ranks_in_words(others)} called {other.arguments}"
        whys[rank] = f"it called {mine.arguments}{_at(table, rank)} {where}"
    remedy = "let every rank call the same collectives, in the same order, with equal shapes and types"
    where = replace(sides[0][0], operation="collective").title
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy, [f"{where}: {line}" for line in lines])


def _different_places(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sides: list[tuple[Call, tuple[int, ...]]] = hypothesis.facts["sides"]
    lines = [
        f"{ranks_in_words(ranks)} wait{_s(ranks)} in {call.operation} at {call.line}" for call, ranks in sides
    ]
    sentence = "ranks wait for each other in different calls: " + "; ".join(lines[:MOST])
    most = sides[0]
    whys = {
        rank: f"it waits in {call.operation} at {call.line}, where {ranks_in_words(most[1])} "
        f"wait{_s(most[1])} in {most[0].operation} at {most[0].line}"
        for call, ranks in sides[1:]
        for rank in ranks
        if rank in hypothesis.culprits
    }
    if not whys:
        sentence += ": stacks alone do not show which of them is wrong"
    remedy = (
        "let every rank call the same collectives in the same order: compare the conditions of these lines"
    )
    remedy += f". {MORE_IS_SEEN}"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def _different_sizes_passed(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sides: list[tuple[Call, tuple[int, ...]]] = hypothesis.facts["sides"]
    lines = [f"{ranks_in_words(ranks)} called {call.arguments}" for call, ranks in sides]
    sentence = f"the run goes on with wrong results: {', '.join(lines)} in one collective, and none waits"
    whys = {}
    for rank in hypothesis.culprits:
        mine = next(call for call, ranks in sides if rank in ranks)
        other, others = next((call, ranks) for call, ranks in sides if rank not in ranks)
        whys[rank] = f"it called {mine.arguments} where {ranks_in_words(others)} called {other.arguments}"
    remedy = "let every rank bring the same number of elements: NCCL does not compare them"
    return _blame(
        table, Verdict.MISMATCH, sentence, whys, remedy, [f"{sides[0][0].title}: {line}" for line in lines]
    )


def _different_roots(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sides: list[tuple[int, list[int]]] = hypothesis.facts["sides"]
    call = table.wait_by_rank[sides[0][1][0]]
    lines = [
        f"{ranks_in_words(ranks)} name{_s(ranks)} rank {root}{_at(table, *ranks)}" for root, ranks in sides
    ]
    sentence = f"ranks name different roots of {call.title}: {'; '.join(lines)}"
    sentence += "" if hypothesis.culprits else "; nothing shows which is right"
    whys = {}
    for rank in hypothesis.culprits:
        root = table.wait_by_rank[rank].root
        whys[rank] = f"it names rank {root} as the root of {call.operation}{_at(table, rank)}"
    remedy = f"let every rank give {call.operation} the same root (src, dst)"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def _different_tags(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sender, receiver = map(table.of, hypothesis.culprits)
    sent, wanted = sender.call.tag, receiver.call.tag
    sentence = f"rank {sender.rank} sends with tag {sent} what rank {receiver.rank} wants with tag {wanted}"
    sends_it = f"it sends to rank {receiver.rank} with tag {sent}{_at(table, sender.rank)}"
    receives = f"it receives from rank {sender.rank} with tag {wanted}{_at(table, receiver.rank)}"
    remedy = "let both ends of a send and its recv name the same tag"
    return _blame(table, Verdict.MISMATCH, sentence, {sender.rank: sends_it, receiver.rank: receives}, remedy)


def _different_splits(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    (sender, receiver), splits = hypothesis.facts["pair"], hypothesis.facts["splits"]
    sent, expected = splits[sender][receiver], splits[receiver][table.size + sender]
    sentence = (
        f"ranks give all_to_all_single splits that do not agree: rank {sender} sends {sent} rows to rank "
    )
    sentence += f"{receiver}, which expects {expected}"
    why = "its input or output splits do not fit those of the others"
    whys = {rank: f"{why}{_at(table, rank)}" for rank in hypothesis.culprits}
    lines = [
        f"rank {rank} sends {list(its[: table.size])} and expects {list(its[table.size :])}"
        for rank, its in list(splits.items())[: 2 * MOST]
    ]
    remedy = "input_split_sizes[j] of rank i must be output_split_sizes[i] of rank j"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy, lines)


def _two_threads(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks, group, thread = (hypothesis.facts[name] for name in ("ranks", "group", "thread"))
    called = f"called {thread.operation} at {short(thread.frame)}" if thread else "made calls"
    aborted = [error.thread for error in table.end.errors if error.thread] if table.end else []
    if aborted and not thread:
        called = f"made calls at {short(aborted[0])}"
    sentence = f"two threads use one process group: another thread {called} in group {group}, "
    mains = [rank for rank in table.by_rank if table.line(rank)]
    sentence += f"which the main thread uses{_at(table, *mains)}; so ranks make its calls in another order"
    remedy = "give that thread a process group of its own: group = dist.new_group() on every rank, and "
    remedy += "process_group=group (or group=group) in its calls"
    evidence = [f"on {ranks_in_words(ranks)} another thread than the main one {called}"]
    return Diagnosis(Verdict.MISMATCH, sentence, (), (), (*evidence, *waited(table)), remedy)


def _unset_key(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    waiting = hypothesis.facts["waiting"]
    whys = {}
    for setter in hypothesis.culprits:
        key = table.of(hypothesis.facts["waiting_for"][setter]).call.key
        line, under = set_line(table.of(setter), key)
        its = f"its key of the store (of {key})" if ", " in key else f"the key {key} of the store"
        why = f"it has not set {its}, which {short(line)} sets"
        why += f" under '{under}', which does not hold there" if under else ""
        gone_on = table.of(setter).call.name != "store"
        whys[setter] = f"{why}, though it has gone on{_at(table, setter)}" if gone_on else why
    who, why = _first(table, whys)
    sentence = f"{ranks_in_words(waiting)} wait{_s(waiting)} for a key of the store that {who} sets: {why}"
    remedy = "under which condition does it come to that line? let every rank set what others wait for"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def _held_lock(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    whys = {}
    for rank in hypothesis.culprits:
        others = hypothesis.facts["waiting"][rank]
        file = table.of(others[0]).process.lock
        lock = f"the lock of {file}" if file else "the lock"
        why = f"it holds {lock} that {ranks_in_words(others)} wait{_s(others)} for{_at(table, *others)}"
        whys[rank] = f"{why}, and waits in {table.wait_by_rank[rank].operation}{_at(table, rank)}"
    who, why = _first(table, whys)
    sentence = f"{who} waits while it holds the lock of a file: {why}"
    return _blame(
        table, Verdict.MISMATCH, sentence, whys, "give the lock back before a call that others must join"
    )


# --- sends and receives ---


def _to(post: PostedOp | MainCall, call: str) -> str:
    return f"{'to' if call == 'send' else 'from'} rank {post.peer}"


def _listed(rank: RankSnapshot) -> str:
    posts = [
        f"{post.call} {_to(post, post.call)}" + (f" (tag {post.tag})" if post.tag else "")
        for post in rank.call.posts
    ]
    return ", ".join(posts[:MOST]) + (" and more" if len(posts) > MOST else "")


def _posted_operations(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks = hypothesis.facts["ranks"]
    evidence = [f"rank {rank} posts {_listed(table.of(rank))}" for rank in ranks[:MOST]]
    remedy = "let the other half of each isend and irecv be posted by its peer, with the same tag"
    if not hypothesis.culprits:
        rank, _, post = hypothesis.facts["unmatched"][0]
        sentence = (
            f"rank {rank} waits for a {post.call} {_to(post, post.call)}, which has posted no other half of "
        )
        sentence += "it: "
        sentence += f"the list of one of {ranks_in_words(ranks)} is wrong"
        return _blame(table, Verdict.UNDETERMINED, sentence, {}, remedy, evidence)
    (odd,) = hypothesis.culprits
    others = ranks_in_words(rank for rank in ranks if rank != odd)
    why = f"it posts {_listed(table.of(odd))}{_at(table, odd)}, which does not fit what {others} posted"
    sentence = (
        f"rank {odd} on {table.of(odd).node} posts other sends and receives than the others wait for: {why}"
    )
    return _blame(table, Verdict.MISMATCH, sentence, {odd: why}, remedy, evidence)


def _circle(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    circle = hypothesis.facts["circle"]
    steps = {}
    for rank in circle:
        call = table.of(rank).call
        steps[rank] = f"{call.name.replace('recv', 'receive')}s {_to(call, call.name)}{_at(table, rank)}"
    shown = ", ".join(f"rank {rank} {step}" for rank, step in list(steps.items())[:MOST])
    shown += " and so on" if len(steps) > MOST else ""
    calls = {table.of(rank).call.name for rank in circle}
    who = ranks_in_words(circle)
    if len(calls) > 1:
        sentence = (
            f"{who} wait for each other in sends and receives: {shown}; nothing shows which of them is wrong"
        )
        remedy = "let each send name as dst who receives it, and each recv as src who sends it"
        return _blame(table, Verdict.MISMATCH, sentence, {}, remedy)
    first, second = ("send", "receive") if calls == {"send"} else ("receive", "send")
    sentence = f"{who} wait for each other: each {first}s before it {second}s: {shown}"
    remedy = f"let one of each two {second} first, or begin both with batch_isend_irecv"
    whys = {rank: f"it {steps[rank]}" for rank in hypothesis.culprits}
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def _wrong_peer(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    wait, mate = hypothesis.facts["wait"], hypothesis.facts["mate"]
    why = f"it waits in {wait.named}{_at(table, wait.rank)}, which has never sent or received; "
    why += f"rank {mate.rank} waits for it in {mate.named}{_at(table, mate.rank)}"
    node = table.of(wait.rank).node
    sentence = f"rank {wait.rank} on {node} names another rank than the one that it meets: {why}"
    remedy = "let each send name as dst who receives it, and each recv as src who sends it"
    return _blame(table, Verdict.MISMATCH, sentence, {wait.rank: why}, remedy)


def _unanswered(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks = [wait.rank for wait in hypothesis.facts["stuck"]]
    sentence = f"{ranks_in_words(ranks)} wait{_s(ranks)} for {HALF} that is not answered{_at(table, *ranks)}"
    if hypothesis.culprits:
        (odd,) = hypothesis.culprits
        why = f"it is in {table.wait_by_rank[odd].operation}{_at(table, odd)}, and since its last collective "
        why += (
            "has begun another number of sends and receives than ever before, where all others have begun as "
        )
        why += "many as ever"
        sentence += f": rank {odd} on {table.of(odd).node} is odd: {why}"
        remedy = (
            "let every send have its recv, in the same turn: mind the first and the last rank, and branches"
        )
        return _blame(table, Verdict.MISMATCH, sentence, {odd: why}, remedy)
    remedy = "does the rank that is its peer call the other half, with the same tag and in the same order?"
    counts = [f"rank {rank.rank} {sends(rank)}" for rank in table.ranks[:MOST_COUNTS] if sends(rank)]
    evidence = [*waited(table)]
    if counts:
        evidence.append(f"begun were sends and receives: {', '.join(counts)}")
    if not any(table.of(rank).call.posts for rank in ranks):
        remedy += " The list given to batch_isend_irecv is shown here where a variable holds it"
    return _blame(table, Verdict.UNDETERMINED, sentence, {}, remedy, evidence)


# --- ranks that wait for each other ---


def _other_half(wait: Call) -> str:
    """Return the call that the missing rank should have made."""
    halves = {
        HALF: f"the other half of {HALF}",
        KEY: "set for a key of the store",
        LOCK: "the release of that lock",
        "send": f"recv from rank {wait.rank}",
        "recv": f"send to rank {wait.rank}",
    }
    verb = wait.operation.partition(" ")[0]
    return halves.get(wait.operation) or halves.get(verb) or wait.named


def _left_out_call(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    disputes = hypothesis.facts["disputes"]
    if not hypothesis.culprits:
        return _either_side(table, *disputes[0][:2])
    whys = {}
    for inside, gone, odd in disputes:
        for wait in odd:
            whys[wait.rank] = _why_odd(table, wait, inside, gone)
    who, why = _first(table, whys)
    _, gone, odd = disputes[0]
    did = (
        "went on without a call that others wait in"
        if odd is gone
        else "waits in a call that others do not make"
    )
    remedy = "let all members of a group make its calls equally often, and in one order with other groups'"
    return _blame(table, Verdict.MISMATCH, f"{who} {did}: {why}", whys, remedy)


def _why_odd(table: CallTable, odd: Call, inside: Sequence[Call], gone: Sequence[Call]) -> str:
    if odd in gone:
        wait = [wait for wait in inside if odd.rank in wait.missing][-1]
        return f"it is in {odd.operation}{_at(table, odd.rank)} and {_not_done(table, wait)}"
    there = f"{gone[0].operation}{_at(table, *(wait.rank for wait in gone))}"
    why = f"it waits in {odd.named}{_at(table, odd.rank)} for {ranks_in_words(odd.missing)}, in {there}"
    return f"{why}: it came too early, or once too often"


def _not_done(table: CallTable, wait: Call) -> str:
    where = _at(table, wait.rank)
    if wait.operation == KEY:
        key = table.of(wait.rank).call.key
        named = f"the key {key}" if key else "the key"
        return f"has not set {named} of the store that rank {wait.rank} waits for{where}"
    return f"has not called {_other_half(wait)}, in which rank {wait.rank} waits for it{where}"


def _either_side(table: CallTable, inside: Sequence[Call], gone: Sequence[Call]) -> Diagnosis:
    here, there = [wait.rank for wait in inside], [wait.rank for wait in gone]
    callers, others = ranks_in_words(here), ranks_in_words(there)
    sentence = f"{callers} wait{_s(here)} in {inside[0].named}{_at(table, *here)} for {others}, in "
    sentence += (
        f"{gone[0].operation}{_at(table, *there)}: either {others} left out {_other_half(inside[0])}, "
    )
    sentence += f"or {callers} made a call too many; the records do not show which"
    remedy = "compare how often each of both comes to its line, and under which condition"
    return _blame(table, Verdict.MISMATCH, sentence, {}, remedy)


def _order_of_groups(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    whys = {}
    sentence = (
        "ranks wait for each other in different groups or calls: their collectives are not in one order"
    )
    for rank in hypothesis.culprits:
        wait = table.wait_by_rank[rank]
        inside = f"it is in {wait.operation}{_at(table, rank)}, without {ranks_in_words(wait.missing)}"
        for departure in hypothesis.facts["departure"]:
            usual = " or ".join(map(_of_group, departure.usual))
            how = f"it called {_of_group(departure.call)} after {_of_group(departure.before)}, where it had "
            how += f"always called {usual}"
            sentence = f"rank {rank} on {table.of(rank).node} left the order of calls: {how}"
            inside = f"{how}; {inside}"
        whys[rank] = inside
    remedy = "let every rank call the collectives of all groups in the same order"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy)


def _of_group(call: tuple[str, str]) -> str:
    return f"{call[1]} of group {call[0]}"


# --- calls that do not end ---

_QUEUED = "to begin it is to queue it: a GPU that hangs in a kernel before it looks the same from outside"


def _unended(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    stuck: list[Call] = hypothesis.facts["stuck"]
    operation = min(stuck, key=lambda wait: wait.at).operation
    if table.by_stacks and not table.owed:
        lines = {wait.line for wait in stuck}
        where = f" at {lines.pop()}" if len(lines) == 1 else ""
        sentence = f"not enough seen: all ranks wait in {operation}{where}, and it does not end"
        remedy = (
            "is a link broken (clusterrun check tests it), does every rank call it equally often, with equal "
        )
        remedy += f"shapes? {MORE_IS_SEEN}"
        return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), waited(table), remedy)
    sentence = f"all ranks have begun {operation}, and it does not end"
    evidence = [*waited(table)]
    remedy = "clusterrun check finds the link; until it is mended, leave one of its ends out (--exclude)"
    if table.owed:
        links = sorted({tuple(sorted((rank.node, table.node_at(debt.peer)))) for rank, debt in table.owed})
        ends = {(rank.node, debt.peer): (rank, debt) for rank, debt in table.owed}
        culprits = tuple(
            Culprit(-1, rank.node, f"what it sends to {table.node_at(debt.peer)} is not acknowledged")
            for rank, debt in ends.values()
        )
        named = " and between ".join(f"{one} and {other}" for one, other in links[:MOST])
        sentence += f": the link between {named} is broken"
        return Diagnosis(Verdict.LINK, sentence, culprits, (), tuple(evidence), remedy)
    if hypothesis.facts["uses_tcp"]:
        sentence += ", though no connection owes an answer"
        remedy = f"does every rank give {operation} the same root (src, dst) and equal shapes? else: {remedy}"
        return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), tuple(evidence), remedy)
    if any("nccl" in group.backend for wait in stuck for group in table.of(wait.rank).groups):
        evidence.append(_QUEUED)
        remedy += "; nvidia-smi and dmesg | grep -i xid on each node show a GPU that is stuck"
    evidence.append("no TCP connection owes an answer: where ranks use RDMA, its counters may tell more")
    return Diagnosis(Verdict.LINK, sentence, (), (), tuple(evidence), remedy)


# --- ranks that make groups ---


def _other_world(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    worlds = hypothesis.facts["worlds"]
    whys = {}
    for rank in hypothesis.culprits:
        request = table.of(rank).request
        doing = f"it waits in init_process_group{_at(table, rank)} for" if request.world else "it has joined"
        whys[rank] = f"{doing} a world of {worlds[rank]} ranks, and was started as one of {request.started}"
    first = hypothesis.culprits[0]
    sentence = (
        f"{ranks_in_words(whys)} asked init_process_group for a world of {worlds[first]} ranks; there are "
    )
    sentence += f"{table.of(first).request.started}"
    remedy = "give init_process_group no rank and no world_size: it takes them from RANK and WORLD_SIZE"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy, ())


def _other_rank(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    whys = {}
    for rank in hypothesis.culprits:
        asks = table.of(rank).request.asks
        whys[rank] = f"it waits in init_process_group{_at(table, rank)} as rank {asks}"
    first = table.of(hypothesis.culprits[0])
    same = [rank for rank in hypothesis.facts["asking"][first.request.asks] if rank != first.rank]
    sentence = (
        f"rank {first.rank} on {first.node} says in init_process_group that it is rank {first.request.asks}, "
    )
    sentence += f"as {ranks_in_words(same)} does"
    remedy = "leave RANK as it is, and give init_process_group no rank: it takes it from there"
    return _blame(table, Verdict.MISMATCH, sentence, whys, remedy, ())


def _is_at(table: CallTable, rank: int) -> str:
    line = table.line(rank)
    return f"; it is at {line}" if line else ""


def _other_store(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sides = hypothesis.facts["sides"]
    (where, _), *others = sides
    whys = {
        rank: f"it looks for rank 0 at {address}, where the others look at {where}{_is_at(table, rank)}"
        for address, ranks in others
        for rank in ranks
        if rank in hypothesis.culprits
    }
    listed = "; ".join(f"{ranks_in_words(ranks)} at {address}" for address, ranks in sides)
    sentence = f"ranks wait for each other in init_process_group at different addresses: {listed}"
    remedy = "leave MASTER_ADDR and MASTER_PORT as they are: every rank is given the same"
    verdict = Verdict.MISMATCH if hypothesis.culprits else Verdict.UNDETERMINED
    return _blame(table, verdict, sentence, whys, remedy, ())


def _other_groups(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    contradictions, groups = hypothesis.facts["contradictions"], hypothesis.facts["groups"]
    remedy = "let every rank call new_group for all groups, its own or not, in the same order"
    if not hypothesis.culprits:
        rank, other, name = contradictions[0]
        theirs = groups[other].get(name)
        sentence = "ranks do not make the same groups in the same order: "
        sentence += f"group {name} of rank {rank} has {_members(groups[rank][name])}"
        sentence += (
            f", that of rank {other} {_members(theirs)}"
            if theirs
            else f", and rank {other} made no such group"
        )
        return _blame(table, Verdict.MISMATCH, sentence, {}, remedy, ())
    (odd,) = hypothesis.culprits
    one, two, name = next((pair for pair in contradictions if pair[0] != odd), contradictions[0])
    other = one if one != odd else two
    mine = groups[odd].get(name)
    its = f"its group {name} is of {_members(mine)}" if mine else f"it made no group {name} with itself in it"
    why = f"{its}, where that of rank {other} is of {_members(groups[other].get(name, ''))}"
    if not mine and table.of(other).request.makes:
        why += f", which waits for it{_at(table, other)}"
    why += _is_at(table, odd)
    sentence = f"rank {odd} on {table.of(odd).node} does not make the groups that the others make: {why}"
    return _blame(table, Verdict.MISMATCH, sentence, {odd: why}, remedy, ())


def _members(ranks: str) -> str:
    return ranks_in_words(unfolded(ranks))


def _met_in_vain(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    here = table.ranks[0].location
    sentence = f"all ranks seen wait in {here.operation} at {here.line}"
    gone = sorted({*range(table.size)}.difference(table.by_rank))
    if (
        gone
        and not table.mute
        and all(rank.request.world == rank.request.started == table.size for rank in table.ranks)
    ):
        sentence += f", for {ranks_in_words(gone)} as well, which had already ended"
        remedy = f"how did it end? clusterrun logs --rank {gone[0]}; behind a pipe an exit code is lost: "
        remedy += "set -o pipefail"
        verdict = Verdict.NEVER_ARRIVED
    else:
        remedy = "clusterrun check tests the way to rank 0; is WORLD_SIZE what init_process_group is given?"
        verdict = Verdict.LINK if table.owed else Verdict.UNDETERMINED
    return Diagnosis(verdict if table.is_long_still else Verdict.NOTHING, sentence, remedy=remedy)


# --- ranks outside of torch ---


def _computing(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    ranks = hypothesis.facts["busy"]
    verb = "computes" if len(ranks) == 1 else "compute"
    return Diagnosis(Verdict.NOTHING, f"{ranks_in_words(ranks)} {verb}")


def _busy_without_progress(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    busy = hypothesis.facts["busy"]
    sentence = f"{ranks_in_words(busy)} keep{_s(busy)} a processor busy, but no rank has begun a collective "
    sentence += f"or printed for {table.stalled:.0f} s: it computes, or waits for its GPU"
    records = "torch keeps no flight records here: it is too old, or TORCH_NCCL_TRACE_BUFFER_SIZE is 0"
    remedy = "clusterrun top shows whether the GPUs work; ranks that print now and then are not taken to hang"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), (*_reasons(table, busy), records), remedy)


def _no_stacks(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    sentence = f"not enough seen: no Python stack of the {len(table.living)} ranks could be read"
    remedy = "pip install py-spy beside clusterrun or on the nodes, and permit it to read processes of yours"
    return Diagnosis(Verdict.UNDETERMINED, sentence, remedy=remedy)


def _nothing_seen(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    return Diagnosis(Verdict.UNDETERMINED, "no rank was seen")


def _pause(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    return Diagnosis(Verdict.NOTHING, "the ranks pause outside of collectives")


def _ending(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    return Diagnosis(Verdict.NOTHING, _all_ended(table))


def _outlived(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    nodes = ", ".join(sorted({rank.node for rank in table.ranks})[:MOST])
    remedy = f"what does the launcher wait for? clusterrun exec --node NODE -- ps -ef, on {nodes}"
    return Diagnosis(Verdict.WAITING, _all_ended(table), remedy=remedy)


def _all_ended(table: CallTable) -> str:
    return f"all {len(table.ranks)} ranks have ended, and what started them has not"


def _waiting_outside(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    living = table.living
    gone = [rank.rank for rank in table.ranks if not rank.state]
    lines = {rank.location.line for rank in living} - {""}
    where = ""
    if len(lines) == 1:
        where = f", all at {lines.pop()}" if len(living) > 1 else f", at {lines.pop()}"
    who = f"all {len(living)} ranks that are left wait" if gone else f"all {len(living)} ranks wait"
    if len(living) == 1:
        who = f"rank {living[0].rank}, the only one left, waits" if gone else f"rank {living[0].rank} waits"
    sentence = f"{who} outside of collectives{where}"
    sides = hypothesis.facts["sides"]
    if sides:
        (line, ranks), (lone_line, (lone,)) = sides
        sentence += f": {ranks_in_words(ranks)} at {line}, rank {lone} alone at {lone_line}. "
        sentence += "Either they wait for it, or it waits for them"
    evidence = _reasons(table, [rank.rank for rank in living], 2 * MOST)
    if gone:
        evidence.append(f"{ranks_in_words(gone)} {'has' if len(gone) == 1 else 'have'} ended")
    return Diagnosis(Verdict.WAITING, sentence, (), (), tuple(evidence), reason(living[0]).remedy)


def _late_process(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    inside, late = hypothesis.facts["inside"], hypothesis.facts["late"]
    culprits = tuple(
        Culprit(-1, rank.node, f"its process {child.pid} {_does(rank, child)}") for rank, child in late[:MOST]
    )
    rank, child = late[0]
    sentence = f"process {child.pid} on {rank.node} holds the others up: it {_does(rank, child)}"
    first = location(inside[0][1].stack)
    where = f"{first.operation}{at_line(inside[0][1].stack)}"
    lines = [f"process {child.pid} on {rank.node} waits in {where}" for rank, child in inside[:MOST]]
    return Diagnosis(Verdict.NEVER_ARRIVED, sentence, culprits, (), tuple(lines), WAIT_REMEDY)


def _does(rank: RankSnapshot, child: ChildProcess) -> str:
    """Describe a process below a rank like a rank."""
    process = replace(rank.process, pid=child.pid, state=child.state, children=(), busy=0.0)
    same = replace(rank, process=process, stacks=PythonStacks(child.stack))
    return reason(same).why.partition(" ")[2]


def _unknown_processes(table: CallTable, hypothesis: Hypothesis) -> Diagnosis:
    living = table.living
    who = ranks_in_words(rank.rank for rank in living)
    sentence = f"{who} wait{_s(living)} for processes whose stacks cannot be read"
    evidence = []
    for rank in living[:MOST]:
        children = ", ".join(f"{child.name} (process {child.pid})" for child in rank.process.children[:MOST])
        evidence.append(f"rank {rank.rank} on {rank.node} has started {children}")
    remedy = f"on {living[0].node}: py-spy dump --pid N of each shows where it is"
    remedy += " (ranks of torchrun need none)"
    return Diagnosis(Verdict.UNDETERMINED, sentence, (), (), tuple(evidence), remedy)


# Every rule. Their order decides nothing.
RULES: tuple[Rule, ...] = (
    *END_RULES,
    absent_rank.rule,
    circle.rule,
    different_arguments.rule,
    different_collective.rule,
    different_places.rule,
    group_request.rule,
    held_lock.rule,
    left_out_call.rule,
    moving_ranks.rule,
    no_stacks.rule,
    order_of_groups.rule,
    outside.rule,
    posted_ops.rule,
    stopped_rank.rule,
    two_threads.rule,
    unended_call.rule,
    unset_key.rule,
    writing_rank.rule,
    wrong_peer.rule,
)

# The explanation of every kind of hypothesis.
EXPLANATIONS = {
    "progress": _progress,
    "slow rank": _slow_rank,
    "writing": _writing,
    "may come": _may_come,
    "may end": _may_end,
    "never arrived": _never_arrived,
    "node is silent": _silent_node,
    "not in new_group": _not_in_new_group,
    "different collectives": _different_collectives,
    "different places": _different_places,
    "different sizes passed": _different_sizes_passed,
    "different roots": _different_roots,
    "different tags": _different_tags,
    "different splits": _different_splits,
    "two threads": _two_threads,
    "unset key": _unset_key,
    "held lock": _held_lock,
    "posted operations": _posted_operations,
    "circle": _circle,
    "wrong peer": _wrong_peer,
    "unanswered": _unanswered,
    "left out call": _left_out_call,
    "order of groups": _order_of_groups,
    "unended": _unended,
    "other world": _other_world,
    "other rank": _other_rank,
    "other store": _other_store,
    "other groups": _other_groups,
    "met in vain": _met_in_vain,
    "computing": _computing,
    "busy without progress": _busy_without_progress,
    "nothing seen": _nothing_seen,
    "no stacks": _no_stacks,
    "pause": _pause,
    "ending": _ending,
    "outlived": _outlived,
    "waiting outside": _waiting_outside,
    "late process": _late_process,
    "unknown processes": _unknown_processes,
}
