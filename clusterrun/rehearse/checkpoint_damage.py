"""Judge what the restarted script does with checkpoint files that are cut off or missing; pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable

from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.rank_trace import SavedFile

BOTH = " (clusterrun.training.Checkpoints does both)"
# Largest difference in size between files of equal content: numbers have more digits, names are longer.
ALIKE = 0.01


def no_step_taken(fault_run: FaultRun) -> Discovery:
    """Return the finding for restarted ranks that took no step."""
    last = fault_run.restarted
    torn = torn_reads(fault_run)
    if not last.errors and not (torn and all(rank.end == "exit" for rank in last.ranks.values())):
        return unknown(f"the restarted ranks took no step, and no exception says why: {fault_run.tail}")
    line, kind, text = last.errors[0] if last.errors else ("", "", "")
    reason = _reason(kind, text) if kind else "no step"
    is_missing = kind == "FileNotFoundError" or "No such file or directory" in text
    newest = fault_run.lives[0].saves[-1:] if is_missing else ()
    # An unfinished checkpoint folder that the exception's text names.
    paths = (*fault_run.damaged, *(save.path for save in newest))
    names = [os.path.basename(os.path.dirname(path)) for path in paths]
    folder = next((name for name in names if re.search(r"\d", name) and name in text), "")
    raises = (f"{line} raises it",) if line else ()
    saves = fault_run.lives[0].saves
    if torn:  # other ranks write files of this kind, each save under a new name
        saves = tuple(save for save in saves if fault_run.kind(save.path) == fault_run.kind(torn[-1]))
        is_new = not any(save.path == torn[-1] for save in saves if save.step < fault_run.damaged_step)
    is_partial = is_new if torn else kind == "FileNotFoundError"
    if is_partial and len({save.rank for save in saves}) > 1 and fault_run.fault == "mid-save":
        message = "a rank was killed before its file of the save was whole, and the restarted script takes "
        message += f"the save for complete: it ends with {reason}"
        remedy = (
            "call torch.distributed.barrier() after the files of all ranks, and only then write the name of "
        )
        remedy += "the checkpoint (os.replace); when loading, pass over unfinished ones"
        return Discovery(Cause.TORN, message, remedy, (*raises, *fault_run.writes()))
    if not torn and folder:
        message = (
            f"{folder} is unfinished, and the restarted script takes it for whole: it ends with {reason}"
        )
        remedy = "write to a temporary folder, then os.replace() it; when loading, pass over unfinished ones"
        return Discovery(Cause.TORN, message, remedy + BOTH, (*raises, *fault_run.writes()))
    if not torn:
        return Discovery(Cause.CRASH, f"the restarted script ends with {reason}", "", raises)
    return cut_off(fault_run, torn[-1], f"the restarted script loads it and ends with {reason}", raises)


def crash_after_steps(fault_run: FaultRun, resumed_at: int) -> Discovery | None:
    """Return the finding for an exception that ended the restarted script after some steps, or None."""
    restart = fault_run.restarted
    if not restart.errors or any(rank.end and not rank.error[1] for rank in restart.ranks.values()):
        return None  # errors of ranks whose peer has finished
    line, kind, text = restart.errors[0]
    message = f"resumed at step {resumed_at}; after step {resumed_at + restart.last} the restarted script "
    message += f"ends with {_reason(kind, text)}"
    return Discovery(Cause.CRASH, message, "", (f"{line} raises it",) if line else ())


def _reason(kind: str, text: str) -> str:
    return f"{kind}: {text.splitlines()[0][:160] if text else ''}"


def cut_off(
    fault_run: FaultRun, path: str, then: str, lines: tuple[str, ...] = (), copy: SavedFile | None = None
) -> Discovery:
    """Return the finding for a script that did ``then`` because the file ``path`` is cut off.

    ``copy``: a whole checkpoint, if the caller has found one.
    """
    name = os.path.basename(path)
    # The newest whole file that the script could have loaded instead: an older file of the same kind, or one
    # of a kind that holds the same at the same step.
    life, spoilt = fault_run.lives[0], _spoilt(fault_run)
    final_kinds = _final_kinds(fault_run)
    kinds = map(fault_run.kind, (*fault_run.damaged, path))
    damaged_kinds = {final_kinds.get(kind, kind) for kind in kinds}
    companions = [save for save in life.companions if save.step < fault_run.damaged_step]
    copies = []
    for save in (*life.saves, *(companions if fault_run.of_companion else ())):
        kind = fault_run.kind(save.path)
        if (
            life.dropped(save.path)
            or save.path in fault_run.damaged
            or save.is_removed
            or kind in final_kinds
        ):
            continue
        if kind in fault_run.twins or (kind in damaged_kinds and not spoilt(save)):
            copies.append(save)
    # Of files of several ranks, prefer that of the same rank.
    copy = max(copies, key=lambda save: (save.step, os.path.basename(save.path) == name), default=copy)
    if copy:
        copy_name = os.path.basename(copy.path)
        if os.path.dirname(copy.path) != os.path.dirname(path):
            name, copy_name = (os.path.join(*file.split(os.sep)[-2:]) for file in (path, copy.path))
        message = f"{name} is cut off; {then}, although {copy_name} is whole"
        remedy = "when loading, try the newest, then older ones"
        if fault_run.fault == "damaged":
            remedy += ", as clusterrun.training.Checkpoints does"
        elif fault_run.kind(path) in final_kinds:
            remedy = "when loading, pass over temporary names, and try the newest, then older ones"
        else:
            remedy = f"write to a temporary name, then os.replace(); {remedy}{BOTH}"
        return Discovery(Cause.TORN, message, remedy, (*lines, *fault_run.writes(path)))
    if fault_run.fault == "damaged":
        message = f"{name} is the only checkpoint: with it damaged, {then}"
        remedy = "keep two checkpoints, and load the older one if the newer is damaged"
        return Discovery(Cause.ONLY_ONE, message, remedy, fault_run.writes(path))
    message = f"{name} was overwritten in place and is cut off; {then}: all work is lost"
    remedy = "write to a temporary name in the same folder, then os.replace(temporary, final)"
    return Discovery(Cause.TORN, message, remedy, (*fault_run.writes(path), *lines))


def read_in_part(fault_run: FaultRun) -> str:
    """Return the damaged file if the restarted script read it and read no whole checkpoint; else ''.

    Another file that it read in that folder may be a whole one: an older file under another name.
    """
    read = {path: os.path.dirname(path) for path, _ in fault_run.restarted.loaded}
    saves = fault_run.lives[0].saves
    spoilt = _spoilt(fault_run)
    others = {path for path, folder in read.items() if any(folder == os.path.dirname(s.path) for s in saves)}
    others -= {save.path for save in saves if spoilt(save)} | set(fault_run.damaged)
    return "" if others else next((path for path in read if path in fault_run.damaged), "")


def loaded_in_part(path: str, fault_run: FaultRun) -> Discovery:
    """Return the finding for a script that trains on with a part of the damaged file ``path``."""
    message = (
        f"{os.path.basename(path)} is cut off, and the restarted script trains on with what it read of it"
    )
    remedy = "write each checkpoint under a name of its own, which it gets once it is whole; where loading "
    remedy += "fails, load an older one whole, or end"
    return Discovery(Cause.TORN, message, remedy, (*fault_run.reads([path]), *fault_run.writes(path)))


def torn_reads(fault_run: FaultRun) -> list[str]:
    """Return the files that the restarted script read although they are damaged or have a temporary name."""
    temporary = _final_kinds(fault_run)
    read = [path for path, _ in fault_run.restarted.loaded]
    return [path for path in read if path in fault_run.damaged or fault_run.kind(path) in temporary]


def _final_kinds(fault_run: FaultRun) -> dict[str, str]:
    """Return the kind of the final names by the kind of the temporary names."""
    saves = [save for life in fault_run.lives[:1] for save in life.saves if save.temp]
    return {fault_run.kind(save.temp): fault_run.kind(save.path) for save in saves}


def _spoilt(fault_run: FaultRun) -> Callable[[SavedFile], bool]:
    """Return a predicate: whether a file belongs to a checkpoint that is not whole.

    A file is suspect if it is damaged, or shares folder or step with a damaged file. Every file of a save
    that was interrupted before its last file was renamed is suspect too.
    """
    saves = [save for life in fault_run.lives[:1] for save in life.saves]
    newest = {save.path: save.step for save in saves}  # these are in the order of steps
    steps = {newest[path] for path in fault_run.damaged if path in newest}
    if fault_run.damaged_step and not fault_run.of_companion:
        steps = {fault_run.damaged_step}
    temporary = _final_kinds(fault_run)
    if fault_run.fault in ("mid-save", "disk-full"):
        # Steps whose save has fewer files of a kind than every other save.
        lasting = [save for save in saves if fault_run.kind(save.path) not in temporary]
        files: dict[int, Counter[str]] = {}
        for path, step in {(save.path, save.step) for save in lasting}:
            files.setdefault(step, Counter())[fault_run.kind(path)] += 1
        kinds = {kind for count_by_kind in files.values() for kind in count_by_kind}
        steps |= {
            step
            for step, mine in files.items()
            for kind in kinds
            if mine[kind]
            < min((count_by_kind[kind] for other, count_by_kind in files.items() if other != step), default=0)
        }
    folders = {os.path.dirname(path) for path in fault_run.damaged}
    folders = {folder for folder in folders if re.search(r"\d", os.path.basename(folder))}

    def spoilt(save: SavedFile) -> bool:
        if save.is_removed or fault_run.kind(save.path) in temporary:
            return True  # or it never got its name
        return save.path in fault_run.damaged or save.step in steps or os.path.dirname(save.path) in folders

    return spoilt


def newest_whole(fault_run: FaultRun) -> SavedFile | None:
    """Return the newest whole file of the kind that the restarted script loads."""
    read = {path for path, _ in fault_run.restarted.loaded}
    saves = [save for life in fault_run.lives[:1] for save in life.saves]
    loaded = [save for save in saves if save.path in read]
    final_kinds = _final_kinds(fault_run)

    def kind_of(path: str) -> str:
        kind = fault_run.kind(path)
        return final_kinds.get(kind, kind)

    every_kind = {kind_of(save.path) for save in saves}
    kinds = {kind_of(path) for path in read} & every_kind
    kinds |= {
        kind_of(save.path)
        for save in saves
        # Two files hold the same under different names: written by one line, of one size.
        if any(
            save.line and save.line == other.line and abs(save.size - other.size) <= ALIKE * other.size
            for other in loaded
        )
    }
    spoilt = _spoilt(fault_run)
    if fault_run.of_companion:
        # A script may do without a checkpoint whose companion is damaged.
        saves = [save for save in saves if save.step < fault_run.damaged_step]
    saves = [save for save in saves if not spoilt(save) and (not kinds or kind_of(save.path) in kinds)]
    if fault_run.fault in ("mid-save", "disk-full") and not kinds:
        # The kind to be loaded may be the kind that was cut off, so only a save with all kinds counts.
        whole = {(save.step, kind_of(save.path)) for save in saves}
        saves = [save for save in saves if all((save.step, kind) in whole for kind in every_kind)]
    return max(saves, key=lambda save: save.step, default=None)
