"""Compare the samples of a restart's steps with those of the control; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from clusterrun.rehearse.rank_trace import RankTrace, Rows, Start, Step
from clusterrun.rehearse.resumption import Reference

# If the control had this share of a batch's samples too, the order differs, not the data.
KNOWN_SHARE = 0.9
LOST_GRADIENT = "the gradient of the others was accumulated before the checkpoint, and is lost"
OTHERS = "got other samples: the order is another one"


def data_difference(
    reference: Reference, trace: RankTrace, resumed_at: int, nth: int
) -> tuple[str, str] | None:
    """Return a part ("data", "content" or "unseen") and a text if a step's samples are not the control's."""
    step, expected_step = trace.steps[nth - 1], reference.steps[trace.rank][resumed_at + nth]
    control = reference.steps[trace.rank].values()
    if step.rows and expected_step.rows:
        if step.rows == expected_step.rows:
            return None
        actual, expected = step.rows, expected_step.rows
        rows_by_step = {control_step.n: control_step.rows for control_step in control}
        actual_index, expected_index = _indices(step), _indices(expected_step)
        indices = {control_step.n: _indices(control_step) for control_step in control}
    elif step.batches:
        in_steps = Counter(
            name for control_step in control for name in {batch[0] for batch in control_step.batches}
        )
        main = max(in_steps, key=lambda name: in_steps[name], default="")
        restarted, theirs = _batches_by_step(trace.steps, main), _batches_by_step(control, main)
        all_expected = [batch for number in sorted(theirs) for batch in theirs[number]]
        ahead = 0
        if nth == 1:
            # A loader may be ahead of the model, unless an epoch ended at that step.
            usual_count = len(theirs.get(2, theirs.get(1, ())))
            begins_epoch = len(theirs.get(resumed_at + 1, ())) > usual_count
            ahead = 0 if begins_epoch else max(0, len(theirs.get(1, ())) - usual_count)
        begin = max(
            0, sum(len(theirs[number]) for number in theirs if number <= resumed_at + nth - 1) - ahead
        )
        if (
            not restarted.get(nth)
            or begin >= len(all_expected)
            or restarted[nth][0][0] == all_expected[begin][0]
        ):
            return None
        (actual, actual_index), (expected, expected_index) = restarted[nth][0], all_expected[begin]
        firsts = {number: of_step[0] for number, of_step in theirs.items() if of_step}
        if 0 <= len(all_expected) - len(theirs) <= 1:
            firsts = dict(enumerate(all_expected, 1))
        rows_by_step = {number: rows for number, (rows, _) in firsts.items()}
        indices = {number: index for number, (_, index) in firsts.items()}
    else:
        return None
    if 0 < len(actual) < len(expected) and expected[-len(actual) :] == actual:
        return "data", f"got only the last {len(actual)} of {len(expected)} samples: {LOST_GRADIENT}"
    if actual_index and actual_index == expected_index:
        return "content", "the samples are the same, their content is not"
    if actual_index and expected_index:
        actual, expected, rows_by_step = actual_index, expected_index, indices
    number = resumed_at + nth
    same = [step for step, rows in rows_by_step.items() if rows == actual and step != number]
    earlier = max((step for step in same if step < number), default=0)
    if earlier:
        begins = ", the first of the run" if 1 in same else ""
        again = f"got the samples of step {earlier} again{begins}"
        return "data", f"{again}: those of {number - earlier} steps are repeated"
    if same:
        return "data", f"got the samples of step {min(same)}: those of {min(same) - number} steps are skipped"
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
    if actual_index or share >= KNOWN_SHARE:
        return "data", OTHERS
    return "unseen", "got data that the control never had"


def _batches_by_step(steps: Iterable[Step], main: str) -> dict[int, list[tuple[Rows, Rows]]]:
    """Return rows and indices of each step's batches from the loader ``main``."""
    return {step.n: [(rows, index) for name, rows, index in step.batches if name == main] for step in steps}


def _indices(step: Step) -> Rows:
    return step.batches[-1][2] if step.batches else ()


def counted(reference: Reference, start: Start, resumed_at: int) -> tuple[int, int]:
    """Count repeated and omitted samples over all ranks; (0, 0) if samples are unknown."""
    expected: Counter[int] = Counter()
    actual: Counter[int] = Counter()
    for rank, steps in reference.steps.items():
        trace = start.ranks.get(rank)
        for number, step in steps.items():
            if number <= resumed_at or (trace and number <= resumed_at + start.last):
                expected.update(step.rows)
            if number <= resumed_at:
                actual.update(step.rows)
        for step in trace.steps[: start.last] if trace else ():
            actual.update(step.rows)
    return sum((actual - expected).values()), sum((expected - actual).values())
