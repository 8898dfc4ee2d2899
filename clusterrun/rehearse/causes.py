"""Names the cause of what a rehearsal found, by what differs first, and what to write instead; pure.

An accusation needs a proof in the traces. What is not proven is UNKNOWN, never a guess.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from clusterrun.rehearse.checkpoint_damage import loaded_in_part, no_step_taken, read_in_part
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, Severity, unknown
from clusterrun.rehearse.rank_files import file_of_another_rank
from clusterrun.rehearse.rank_trace import Start
from clusterrun.rehearse.resumed_step import left_out, weights_of_no_step, wrong_step
from clusterrun.rehearse.resumption import (
    LOST_GRADIENT,
    OTHERS,
    PARTS,
    SAME_LOSS,
    FirstDifference,
    Reference,
    counted,
    differences,
    moves,
    reference,
    resumed,
)

CLOSE = 0.05
"""How far losses may part, as a share, that began equal but for rounding."""
LOOKED_AT = 12
"""Steps after a restart: what was not restored shows there, if anywhere."""
LEAST_LOSSES = 4
"""Losses below which nothing is said."""
SPREAD_TIMES = 4.0
"""How much farther than undisturbed runs from each other a restart's losses must lie to be said to part."""
SPREAD_SHARE = 0.05
"""The share of the loss itself that they must lie apart too: two runs may happen to lie close together."""
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
    """What a restart after ``start`` should compute; ``differs``: in what undisturbed runs differ, or ''.

    Of runs that differ by themselves, each can be compared with its own past alone.
    """
    return reference(start if differs else first, start)


def judge(
    first: Start, differs: str, seen: FaultRun, second: Start | None = None, known: Reference | None = None
) -> tuple[Discovery, ...]:
    """What a fault showed, the cause first.

    ``differs``: the part in which the undisturbed runs ``first`` and ``second`` differ, or ''.
    ``known``: what is `expected`, if that was made before.
    """
    if len(seen.lives) < 2:
        return (unknown(f"the ranks were not started again: {seen.tail}"),)
    start, last = seen.lives[0], seen.restarted
    known = known or expected(first, differs, start)
    if not any(rank.before for rank in last.ranks.values()):
        return (_came_to_its_end(start) if _complete(seen) else no_step_taken(seen),)
    notice = _notice_met(known, seen)
    if not moves(first):
        return (unknown("no step changes the weights: from which step a restart goes on cannot be seen"),)
    steps = resumed(known, last)
    wrong = wrong_step(seen, known, steps)
    if wrong:
        if wrong.cause is Cause.PARAMETERS and (path := read_in_part(seen)):
            wrong = loaded_in_part(path, seen)
        elif not seen.elastic:
            wrong = file_of_another_rank(seen, wrong.said) or wrong
        return (wrong,)  # what that loses is not a fault of how the notice was met
    at = next(step for step in steps.values() if step is not None)
    if seen.elastic:
        size = f"{len(last.ranks)} rank{'s' if len(last.ranks) > 1 else ''}"
        return (Discovery(Cause.NONE, f"resumed at step {at} on {size}"),)
    found = differences(known, last, at)
    if differs:  # arithmetic may differ by itself; what a checkpoint holds may not
        found = tuple(one for one in found if one.part in RESTORED and one.part != differs)
    saved_as = SAVED_AS.get(found[0].part) if found and at == 0 else None
    if saved_as and seen.restarted.called(saved_as[0], "load_state_dict"):
        return (left_out(seen) or weights_of_no_step(seen, steps, seen.made()),)
    if [one.part for one in found] == ["rounding"]:
        return (*notice, _rounded(first, seen, at, found[0]))
    if found and (path := read_in_part(seen)):
        return (loaded_in_part(path, seen),)
    if found:
        part = PARTS[found[0].part]
        head = f"resumed at step {at}; step {found[0].step} differs: {part} (rank {found[0].rank})"
        mistaken = file_of_another_rank(seen, head)
        if mistaken:
            return (mistaken, *notice)
        return (*_differences(known, seen, at, found), *notice)
    apart = _spread(first, second, last, at) if differs and second else (False, "")
    unheard = (one for one in notice if one.level is not Severity.OK)
    return (_equal(seen, at, not differs, notice, apart), *unheard)


def _differences(
    known: Reference, seen: FaultRun, at: int, found: Sequence[FirstDifference]
) -> list[Discovery]:
    """What each difference proves, the first in time first."""
    head = f"resumed at step {at}; step {found[0].step} differs: "
    count = counted(known, seen.restarted, at) if found[0].part == "data" else (0, 0)
    return [_what_differs(one, head if not i else "", seen, count, at) for i, one in enumerate(found)]


def _rounded(first: Start, seen: FaultRun, at: int, one: FirstDifference) -> Discovery:
    """Forward equal to the bit, weights not: the sum over more than two ranks; the losses must stay close."""
    for rank, trace in seen.restarted.ranks.items():
        right = {step.n: step.loss for step in first.ranks[rank].steps} if rank in first.ranks else {}
        for step in trace.steps:
            loss = right.get(at + step.n)
            if loss is None or step.loss is None or abs(step.loss - loss) <= CLOSE * max(1.0, abs(loss)):
                continue
            said = f"step {one.step} is equal but for rounding, and at step {at + step.n} the losses have "
            said += f"parted: {step.loss:.6g} instead of {loss:.6g}"
            return unknown(f"{said}; rehearse with 2 ranks to compare by bits")
    same = f"equal to the last bit up to the sum of the gradients of {len(seen.restarted.ranks)} ranks"
    return _resumed(seen, at, f"{same}, then but for rounding")


def _resumed(seen: FaultRun, at: int, same: str) -> Discovery:
    lost = max(0, seen.struck_at - at)
    cost = f", {lost} steps done again" if lost else ""
    return Discovery(Cause.NONE, f"resumed at step {at}{cost}; {same}", step=at)


def _equal(
    seen: FaultRun, at: int, deterministic: bool, notice: Sequence[Discovery], apart: tuple[bool, str]
) -> Discovery:
    last = seen.restarted
    taken = last.last or max(rank.last for rank in last.ranks.values())  # ranks may go on alone for a while
    if taken < 1:
        return unknown(f"resumed at step {at}, but no step was taken after it: {seen.tail}")
    parted, losses = apart
    if parted:
        why = "what was not restored cannot be named while undisturbed runs differ"
        return unknown(f"resumed at step {at}; then {losses}: {why}")
    for heard in notice:
        if heard.level is Severity.OK:
            return heard
    same = f"{taken} steps equal to the last bit" if deterministic else "what was saved is restored"
    return _resumed(seen, at, same + (f", {losses}" if losses else ""))


# --- how the script met the notice that came before the end ---


def _complete(seen: FaultRun) -> bool:
    """The run that had notice came to the end of its training: the next one finds nothing left to do."""
    last = seen.restarted
    return bool(seen.until and not last.errors and all(one.end == "exit" for one in last.ranks.values()))


def _came_to_its_end(life: Start) -> Discovery:
    """The script may have ended because it was done: nothing is said of the notice but whether it listens."""
    said = f"the script came to its end at step {life.last}, soon after the notice"
    if _hears(life):
        return unknown(f"{said}: give it more to do, and rehearse again")
    return Discovery(Cause.NOTICE_UNHEARD, f"{said}, and does not listen for it")


def _hears(life: Start) -> bool:
    return any(trace.steps and trace.steps[-1].hears for trace in life.ranks.values())


def _unheard(lost: str) -> Discovery:
    remedy = "clusterrun.training.should_stop(), or a handler for SIGUSR2 that lets the loop save and end"
    said = f"the script does not listen for the notice: {lost}"
    return Discovery(Cause.NOTICE_UNHEARD, said, remedy)


def _notice_met(known: Reference, seen: FaultRun) -> tuple[Discovery, ...]:
    """How the script met the notice, where there was one."""
    life, after = seen.lives[0], seen.restarted
    at = max((step for step in resumed(known, after).values() if step is not None), default=None)
    if not seen.until or at is None:
        return ()
    hears = _hears(life)
    done = max((trace.last for trace in life.ranks.values()), default=0)
    lost = done - at
    if lost <= 0 and (hears or seen.took is not None):
        ended = f"and ended in {seen.took:.1f} s of" if seen.took is not None else "; it was ended after"
        said = f"notice heard, saved {ended} {seen.until:g} s; resumed at step {at}".replace(" ;", ";")
        return (Discovery(Cause.NONE, said, step=at),)
    if lost <= 0:
        return (_unheard("no step is lost only because it had just saved"),)
    reached = at + max((trace.last for trace in after.ranks.values()), default=0)
    if seen.took is not None and reached <= done:
        return (_came_to_its_end(life),)
    if seen.took is not None:
        said = f"ended at the notice without saving: {lost} steps are lost"
        remedy = "save a checkpoint before ending: if should_stop(): save(); break"
        return (Discovery(Cause.NOTICE_UNSAVED, said, remedy),)
    if not hears:
        return (_unheard(f"{lost} steps are lost"),)
    if done - seen.struck_at <= 2:
        said = f"the save at the notice was not done within {seen.until:g} s: {lost} steps are lost"
        remedy = "give more notice (--notice), or save faster (each rank its part, a local disk first)"
        return (Discovery(Cause.SAVE_TOO_SLOW, said, remedy, seen.writes()),)
    said = f"the notice reaches a handler, but {done - seen.struck_at} steps later the script had not ended"
    remedy = "test the flag that the handler sets after every step, save, and end with exit code 0"
    return (Discovery(Cause.NOTICE_IGNORED, f"{said}: {lost} steps are lost", remedy),)


# --- what the first difference of a part proves ---


def _what_differs(
    one: FirstDifference, head: str, seen: FaultRun, count: tuple[int, int], at: int
) -> Discovery:
    head = head or f"at step {one.step} also differs: "
    what = f"{head}{PARTS[one.part]} (rank {one.rank}{' ' if one.detail else ''}{one.detail})"
    if one.part in SAVED_AS:
        return _unsaved(one, head, seen, late=one.step > at + 1)
    if one.part == "data":
        return _order(one, what, seen, count)
    if one.part in ("random", "content"):
        return _random(one, head, seen)
    if one.part == "weights":
        what = f"{head}the weights {one.detail} (rank {one.rank})"
    if one.part == "averages" and one.detail:
        copy = "a copy of the weights (a second network, an average)"
        what = f"{head}{copy} {one.detail} (rank {one.rank})"
    if one.part in OF_MODELS:
        cause, remedy = OF_MODELS[one.part]
        return Discovery(cause, what, remedy, seen.made(), one.step)
    if one.part == "unseen":
        return unknown(f"{what}; all else that can be seen is equal before", OWN_ROWS, seen.made())
    return _unexplained(one, head, seen)


def _order(one: FirstDifference, what: str, seen: FaultRun, count: tuple[int, int]) -> Discovery:
    """The samples are others, or come in another order."""
    repeated, left_out = count
    counts = f"; over the run {repeated} samples are repeated, {left_out} left out" if any(count) else ""
    remedy = COUNT_ON + RESTORE_RANDOM if seen.restarted.ranks[one.rank].drawn_by_hand else SKIP_BATCHES
    if one.detail == OTHERS:
        remedy = f"{OWN_ROWS}; {remedy}"
    if LOST_GRADIENT in one.detail:
        remedy = "save only right after optimizer.step(), where no gradient is accumulated"
    return Discovery(Cause.DATA, what + counts, remedy, seen.made(), one.step)


def _unexplained(one: FirstDifference, head: str, seen: FaultRun) -> Discovery:
    """Of all that can be seen the weights alone are others after a step: its loss tells where to look."""
    said = f"{head}{PARTS[one.part]} after it (rank {one.rank})"
    remedy = f"{OWN_STATE}, {OWN_GRADIENTS}"
    if one.detail:
        said, remedy = f"{said}; {one.detail}", OWN_GRADIENTS if one.detail == SAME_LOSS else OWN_STATE
    return unknown(f"{said}; all else that can be seen is equal", remedy, seen.made())


def _random(one: FirstDifference, head: str, seen: FaultRun) -> Discovery:
    """Random numbers differ: nobody set their state, or it was set, and then it is of another place."""
    of = one.detail if one.part == "random" else "of the workers that load data"
    said = f"{head}random state ({of}) not restored (rank {one.rank})"
    lines = tuple(filter(None, map(seen.restarted.ranks[one.rank].set_anew, of.split(", "))))
    remedy = RESTORE_RANDOM
    if lines:
        said = f"{said}: it was set at {lines[0]}, but is another one after this step"
        remedy = "restore each rank's own random state, saved after the last number was drawn, as the last "
        remedy += "thing before the first step: no validation, model or loader may draw in between"
    return Discovery(Cause.RANDOM, said, remedy, seen.made(), one.step)


def _unsaved(one: FirstDifference, head: str, seen: FaultRun, late: bool) -> Discovery:
    """A part that has a state_dict: whether it was not saved, or not loaded."""
    name, cause, said = SAVED_AS[one.part]
    saved = seen.lives[0].called(name, "state_dict")
    loaded = seen.restarted.called(name, "load_state_dict")
    words = f"the learning rate is {one.detail}" if one.part == "rates" else said
    if one.part == "state" and one.detail.startswith("of "):
        called = f"; load_state_dict of one was called at {loaded}" if loaded else ""
        remedy = "save the state_dict() of every optimizer, and load each after it is made"
        words = f"{head}the state {one.detail} (rank {one.rank}){called}"
        return Discovery(cause, words, remedy, seen.made(), one.step)
    if one.part == "state" and one.detail:
        words += " begins anew"
    steps = (step for trace in seen.restarted.ranks.values() for step in trace.steps)
    if one.part == "rates" and not any(step.schedulers for step in steps):
        words += f" (rank {one.rank}): no scheduler of torch's sets it"
        remedy = "after optimizer.load_state_dict(…), set none of it anew; compute what changes while "
        remedy += "training from the number of the step that was loaded"
        if late:
            words += ", and it was right before this step"
            remedy = "save and restore what decides when the rate changes: the best value, counters of bad "
            remedy += "evaluations"
        return Discovery(cause, f"{head}{words}", remedy, seen.made(), one.step)
    if loaded:
        why = f"{name}.load_state_dict was called at {loaded}, and something changed it afterwards"
        remedy = f"call {name}.load_state_dict(…) after the last line that makes or sets the {name} anew"
    else:
        why = f"{name}.load_state_dict was not called"
        why += "" if saved else f", nor {name}.state_dict when saving"
        remedy = f"save {name}.state_dict() with the model, and {name}.load_state_dict(…) after both are made"
    lines = ((f"{saved} takes {name}.state_dict()",) if saved else ()) + seen.made()
    return Discovery(cause, f"{head}{words} (rank {one.rank}): {why}", remedy, lines, one.step)


# --- losses, where undisturbed runs differ by themselves ---


def _spread(first: Start, second: Start, last: Start, at: int) -> tuple[bool, str]:
    """Whether the losses of ``last``, from step ``at`` on, lie farther from those of undisturbed runs than
    these explain by their own spread, and a sentence; '' if too few can be compared.
    """
    one, two = _losses(first), _losses(second)
    undisturbed = {place: (one[place], two[place]) for place in one.keys() & two.keys()}
    everywhere = [abs(loss - other) for loss, other in undisturbed.values()]
    here, away, level, steps = [], [], [], set()
    for (rank, n), loss in _losses(last).items():
        pair = undisturbed.get((rank, at + n))
        if pair and n <= LOOKED_AT:
            here.append(abs(pair[0] - pair[1]))
            away.append(min(abs(loss - other) for other in pair))
            level.append(abs(sum(pair)) / 2)
            steps.add(n)
    if len(steps) < LEAST_LOSSES:
        return False, ""
    between, own = max(map(statistics.median, (here, everywhere))), statistics.median(away)
    if own <= SPREAD_TIMES * between:
        return False, f"{len(steps)} losses are within {SPREAD_TIMES:g} times the spread of undisturbed runs"
    if own <= SPREAD_SHARE * statistics.median(level):
        return False, f"{len(steps)} losses are within {SPREAD_SHARE:.0%} of undisturbed runs"
    said = f"the losses of {len(steps)} steps lie {own:.3g} from those of the undisturbed runs, which lie "
    return True, f"{said}{between:.3g} apart"


def _losses(life: Start) -> dict[tuple[int, int], float]:
    """By rank and step."""
    steps = [(rank, step.n, step.loss) for rank, trace in life.ranks.items() for step in trace.steps]
    return {(rank, n): loss for rank, n, loss in steps if loss is not None and math.isfinite(loss)}
