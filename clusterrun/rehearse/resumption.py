"""Find the step after which a restart continues; pure.

A *control* run is not disturbed. The disturbed run is killed and starts again; each *start* of it leaves a
trace per rank. A trace holds checksums: of the weights before the first step, and of all visible state after
each step. A restart counts its steps from 1 and does not say where it continues. Its first weights say it:
`resumed` finds the step after which the control had the same weights. Step ``n`` of the restart is then step
``resumed_at + n`` of the control.

`first_difference.py` compares these steps, `sample_order.py` their samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from clusterrun.model.frozen import frozen, replace
from clusterrun.rehearse.rank_trace import RankTrace, Start, Step

# Number of ranks whose gradients have the same sum to the bit in every order.
#
# DDP lays out its buckets again after the first step of a process. With more ranks it sums gradients in
# another order in that step, so a restart differs by rounding whatever the script does.
ORDERLESS_RANKS = 2


@frozen
class Reference:
    """The steps that every rank should make. Weights and states are checksums."""

    steps: Mapping[int, Mapping[int, Step]]  # by rank, then by the number of the step
    # Weights and state before the first step, by rank and optimizer.
    initial: Mapping[int, Mapping[int, tuple[int, int]]]
    # The last step whose values can be compared bit by bit; later steps differ by rounding.
    exact: float = math.inf
    # The generators that gave the control random numbers, by rank and step.
    drawn: Mapping[int, Mapping[int, frozenset[str]]] = MappingProxyType({})
    # Weights that the script itself changed after a step, by rank, then by (step, optimizer).
    script_moves: Mapping[int, Mapping[tuple[int, int], int]] = MappingProxyType({})

    def script_weights(self, rank: int, optimizer: int, n: int) -> set[int]:
        """Return the weights of an optimizer after step ``n`` that the script itself changed.

        A rank that writes no checkpoint records them less often, so those of other ranks count as well.
        """
        moves = [self.script_moves.get(rank, {}), *self.script_moves.values()]
        return {of_rank[n, optimizer] for of_rank in moves if (n, optimizer) in of_rank}

    def at(self, rank: int, n: int) -> Step | None:
        """Return the ``n``-th step of a rank, counted from 1."""
        return self.steps.get(rank, {}).get(n)

    def values_after(self, rank: int, optimizer: int, n: int) -> tuple[int, int] | None:
        """Return weights and state of an optimizer after step ``n``; None if they are unknown."""
        last = max((number for number in self._numbers(rank, optimizer) if number <= n), default=None)
        if last is None:
            return self.initial.get(rank, {}).get(optimizer)
        step = self.steps[rank][last]
        return step.parameters, step.state

    def steps_before(self, rank: int, optimizer: int) -> int:
        """Return how many steps the rank made before the first step of this optimizer."""
        return min(self._numbers(rank, optimizer), default=1) - 1

    def _numbers(self, rank: int, optimizer: int) -> list[int]:
        return [number for number, step in self.steps.get(rank, {}).items() if step.optimizer == optimizer]


def reference(control: Start, first: Start | None = None) -> Reference:
    """Return the steps of the control, replaced by those of ``first``, the disturbed run's first start."""
    steps: dict[int, dict[int, Step]] = {}
    initial: dict[int, dict[int, tuple[int, int]]] = {}
    moved: dict[int, dict[tuple[int, int], int]] = {}
    for start in (control, first):
        for rank, trace in start.ranks.items() if start else ():
            steps.setdefault(rank, {}).update({step.n: step for step in trace.steps})
            initial.setdefault(rank, {}).update(trace.before)
            moved.setdefault(rank, {}).update(
                {(number, optimizer): parameters for number, optimizer, parameters in trace.moved}
            )
    rounded = first is not None and len(steps) > ORDERLESS_RANKS and not _ends_like(control, first)
    drawn_by_rank = {rank: _drawn(trace.steps) for rank, trace in control.ranks.items()}
    return Reference(steps, initial, first.last if first and rounded else math.inf, drawn_by_rank, moved)


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


def _ends_like(control: Start, start: Start) -> bool:
    """Return whether every rank's last weights equal those of the control after as many steps."""
    for rank in start.ranks.keys() & control.ranks.keys():
        expected = {step.n: step.parameters for step in control.ranks[rank].steps}
        last = [step for step in start.ranks[rank].steps if step.n in expected][-1:]
        if any(step.parameters != expected[step.n] for step in last):
            return False
    return True


def joined(control: Start, starts: Sequence[Start]) -> Start:
    """Join several starts of one run to one start, with each step as it was taken last."""
    past, *after = starts
    for start in after:
        resumed_at = begins(reference(control, past), start) or 0
        common_ranks = past.ranks.keys() & start.ranks.keys()
        past = Start(
            {
                rank: _continued(past.ranks[rank], resumed_at, start.ranks[rank])
                for rank in sorted(common_ranks)
            }
        )
    return past


def _continued(before: RankTrace, resumed_at: int, after: RankTrace) -> RankTrace:
    steps = [step for step in before.steps if step.n <= resumed_at]
    moved = [move for move in before.moved if move[0] <= resumed_at]
    return replace(
        after,
        before=before.before,
        shared=before.shared,
        stepped_at=before.stepped_at,
        steps=(*steps, *(replace(step, n=resumed_at + step.n) for step in after.steps)),
        saves=(
            *before.saves,
            *(replace(save, step=resumed_at + save.step) for save in after.saves if save.step),
        ),
        removes=(*before.removes, *after.removes),
        calls=(*before.calls, *after.calls),
        moved=(
            *moved,
            *((resumed_at + number, optimizer, parameters) for number, optimizer, parameters in after.moved),
        ),
    )


def resumed(reference: Reference, start: Start) -> dict[int, int | None]:
    """Return the step after which each rank continues: 0 for the beginning, None for weights of no step.

    Steps that do not change the weights (a learning rate of 0) allow several answers. Then the step counts
    that all ranks may have, and after which most steps are equal.
    """
    traces = [
        trace for rank, trace in sorted(start.ranks.items()) if trace.before and rank in reference.steps
    ]
    candidates = {trace.rank: _possible_steps(reference, trace) for trace in traces}
    common = set.intersection(*map(set, candidates.values())) if candidates else set()
    if not common:
        return {rank: max(of_rank, default=None) for rank, of_rank in candidates.items()}

    def equal_steps(resumed_at: int) -> int:
        return sum(_count_equal_steps(reference, trace, resumed_at) for trace in traces)

    return dict.fromkeys(
        candidates, max(common, key=lambda resumed_at: (equal_steps(resumed_at), resumed_at))
    )


def _possible_steps(reference: Reference, trace: RankTrace) -> tuple[int, ...]:
    """Return the steps after which the control had the weights that this rank begins with.

    If the optimizer's state was the same too after some of these, only they count.
    """
    parameters, state = trace.before[trace.leads]
    initial = reference.initial.get(trace.rank, {})
    optimizer = trace.leads if trace.leads in initial else next(iter(initial), trace.leads)
    steps = reference.steps.get(trace.rank, {})
    numbers = sorted(number for number, step in steps.items() if step.optimizer == optimizer)
    candidates: list[tuple[bool, int]] = []  # whether the optimizer's state is the same; the step
    if optimizer in initial and parameters == initial[optimizer][0]:
        unchanged_until = reference.steps_before(trace.rank, optimizer)
        candidates.append((state == initial[optimizer][1], unchanged_until))
    is_from_beginning = bool(candidates) and candidates[0][1] == 0
    for number, following in zip(numbers, [*numbers[1:], numbers[-1] + 1 if numbers else 0]):
        # Until its next step, the script itself may have changed the weights.
        weights = {steps[number].parameters}.union(
            *(reference.script_weights(trace.rank, optimizer, later) for later in range(number, following))
        )
        if parameters in weights:
            candidates.append((steps[number].state == state, following - 1))
    with_state = tuple(number for has_same_state, number in candidates if has_same_state)
    if is_from_beginning and not with_state:
        return (0,)
    return with_state or tuple(number for _, number in candidates)


def _count_equal_steps(reference: Reference, trace: RankTrace, resumed_at: int) -> int:
    """Count the first steps with the weights, learning rates and samples of the control."""
    for count, step in enumerate(trace.steps):
        expected = reference.at(trace.rank, resumed_at + count + 1)
        if expected is None or step.parameters != expected.parameters:
            return count
        if (step.rates, step.rows) != (expected.rates, expected.rows):
            return count
    return len(trace.steps)


def changes_weights(start: Start) -> bool:
    """Return whether any step changes the weights. If none does, the step of a restart is unknown."""
    return any(
        step.parameters != trace.before[trace.leads][0]
        for trace in start.ranks.values()
        if trace.before
        for step in trace.steps
        if step.optimizer == trace.leads
    )


def begins(reference: Reference, start: Start) -> int | None:
    """Return the step after which a start continues, by its lowest rank."""
    return next(iter(resumed(reference, start).values()), None)
