"""What the first difference of a part proves, and what to write instead; pure."""

from __future__ import annotations

from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.resumption import LOST_GRADIENT, OTHERS, PARTS, SAME_LOSS, FirstDifference

SAVED_AS = {
    "state": ("optimizer", Cause.OPTIMIZER, "the optimizer's state"),
    "rates": ("scheduler", Cause.RATES, "scheduler"),
    "scheduler": ("scheduler", Cause.SCHEDULER, "scheduler"),
    "scaler": ("scaler", Cause.SCALER, "scaler"),
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


def what_differs(
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
        said = f"{head}the weights {one.detail} (rank {one.rank})"
        remedy = "save and load the state_dict() of every model that is trained"
        return Discovery(Cause.PARAMETERS, said, remedy, seen.made(), one.step)
    if one.part == "averages":
        if one.detail:
            copy = "a copy of the weights (a second network, an average)"
            what = f"{head}{copy} {one.detail} (rank {one.rank})"
        remedy = "save every copy of the weights that lives on (average, target network), and load it"
        return Discovery(Cause.AVERAGES, what, remedy, seen.made(), one.step)
    if one.part == "buffers":
        remedy = "save model.state_dict(), not only model.parameters(): it holds running means and counters "
        remedy += "too"
        return Discovery(Cause.BUFFERS, what, remedy, seen.made(), one.step)
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
        remedy = (
            "restore each rank's own random state, saved after the last number was drawn, as the last thing"
            " before the first step: no validation, model or loader may draw in between"
        )
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
        remedy = (
            "after optimizer.load_state_dict(…), set none of it anew; compute what changes while training"
        )
        remedy += " from the number of the step that was loaded"
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


def loaded_beside(seen: FaultRun, one: FirstDifference) -> bool:
    """Whether a part of a later step was loaded where the weights are those of step 0."""
    return one.part in SAVED_AS and bool(seen.restarted.called(SAVED_AS[one.part][0], "load_state_dict"))
