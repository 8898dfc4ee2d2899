"""Name the cause of a bad restart by what differs first, with a remedy; pure.

A finding needs a proof in the traces. Without a proof the result is UNKNOWN, never a guess.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from clusterrun.rehearse.checkpoint_damage import loaded_in_part, no_step_taken, read_in_part
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, Severity, unknown
from clusterrun.rehearse.first_difference import PARTS, SAME_LOSS, FirstDifference, differences
from clusterrun.rehearse.rank_files import file_of_another_rank
from clusterrun.rehearse.rank_trace import Start
from clusterrun.rehearse.resumed_step import left_out, weights_of_no_step, wrong_step
from clusterrun.rehearse.resumption import Reference, changes_weights, reference, resumed
from clusterrun.rehearse.sample_order import LOST_GRADIENT, OTHERS, counted

# Largest difference, as a share, between losses that began equal but for rounding.
CLOSE = 0.05
# Steps after a restart that are compared. A state that was not restored shows within them.
LOOKED_AT = 12
# Fewest losses that are compared.
LEAST_LOSSES = 4
# A restart's losses differ if their distance from undisturbed runs exceeds this many times the distance
# between the undisturbed runs,
SPREAD_TIMES = 4.0
# and this share of the loss itself, because two runs may be close by chance.
SPREAD_SHARE = 0.05
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
    "go on in the middle of the epoch: sampler.set_epoch(epoch), then skip the batches that"
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
    ``reference``: what is `expected`, if that was made before.
    """
    if len(fault_run.lives) < 2:
        return (unknown(f"the ranks were not started again: {fault_run.tail}"),)
    start, last = fault_run.lives[0], fault_run.restarted
    reference = reference or expected(first, differs, start)
    if not any(rank.before for rank in last.ranks.values()):
        return (_came_to_its_end(start) if _complete(fault_run) else no_step_taken(fault_run),)
    notice = _notice_met(reference, fault_run)
    if not changes_weights(first):
        return (unknown("no step changes the weights: from which step a restart goes on cannot be seen"),)
    steps = resumed(reference, last)
    wrong = wrong_step(fault_run, reference, steps)
    if wrong:
        if wrong.cause is Cause.PARAMETERS and (path := read_in_part(fault_run)):
            wrong = loaded_in_part(path, fault_run)
        elif not fault_run.elastic:
            wrong = file_of_another_rank(fault_run, wrong.said) or wrong
        return (wrong,)  # what that loses is not a fault of how the notice was met
    at = next(step for step in steps.values() if step is not None)
    if fault_run.elastic:
        ranks = "ranks" if len(last.ranks) > 1 else "rank"
        size = f"{len(last.ranks)} {ranks}"
        return (Discovery(Cause.NONE, f"resumed at step {at} on {size}"),)
    differing = differences(reference, last, at)
    if differs:  # arithmetic may differ by itself; what a checkpoint holds may not
        differing = tuple(
            difference
            for difference in differing
            if difference.part in RESTORED and difference.part != differs
        )
    saved_as = SAVED_AS.get(differing[0].part) if differing and at == 0 else None
    if saved_as and fault_run.restarted.called(saved_as[0], "load_state_dict"):
        return (left_out(fault_run) or weights_of_no_step(fault_run, steps, fault_run.made()),)
    if [difference.part for difference in differing] == ["rounding"]:
        return (*notice, _rounded(first, fault_run, at, differing[0]))
    if differing and (path := read_in_part(fault_run)):
        return (loaded_in_part(path, fault_run),)
    if differing:
        part = PARTS[differing[0].part]
        head = f"resumed at step {at}; step {differing[0].step} differs: {part} (rank {differing[0].rank})"
        mistaken = file_of_another_rank(fault_run, head)
        if mistaken:
            return (mistaken, *notice)
        opening = f"resumed at step {at}; step {differing[0].step} differs: "
        count = counted(reference, fault_run.restarted, at) if differing[0].part == "data" else (0, 0)
        findings = [
            _what_differs(difference, opening if not i else "", fault_run, count, at)
            for i, difference in enumerate(differing)
        ]
        return (*findings, *notice)
    apart = _spread(first, second, last, at) if differs and second else (False, "")
    unheard = (finding for finding in notice if finding.level is not Severity.OK)
    return (_equal(fault_run, at, not differs, notice, apart), *unheard)


def _rounded(first: Start, fault_run: FaultRun, at: int, difference: FirstDifference) -> Discovery:
    """Judge a restart with equal losses and other weights; the losses must stay close.

    More than two ranks sum their gradients in another order."""
    for rank, trace in fault_run.restarted.ranks.items():
        right = {step.n: step.loss for step in first.ranks[rank].steps} if rank in first.ranks else {}
        for step in trace.steps:
            loss = right.get(at + step.n)
            if loss is None or step.loss is None or abs(step.loss - loss) <= CLOSE * max(1.0, abs(loss)):
                continue
            message = (
                f"step {difference.step} is equal but for rounding, and at step {at + step.n} the losses"
            )
            message += f" have parted: {step.loss:.6g} instead of {loss:.6g}"
            return unknown(f"{message}; rehearse with 2 ranks to compare by bits")
    same = f"equal to the last bit up to the sum of the gradients of {len(fault_run.restarted.ranks)} ranks"
    return _resumed(fault_run, at, f"{same}, then but for rounding")


def _resumed(fault_run: FaultRun, at: int, same: str) -> Discovery:
    lost = max(0, fault_run.struck_at - at)
    cost = f", {lost} steps done again" if lost else ""
    return Discovery(Cause.NONE, f"resumed at step {at}{cost}; {same}", step=at)


def _equal(
    fault_run: FaultRun, at: int, deterministic: bool, notice: Sequence[Discovery], apart: tuple[bool, str]
) -> Discovery:
    last = fault_run.restarted
    taken = last.last or max(rank.last for rank in last.ranks.values())  # ranks may go on alone for a while
    if taken < 1:
        return unknown(f"resumed at step {at}, but no step was taken after it: {fault_run.tail}")
    parted, losses = apart
    if parted:
        why = "what was not restored cannot be named while undisturbed runs differ"
        return unknown(f"resumed at step {at}; then {losses}: {why}")
    for heard in notice:
        if heard.level is Severity.OK:
            return heard
    same = f"{taken} steps equal to the last bit" if deterministic else "what was saved is restored"
    return _resumed(fault_run, at, same + (f", {losses}" if losses else ""))


# --- how the script met the notice that came before the end ---


def _complete(fault_run: FaultRun) -> bool:
    """Whether the run with a notice reached the end of its training: the next run has nothing to do."""
    last = fault_run.restarted
    return bool(
        fault_run.until and not last.errors and all(trace.end == "exit" for trace in last.ranks.values())
    )


def _came_to_its_end(life: Start) -> Discovery:
    """The script may have ended because it was done. Only whether it listens is reported."""
    message = f"the script came to its end at step {life.last}, soon after the notice"
    if _hears(life):
        return unknown(f"{message}: give it more to do, and rehearse again")
    return Discovery(Cause.NOTICE_UNHEARD, f"{message}, and does not listen for it")


def _hears(life: Start) -> bool:
    return any(trace.steps and trace.steps[-1].hears for trace in life.ranks.values())


def _unheard(lost: str) -> Discovery:
    remedy = "clusterrun.training.should_stop(), or a handler for SIGUSR2 that lets the loop save and end"
    message = f"the script does not listen for the notice: {lost}"
    return Discovery(Cause.NOTICE_UNHEARD, message, remedy)


def _notice_met(reference: Reference, fault_run: FaultRun) -> tuple[Discovery, ...]:
    """Return how the script met the notice; empty if there was none."""
    life, after = fault_run.lives[0], fault_run.restarted
    at = max((step for step in resumed(reference, after).values() if step is not None), default=None)
    if not fault_run.until or at is None:
        return ()
    hears = _hears(life)
    steps_done = max((trace.last for trace in life.ranks.values()), default=0)
    lost = steps_done - at
    if lost <= 0 and (hears or fault_run.took is not None):
        ended = (
            f"and ended in {fault_run.took:.1f} s of"
            if fault_run.took is not None
            else "; it was ended after"
        )
        message = f"notice heard, saved {ended} {fault_run.until:g} s; resumed at step {at}".replace(
            " ;", ";"
        )
        return (Discovery(Cause.NONE, message, step=at),)
    if lost <= 0:
        return (_unheard("no step is lost only because it had just saved"),)
    reached = at + max((trace.last for trace in after.ranks.values()), default=0)
    if fault_run.took is not None and reached <= steps_done:
        return (_came_to_its_end(life),)
    if fault_run.took is not None:
        message = f"ended at the notice without saving: {lost} steps are lost"
        remedy = "save a checkpoint before ending: if should_stop(): save(); break"
        return (Discovery(Cause.NOTICE_UNSAVED, message, remedy),)
    if not hears:
        return (_unheard(f"{lost} steps are lost"),)
    if steps_done - fault_run.struck_at <= 2:
        message = f"the save at the notice was not done within {fault_run.until:g} s: {lost} steps are lost"
        remedy = "give more notice (--notice), or save faster (each rank its part, a local disk first)"
        return (Discovery(Cause.SAVE_TOO_SLOW, message, remedy, fault_run.writes()),)
    later = steps_done - fault_run.struck_at
    message = f"the notice reaches a handler, but {later} steps later the script had not ended"
    remedy = "test the flag that the handler sets after every step, save, and end with exit code 0"
    return (Discovery(Cause.NOTICE_IGNORED, f"{message}: {lost} steps are lost", remedy),)


# --- what the first difference of a part proves ---


def _what_differs(
    difference: FirstDifference, head: str, fault_run: FaultRun, count: tuple[int, int], at: int
) -> Discovery:
    head = head or f"at step {difference.step} also differs: "
    details = " ".join(filter(None, (str(difference.rank), difference.detail)))
    what = f"{head}{PARTS[difference.part]} (rank {details})"
    if difference.part in SAVED_AS:
        return _unsaved(difference, head, fault_run, late=difference.step > at + 1)
    if difference.part == "data":
        return _order(difference, what, fault_run, count)
    if difference.part in ("random", "content"):
        return _random(difference, head, fault_run)
    if difference.part == "weights":
        what = f"{head}the weights {difference.detail} (rank {difference.rank})"
    if difference.part == "averages" and difference.detail:
        copy = "a copy of the weights (a second network, an average)"
        what = f"{head}{copy} {difference.detail} (rank {difference.rank})"
    if difference.part in OF_MODELS:
        cause, remedy = OF_MODELS[difference.part]
        return Discovery(cause, what, remedy, fault_run.made(), difference.step)
    if difference.part == "unseen":
        return unknown(f"{what}; all else that can be seen is equal before", OWN_ROWS, fault_run.made())
    message = f"{head}{PARTS[difference.part]} after it (rank {difference.rank})"
    remedy = f"{OWN_STATE}, {OWN_GRADIENTS}"
    if difference.detail:
        message, remedy = (
            f"{message}; {difference.detail}",
            OWN_GRADIENTS if difference.detail == SAME_LOSS else OWN_STATE,
        )
    return unknown(f"{message}; all else that can be seen is equal", remedy, fault_run.made())


def _order(difference: FirstDifference, what: str, fault_run: FaultRun, count: tuple[int, int]) -> Discovery:
    """The samples differ, or come in another order."""
    repeated, left_out = count
    counts = f"; over the run {repeated} samples are repeated, {left_out} left out" if any(count) else ""
    remedy = (
        COUNT_ON + RESTORE_RANDOM
        if fault_run.restarted.ranks[difference.rank].drawn_by_hand
        else SKIP_BATCHES
    )
    if difference.detail == OTHERS:
        remedy = f"{OWN_ROWS}; {remedy}"
    if LOST_GRADIENT in difference.detail:
        remedy = "save only right after optimizer.step(), where no gradient is accumulated"
    return Discovery(Cause.DATA, what + counts, remedy, fault_run.made(), difference.step)


def _random(difference: FirstDifference, head: str, fault_run: FaultRun) -> Discovery:
    """Random numbers differ: their state was not set, or it was set to that of another moment."""
    of = difference.detail if difference.part == "random" else "of the workers that load data"
    message = f"{head}random state ({of}) not restored (rank {difference.rank})"
    lines = tuple(filter(None, map(fault_run.restarted.ranks[difference.rank].set_anew, of.split(", "))))
    remedy = RESTORE_RANDOM
    if lines:
        message = f"{message}: it was set at {lines[0]}, but is another one after this step"
        remedy = "restore each rank's own random state, saved after the last number was drawn, as the last "
        remedy += "thing before the first step: no validation, model or loader may draw in between"
    return Discovery(Cause.RANDOM, message, remedy, fault_run.made(), difference.step)


def _unsaved(difference: FirstDifference, head: str, fault_run: FaultRun, late: bool) -> Discovery:
    """Report whether a part with a state_dict was not saved or not loaded."""
    name, cause, part_name = SAVED_AS[difference.part]
    saved = fault_run.lives[0].called(name, "state_dict")
    loaded = fault_run.restarted.called(name, "load_state_dict")
    what = f"the learning rate is {difference.detail}" if difference.part == "rates" else part_name
    if difference.part == "state" and difference.detail.startswith("of "):
        called = f"; load_state_dict of one was called at {loaded}" if loaded else ""
        remedy = "save the state_dict() of every optimizer, and load each after it is made"
        what = f"{head}the state {difference.detail} (rank {difference.rank}){called}"
        return Discovery(cause, what, remedy, fault_run.made(), difference.step)
    if difference.part == "state" and difference.detail:
        what += " begins anew"
    steps = (step for trace in fault_run.restarted.ranks.values() for step in trace.steps)
    if difference.part == "rates" and not any(step.schedulers for step in steps):
        what += f" (rank {difference.rank}): no scheduler of torch's sets it"
        remedy = "after optimizer.load_state_dict(…), set none of it anew; compute what changes while "
        remedy += "training from the number of the step that was loaded"
        if late:
            what += ", and it was right before this step"
            remedy = "save and restore what decides when the rate changes: the best value, counters of bad "
            remedy += "evaluations"
        return Discovery(cause, f"{head}{what}", remedy, fault_run.made(), difference.step)
    if loaded:
        why = f"{name}.load_state_dict was called at {loaded}, and something changed it afterwards"
        remedy = f"call {name}.load_state_dict(…) after the last line that makes or sets the {name} anew"
    else:
        why = f"{name}.load_state_dict was not called"
        why += "" if saved else f", nor {name}.state_dict when saving"
        remedy = f"save {name}.state_dict() with the model, and {name}.load_state_dict(…) after both are made"
    lines = ((f"{saved} takes {name}.state_dict()",) if saved else ()) + fault_run.made()
    return Discovery(cause, f"{head}{what} (rank {difference.rank}): {why}", remedy, lines, difference.step)


# --- losses, where undisturbed runs differ by themselves ---


def _spread(first: Start, second: Start, last: Start, at: int) -> tuple[bool, str]:
    """Return whether losses differ by more than their spread explains, and a sentence.

    ``last`` has the losses from step ``at`` on. They are compared with those of undisturbed runs. The
    sentence is '' if too few can be compared.
    """
    first_losses, second_losses = _losses(first), _losses(second)
    undisturbed = {
        place: (first_losses[place], second_losses[place])
        for place in first_losses.keys() & second_losses.keys()
    }
    everywhere = [abs(loss - other) for loss, other in undisturbed.values()]
    spread, distances, level, steps = [], [], [], set()
    for (rank, n), loss in _losses(last).items():
        pair = undisturbed.get((rank, at + n))
        if pair and n <= LOOKED_AT:
            spread.append(abs(pair[0] - pair[1]))
            distances.append(min(abs(loss - other) for other in pair))
            level.append(abs(sum(pair)) / 2)
            steps.add(n)
    if len(steps) < LEAST_LOSSES:
        return False, ""
    between, own = max(map(statistics.median, (spread, everywhere))), statistics.median(distances)
    if own <= SPREAD_TIMES * between:
        return False, f"{len(steps)} losses are within {SPREAD_TIMES:g} times the spread of undisturbed runs"
    if own <= SPREAD_SHARE * statistics.median(level):
        return False, f"{len(steps)} losses are within {SPREAD_SHARE:.0%} of undisturbed runs"
    message = f"the losses of {len(steps)} steps lie {own:.3g} from those of the undisturbed runs, which lie "
    return True, f"{message}{between:.3g} apart"


def _losses(life: Start) -> dict[tuple[int, int], float]:
    """Return the finite losses by rank and step."""
    steps = [(rank, step.n, step.loss) for rank, trace in life.ranks.items() for step in trace.steps]
    return {(rank, n): loss for rank, n, loss in steps if loss is not None and math.isfinite(loss)}
