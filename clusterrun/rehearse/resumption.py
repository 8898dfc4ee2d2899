"""From which step a restarted script goes on, and what differs first from a run that nobody disturbed; pure.

The parameters before the first step of a start are looked for among those that the same run had after each
of its steps before: so the step is known by content, whatever the script says. What follows is compared
with the control, part by part, in the order in which one part decides the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from clusterrun.model.frozen import frozen, replace
from clusterrun.rehearse.rank_trace import RankTrace, Rows, Start, Step

KNOWN_SHARE = 0.9
"""Of a batch's samples that the control had too: then it is another order, not other data."""

TWO = 2
"""Ranks whose gradients have one sum, to the bit.

DDP sums those of more in another order in the first step of a process, after which it lays out its buckets
again: a restart differs then by rounding, whatever the script does.
"""
LOST_GRADIENT = "the gradient of the others was accumulated before the checkpoint, and is lost"
SAME_LOSS = "the loss is the same"
OTHERS = "got other samples: the order is another one"


@frozen
class Reference:
    """What every rank should compute: its steps by number, and what each optimizer had before its first.

    ``exact``: the step up to which bits can be compared, where the run's own past went on by rounding.
    ``drawn``: whose random numbers each step of the control drew; those of another process began elsewhere.
    """

    steps: Mapping[int, Mapping[int, Step]]
    initial: Mapping[int, Mapping[int, tuple[int, int]]]
    exact: float = math.inf
    drawn: Mapping[int, Mapping[int, frozenset[str]]] = MappingProxyType({})
    moved: Mapping[int, Mapping[tuple[int, int], int]] = MappingProxyType({})
    """Weights that the script changed by itself after a step, by rank, then by (step, optimizer)."""

    def whole(self, rank: int, optimizer: int, n: int) -> set[int]:
        """What the script made of an optimizer's weights after step ``n``.

        A rank that writes no checkpoint looks less often than one that does: that one's count as well.
        """
        all_ = [self.moved.get(rank, {}), *self.moved.values()]
        return {mine[n, optimizer] for mine in all_ if (n, optimizer) in mine}

    def at(self, rank: int, n: int) -> Step | None:
        """The step that a rank takes as its ``n``-th, counted from 1."""
        return self.steps.get(rank, {}).get(n)

    def held(self, rank: int, optimizer: int, at: int) -> tuple[int, int] | None:
        """Parameters and state of an optimizer after step ``at``; None if it is not known."""
        mine = (step for step in self.steps.get(rank, {}).values() if step.optimizer == optimizer)
        last = max((step for step in mine if step.n <= at), key=lambda step: step.n, default=None)
        return (last.parameters, last.state) if last else self.initial.get(rank, {}).get(optimizer)

    def begun(self, rank: int, optimizer: int) -> int:
        mine = (n for n, step in self.steps.get(rank, {}).items() if step.optimizer == optimizer)
        return min(mine, default=1) - 1


def reference(control: Start, first: Start | None = None) -> Reference:
    """The control; as far as the disturbed run's own first start went, that one."""
    steps: dict[int, dict[int, Step]] = {}
    initial: dict[int, dict[int, tuple[int, int]]] = {}
    moved: dict[int, dict[tuple[int, int], int]] = {}
    for life in (control, first):
        for rank, trace in life.ranks.items() if life else ():
            steps.setdefault(rank, {}).update({step.n: step for step in trace.steps})
            initial.setdefault(rank, {}).update(trace.before)
            moved.setdefault(rank, {}).update({(n, o): parameters for n, o, parameters in trace.moved})
    rounded = first is not None and len(steps) > TWO and not _ends_as(control, first)
    drawn = {rank: _drawn(trace.steps) for rank, trace in control.ranks.items()}
    return Reference(steps, initial, first.last if first and rounded else math.inf, drawn, moved)


def _drawn(steps: Sequence[Step]) -> dict[int, frozenset[str]]:
    """By step, the states of random numbers that are others after it; of the first nobody knows, so all."""
    found: dict[int, frozenset[str]] = {}
    before: Mapping[str, int] = {}
    for step in steps:
        found[step.n] = frozenset(name for name, state in step.random.items() if before.get(name) != state)
        before = step.random
    return found


def _ends_as(control: Start, life: Start) -> bool:
    """Whether every rank's last weights are those that the control had after so many steps."""
    for rank in life.ranks.keys() & control.ranks.keys():
        right = {step.n: step.parameters for step in control.ranks[rank].steps}
        last = [step for step in life.ranks[rank].steps if step.n in right][-1:]
        if any(step.parameters != right[step.n] for step in last):
            return False
    return True


def joined(control: Start, lives: Sequence[Start]) -> Start:
    """Several starts of one run as if they were one: each step as it was last taken."""
    past, *after = lives
    for life in after:
        at = begins(reference(control, past), life) or 0
        both = past.ranks.keys() & life.ranks.keys()
        past = Start({rank: _gone_on(past.ranks[rank], at, life.ranks[rank]) for rank in sorted(both)})
    return past


def _gone_on(before: RankTrace, at: int, after: RankTrace) -> RankTrace:
    steps = [step for step in before.steps if step.n <= at]
    moved = [one for one in before.moved if one[0] <= at]
    return replace(
        after,
        before=before.before,
        shared=before.shared,
        stepped_at=before.stepped_at,
        steps=(*steps, *(replace(step, n=at + step.n) for step in after.steps)),
        saves=(*before.saves, *(replace(save, step=at + save.step) for save in after.saves if save.step)),
        removes=(*before.removes, *after.removes),
        calls=(*before.calls, *after.calls),
        moved=(*moved, *((at + n, optimizer, parameters) for n, optimizer, parameters in after.moved)),
    )


def resumed(known: Reference, life: Start) -> dict[int, int | None]:
    """After how many steps each rank continues: 0 from the beginning, None if the weights are of no step.

    Steps that leave the weights as they are (a learning rate of 0) leave several places. Then that one counts
    which all ranks may have, and after which most is as it was.
    """
    begun = [trace for rank, trace in sorted(life.ranks.items()) if trace.before and rank in known.steps]
    places = {trace.rank: _places(known, trace) for trace in begun}
    common = set.intersection(*(set(found) for found in places.values())) if places else set()
    if common:
        best = max(common, key=lambda at: (sum(_as_before(known, trace, at) for trace in begun), at))
        return dict.fromkeys(places, best)
    return {rank: max(found, default=None) for rank, found in places.items()}


def _places(known: Reference, trace: RankTrace) -> tuple[int, ...]:
    """After how many steps this rank may go on: by its weights, and its optimizer's state if that tells."""
    parameters, state = trace.before[trace.leads]
    before = known.initial.get(trace.rank, {})
    leads = trace.leads if trace.leads in before else next(iter(before), trace.leads)
    mine = sorted((n, step) for n, step in known.steps.get(trace.rank, {}).items() if step.optimizer == leads)
    found = []
    if leads in before and parameters == before[leads][0]:
        found.append((state == before[leads][1], known.begun(trace.rank, leads)))
    anew = bool(found) and found[0][1] == 0
    for place, (n, step) in enumerate(mine):
        following = next((later for later, _ in mine[place + 1 :]), n + 1)
        after = (known.whole(trace.rank, leads, later) for later in range(n, following))
        if step.parameters != parameters and not any(parameters in values for values in after):
            continue
        found.append((step.state == state, following - 1))
    if anew and not any(same for same, _ in found):
        return (0,)
    return tuple(at for same, at in found if same or not any(one for one, _ in found))


def _as_before(known: Reference, trace: RankTrace, at: int) -> int:
    """How many steps after step ``at`` are as they were: weights, learning rates and samples."""
    for j, step in enumerate(trace.steps, 1):
        right = known.at(trace.rank, at + j)
        if right is None or step.parameters != right.parameters:
            return j - 1
        if (step.rates, step.rows) != (right.rates, right.rows):
            return j - 1
    return len(trace.steps)


def moves(life: Start) -> bool:
    """Whether any step changes the weights: where none does, nobody can say from which a restart goes on."""
    begun = [trace for trace in life.ranks.values() if trace.before]
    steps = [(trace, step) for trace in begun for step in trace.steps if step.optimizer == trace.leads]
    return any(step.parameters != trace.before[trace.leads][0] for trace, step in steps)


def begins(known: Reference, life: Start) -> int | None:
    """After which step a start of the ranks continues, by its lowest rank."""
    return next(iter(resumed(known, life).values()), None)


@frozen
class FirstDifference:
    """What differs first: a ``part`` of PARTS, the step and the rank; ``detail`` tells more of it."""

    part: str
    step: int
    rank: int
    detail: str = ""


def differences(known: Reference, life: Start, at: int) -> tuple[FirstDifference, ...]:
    """What differs first in ``life``, which continues after step ``at``; empty if nothing does.

    The cause comes first, then what differs by itself beside it.
    """
    state = _state_before(known, life, at)
    if state and state.part == "state" and not _matters(known, life, at):
        state = None
    found = [state] if state else []
    rounded: FirstDifference | None = None
    last = max((trace.last for trace in life.ranks.values()), default=0)
    for j in range(1, last + 1):
        here = [one for rank in sorted(life.ranks) for one in _at(known, life.ranks[rank], at, j)]
        inexact = at + j > known.exact
        if inexact and not rounded:
            rounded = FirstDifference("rounding", at + j, min(life.ranks))
        if rounded:  # what does not hang on the weights is still compared
            parts = ("rates", "data", "scheduler", *(("scaler", "random") if inexact else ()))
            here = [one for one in here if one.part in parts]
        elif here and {one.part for one in here} == {"rounding"} and state is None:
            rounded, here = here[0], []
        if here:
            firsts = sorted(here, key=lambda one: list(PARTS).index(one.part))
            if state is None:
                own = ("rates", "scaler") if j == 1 else ()  # they differ not for what differs before them
                first = firsts[0]
                found += [first, *(one for one in firsts if one.part in own and one.part != first.part)]
            elif j == 1:  # an optimizer's learning rates are part of its state
                found += [one for one in firsts if one.part in ("scheduler", "scaler", "averages")]
            break
    found = found or ([rounded] if rounded else [])
    return tuple({one.part: one for one in reversed(found)}.values())[::-1]


PARTS = {
    "weights": "the weights",
    "state": "the optimizer's state",
    "rates": "the learning rate",
    "data": "the data order",
    "content": "the content of the samples",
    "unseen": "the data",
    "scaler": "the gradient scaler",
    "random": "random numbers",
    "parameters": "the weights",
    "buffers": "the model's buffers",
    "averages": "the averaged weights (EMA)",
    "scheduler": "the scheduler",
    "rounding": "the arithmetic (the sum of the gradients of several ranks)",
}
"""In the order in which one decides the next, and in words."""


def _matters(known: Reference, life: Start, at: int) -> bool:
    """Whether the weights are others after any step: a state that is laid out in another way changes none."""
    steps = [(step, known.at(rank, at + step.n)) for rank, one in life.ranks.items() for step in one.steps]
    compared = [mine.parameters != right.parameters for mine, right in steps if right]
    return not compared or any(compared)


def _state_before(known: Reference, life: Start, at: int) -> FirstDifference | None:
    """What each optimizer has before its first step, against what it had after step ``at``."""
    for rank, trace in sorted(life.ranks.items()):
        for place, (optimizer, (parameters, state)) in enumerate(trace.before.items()):
            right = known.held(rank, optimizer, at)
            if right is None or known.begun(rank, optimizer) >= at:
                continue
            first = known.initial.get(rank, {}).get(optimizer)
            line = trace.stepped_at.get(optimizer, "")
            name = f"of the optimizer that steps at {line}" if len(trace.before) > 1 else ""
            values = {right[0]} | set().union(*(known.whole(rank, optimizer, n) for n in range(1, at + 1)))
            if place and optimizer not in trace.shared and parameters not in values:
                anew = "begin anew" if first and parameters == first[0] else "are of another step, or of none"
                return FirstDifference("weights", at + 1, rank, f"{name} {anew}")
            if state != right[1]:
                anew = "begins anew" if first and state == first[1] else ""
                return FirstDifference("state", at + 1, rank, f"{name} {anew}".strip())
    return None


def _at(known: Reference, trace: RankTrace, at: int, j: int) -> list[FirstDifference]:
    """What differs on one rank in its ``j``-th step."""
    step = next((one for one in trace.steps[j - 1 : j]), None)
    right = known.at(trace.rank, at + j)
    if step is None or right is None:
        return []
    parts = []
    leads = trace.rank == min(known.steps)  # the others' running means are their own, and nobody reads them
    if step.rates != right.rates:
        parts.append(("rates", _rates(step, right)))
    same = step.parameters == right.parameters  # then the samples were the same, however they came there
    data = None if same else data_difference(known, trace, at, j)
    parts += [data] if data else []
    if step.scalers != right.scalers:
        parts.append(("scaler", ""))
    drawn = known.drawn.get(trace.rank, {}).get(at + j, frozenset())
    names = sorted(name for name in drawn if step.random.get(name) != right.random.get(name))
    drawn_by_hand = data and not step.batches and data[1] == OTHERS
    unset = [name for name in names if not trace.set_anew(name)]
    if unset and data and (data[0] in ("content", "unseen") or drawn_by_hand):
        parts[-1:] = [("random", ", ".join(unset))]  # they draw what the data become
    elif not same:
        parts.append(("parameters", "") if data else _behind(known, trace, at, j, names))
    if parts[-1:] in ([], [("rounding", "")]) and step.buffers != right.buffers and leads:
        parts.append(("buffers", ""))
    seen = len(step.averages) >= len(right.averages)
    move = len({one.averages for one in known.steps[trace.rank].values()}) > 1
    if leads and seen and move and not set(right.averages) <= set(step.averages):
        parts.append(("averages", ""))
    if step.schedulers != right.schedulers and len(step.schedulers) == len(right.schedulers):
        parts.append(("scheduler", f"{list(step.schedulers)} instead of {list(right.schedulers)}"))
    return [FirstDifference(part, at + j, trace.rank, detail) for part, detail in parts]


def _behind(known: Reference, trace: RankTrace, at: int, j: int, names: Sequence[str]) -> tuple[str, str]:
    """What stands behind other weights after a step; ``names``: random states that differ."""
    step, right = trace.steps[j - 1], known.at(trace.rank, at + j)
    assert right is not None
    many = len(known.steps) > TWO
    if many and step.loss is not None and step.loss == right.loss:
        return "rounding", ""
    if names and not (many and step.loss is None):
        return "random", ", ".join(names)
    if j == 1 and _copies_kept(known, trace, at):
        return "averages", "of which this loss is computed"
    return "parameters", _of_loss(step, right)


def _copies_kept(known: Reference, trace: RankTrace, at: int) -> bool:
    """Whether copies of the weights that this step does not change differ after it, and the loss too.

    Then they were others before it, the first of a start, and the loss hangs on them: a target network.
    """
    step, right, before = trace.steps[0], known.at(trace.rank, at + 1), known.at(trace.rank, at)
    if right is None or before is None or step.loss is None or step.loss == right.loss:
        return False
    kept = set(right.averages) & set(before.averages)
    return bool(kept - set(step.averages))


def _of_loss(step: Step, right: Step) -> str:
    """Of which loss other weights came: the same one, or another; '' where it is not seen."""
    if step.loss is None or right.loss is None:
        return ""
    other = f"the loss is {step.loss:.6g} instead of {right.loss:.6g}"
    return SAME_LOSS if step.loss == right.loss else other


def _rates(step: Step, right: Step) -> str:
    """What of an optimizer's settings differs: the learning rate, which comes first, or one beside it."""
    both = (step.rates, right.rates)
    mine, its = ("/".join(f"{group[0]:.6g}" if group else "?" for group in rates) for rates in both)
    if mine != its:
        return f"{mine} instead of {its}"
    pairs = [pair for one, other in zip(step.rates, right.rates) for pair in zip(one, other)]
    changed = next((f"{one} instead of {other}" for one, other in pairs if one != other), "another one")
    return f"as it was, but momentum, betas or weight decay is {changed}"


# --- data ---


def data_difference(known: Reference, trace: RankTrace, at: int, j: int) -> tuple[str, str] | None:
    """A part ("data", "content" or "unseen") and words, where a step's samples are not the control's."""
    step, right = trace.steps[j - 1], known.at(trace.rank, at + j)
    assert right is not None
    control = known.steps[trace.rank].values()
    if step.rows and right.rows:
        if step.rows == right.rows:
            return None
        mine, its = step.rows, right.rows
        seen = {one.n: one.rows for one in control}
        mine_index, its_index = _indices(step), _indices(right)
        indices = {one.n: _indices(one) for one in control}
    elif step.batches:
        in_steps = Counter(name for one in control for name in {batch[0] for batch in one.batches})
        main = max(in_steps, key=lambda name: in_steps[name], default="")
        ours, theirs = _order(trace.steps, main), _order(control, main)
        its_all = [batch for n in sorted(theirs) for batch in theirs[n]]
        ahead = _ahead(theirs, at) if j == 1 else 0
        begin = max(0, sum(len(theirs[n]) for n in theirs if n <= at + j - 1) - ahead)
        if not ours.get(j) or begin >= len(its_all) or ours[j][0][0] == its_all[begin][0]:
            return None
        (mine, mine_index), (its, its_index) = ours[j][0], its_all[begin]
        firsts = {n: all_[0] for n, all_ in theirs.items() if all_}
        if 0 <= len(its_all) - len(theirs) <= 1:
            firsts = dict(enumerate(its_all, 1))
        seen = {n: rows for n, (rows, _) in firsts.items()}
        indices = {n: index for n, (_, index) in firsts.items()}
    else:
        return None
    if 0 < len(mine) < len(its) and its[-len(mine) :] == mine:
        return "data", f"got only the last {len(mine)} of {len(its)} samples: {LOST_GRADIENT}"
    if mine_index and mine_index == its_index:
        return "content", "the samples are the same, their content is not"
    if mine_index and its_index:
        mine, its, seen = mine_index, its_index, indices
    return _data_words(mine, its, seen, at + j, known, bool(mine_index))


def _data_words(
    mine: Rows, its: Rows, seen: Mapping[int, Rows], n: int, known: Reference, by_index: bool
) -> tuple[str, str]:
    same = [step for step, rows in seen.items() if rows == mine and step != n]
    earlier = max((step for step in same if step < n), default=0)
    if earlier:
        begins = ", the first of the run" if 1 in same else ""
        return "data", f"got the batch of step {earlier} again{begins}: {n - earlier} batches are repeated"
    if same:
        return "data", f"got the batch of step {min(same)}: {min(same) - n} batches are skipped"
    if Counter(mine) == Counter(its):
        return "data", "got the same samples in another order"
    elsewhere = {row for steps in known.steps.values() for one in steps.values() for row in one.rows}
    elsewhere |= {row for rows in seen.values() for row in rows}
    share = sum(row in elsewhere for row in mine) / max(1, len(mine))
    if by_index or share >= KNOWN_SHARE:
        return "data", OTHERS
    return "unseen", "got data that the control never had"


def _ahead(drawn: Mapping[int, Sequence[object]], at: int) -> int:
    """How many batches a loader is ahead of the model after step ``at``: none where an epoch ended there."""
    usual = len(drawn.get(2, drawn.get(1, ())))
    begins_epoch = len(drawn.get(at + 1, ())) > usual
    return 0 if begins_epoch else max(0, len(drawn.get(1, ())) - usual)


def _order(steps: Iterable[Step], main: str) -> dict[int, list[tuple[Rows, Rows]]]:
    """Rows and indices of each step's batches that come from the loader ``main``."""
    return {step.n: [(rows, index) for name, rows, index in step.batches if name == main] for step in steps}


def _indices(step: Step) -> Rows:
    return step.batches[-1][2] if step.batches else ()


def counted(known: Reference, life: Start, at: int) -> tuple[int, int]:
    """Samples that were repeated, and left out, over all ranks; (0, 0) where they are not seen."""
    right: Counter[int] = Counter()
    real: Counter[int] = Counter()
    for rank, steps in known.steps.items():
        trace = life.ranks.get(rank)
        for n, step in steps.items():
            if n <= at or (trace and n <= at + life.last):
                right.update(step.rows)
            if n <= at:
                real.update(step.rows)
        for step in trace.steps[: life.last] if trace else ():
            real.update(step.rows)
    return sum((real - right).values()), sum((right - real).values())
