"""Name the cause of a bad restart by what differs first, with a remedy; pure.

A finding needs a proof in the traces. Without a proof the result is UNKNOWN, never a guess.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from clusterrun.model.phrases import count_of
from clusterrun.rehearse.checkpoint_damage import (
    crash_after_steps,
    loaded_in_part,
    no_step_taken,
    read_in_part,
)
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, Severity, unknown
from clusterrun.rehearse.first_difference import PARTS, SAME_LOSS, FirstDifference, differences
from clusterrun.rehearse.loss_spread import compare_losses
from clusterrun.rehearse.notice_handling import ended_early, has_finished, notice_finding
from clusterrun.rehearse.rank_files import file_of_another_rank
from clusterrun.rehearse.rank_trace import Start
from clusterrun.rehearse.resumed_step import copied_first, left_out, weights_of_no_step, wrong_step
from clusterrun.rehearse.resumption import Reference, changes_weights, reference, resumed
from clusterrun.rehearse.sample_order import LOST_GRADIENT, OTHERS, counted

# Largest difference, as a share, between losses that began equal but for rounding.
CLOSE = 0.05
# Parts with a state_dict: the kind of object that has it, the cause, and the name for users.
SAVED_AS = {
    "state": ("optimizer", Cause.OPTIMIZER, "the optimizer's state"),
    "rates": ("scheduler", Cause.RATES, "scheduler"),
    "scheduler": ("scheduler", Cause.SCHEDULER, "scheduler"),
    "scaler": ("scaler", Cause.SCALER, "scaler"),
}
OF_MODELS = {
    "weights": (Cause.PARAMETERS, "save and load the state_dict() of every model that is trained"),
    "averages": (
        Cause.AVERAGES,
        "save every copy of the weights that lives on (average, target network), and load it",
    ),
    "buffers": (
        Cause.BUFFERS,
        "save model.state_dict(), not only model.parameters(): it holds running means and counters too",
    ),
}
SKIP_BATCHES = (
    "continue in the middle of the epoch: sampler.set_epoch(epoch), then skip the batches that"
    " were used (itertools.islice, torchdata's StatefulDataLoader), shuffled by seed and epoch alone"
)
OWN_ROWS = (
    "save and restore all that the next samples come from: the place in the data on each rank, and what waits"
    " in a buffer (shuffling, replay)"
)
OWN_STATE = (
    "save and restore what else the loss is computed from: targets, a second network, a hidden state,"
    " a queue, a weight of the loss, a generator of random numbers of your own"
)
OWN_GRADIENTS = (
    "save and restore what changes gradients: accumulated ones, limits for clipping, a scale of your own;"
    " and which parameters are frozen"
)
COUNT_ON = "count steps on from the number that was saved; where samples are chosen by random numbers, "
RESTORE_RANDOM = (
    "save and restore random.getstate(), numpy.random.get_state(), torch.get_rng_state() (and cuda's)"
    " on every rank; or seed from (seed, rank, step) at each step"
)
ONE_SAVE = "write all files of a save into one folder, or into one file, that gets its name when it is whole"
# Parts that a checkpoint holds. They are equal after a restart even if undisturbed runs differ.
RESTORED = ("weights", "state", "rates", "scheduler", "data")


def expected(first: Start, differs: str, start: Start) -> Reference:
    """Return what a restart after ``start`` should compute.

    ``differs``: the part in which undisturbed runs differ, or ''.

    If undisturbed runs differ, each run is compared with its own past only.
    """
    return reference(start if differs else first, start)


def judge(
    first: Start,
    differs: str,
    fault_run: FaultRun,
    second: Start | None = None,
    reference: Reference | None = None,
) -> tuple[Discovery, ...]:
    """Return the findings of a fault, the cause first.

    ``differs``: the part in which the undisturbed runs ``first`` and ``second`` differ, or ''.
    ``reference``: the result of `expected`; None computes it.
    """
    if len(fault_run.lives) < 2:
        return (unknown(f"the ranks were not started again: {fault_run.tail}"),)
    start, restart = fault_run.lives[0], fault_run.restarted
    if not any(rank.before for rank in restart.ranks.values()):
        return (ended_early(start) if has_finished(fault_run) else no_step_taken(fault_run),)
    if not changes_weights(first):
        return (unknown("no step changes the weights: the step from which a restart continues is unknown"),)

    reference = reference or expected(first, differs, start)
    steps = resumed(reference, restart)
    wrong = wrong_step(fault_run, reference, steps)
    if wrong and wrong.cause is Cause.PARAMETERS and (path := read_in_part(fault_run)):
        return (loaded_in_part(path, fault_run),)
    if wrong and not fault_run.elastic:
        return (file_of_another_rank(fault_run, wrong.message) or wrong,)
    if wrong:
        return (wrong,)
    resumed_at = next(step for step in steps.values() if step is not None)
    crash = crash_after_steps(fault_run, resumed_at)
    if fault_run.elastic and crash:
        return (crash,)
    if fault_run.elastic:
        size = count_of(len(restart.ranks), "rank")
        return (Discovery(Cause.NONE, f"resumed at step {resumed_at} on {size}"),)

    notice = notice_finding(reference, fault_run)
    differing = differences(reference, restart, resumed_at)
    if differs:
        differing = tuple(
            difference
            for difference in differing
            if difference.part in RESTORED and difference.part != differs
        )
    saved_as = SAVED_AS.get(differing[0].part) if differing and resumed_at == 0 else None
    if saved_as and restart.called(saved_as[0], "load_state_dict"):
        return (left_out(fault_run) or weights_of_no_step(fault_run, steps, fault_run.made()),)
    too_long = _beyond_the_end(first, second, fault_run, resumed_at)
    # Samples that are repeated make a restart longer too.
    if too_long and not any(difference.part == "data" for difference in differing):
        explained = _explain(differing, fault_run, reference, resumed_at) if differing else ()
        return (*explained, too_long)
    notices = (notice,) if notice else ()
    is_rounded = [difference.part for difference in differing] == ["rounding"]
    if crash and (is_rounded or not differing):
        return (crash, *notices)
    if is_rounded:
        return (*notices, _rounded(first, fault_run, resumed_at, differing[0]))
    if differing and (path := read_in_part(fault_run)):
        return (loaded_in_part(path, fault_run),)
    if differing:
        return (*_explain(differing, fault_run, reference, resumed_at), *notices)
    equal = _equal(first, second, differs, fault_run, resumed_at)
    if notice and notice.level is not Severity.OK:
        return (equal, notice)
    return (notice if notice and equal.level is Severity.OK else equal,)


def _beyond_the_end(
    first: Start, second: Start | None, fault_run: FaultRun, resumed_at: int
) -> Discovery | None:
    """Report a restart that trains on after the step at which both undisturbed runs ended by themselves."""
    traces = [trace for start in (first, second) if start for trace in start.ranks.values()]
    if second is None or any((trace.end, trace.last) != ("exit", first.last) for trace in traces):
        return None
    reached = resumed_at + fault_run.restarted.last
    if reached <= first.last:
        return None
    message = f"resumed at optimizer step {resumed_at} and trained to step {reached}; undisturbed, the run "
    message += f"ends at step {first.last}: the restart lacks what ends the run"
    remedy = "save the number of the step or epoch, and the best value and counter of early stopping; load "
    remedy += "them on every rank, and begin the loop with them"
    return Discovery(Cause.END, message, remedy, fault_run.made(), first.last + 1)


def _equal(
    first: Start, second: Start | None, differs: str, fault_run: FaultRun, resumed_at: int
) -> Discovery:
    """Judge a restart in which no step differs."""
    restart = fault_run.restarted
    # Ranks may train on alone for a while, so that not all of them reached a step.
    taken = restart.last or max(rank.last for rank in restart.ranks.values())
    if taken < 1:
        return unknown(f"resumed at step {resumed_at}, but no step was taken after it: {fault_run.tail}")
    if not differs:
        return _resumed(fault_run, resumed_at, f"{taken} steps equal to the last bit")
    same = "what was saved is restored"
    if second:
        losses = compare_losses(first, second, restart, resumed_at)
        if losses.have_parted:
            why = "what was not restored cannot be named while undisturbed runs differ"
            return unknown(f"resumed at step {resumed_at}; then {losses.sentence}: {why}")
        same = ", ".join(filter(None, (same, losses.sentence)))
    return _resumed(fault_run, resumed_at, same)


def _rounded(first: Start, fault_run: FaultRun, resumed_at: int, difference: FirstDifference) -> Discovery:
    """Judge a restart with equal losses and other weights; the losses must stay close.

    More than two ranks sum their gradients in another order."""
    for rank, trace in fault_run.restarted.ranks.items():
        right = {step.n: step.loss for step in first.ranks[rank].steps} if rank in first.ranks else {}
        for step in trace.steps:
            loss = right.get(resumed_at + step.n)
            if loss is None or step.loss is None or abs(step.loss - loss) <= CLOSE * max(1.0, abs(loss)):
                continue
            message = f"step {difference.step} is equal but for rounding, and at step {resumed_at + step.n}"
            message += f" the losses have parted: {step.loss:.6g} instead of {loss:.6g}"
            return unknown(f"{message}; rehearse with 2 ranks to compare by bits")
    same = f"equal to the last bit up to the sum of the gradients of {len(fault_run.restarted.ranks)} ranks"
    return _resumed(fault_run, resumed_at, f"{same}, then but for rounding")


def _resumed(fault_run: FaultRun, resumed_at: int, same: str) -> Discovery:
    lost = max(0, fault_run.struck_at - resumed_at)
    cost = f", {lost} steps done again" if lost else ""
    return Discovery(Cause.NONE, f"resumed at step {resumed_at}{cost}; {same}", step=resumed_at)


# --- the explanation of the first difference of each part ---


def _explain(
    differing: Sequence[FirstDifference], fault_run: FaultRun, reference: Reference, resumed_at: int
) -> list[Discovery]:
    """Return a finding for each difference. The first one is the cause."""
    first = differing[0]
    opening = f"resumed at step {resumed_at}; step {first.step} differs: "
    other_file = file_of_another_rank(fault_run, f"{opening}{PARTS[first.part]} (rank {first.rank})")
    if other_file:
        return [other_file]
    if mixed := _files_of_two_saves(first, fault_run, reference, resumed_at):
        return [mixed]
    findings = []
    for difference in differing:
        head = opening if difference is first else f"at step {difference.step} also differs: "
        if difference.part in SAVED_AS:
            finding = _unsaved(difference, head, fault_run, is_late=difference.step > resumed_at + 1)
        elif difference.part == "data":
            counts = counted(reference, fault_run.restarted, resumed_at) if first.part == "data" else (0, 0)
            finding = _other_samples(difference, head, fault_run, counts)
        elif difference.part in ("random", "content"):
            finding = _other_random_numbers(difference, head, fault_run)
        elif difference.part in OF_MODELS:
            cause, remedy = OF_MODELS[difference.part]
            remedy = copied_first(fault_run) or remedy
            finding = Discovery(cause, _what(difference, head), remedy, fault_run.made(), difference.step)
        else:
            finding = _undetermined(difference, head, fault_run)
        findings.append(finding)
    return findings


def _files_of_two_saves(
    first: FirstDifference, fault_run: FaultRun, reference: Reference, resumed_at: int
) -> Discovery | None:
    """Report a restart that loaded weights of one save with the state or the step counter of another."""
    life, restart = fault_run.lives[0], fault_run.restarted
    read = {path for path, _ in restart.loaded} & {save.path for save in (*life.saves, *life.companions)}
    step, subject = first.other_step, "optimizer's state"
    if first.part == "data" and fault_run.fault in ("mid-save", "disk-full"):
        subject = "samples"
        for saved_at in sorted({save.step for save in life.saves if save.step < resumed_at}):
            taken = restart.ranks[first.rank].steps[:2]
            expected = [reference.at(first.rank, saved_at + number) for number in range(1, len(taken) + 1)]
            if [step.rows for step in taken] == [step.rows for step in expected if step]:
                step = saved_at
    if not step or len(read) < 2:
        return None
    names = ", ".join(sorted(map(os.path.basename, read)))
    message = f"resumed at step {resumed_at} with the {subject} of step {step}: "
    message += f"files of two saves were loaded together ({names})"
    return Discovery(Cause.TORN, message, ONE_SAVE, fault_run.made(), first.step)


def _what(difference: FirstDifference, head: str) -> str:
    """Return what differs, and on which rank."""
    rank = f"(rank {difference.rank})"
    if difference.part == "weights":
        return f"{head}the weights {difference.detail} {rank}"
    if difference.part == "averages" and difference.detail:
        return f"{head}a copy of the weights (a second network, an average) {difference.detail} {rank}"
    details = f" {difference.detail}" if difference.detail else ""
    return f"{head}{PARTS[difference.part]} (rank {difference.rank}{details})"


def _undetermined(difference: FirstDifference, head: str, fault_run: FaultRun) -> Discovery:
    """Return the finding for data or weights whose difference nothing else in the traces explains."""
    if difference.part == "unseen":
        message = f"{_what(difference, head)}; all else that can be seen is equal before"
        return unknown(message, OWN_ROWS, fault_run.made())
    message = f"{head}{PARTS[difference.part]} after it (rank {difference.rank})"
    remedy = f"{OWN_STATE}, {OWN_GRADIENTS}"
    if difference.detail:
        message += f"; {difference.detail}"
        remedy = OWN_GRADIENTS if difference.detail == SAME_LOSS else OWN_STATE
    return unknown(f"{message}; all else that can be seen is equal", remedy, fault_run.made())


def _other_samples(
    difference: FirstDifference, head: str, fault_run: FaultRun, counts: tuple[int, int]
) -> Discovery:
    """Return the finding for other samples, or for samples in another order."""
    message = _what(difference, head)
    if any(counts):
        message += f"; over the run {counts[0]} samples are repeated, {counts[1]} left out"
    is_drawn = fault_run.restarted.ranks[difference.rank].drawn_by_hand
    remedy = COUNT_ON + RESTORE_RANDOM if is_drawn else SKIP_BATCHES
    if difference.detail == OTHERS:
        remedy = f"{OWN_ROWS}; {remedy}"
    if LOST_GRADIENT in difference.detail:
        remedy = "save only right after optimizer.step(), where no gradient is accumulated"
    return Discovery(Cause.DATA, message, remedy, fault_run.made(), difference.step)


def _other_random_numbers(difference: FirstDifference, head: str, fault_run: FaultRun) -> Discovery:
    """Return the finding for random numbers whose state was not set, or set to that of another moment."""
    generators = difference.detail if difference.part == "random" else "of the workers that load data"
    message = f"{head}random state ({generators}) not restored (rank {difference.rank})"
    trace = fault_run.restarted.ranks[difference.rank]
    lines = [line for generator in generators.split(", ") if (line := trace.set_anew(generator))]
    remedy = RESTORE_RANDOM
    if lines:
        message = f"{message}: it was set at {lines[0]}, but is another one after this step"
        remedy = "restore each rank's own random state, saved after the last number was drawn, as the last "
        remedy += "thing before the first step: no validation, model or loader may draw in between"
    return Discovery(Cause.RANDOM, message, remedy, fault_run.made(), difference.step)


def _unsaved(difference: FirstDifference, head: str, fault_run: FaultRun, is_late: bool) -> Discovery:
    """Return whether a part with a state_dict was not saved, not loaded, or changed after loading.

    ``is_late``: the part was right in the first step after the restart.
    """
    name, cause, subject = SAVED_AS[difference.part]
    saved = fault_run.lives[0].called(name, "state_dict")
    loaded = fault_run.restarted.called(name, "load_state_dict")
    rank, lines = f"(rank {difference.rank})", fault_run.made()
    if difference.part == "state" and difference.detail.startswith("of "):
        called = f"; load_state_dict of one was called at {loaded}" if loaded else ""
        message = f"{head}the state {difference.detail} {rank}{called}"
        remedy = "save the state_dict() of every optimizer, and load each after it is made"
        return Discovery(cause, message, remedy, lines, difference.step)
    steps = [step for trace in fault_run.restarted.ranks.values() for step in trace.steps]
    if difference.part == "rates":
        subject = f"the learning rate is {difference.detail}"
    if difference.part == "rates" and not any(step.schedulers for step in steps):
        message = f"{head}{subject} {rank}: no scheduler of torch's sets it"
        remedy = "after optimizer.load_state_dict(…), do not set them again; compute what changes while "
        remedy += "training from the number of the step that was loaded"
        if is_late:
            message += ", and it was right before this step"
            remedy = "save and restore what decides when the rate changes: the best value, counters of bad "
            remedy += "evaluations"
        return Discovery(cause, message, remedy, lines, difference.step)
    if difference.part == "state" and difference.detail:
        subject += " begins anew"
    if loaded:
        why = f"{name}.load_state_dict was called at {loaded}, and something changed it afterwards"
        remedy = f"call {name}.load_state_dict(…) after the last line that makes or sets the {name} anew"
        if difference.part == "state":
            remedy = copied_first(fault_run) or remedy
    else:
        why = f"{name}.load_state_dict was not called"
        why += "" if saved else f", nor {name}.state_dict when saving"
        remedy = f"save {name}.state_dict() with the model, and {name}.load_state_dict(…) after both are made"
    if saved:
        lines = (f"{saved} takes {name}.state_dict()", *lines)
    return Discovery(cause, f"{head}{subject} {rank}: {why}", remedy, lines, difference.step)
