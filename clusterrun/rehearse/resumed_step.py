"""Judge whether the ranks continue from the right step; pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

from clusterrun.rehearse.checkpoint_damage import cut_off, newest_whole, torn_reads
from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.rank_trace import SavedFile
from clusterrun.rehearse.resumption import Reference

OF_NO_STEP = "the weights before the first step are those of no step"


def wrong_step(
    fault_run: FaultRun, reference: Reference, steps: Mapping[int, int | None]
) -> Discovery | None:
    """Return what is wrong with the step from which the ranks continue; None if it is right."""
    last = fault_run.restarted
    newest = newest_whole(fault_run)
    written = [save.path for save in fault_run.lives[0].saves]
    lines = fault_run.reads(written) if set(written) & {path for path, _ in last.loaded} else ()
    values = set(steps.values())
    if lines and values & {None, 0} and (partial := left_out(fault_run)):
        return partial
    if None in values:
        # On at least one rank the weights belong to no step.
        if set(steps.values()) != {None} or lines or fault_run.elastic:
            return weights_of_no_step(fault_run, steps, lines)
        restart = fault_run.restarted
        empty = {
            rank_number: {optimizer: state for optimizer, (_, state) in state_by_optimizer.items()}
            for rank_number, state_by_optimizer in reference.initial.items()
        }
        begun = [
            (rank_number, optimizer, state)
            for rank_number in steps
            for optimizer, (_, state) in restart.ranks[rank_number].before.items()
        ]
        fresh = all(
            state == empty.get(rank_number, {}).get(optimizer) for rank_number, optimizer, state in begun
        )
        taken = [
            (rank_number, step)
            for rank_number, state_by_optimizer in reference.steps.items()
            for step in state_by_optimizer.values()
        ]
        moved = any(
            step.state != empty.get(rank_number, {}).get(step.optimizer) for rank_number, step in taken
        )
        if fresh and moved and newest and not restart.loaded:
            return _never(newest, fault_run, lines)
        return unknown(f"{OF_NO_STEP}, and no checkpoint was seen read")
    if len(values) > 1:
        places = ", ".join(f"rank {rank} at {step}" for rank, step in steps.items())
        remedy = "let rank 0 choose the checkpoint and broadcast its name; a set counts once it is whole"
        message = f"ranks resume at different steps: {places}"
        return Discovery(Cause.RANKS_DISAGREE, message, remedy, lines)
    (at,) = values
    if newest is None and at == 0 and (fault_run.damaged or fault_run.fault in ("mid-save", "disk-full")):
        # No file is damaged if the fault struck a temporary file.
        damaged = fault_run.damaged
        then = "training begins at step 0"
        if damaged and (fault_run.fault == "damaged" or fault_run.of_companion):
            return cut_off(fault_run, damaged[-1], then)
        older = [save for save in fault_run.lives[0].saves if save.step < fault_run.struck_at]
        lost = [save for save in older if save.path in damaged or save.is_removed]
        if not lost or not (damaged or len(lost) == len(older)):
            return None
        if not any(save.path in damaged for save in older):
            new = os.path.basename(damaged[-1]) if damaged else "the next checkpoint"
            message = (
                f"{os.path.basename(older[-1].path)} was removed before {new} was whole: all work is lost"
            )
            remedy = "remove the old checkpoint only once the new one has its final name (os.replace)"
            return Discovery(Cause.TORN, message, remedy, fault_run.writes())
        return cut_off(fault_run, damaged[-1], then)
    if at is None or newest is None or at >= newest.step:
        return None
    torn = torn_reads(fault_run)
    if at == 0 and torn:
        return cut_off(fault_run, torn[-1], "training begins at step 0", copy=newest)
    if at == 0:
        return _never(newest, fault_run, lines)
    message = (
        f"resumed at step {at}, though {os.path.basename(newest.path)} of step {newest.step} was whole: "
    )
    # The run may have gone on after the notice.
    message += f"{max(fault_run.struck_at, newest.step) - at} steps done again"
    return Discovery(
        Cause.TOO_FAR_BACK, message, _to_load_newest(fault_run, newest), (*lines, *fault_run.writes()), at
    )


def _to_load_newest(fault_run: FaultRun, newest: SavedFile) -> str:
    """Return what to change in a script that loaded an older checkpoint than the ``newest``."""
    life, name = fault_run.lives[0], os.path.basename(newest.path)
    kind = fault_run.kind(newest.path)
    read = {path for path, _ in fault_run.restarted.loaded}
    paths = {save.path for save in life.saves if not life.dropped(save.path)}
    own_kind = [path for path in paths & read if fault_run.kind(path) == kind]
    if not own_kind:
        folders = {os.path.dirname(path) for path in paths}
        others = sorted(os.path.basename(path) for path in read if os.path.dirname(path) in folders)
        instead = f" instead of {others[-1]}" if others else ""
        return f"resume from {name}{instead}: the newest state, not that of the best score"
    same_kind = [path for path in paths if fault_run.kind(path) == kind]
    if max(own_kind) == max(same_kind) != newest.path:
        return "load the newest whole checkpoint: compare steps as numbers, not file names as text"
    if max(own_kind) == min(same_kind):
        return "load the newest whole checkpoint: of names in ascending order take the last"
    return (
        "load the newest whole checkpoint: choose it by the number of its step, not by the order of a listing"
    )


def _never(newest: SavedFile, fault_run: FaultRun, lines: tuple[str, ...]) -> Discovery:
    name = os.path.basename(newest.path)
    read = f"{name} of step {newest.step} was there and was " + ("read" if lines else "not read")
    last = fault_run.restarted
    if lines and not last.called("model", "load_state_dict"):
        remedy = "call model.load_state_dict(checkpoint[…]) after loading"
    elif lines:
        remedy = "load the checkpoint after the last line that sets the weights"
    else:
        remedy = "at the start of the script: if a checkpoint exists, load it"
    message = f"never resumed: the restarted script begins at step 0; {read}"
    return Discovery(Cause.NEVER_RESUMED, message, remedy, (*lines, *fault_run.writes()))


def weights_of_no_step(
    fault_run: FaultRun, steps: Mapping[int, int | None], lines: tuple[str, ...]
) -> Discovery:
    if fault_run.elastic:
        return unknown(f"{OF_NO_STEP} (ranks may hold other pieces now)")
    ranks = [rank for rank, step in steps.items() if not step]
    whose = "those of no step" if None in steps.values() else "those of step 0"
    subject = "all ranks" if len(ranks) == len(steps) else "rank " + ", ".join(map(str, ranks))
    message = f"a checkpoint was read, but the weights before the first step are {whose} on {subject}:"
    message += " a part of them is not saved, not loaded, or changed on the way"
    remedy = "save and load model.state_dict() whole, on every rank, with strict=True and in its own "
    remedy += "precision"
    return Discovery(Cause.PARAMETERS, message, copied_first(fault_run) or remedy, lines)


def copied_first(fault_run: FaultRun) -> str:
    """Return the remedy for a thread that wrote the loaded checkpoint; '' if the main thread wrote it."""
    read = {path for path, _ in fault_run.restarted.loaded}
    for save in (save for life in fault_run.lives for save in life.saves):
        if save.by_thread and save.path in read:
            return f"""a thread wrote {os.path.basename(save.path)} while training went on, and state_dict() \
holds the tensors that training changes: copy them (copy.deepcopy) before the thread gets them"""
    return ""


def left_out(fault_run: FaultRun) -> Discovery | None:
    """Return the finding for weights that were loaded under names that the model does not have, or None.

    Names that the first start left out too are no fault: it may begin with a file of other weights.
    """
    begun = {trace.partial for trace in fault_run.lives[0].ranks.values()}
    for rank, trace in sorted(fault_run.restarted.ranks.items()):
        line, missing, unknown_names, name = trace.partial
        if not missing or not unknown_names or trace.partial in begun:
            continue
        message = (
            f"model.load_state_dict(…, strict=False) at {line} left the weights as they were (rank {rank})"
        )
        message += f": the file lacks {missing} names of the model, and has {unknown_names} that the model "
        message += f"lacks ({name})"
        remedy = "save and load the same module, so that names are equal (DDP's begin with module.: save"
        remedy += " ddp.module.state_dict()), and load with strict=True"
        return Discovery(Cause.PARAMETERS, message, remedy, fault_run.made())
    return None
