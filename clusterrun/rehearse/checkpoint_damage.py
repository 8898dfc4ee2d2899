"""What the restarted script makes of checkpoint files that are cut off or missing; pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence

from clusterrun.rehearse.discoveries import Cause, Discovery, FaultRun, unknown
from clusterrun.rehearse.rank_trace import SavedFile

BOTH = " (clusterrun.training.Checkpoints does both)"
ALIKE = 0.01
"""By how much the sizes of such files differ at most: numbers in them take more digits, names are longer."""


def no_step_taken(seen: FaultRun) -> Discovery:
    """The restarted ranks made no step."""
    last = seen.restarted
    torn = [path for path, _ in last.loaded if path in seen.damaged]
    if not last.errors and not (torn and all(rank.end == "exit" for rank in last.ranks.values())):
        return unknown(f"the restarted ranks took no step, and no exception says why: {seen.tail}")
    line, kind, text = last.errors[0] if last.errors else ("", "", "")
    words = f"{kind}: {text.splitlines()[0][:160] if text else ''}" if kind else "no step"
    newest = seen.lives[0].saves[-1:] if kind == "FileNotFoundError" else ()
    folder = _unfinished((*seen.damaged, *(save.path for save in newest)), text)
    raises = (f"{line} raises it",) if line else ()
    if not torn and folder:
        said = f"{folder} is unfinished, and the restarted script takes it for whole: it ends with {words}"
        remedy = "write to a temporary folder, then os.replace() it; when loading, pass over unfinished ones"
        return Discovery(Cause.TORN, said, remedy + BOTH, (*raises, *seen.writes()))
    if not torn:
        return Discovery(Cause.CRASH, f"the restarted script ends with {words}", "", raises)
    return cut_off(seen, torn[-1], f"the restarted script loads it and ends with {words}", raises)


def cut_off(
    seen: FaultRun, path: str, then: str, lines: tuple[str, ...] = (), copy: SavedFile | None = None
) -> Discovery:
    """The file ``path`` is cut off, and the restarted script did ``then`` instead of training on.

    ``copy``: a whole checkpoint that is known already.
    """
    name = os.path.basename(path)
    copy = _whole_copy(seen) or copy
    if copy:
        copy_name = os.path.basename(copy.path)
        if copy_name == name:
            copy_name = os.path.join(os.path.basename(os.path.dirname(copy.path)), copy_name)
        said = f"{name} is cut off; {then}, although {copy_name} is whole"
        remedy = "write to a temporary name, then os.replace(); when loading, try the newest, then older ones"
        return Discovery(Cause.TORN, said, remedy + BOTH, (*lines, *seen.writes(path)))
    if seen.fault == "damaged":
        said = f"{name} is the only checkpoint: with it damaged, {then}"
        remedy = "keep two checkpoints, and load the older one where the newer is damaged"
        return Discovery(Cause.ONLY_ONE, said, remedy, seen.writes(path))
    said = f"{name} was overwritten in place and is cut off; {then}: all work is lost"
    remedy = "write to a temporary name in the same folder, then os.replace(temporary, final)"
    return Discovery(Cause.TORN, said, remedy, (*seen.writes(path), *lines))


def read_in_part(seen: FaultRun) -> str:
    """The file that is cut off, where the restarted script read it, and nothing of a whole checkpoint.

    What else it read in that folder may be one: an older file under another name.
    """
    read = {path: os.path.dirname(path) for path, _ in seen.restarted.loaded}
    saves = seen.lives[0].saves
    spoilt = _spoilt(seen)
    others = {path for path, folder in read.items() if any(folder == os.path.dirname(s.path) for s in saves)}
    others -= {save.path for save in saves if spoilt(save)} | set(seen.damaged)
    return "" if others else next((path for path in read if path in seen.damaged), "")


def loaded_in_part(path: str, seen: FaultRun) -> Discovery:
    """The restarted script trains on with what it could read of a file that is cut off."""
    said = f"{os.path.basename(path)} is cut off, and the restarted script trains on with what it read of it"
    remedy = "write each checkpoint under a name of its own, which it gets once it is whole; where loading "
    remedy += "fails, load an older one whole, or end"
    return Discovery(Cause.TORN, said, remedy, (*seen.reads([path]), *seen.writes(path)))


def _unfinished(damaged: Sequence[str], text: str) -> str:
    """The folder of a checkpoint that was not written to its end, where an exception speaks of it."""
    names = (os.path.basename(os.path.dirname(path)) for path in damaged)
    return next((name for name in names if re.search(r"\d", name) and name in text), "")


def _whole_copy(seen: FaultRun) -> SavedFile | None:
    """Return the newest whole file that the script could have loaded instead of the damaged one.

    It is an older file of the same kind, or one of a kind that holds the same at the same step.
    """
    life, spoilt = seen.lives[0], _spoilt(seen)
    damaged_kinds = {seen.kind(path) for path in seen.damaged}
    temporary = _temporary_kinds(seen, life.saves)
    copies = []
    for save in life.saves:
        kind = seen.kind(save.path)
        if life.dropped(save.path) or save.path in seen.damaged or save.gone or kind in temporary:
            continue
        if kind in seen.twins or (kind in damaged_kinds and not spoilt(save)):
            copies.append(save)
    return max(copies, key=lambda save: save.step, default=None)


def _temporary_kinds(seen: FaultRun, saves: Sequence[SavedFile]) -> set[str]:
    return {seen.kind(save.temp) for save in saves if save.temp}


def _spoilt(seen: FaultRun) -> Callable[[SavedFile], bool]:
    """Whether a file is of no whole checkpoint: damaged, or in the folder or of the step of one that is.

    So is one of a save that was cut off before the last of its files had its name.
    """
    saves = [save for life in seen.lives[:1] for save in life.saves]
    newest = {save.path: save.step for save in saves}  # these are in the order of steps
    steps = {newest[path] for path in seen.damaged if path in newest}
    if seen.damaged_step:
        steps = {seen.damaged_step}
    temporary = _temporary_kinds(seen, saves)
    if seen.fault in ("mid-save", "disk-full"):
        steps |= _incomplete(seen, [save for save in saves if seen.kind(save.path) not in temporary])
    folders = {os.path.dirname(path) for path in seen.damaged}
    folders = {one for one in folders if re.search(r"\d", os.path.basename(one))}

    def spoilt(save: SavedFile) -> bool:
        if save.gone or seen.kind(save.path) in temporary:
            return True  # or it never got its name
        return save.path in seen.damaged or save.step in steps or os.path.dirname(save.path) in folders

    return spoilt


def _incomplete(seen: FaultRun, saves: Sequence[SavedFile]) -> set[int]:
    """Steps whose save has fewer files of a kind than every other save has."""
    files: dict[int, Counter[str]] = {}
    for path, step in {(save.path, save.step) for save in saves}:
        files.setdefault(step, Counter())[seen.kind(path)] += 1
    kinds = {kind for one in files.values() for kind in one}
    return {
        step
        for step, mine in files.items()
        for kind in kinds
        if mine[kind] < min((one[kind] for other, one in files.items() if other != step), default=0)
    }


def newest_whole(seen: FaultRun) -> SavedFile | None:
    """The newest whole save, of the kind that the restarted script loads, before it was restarted."""
    read = {path for path, _ in seen.restarted.loaded}
    saves = [save for life in seen.lives[:1] for save in life.saves]
    loaded = [save for save in saves if save.path in read]
    kinds = {seen.kind(path) for path in read} & {seen.kind(save.path) for save in saves}
    kinds |= {seen.kind(save.path) for save in saves if any(_alike(save, one) for one in loaded)}
    several = len({seen.kind(save.path) for save in saves}) > 1
    if seen.fault in ("mid-save", "disk-full") and not kinds and several:
        return None  # the one to be loaded may be the one that was cut off
    spoilt = _spoilt(seen)
    whole = (s for s in saves if not spoilt(s) and (not kinds or seen.kind(s.path) in kinds))
    return max(whole, key=lambda save: save.step, default=None)


def _alike(one: SavedFile, other: SavedFile) -> bool:
    """Whether two files hold the same, under different names: written by one line, of one size."""
    return bool(one.line) and one.line == other.line and abs(one.size - other.size) <= ALIKE * other.size
