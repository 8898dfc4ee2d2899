"""Whether the ranks continue from the step that they should; pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clusterrun.rehearse.checkpoint_damage import cut_off, newest_whole
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.rank_trace import SavedFile
from clusterrun.rehearse.resumption import Reference

OF_NO_STEP = "the weights before the first step are those of no step"


def wrong_step(seen: FaultRun, known: Reference, steps: Mapping[int, int | None]) -> Discovery | None:
    """What is wrong with the step from which the ranks continue; None if that is as it should be."""
    last = seen.restarted
    newest = newest_whole(seen)
    written = [save.path for save in seen.lives[0].saves]
    lines = seen.reads(written) if set(written) & {path for path, _ in last.loaded} else ()
    values = set(steps.values())
    if lines and values & {None, 0} and (partial := left_out(seen)):
        return partial
    if None in values:
        return _of_no_step(seen, known, steps, newest, lines)
    if len(values) > 1:
        places = ", ".join(f"rank {rank} at {step}" for rank, step in steps.items())
        remedy = "let rank 0 choose the checkpoint and broadcast its name; a set counts once it is whole"
        said = f"ranks resume at different steps: {places}"
        return Discovery(Cause.RANKS_DISAGREE, said, remedy, lines)
    (at,) = values
    if newest is None and at == 0 and seen.damaged:
        return _all_lost(seen)
    if at is None or newest is None or at >= newest.step:
        return None
    torn = [path for path, _ in last.loaded if path in seen.damaged]
    if at == 0 and torn:
        return cut_off(seen, torn[-1], "training begins at step 0", copy=newest)
    if at == 0:
        return _never(newest, seen, lines)
    said = f"resumed at step {at}, though {os.path.basename(newest.path)} of step {newest.step} was whole: "
    said += f"{seen.struck_at - at} steps done again"
    return Discovery(Cause.TOO_FAR_BACK, said, _to_load_newest(seen, newest), (*lines, *seen.writes()), at)


def _to_load_newest(seen: FaultRun, newest: SavedFile) -> str:
    """What to change in a script that loaded an older checkpoint than the ``newest``."""
    life, name = seen.lives[0], os.path.basename(newest.path)
    kind = seen.kind(newest.path)
    read = {path for path, _ in seen.restarted.loaded}
    paths = {save.path for save in life.saves if not life.dropped(save.path)}
    own_kind = [path for path in paths & read if seen.kind(path) == kind]
    if not own_kind:
        folders = {os.path.dirname(path) for path in paths}
        others = sorted(os.path.basename(path) for path in read if os.path.dirname(path) in folders)
        instead = f" instead of {others[-1]}" if others else ""
        return f"resume from {name}{instead}: the newest state, not that of the best score"
    same_kind = [path for path in paths if seen.kind(path) == kind]
    if max(own_kind) == max(same_kind) != newest.path:
        return "load the newest whole checkpoint: compare steps as numbers, not file names as text"
    if max(own_kind) == min(same_kind):
        return "load the newest whole checkpoint: of names in ascending order take the last"
    return (
        "load the newest whole checkpoint: choose it by the number of its step, not by the order of a listing"
    )


def _of_no_step(
    seen: FaultRun,
    known: Reference,
    steps: Mapping[int, int | None],
    newest: SavedFile | None,
    lines: tuple[str, ...],
) -> Discovery:
    """The weights before the first step are those of no step, on some rank."""
    if set(steps.values()) != {None} or lines or seen.elastic:
        return weights_of_no_step(seen, steps, lines)
    last = seen.restarted
    empty = {r: {o: state for o, (_, state) in one.items()} for r, one in known.initial.items()}
    begun = [(r, o, state) for r in steps for o, (_, state) in last.ranks[r].before.items()]
    fresh = all(state == empty.get(r, {}).get(o) for r, o, state in begun)
    taken = [(r, step) for r, one in known.steps.items() for step in one.values()]
    moved = any(step.state != empty.get(r, {}).get(step.optimizer) for r, step in taken)
    if fresh and moved and newest and not last.loaded:
        return _never(newest, seen, lines)
    return unknown(f"{OF_NO_STEP}, and no checkpoint was seen read")


def _all_lost(seen: FaultRun) -> Discovery | None:
    """The damaged file was the only one, and the script begins again; None if nothing was lost by that."""
    path = seen.damaged[-1]
    then = "training begins at step 0"
    if seen.fault == "damaged":
        return cut_off(seen, path, then)
    older = [save for save in seen.lives[0].saves if save.step < seen.struck_at]
    if not any(save.path in seen.damaged or save.gone for save in older):
        return None
    if not any(save.path in seen.damaged for save in older):
        names = [os.path.basename(name) for name in (older[-1].path, path)]
        said = f"{names[0]} was removed before {names[1]} was whole: all work is lost"
        remedy = "remove the old checkpoint only once the new one has its final name (os.replace)"
        return Discovery(Cause.TORN, said, remedy, seen.writes())
    return cut_off(seen, path, then)


def _never(newest: SavedFile, seen: FaultRun, lines: tuple[str, ...]) -> Discovery:
    name = os.path.basename(newest.path)
    read = f"{name} of step {newest.step} was there and was " + ("read" if lines else "not read")
    last = seen.restarted
    if lines and not last.called("model", "load_state_dict"):
        remedy = "call model.load_state_dict(checkpoint[…]) after loading"
    elif lines:
        remedy = "load the checkpoint after the last thing that sets the weights anew"
    else:
        remedy = "at the start of the script: if a checkpoint exists, load it"
    said = f"never resumed: the restarted script begins at step 0; {read}"
    return Discovery(Cause.NEVER_RESUMED, said, remedy, (*lines, *seen.writes()))


def weights_of_no_step(seen: FaultRun, steps: Mapping[int, int | None], lines: tuple[str, ...]) -> Discovery:
    if seen.elastic:
        return unknown(f"{OF_NO_STEP} (ranks may hold other pieces now)")
    ranks = [rank for rank, step in steps.items() if not step]
    whose = "those of no step" if None in steps.values() else "those of step 0"
    who = "all ranks" if len(ranks) == len(steps) else "rank " + ", ".join(map(str, ranks))
    said = f"a checkpoint was read, but the weights before the first step are {whose} on {who}:"
    said += " a part of them is not saved, not loaded, or changed on the way"
    remedy = "save and load model.state_dict() whole, on every rank, with strict=True and in its own "
    remedy += "precision"
    return Discovery(Cause.PARAMETERS, said, remedy, lines)


def left_out(seen: FaultRun) -> Discovery | None:
    """The weights were loaded under names that the model does not have; None if that was not seen.

    What the first start left out too (a file of other weights to begin with) is not a fault.
    """
    begun = {trace.partial for trace in seen.lives[0].ranks.values()}
    for rank, trace in sorted(seen.restarted.ranks.items()):
        line, missing, unknown_names, name = trace.partial
        if not missing or not unknown_names or trace.partial in begun:
            continue
        said = f"model.load_state_dict(…, strict=False) at {line} left the weights as they were (rank {rank})"
        said += f": the file lacks {missing} names of the model, and has {unknown_names} that the model "
        said += f"lacks ({name})"
        remedy = "save and load the same module, so that names are equal (DDP's begin with module.: save"
        remedy += " ddp.module.state_dict()), and load with strict=True"
        return Discovery(Cause.PARAMETERS, said, remedy, seen.made())
    return None
