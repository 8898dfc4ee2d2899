"""Find the first difference between a restart and the control; pure.

`resumption.py` tells which steps correspond. They are compared part by part, in the order of `PARTS`. One
part decides the next, so the first part that differs is the cause, and later parts differ because of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.model.frozen import frozen
from clusterrun.rehearse.rank_trace import RankTrace, Start, Step
from clusterrun.rehearse.resumption import ORDERLESS_RANKS, Reference
from clusterrun.rehearse.sample_order import OTHERS, data_difference

SAME_LOSS = "the loss is the same"


@frozen
class FirstDifference:
    """The first difference between a restart and the control."""

    part: str  # a key of PARTS
    step: int
    rank: int
    detail: str = ""
    other_step: int = 0  # the step after which the control had the restart's optimizer state; 0: none


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


def differences(reference: Reference, start: Start, resumed_at: int) -> tuple[FirstDifference, ...]:
    """Return the first differences in ``start``, which continues after step ``resumed_at``.

    The cause comes first, then independent differences. The result is empty if all steps are equal.
    """
    initial = _initial_difference(reference, start, resumed_at)
    if initial and initial.part == "state" and not _weights_ever_differ(reference, start, resumed_at):
        initial = None
    result = [initial] if initial else []
    rounded: FirstDifference | None = None  # from here on, values differ by rounding
    last = max((trace.last for trace in start.ranks.values()), default=0)
    for nth in range(1, last + 1):
        differing = [
            difference
            for rank in sorted(start.ranks)
            for difference in _differences_in_step(reference, start.ranks[rank], resumed_at, nth)
        ]
        is_inexact = resumed_at + nth > reference.exact
        if is_inexact and not rounded:
            rounded = FirstDifference("rounding", resumed_at + nth, min(start.ranks))
        if rounded:  # compare only the parts that do not depend on the weights
            parts = {"rates", "data", "scheduler", *(("scaler", "random") if is_inexact else ())}
            differing = [difference for difference in differing if difference.part in parts]
        elif differing and {difference.part for difference in differing} == {"rounding"} and initial is None:
            rounded, differing = differing[0], []
        if not differing:
            continue
        differing.sort(key=lambda difference: list(PARTS).index(difference.part))
        if initial is None:
            first, *others = differing
            # In the first step, these differ for reasons of their own.
            independent = {"rates", "scaler"} - {first.part} if nth == 1 else set()
            result += [first, *(difference for difference in others if difference.part in independent)]
        elif nth == 1:  # an optimizer's learning rates are part of its state
            independent = {"scheduler", "scaler", "averages"}
            result += [difference for difference in differing if difference.part in independent]
        break
    result = result or ([rounded] if rounded else [])
    return tuple({difference.part: difference for difference in reversed(result)}.values())[::-1]


def _weights_ever_differ(reference: Reference, start: Start, resumed_at: int) -> bool:
    """Return whether the weights differ after any step. A state with another layout changes none."""
    has_compared = False
    for rank, trace in start.ranks.items():
        for step in trace.steps:
            expected = reference.at(rank, resumed_at + step.n)
            if expected is not None:
                has_compared = True
                if step.parameters != expected.parameters:
                    return True
    return not has_compared


def _initial_difference(reference: Reference, start: Start, resumed_at: int) -> FirstDifference | None:
    """Compare each optimizer before its first step with the same optimizer after step ``resumed_at``."""
    for rank, trace in sorted(start.ranks.items()):
        for index, (optimizer, (parameters, state)) in enumerate(trace.before.items()):
            expected = reference.values_after(rank, optimizer, resumed_at)
            if expected is None or reference.steps_before(rank, optimizer) >= resumed_at:
                continue
            first = reference.initial.get(rank, {}).get(optimizer)
            line = trace.stepped_at.get(optimizer, "")
            name = f"of the optimizer that steps at {line}" if len(trace.before) > 1 else ""
            weights = {expected[0]}.union(
                *(reference.script_weights(rank, optimizer, number) for number in range(1, resumed_at + 1))
            )
            if index and optimizer not in trace.shared and parameters not in weights:
                is_new = first is not None and parameters == first[0]
                how = "begin anew" if is_new else "are of another step, or of none"
                return FirstDifference("weights", resumed_at + 1, rank, f"{name} {how}")
            if state != expected[1]:
                how = "begins anew" if first and state == first[1] else ""
                steps = reference.steps[rank].values()
                same_state = [step.n for step in steps if step.optimizer == optimizer and step.state == state]
                other_step = max(same_state, default=0)
                return FirstDifference("state", resumed_at + 1, rank, f"{name} {how}".strip(), other_step)
    return None


def _differences_in_step(
    reference: Reference, trace: RankTrace, resumed_at: int, nth: int
) -> list[FirstDifference]:
    """Return the differences on one rank in its ``nth`` step."""
    expected = reference.at(trace.rank, resumed_at + nth)
    if len(trace.steps) < nth or expected is None:
        return []
    step = trace.steps[nth - 1]
    parts: list[tuple[str, str]] = []
    # Each rank has its own running means. Only those of the lowest rank are read.
    is_lowest = trace.rank == min(reference.steps)
    if step.rates != expected.rates:
        parts.append(("rates", _describe_rates(step, expected)))
    has_same_weights = step.parameters == expected.parameters  # equal weights prove equal samples
    data = None if has_same_weights else data_difference(reference, trace, resumed_at, nth)
    parts += [data] if data else []
    if step.scalers != expected.scalers:
        parts.append(("scaler", ""))
    drawn_before = reference.drawn.get(trace.rank, {}).get(resumed_at + nth, frozenset())
    generators = sorted(name for name in drawn_before if step.random.get(name) != expected.random.get(name))
    unrestored = [name for name in generators if not trace.set_anew(name)]
    is_drawn_by_hand = data and not step.batches and data[1] == OTHERS
    if unrestored and data and (data[0] in ("content", "unseen") or is_drawn_by_hand):
        parts[-1:] = [("random", ", ".join(unrestored))]  # random numbers decided the data
    elif not has_same_weights and data:
        parts.append(("parameters", ""))
    elif not has_same_weights:
        parts.append(_cause_of_weights(reference, trace, resumed_at, nth, generators))
    if parts[-1:] in ([], [("rounding", "")]) and step.buffers != expected.buffers and is_lowest:
        parts.append(("buffers", ""))
    averages_move = len({own_step.averages for own_step in reference.steps[trace.rank].values()}) > 1
    has_all_averages = len(step.averages) >= len(expected.averages)
    if is_lowest and has_all_averages and averages_move and not set(expected.averages) <= set(step.averages):
        parts.append(("averages", ""))
    if step.schedulers != expected.schedulers and len(step.schedulers) == len(expected.schedulers):
        parts.append(("scheduler", f"{list(step.schedulers)} instead of {list(expected.schedulers)}"))
    return [FirstDifference(part, resumed_at + nth, trace.rank, detail) for part, detail in parts]


def _cause_of_weights(
    reference: Reference, trace: RankTrace, resumed_at: int, nth: int, generators: Sequence[str]
) -> tuple[str, str]:
    """Return why the weights differ after a step. ``generators``: those whose random state differs."""
    step, expected = trace.steps[nth - 1], reference.steps[trace.rank][resumed_at + nth]
    many = len(reference.steps) > ORDERLESS_RANKS
    if many and step.loss is not None and step.loss == expected.loss:
        return "rounding", ""
    if generators and not (many and step.loss is None):
        return "random", ", ".join(generators)
    before = reference.at(trace.rank, resumed_at)
    has_other_loss = step.loss is not None and step.loss != expected.loss
    if nth == 1 and before is not None and has_other_loss:
        # Copies of the weights that the step did not change differed before it. The loss depends on them, as
        # on a target network.
        unchanged = set(expected.averages) & set(before.averages)
        if unchanged - set(step.averages):
            return "averages", "of which this loss is computed"
    if step.loss is None or expected.loss is None:
        return "parameters", ""
    if step.loss == expected.loss:
        return "parameters", SAME_LOSS
    return "parameters", f"the loss is {step.loss:.6g} instead of {expected.loss:.6g}"


def _describe_rates(step: Step, expected: Step) -> str:
    """Say which setting of an optimizer differs: the learning rate, or another one if the rate is equal."""
    rates, expected_rates = (
        "/".join(f"{group[0]:.6g}" if group else "?" for group in groups)
        for groups in (step.rates, expected.rates)
    )
    if rates != expected_rates:
        return f"{rates} instead of {expected_rates}"
    settings = [pair for group, other in zip(step.rates, expected.rates) for pair in zip(group, other)]
    changed = next(
        (f"{value} instead of {other}" for value, other in settings if value != other), "another one"
    )
    return f"as it was, but momentum, betas or weight decay is {changed}"
