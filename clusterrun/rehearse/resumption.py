"""Find the step from which a restart continues, and its first difference from an undisturbed run; pure.

The parameters before the first step of a start identify the step: the same run had them after one of its
earlier steps. The later steps are compared with the control, part by part, in the order in which one part
decides the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from clusterrun.model.frozen import frozen, replace
from clusterrun.rehearse.rank_trace import RankTrace, Rows, Start, Step

# Share of a batch's samples that the control had too. From it on the order differs, not the data.
KNOWN_SHARE = 0.9

# Number of ranks whose gradients have the same sum to the bit in every order.
#
# DDP lays out its buckets again after the first step of a process. With more ranks it sums gradients in
# another order in that step, so a restart differs by rounding whatever the script does.
ORDERLESS_RANKS = 2
LOST_GRADIENT = "the gradient of the others was accumulated before the checkpoint, and is lost"
SAME_LOSS = "the loss is the same"
OTHERS = "got other samples: the order is another one"


@frozen
class Reference:
    """The steps that every rank should make, by number, and each optimizer's values before its first step.

    ``exact``: the last step whose values can be compared bit by bit; later steps differ by rounding.
    ``drawn``: the generators from which each step of the control drew, by rank and step.
    """

    steps: Mapping[int, Mapping[int, Step]]
    initial: Mapping[int, Mapping[int, tuple[int, int]]]
    exact: float = math.inf
    drawn: Mapping[int, Mapping[int, frozenset[str]]] = MappingProxyType({})
    # Weights that the script itself changed after a step, by rank, then by (step, optimizer).
    moved: Mapping[int, Mapping[tuple[int, int], int]] = MappingProxyType({})

    def whole(self, rank: int, optimizer: int, n: int) -> set[int]:
        """Return the weights of an optimizer after step ``n`` that the script itself changed.

        A rank that writes no checkpoint records them less often, so those of other ranks count as well.
        """
        all_ = [self.moved.get(rank, {}), *self.moved.values()]
        return {mine[n, optimizer] for mine in all_ if (n, optimizer) in mine}

    def at(self, rank: int, n: int) -> Step | None:
        """Return the ``n``-th step of a rank, counted from 1."""
        return self.steps.get(rank, {}).get(n)

    def held(self, rank: int, optimizer: int, at: int) -> tuple[int, int] | None:
        """Return parameters and state of an optimizer after step ``at``; None if they are unknown."""
        mine = (step for step in self.steps.get(rank, {}).values() if step.optimizer == optimizer)
        last = max((step for step in mine if step.n <= at), key=lambda step: step.n, default=None)
        return (last.parameters, last.state) if last else self.initial.get(rank, {}).get(optimizer)

    def begun(self, rank: int, optimizer: int) -> int:
        mine = (n for n, step in self.steps.get(rank, {}).items() if step.optimizer == optimizer)
        return min(mine, default=1) - 1


def reference(control: Start, first: Start | None = None) -> Reference:
    """Return the steps of the control, replaced by those of ``first``, the disturbed run's first start."""
    steps: dict[int, dict[int, Step]] = {}
    initial: dict[int, dict[int, tuple[int, int]]] = {}
    moved: dict[int, dict[tuple[int, int], int]] = {}
    for life in (control, first):
        for rank, trace in life.ranks.items() if life else ():
            steps.setdefault(rank, {}).update({step.n: step for step in trace.steps})
            initial.setdefault(rank, {}).update(trace.before)
            moved.setdefault(rank, {}).update({(n, o): parameters for n, o, parameters in trace.moved})
    rounded = first is not None and len(steps) > ORDERLESS_RANKS and not _ends_as(control, first)
    drawn = {rank: _drawn(trace.steps) for rank, trace in control.ranks.items()}
    return Reference(steps, initial, first.last if first and rounded else math.inf, drawn, moved)


def _drawn(steps: Sequence[Step]) -> dict[int, frozenset[str]]:
    """Return for each step the generators whose state it changed; for the first step all of them."""
    drawn_by_step: dict[int, frozenset[str]] = {}
    before: Mapping[str, int] = {}
    for step in steps:
        drawn_by_step[step.n] = frozenset(
            name for name, state in step.random.items() if before.get(name) != state
        )
        before = step.random
    return drawn_by_step


def _ends_as(control: Start, life: Start) -> bool:
    """Return whether every rank's last weights equal those of the control after as many steps."""
    for rank in life.ranks.keys() & control.ranks.keys():
        right = {step.n: step.parameters for step in control.ranks[rank].steps}
        last = [step for step in life.ranks[rank].steps if step.n in right][-1:]
        if any(step.parameters != right[step.n] for step in last):
            return False
    return True


def joined(control: Start, lives: Sequence[Start]) -> Start:
    """Join several starts of one run to one start, with each step as it was taken last."""
    past, *after = lives
    for life in after:
        at = begins(reference(control, past), life) or 0
        both = past.ranks.keys() & life.ranks.keys()
        past = Start({rank: _gone_on(past.ranks[rank], at, life.ranks[rank]) for rank in sorted(both)})
    return past


def _gone_on(before: RankTrace, at: int, after: RankTrace) -> RankTrace:
    steps = [step for step in before.steps if step.n <= at]
    moved = [move for move in before.moved if move[0] <= at]
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


def resumed(reference: Reference, life: Start) -> dict[int, int | None]:
    """Return the step after which each rank continues: 0 for the beginning, None for weights of no step.

    Steps that do not change the weights (a learning rate of 0) allow several answers. Then the step counts
    that all ranks may have, and after which most steps are equal.
    """
    begun = [trace for rank, trace in sorted(life.ranks.items()) if trace.before and rank in reference.steps]
    places = {trace.rank: _places(reference, trace) for trace in begun}
    common = (
        set.intersection(*(set(places_of_rank) for places_of_rank in places.values())) if places else set()
    )
    if common:
        best = max(common, key=lambda at: (sum(_as_before(reference, trace, at) for trace in begun), at))
        return dict.fromkeys(places, best)
    return {rank: max(places_of_rank, default=None) for rank, places_of_rank in places.items()}


def _places(reference: Reference, trace: RankTrace) -> tuple[int, ...]:
    """Return the steps after which this rank may continue, by its weights and its optimizer's state."""
    parameters, state = trace.before[trace.leads]
    before = reference.initial.get(trace.rank, {})
    leads = trace.leads if trace.leads in before else next(iter(before), trace.leads)
    mine = sorted(
        (n, step) for n, step in reference.steps.get(trace.rank, {}).items() if step.optimizer == leads
    )
    candidates = []
    if leads in before and parameters == before[leads][0]:
        candidates.append((state == before[leads][1], reference.begun(trace.rank, leads)))
    anew = bool(candidates) and candidates[0][1] == 0
    for place, (n, step) in enumerate(mine):
        following = next((later for later, _ in mine[place + 1 :]), n + 1)
        after = (reference.whole(trace.rank, leads, later) for later in range(n, following))
        if step.parameters != parameters and not any(parameters in values for values in after):
            continue
        candidates.append((step.state == state, following - 1))
    if anew and not any(same for same, _ in candidates):
        return (0,)
    return tuple(at for same, at in candidates if same or not any(is_same for is_same, _ in candidates))


def _as_before(reference: Reference, trace: RankTrace, at: int) -> int:
    """Count the steps after step ``at`` with equal weights, learning rates and samples."""
    for j, step in enumerate(trace.steps, 1):
        control_step = reference.at(trace.rank, at + j)
        if control_step is None or step.parameters != control_step.parameters:
            return j - 1
        if (step.rates, step.rows) != (control_step.rates, control_step.rows):
            return j - 1
    return len(trace.steps)


def moves(life: Start) -> bool:
    """Return whether any step changes the weights. If none does, the step of a restart is unknown."""
    begun = [trace for trace in life.ranks.values() if trace.before]
    steps = [(trace, step) for trace in begun for step in trace.steps if step.optimizer == trace.leads]
    return any(step.parameters != trace.before[trace.leads][0] for trace, step in steps)


def begins(reference: Reference, life: Start) -> int | None:
    """Return the step after which a start continues, by its lowest rank."""
    return next(iter(resumed(reference, life).values()), None)


@frozen
class FirstDifference:
    """The first difference: a ``part`` of PARTS, the step, the rank and a ``detail``."""

    part: str
    step: int
    rank: int
    detail: str = ""


def differences(reference: Reference, life: Start, at: int) -> tuple[FirstDifference, ...]:
    """Return the first differences in ``life``, which continues after step ``at``; empty if there are none.

    The cause comes first, then independent differences.
    """
    state = _state_before(reference, life, at)
    if state and state.part == "state" and not _matters(reference, life, at):
        state = None
    result = [state] if state else []
    rounded: FirstDifference | None = None
    last = max((trace.last for trace in life.ranks.values()), default=0)
    for j in range(1, last + 1):
        differing = [
            difference
            for rank in sorted(life.ranks)
            for difference in _at(reference, life.ranks[rank], at, j)
        ]
        inexact = at + j > reference.exact
        if inexact and not rounded:
            rounded = FirstDifference("rounding", at + j, min(life.ranks))
        if rounded:  # compare only the parts that do not depend on the weights
            parts = ("rates", "data", "scheduler", *(("scaler", "random") if inexact else ()))
            differing = [difference for difference in differing if difference.part in parts]
        elif differing and {difference.part for difference in differing} == {"rounding"} and state is None:
            rounded, differing = differing[0], []
        if differing:
            firsts = sorted(differing, key=lambda difference: list(PARTS).index(difference.part))
            if state is None:
                own = ("rates", "scaler") if j == 1 else ()  # these differ for reasons of their own
                first = firsts[0]
                result += [
                    first,
                    *(
                        difference
                        for difference in firsts
                        if difference.part in own and difference.part != first.part
                    ),
                ]
            elif j == 1:  # an optimizer's learning rates are part of its state
                result += [
                    difference
                    for difference in firsts
                    if difference.part in ("scheduler", "scaler", "averages")
                ]
            break
    result = result or ([rounded] if rounded else [])
    return tuple({difference.part: difference for difference in reversed(result)}.values())[::-1]


# The names of the parts, in the order in which one part decides the next.
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


def _matters(reference: Reference, life: Start, at: int) -> bool:
    """Return whether the weights differ after any step. A state with another layout changes none."""
    steps = [
        (step, reference.at(rank, at + step.n)) for rank, trace in life.ranks.items() for step in trace.steps
    ]
    compared = [mine.parameters != control_step.parameters for mine, control_step in steps if control_step]
    return not compared or any(compared)


def _state_before(reference: Reference, life: Start, at: int) -> FirstDifference | None:
    """Compare each optimizer before its first step with the same optimizer after step ``at``."""
    for rank, trace in sorted(life.ranks.items()):
        for place, (optimizer, (parameters, state)) in enumerate(trace.before.items()):
            held = reference.held(rank, optimizer, at)
            if held is None or reference.begun(rank, optimizer) >= at:
                continue
            first = reference.initial.get(rank, {}).get(optimizer)
            line = trace.stepped_at.get(optimizer, "")
            name = f"of the optimizer that steps at {line}" if len(trace.before) > 1 else ""
            values = {held[0]} | set().union(*(reference.whole(rank, optimizer, n) for n in range(1, at + 1)))
            if place and optimizer not in trace.shared and parameters not in values:
                anew = "begin anew" if first and parameters == first[0] else "are of another step, or of none"
                return FirstDifference("weights", at + 1, rank, f"{name} {anew}")
            if state != held[1]:
                anew = "begins anew" if first and state == first[1] else ""
                return FirstDifference("state", at + 1, rank, f"{name} {anew}".strip())
    return None


def _at(reference: Reference, trace: RankTrace, at: int, j: int) -> list[FirstDifference]:
    """Return the differences on one rank in its ``j``-th step."""
    step = next((own_step for own_step in trace.steps[j - 1 : j]), None)
    control_step = reference.at(trace.rank, at + j)
    if step is None or control_step is None:
        return []
    parts = []
    # Each rank has its own running means. Only those of the lowest rank are read.
    leads = trace.rank == min(reference.steps)
    if step.rates != control_step.rates:
        parts.append(("rates", _rates(step, control_step)))
    same = step.parameters == control_step.parameters  # equal weights prove equal samples
    data = None if same else data_difference(reference, trace, at, j)
    parts += [data] if data else []
    if step.scalers != control_step.scalers:
        parts.append(("scaler", ""))
    drawn = reference.drawn.get(trace.rank, {}).get(at + j, frozenset())
    names = sorted(name for name in drawn if step.random.get(name) != control_step.random.get(name))
    drawn_by_hand = data and not step.batches and data[1] == OTHERS
    unset = [name for name in names if not trace.set_anew(name)]
    if unset and data and (data[0] in ("content", "unseen") or drawn_by_hand):
        parts[-1:] = [("random", ", ".join(unset))]  # random numbers decided the data
    elif not same:
        parts.append(("parameters", "") if data else _behind(reference, trace, at, j, names))
    if parts[-1:] in ([], [("rounding", "")]) and step.buffers != control_step.buffers and leads:
        parts.append(("buffers", ""))
    has_all_averages = len(step.averages) >= len(control_step.averages)
    move = len({own_step.averages for own_step in reference.steps[trace.rank].values()}) > 1
    if leads and has_all_averages and move and not set(control_step.averages) <= set(step.averages):
        parts.append(("averages", ""))
    if step.schedulers != control_step.schedulers and len(step.schedulers) == len(control_step.schedulers):
        parts.append(("scheduler", f"{list(step.schedulers)} instead of {list(control_step.schedulers)}"))
    return [FirstDifference(part, at + j, trace.rank, detail) for part, detail in parts]


def _behind(reference: Reference, trace: RankTrace, at: int, j: int, names: Sequence[str]) -> tuple[str, str]:
    """Return why the weights differ after a step. ``names``: random states that differ."""
    step, control_step = trace.steps[j - 1], reference.at(trace.rank, at + j)
    assert control_step is not None
    many = len(reference.steps) > ORDERLESS_RANKS
    if many and step.loss is not None and step.loss == control_step.loss:
        return "rounding", ""
    if names and not (many and step.loss is None):
        return "random", ", ".join(names)
    if j == 1 and _copies_kept(reference, trace, at):
        return "averages", "of which this loss is computed"
    return "parameters", _of_loss(step, control_step)


def _copies_kept(reference: Reference, trace: RankTrace, at: int) -> bool:
    """Return whether unchanged copies of the weights, and the loss, differ after the first step of a start.

    The copies then differed before the step, and the loss depends on them, as on a target network.
    """
    step, control_step, before = (
        trace.steps[0],
        reference.at(trace.rank, at + 1),
        reference.at(trace.rank, at),
    )
    if control_step is None or before is None or step.loss is None or step.loss == control_step.loss:
        return False
    unchanged = set(control_step.averages) & set(before.averages)
    return bool(unchanged - set(step.averages))


def _of_loss(step: Step, control_step: Step) -> str:
    """Say whether the loss was the same; '' if it is unknown."""
    if step.loss is None or control_step.loss is None:
        return ""
    other = f"the loss is {step.loss:.6g} instead of {control_step.loss:.6g}"
    return SAME_LOSS if step.loss == control_step.loss else other


def _rates(step: Step, right: Step) -> str:
    """Say which setting of an optimizer differs: the learning rate, or another one if the rate is equal."""
    both = (step.rates, right.rates)
    actual, expected = ("/".join(f"{group[0]:.6g}" if group else "?" for group in rates) for rates in both)
    if actual != expected:
        return f"{actual} instead of {expected}"
    pairs = [pair for value, other in zip(step.rates, right.rates) for pair in zip(value, other)]
    changed = next((f"{value} instead of {other}" for value, other in pairs if value != other), "another one")
    return f"as it was, but momentum, betas or weight decay is {changed}"


# --- data ---


def data_difference(reference: Reference, trace: RankTrace, at: int, j: int) -> tuple[str, str] | None:
    """Return a part ("data", "content" or "unseen") and a text if a step's samples are not the control's."""
    step, right = trace.steps[j - 1], reference.at(trace.rank, at + j)
    assert right is not None
    control = reference.steps[trace.rank].values()
    if step.rows and right.rows:
        if step.rows == right.rows:
            return None
        actual, expected = step.rows, right.rows
        rows_by_step = {control_step.n: control_step.rows for control_step in control}
        actual_index, expected_index = _indices(step), _indices(right)
        indices = {control_step.n: _indices(control_step) for control_step in control}
    elif step.batches:
        in_steps = Counter(
            name for control_step in control for name in {batch[0] for batch in control_step.batches}
        )
        main = max(in_steps, key=lambda name: in_steps[name], default="")
        ours, theirs = _order(trace.steps, main), _order(control, main)
        expected_all = [batch for n in sorted(theirs) for batch in theirs[n]]
        ahead = _ahead(theirs, at) if j == 1 else 0
        begin = max(0, sum(len(theirs[n]) for n in theirs if n <= at + j - 1) - ahead)
        if not ours.get(j) or begin >= len(expected_all) or ours[j][0][0] == expected_all[begin][0]:
            return None
        (actual, actual_index), (expected, expected_index) = ours[j][0], expected_all[begin]
        firsts = {n: all_[0] for n, all_ in theirs.items() if all_}
        if 0 <= len(expected_all) - len(theirs) <= 1:
            firsts = dict(enumerate(expected_all, 1))
        rows_by_step = {n: rows for n, (rows, _) in firsts.items()}
        indices = {n: index for n, (_, index) in firsts.items()}
    else:
        return None
    if 0 < len(actual) < len(expected) and expected[-len(actual) :] == actual:
        return "data", f"got only the last {len(actual)} of {len(expected)} samples: {LOST_GRADIENT}"
    if actual_index and actual_index == expected_index:
        return "content", "the samples are the same, their content is not"
    if actual_index and expected_index:
        actual, expected, rows_by_step = actual_index, expected_index, indices
    return _data_words(actual, expected, rows_by_step, at + j, reference, bool(actual_index))


def _data_words(
    actual: Rows,
    expected: Rows,
    rows_by_step: Mapping[int, Rows],
    n: int,
    reference: Reference,
    by_index: bool,
) -> tuple[str, str]:
    same = [step for step, rows in rows_by_step.items() if rows == actual and step != n]
    earlier = max((step for step in same if step < n), default=0)
    if earlier:
        begins = ", the first of the run" if 1 in same else ""
        return "data", f"got the batch of step {earlier} again{begins}: {n - earlier} batches are repeated"
    if same:
        return "data", f"got the batch of step {min(same)}: {min(same) - n} batches are skipped"
    if Counter(actual) == Counter(expected):
        return "data", "got the same samples in another order"
    elsewhere = {
        row
        for steps in reference.steps.values()
        for control_step in steps.values()
        for row in control_step.rows
    }
    elsewhere |= {row for rows in rows_by_step.values() for row in rows}
    share = sum(row in elsewhere for row in actual) / max(1, len(actual))
    if by_index or share >= KNOWN_SHARE:
        return "data", OTHERS
    return "unseen", "got data that the control never had"


def _ahead(drawn: Mapping[int, Sequence[object]], at: int) -> int:
    """Count the batches that a loader is ahead of the model after step ``at``; 0 if an epoch ended there."""
    usual = len(drawn.get(2, drawn.get(1, ())))
    begins_epoch = len(drawn.get(at + 1, ())) > usual
    return 0 if begins_epoch else max(0, len(drawn.get(1, ())) - usual)


def _order(steps: Iterable[Step], main: str) -> dict[int, list[tuple[Rows, Rows]]]:
    """Return rows and indices of each step's batches from the loader ``main``."""
    return {step.n: [(rows, index) for name, rows, index in step.batches if name == main] for step in steps}


def _indices(step: Step) -> Rows:
    return step.batches[-1][2] if step.batches else ()


def counted(reference: Reference, life: Start, at: int) -> tuple[int, int]:
    """Count repeated and omitted samples over all ranks; (0, 0) if samples are unknown."""
    expected: Counter[int] = Counter()
    actual: Counter[int] = Counter()
    for rank, steps in reference.steps.items():
        trace = life.ranks.get(rank)
        for n, step in steps.items():
            if n <= at or (trace and n <= at + life.last):
                expected.update(step.rows)
            if n <= at:
                actual.update(step.rows)
        for step in trace.steps[: life.last] if trace else ():
            actual.update(step.rows)
    return sum((actual - expected).values()), sum((expected - actual).values())
