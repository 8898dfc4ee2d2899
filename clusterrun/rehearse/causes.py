"""What a rehearsal found: the cause, named by what differs first, and what to write instead; pure.

An accusation needs a proof in the traces. What is not proven is UNKNOWN, never a guess.
"""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from clusterrun.model.frozen import frozen
from clusterrun.rehearse.loss_spread import LossSpread, spread
from clusterrun.rehearse.rank_trace import Life, SavedFile, pattern
from clusterrun.rehearse.resumption import (
    LOST_GRADIENT,
    OTHERS,
    SAME_LOSS,
    FirstDifference,
    Reference,
    counted,
    differences,
    moves,
    reference,
    resumed,
)


class Severity(enum.Enum):
    """How bad it is: a note is worth knowing, and fails nothing."""

    OK = "ok"
    NOTE = "note"
    FAIL = "FAIL"
    UNKNOWN = "unknown"


class Cause(enum.Enum):
    """The names of what can be found, as in ``--json``."""

    NONE = ""
    NOT_DETERMINISTIC = "not-deterministic"
    NO_STEPS = "no-steps"
    SCRIPT_FAILS = "script-fails"
    NO_CHECKPOINT = "no-checkpoint"
    TWO_WRITERS = "two-writers"
    NEVER_DROPPED = "never-dropped"
    NEVER_RESUMED = "never-resumed"
    TOO_FAR_BACK = "resumed-too-far-back"
    RANKS_DISAGREE = "ranks-resume-at-different-steps"
    PARAMETERS = "parameters-not-restored"
    OPTIMIZER = "optimizer-not-restored"
    RATES = "learning-rate-not-restored"
    SCHEDULER = "scheduler-not-restored"
    SCALER = "scaler-not-restored"
    AVERAGES = "averages-not-restored"
    BUFFERS = "buffers-not-restored"
    DATA = "data-order-not-restored"
    RANDOM = "random-state-not-restored"
    TORN = "torn-checkpoint-loaded"
    CRASH = "restart-fails"
    NOTICE_UNHEARD = "notice-unheard"
    NOTICE_IGNORED = "notice-ignored"
    NOTICE_UNSAVED = "notice-without-save"
    SAVE_TOO_SLOW = "save-slower-than-notice"
    ONLY_ONE = "only-one-checkpoint"
    UNDETERMINED = "undetermined"


@frozen
class Discovery:
    """One result; ``lines`` are places in the script, ``remedy`` is what to write instead."""

    level: Severity
    cause: Cause
    said: str
    remedy: str = ""
    lines: tuple[str, ...] = ()
    step: int = 0


@frozen
class Observed:
    """What one fault did: every start of the ranks, in order, and how the run ended.

    ``struck_at``: the steps that were done when the fault came. ``until``: seconds of notice that were given
    (0: none), ``took``: seconds until the ranks had ended by themselves (None: they were ended).
    """

    fault: str
    lives: tuple[Life, ...]
    struck_at: int
    until: float = 0.0
    took: float | None = None
    damaged: tuple[str, ...] = ()
    elastic: bool = False
    tail: str = ""

    @property
    def restarted(self) -> Life:
        """The start that is judged: the first after the fault that took a step, or the first that did not."""
        after = [life for life in self.lives[1:] if not any(one.struck for one in life.ranks.values())]
        stepped = (life for life in after if any(one.before for one in life.ranks.values()))
        return next(stepped, (after or self.lives)[0])


def expected(first: Life, differs: str, start: Life) -> Reference:
    """What a restart after ``start`` should compute; ``differs``: in what undisturbed runs differ, or ''.

    Of runs that differ by themselves, each can be compared with its own past alone.
    """
    return reference(start if differs else first, start)


def judge(
    first: Life, differs: str, seen: Observed, second: Life | None = None, known: Reference | None = None
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
        return (_came_to_its_end(start) if _complete(seen) else _no_step(seen),)
    notice = _notice(known, seen)
    if not moves(first):
        return (unknown("no step changes the weights: from which step a restart goes on cannot be seen"),)
    steps = resumed(known, last)
    wrong = _where(seen, known, steps)
    if wrong:
        if wrong.cause is Cause.PARAMETERS and (path := _read_in_part(seen)):
            wrong = _in_part(path, seen)
        return (wrong,)  # what that loses is no fault of how the notice was met
    at = next(step for step in steps.values() if step is not None)
    if seen.elastic:
        size = f"{len(last.ranks)} rank{'s' if len(last.ranks) > 1 else ''}"
        return (Discovery(Severity.OK, Cause.NONE, f"resumed at step {at} on {size}"),)
    found = differences(known, last, at)
    if differs:  # arithmetic may differ by itself; what a checkpoint holds may not
        found = tuple(one for one in found if one.part in RESTORED and one.part != differs)
    if found and at == 0 and _loaded_beside(seen, found[0]):
        return (_left_out(seen) or _weights(seen, steps, _made(seen)),)
    if [one.part for one in found] == ["rounding"]:
        return (*notice, _rounded(first, seen, at, found[0]))
    if found and (path := _read_in_part(seen)):
        return (_in_part(path, seen),)
    if found:
        return (*_differences(known, seen, at, found), *notice)
    apart = spread(first, second, last, at) if differs and second else None
    return (_equal(seen, at, last, not differs, notice, apart),) + tuple(
        one for one in notice if one.level is not Severity.OK
    )


def _differences(
    known: Reference, seen: Observed, at: int, found: Sequence[FirstDifference]
) -> list[Discovery]:
    """What each difference proves, the first in time first."""
    last = seen.restarted
    head = f"resumed at step {at}; step {found[0].step} differs: "
    of_data = found[0].part == "data"
    count = counted(known, (seen.lives[0], last), at, at + last.last) if of_data else (0, 0)
    return [_difference(one, head if not i else "", seen, count, at) for i, one in enumerate(found)]


def _rounded(first: Life, seen: Observed, at: int, one: FirstDifference) -> Discovery:
    """Forward equal to the bit, weights not: the sum over more than two ranks; the losses must stay close."""
    for rank, trace in seen.restarted.ranks.items():
        right = {step.n: step.loss for step in first.ranks[rank].steps} if rank in first.ranks else {}
        for step in trace.steps:
            loss = right.get(at + step.n)
            if loss is None or step.loss is None or abs(step.loss - loss) <= CLOSE * max(1.0, abs(loss)):
                continue
            said = (
                f"step {one.step} is equal but for rounding, and at step {at + step.n} the losses have parted"
            )
            return unknown(
                f"{said}: {step.loss:.6g} instead of {loss:.6g}; rehearse with 2 ranks to compare by bits"
            )
    lost = max(0, seen.struck_at - at)
    cost = f", {lost} steps done again" if lost else ""
    said = f"resumed at step {at}{cost}; equal to the last bit up to the sum of the gradients of"
    return Discovery(
        Severity.OK, Cause.NONE, f"{said} {len(seen.restarted.ranks)} ranks, then but for rounding", step=at
    )


CLOSE = 0.05
"""How far losses may part, as a share, that began equal but for rounding."""
RESTORED = ("weights", "state", "rates", "scheduler", "data")


def unknown(said: str, remedy: str = "", lines: tuple[str, ...] = ()) -> Discovery:
    """What cannot be said; the remedy is what to look at."""
    return Discovery(Severity.UNKNOWN, Cause.UNDETERMINED, said, remedy, lines)


def _equal(
    seen: Observed,
    at: int,
    last: Life,
    deterministic: bool,
    notice: Sequence[Discovery],
    apart: LossSpread | None,
) -> Discovery:
    taken = last.last or max(rank.last for rank in last.ranks.values())  # ranks may go on alone for a while
    if taken < 1:
        return unknown(f"resumed at step {at}, but no step was taken after it: {seen.tail}")
    if apart and apart.parted:
        why = "what was not restored cannot be named while undisturbed runs differ"
        return unknown(f"resumed at step {at}; then {apart}: {why}")
    heard = next((one for one in notice if one.level is Severity.OK), None)
    if heard:
        return heard
    lost = max(0, seen.struck_at - at)
    cost = f", {lost} steps done again" if lost else ""
    same = f"{taken} steps equal to the last bit" if deterministic else "what was saved is restored"
    same += f", {apart}" if apart else ""
    return Discovery(Severity.OK, Cause.NONE, f"resumed at step {at}{cost}; {same}", step=at)


def _no_step(seen: Observed) -> Discovery:
    """The restarted ranks made no step."""
    last = seen.restarted
    torn = [path for path, _ in last.loaded if path in seen.damaged]
    if not last.errors and not (torn and all(rank.end == "exit" for rank in last.ranks.values())):
        return unknown(f"the restarted ranks took no step, and no exception says why: {seen.tail}")
    line, kind, text = last.errors[0] if last.errors else ("", "", "")
    words = f"{kind}: {text.splitlines()[0][:160] if text else ''}" if kind else "no step"
    newest = seen.lives[0].saves[-1:] if kind == "FileNotFoundError" else ()
    folder = _unfinished((*seen.damaged, *(save.path for save in newest)), text)
    if not torn and folder:
        return Discovery(
            Severity.FAIL,
            Cause.TORN,
            f"{folder} is unfinished, and the restarted script takes it for whole: it ends with {words}",
            "write to a temporary folder, then os.replace() it; when loading, pass over unfinished ones"
            " (clusterrun.training.Checkpoints does both)",
            (*_raises(line), *_writes(seen)),
        )
    if not torn:
        said = f"the restarted script ends with {words}"
        return Discovery(Severity.FAIL, Cause.CRASH, said, "", _raises(line))
    return _torn(seen, os.path.basename(torn[-1]), line, words)


def _torn(seen: Observed, name: str, line: str, words: str) -> Discovery:
    """The restarted script loads a file that is cut off, and makes no step."""
    if _whole_before(seen):
        return Discovery(
            Severity.FAIL,
            Cause.TORN,
            f"{name} is cut off, the restarted script loads it and ends with {words};"
            " a whole checkpoint lies beside",
            "write to a temporary name, then os.replace(); when loading, try the newest, then older ones"
            " (clusterrun.training.Checkpoints does both)",
            (*_raises(line), *_writes(seen)),
        )
    return _no_other(name, words, line, seen)


def _read_in_part(seen: Observed) -> str:
    """The file that is cut off, where the restarted script read it, and nothing of a whole checkpoint.

    What else it read in that folder may be one: an older file under another name.
    """
    read = {path: os.path.dirname(path) for path, _ in seen.restarted.loaded}
    saves = seen.lives[0].saves
    spoilt = _spoilt(seen)
    others = {path for path, folder in read.items() if any(folder == os.path.dirname(s.path) for s in saves)}
    others -= {save.path for save in saves if spoilt(save)} | set(seen.damaged)
    return "" if others else next((path for path in read if path in seen.damaged), "")


def _in_part(path: str, seen: Observed) -> Discovery:
    """The restarted script trains on with what it could read of a file that is cut off."""
    said = f"{os.path.basename(path)} is cut off, and the restarted script trains on with what it read of it"
    remedy = (
        "write each checkpoint under a name of its own, which it gets once it is whole; where loading fails,"
        " load an older one whole, or end"
    )
    lines = (*_reads(seen.restarted, [path]), *_writes(seen))
    return Discovery(Severity.FAIL, Cause.TORN, said, remedy, lines)


def _no_other(name: str, words: str, line: str, seen: Observed) -> Discovery:
    """The checkpoint that is cut off was the only one."""
    if seen.fault == "damaged":
        return Discovery(
            Severity.NOTE,
            Cause.ONLY_ONE,
            f"{name} is the only checkpoint: with it damaged, the restarted script ends with {words}",
            "keep two checkpoints, and load the older one where the newer is damaged",
            _writes(seen),
        )
    return Discovery(
        Severity.FAIL,
        Cause.TORN,
        f"{name} was overwritten in place and is cut off; the restarted script ends with {words}:"
        " all work is lost",
        "write to a temporary name in the same folder, then os.replace(temporary, final)",
        (*_writes(seen), *_raises(line)),
    )


def _unfinished(damaged: Sequence[str], text: str) -> str:
    """The folder of a checkpoint that was not written to its end, where an exception speaks of it."""
    names = (os.path.basename(os.path.dirname(path)) for path in damaged)
    return next((name for name in names if re.search(r"\d", name) and name in text), "")


def _raises(line: str) -> tuple[str, ...]:
    return (f"{line} raises it",) if line else ()


def _whole_before(seen: Observed) -> bool:
    """Whether a checkpoint of the same kind, under another name, was whole when the script was restarted."""
    kinds = {pattern(path) for path in seen.damaged}
    life = seen.lives[0]
    spoilt = _spoilt(seen)
    return any(
        not spoilt(save) and not life.dropped(save.path) and pattern(save.path) in kinds
        for save in life.saves
    )


def _spoilt(seen: Observed) -> Callable[[SavedFile], bool]:
    """Whether a file is of no whole checkpoint: damaged, or in the folder or of the step of one that is.

    So is one of a save that was cut off before the last of its files had its name.
    """
    saves = [save for life in seen.lives[:1] for save in life.saves]
    steps = {
        max(save.step for save in saves if save.path == path)
        for path in seen.damaged
        if any(save.path == path for save in saves)
    }
    if seen.fault in ("mid-save", "disk-full"):
        steps |= _incomplete(saves)
    folders = {os.path.dirname(path) for path in seen.damaged}
    folders = {one for one in folders if re.search(r"\d", os.path.basename(one))}

    temporary = {pattern(save.temp) for save in saves if save.temp}

    def spoilt(save: SavedFile) -> bool:
        if save.gone or pattern(save.path) in temporary:
            return True  # or it never got its name
        return save.path in seen.damaged or save.step in steps or os.path.dirname(save.path) in folders

    return spoilt


def _incomplete(saves: Sequence[SavedFile]) -> set[int]:
    """Steps whose save has fewer files of a kind than every other save has."""
    files: dict[int, Counter[str]] = {}
    for path, step in {(save.path, save.step) for save in saves}:
        files.setdefault(step, Counter())[pattern(path)] += 1
    kinds = {kind for one in files.values() for kind in one}
    return {
        step
        for step, mine in files.items()
        for kind in kinds
        if mine[kind] < min((one[kind] for other, one in files.items() if other != step), default=0)
    }


def _writes(seen: Observed) -> tuple[str, ...]:
    """Where the script writes its checkpoints."""
    line = next((save.line for save in reversed(seen.lives[0].saves)), "")
    return (f"{line} writes the checkpoint",) if line else ()


def _reads(life: Life, among: Sequence[str]) -> tuple[str, ...]:
    """Where it reads what is ``among`` these paths."""
    lines = [line for path, line in life.loaded if line and path in among]
    return tuple(f"{line} reads it" for line in dict.fromkeys(lines))


def _available(seen: Observed) -> SavedFile | None:
    """The newest whole save, of the kind that the restarted script loads, before it was restarted."""
    read = {path for path, _ in seen.restarted.loaded}
    saves = [save for life in seen.lives[:1] for save in life.saves]
    kinds = {pattern(path) for path in read} & {pattern(save.path) for save in saves}
    kinds |= {
        pattern(save.path) for save in saves if any(_alike(save, one) for one in saves if one.path in read)
    }
    if (
        seen.fault in ("mid-save", "disk-full")
        and not kinds
        and len({pattern(save.path) for save in saves}) > 1
    ):
        return None  # the one to be loaded may be the one that was cut off
    spoilt = _spoilt(seen)
    return max(
        (s for s in saves if not spoilt(s) and (not kinds or pattern(s.path) in kinds)),
        key=lambda save: save.step,
        default=None,
    )


def _alike(one: SavedFile, other: SavedFile) -> bool:
    """Whether two files hold the same, under different names: written by one line, of one size."""
    return bool(one.line) and one.line == other.line and abs(one.size - other.size) <= ALIKE * other.size


ALIKE = 0.01
"""By how much the sizes of such files differ at most: numbers in them take more digits, names are longer."""


def _where(seen: Observed, known: Reference, steps: Mapping[int, int | None]) -> Discovery | None:
    """What is wrong with the step from which the ranks go on; None where that is as it should be."""
    last = seen.restarted
    newest = _available(seen)
    written = [save.path for save in seen.lives[0].saves]
    lines = _reads(last, written) if set(written) & {path for path, _ in last.loaded} else ()
    values = set(steps.values())
    if lines and values & {None, 0} and (partial := _left_out(seen)):
        return partial
    if None in values:
        return _of_no_step(seen, known, steps, newest, lines)
    if len(values) > 1:
        places = ", ".join(f"rank {rank} at {step}" for rank, step in steps.items())
        remedy = "let rank 0 choose the checkpoint and broadcast its name; a set counts once it is whole"
        said = f"ranks resume at different steps: {places}"
        return Discovery(Severity.FAIL, Cause.RANKS_DISAGREE, said, remedy, lines)
    (at,) = values
    if newest is None and at == 0 and seen.damaged:
        return _all_lost(seen)
    if at is None or newest is None or at >= newest.step:
        return None
    if at == 0:
        return _never(newest, seen, lines)
    return Discovery(
        Severity.FAIL,
        Cause.TOO_FAR_BACK,
        f"resumed at step {at}, though {os.path.basename(newest.path)} of step {newest.step} was whole:"
        f" {seen.struck_at - at} steps done again",
        "load the newest whole checkpoint: compare steps as numbers, not file names as text",
        (*lines, *_writes(seen)),
        at,
    )


def _of_no_step(
    seen: Observed,
    known: Reference,
    steps: Mapping[int, int | None],
    newest: SavedFile | None,
    lines: tuple[str, ...],
) -> Discovery:
    """The weights before the first step are those of no step, on some rank."""
    if set(steps.values()) != {None} or lines or seen.elastic:
        return _weights(seen, steps, lines)
    last = seen.restarted
    empty = {r: {o: state for o, (_, state) in one.items()} for r, one in known.initial.items()}
    fresh = all(
        state == empty.get(r, {}).get(o) for r in steps for o, (_, state) in last.ranks[r].before.items()
    )
    moved = any(
        s.state != empty.get(r, {}).get(s.optimizer) for r, one in known.steps.items() for s in one.values()
    )
    if fresh and moved and newest and not last.loaded:
        return _never(newest, seen, lines)
    return unknown("the weights before the first step are those of no step, and no checkpoint was seen read")


def _all_lost(seen: Observed) -> Discovery | None:
    """The damaged file was the only one, and the script begins anew; None where nothing was lost by that."""
    name = os.path.basename(seen.damaged[-1])
    if seen.fault == "damaged":
        said = f"{name} is the only checkpoint: with it damaged, training begins at step 0"
        remedy = "keep two checkpoints, and load the older one where the newer is damaged"
        return Discovery(Severity.NOTE, Cause.ONLY_ONE, said, remedy, _writes(seen))
    older = [save for save in seen.lives[0].saves if save.step < seen.struck_at]
    if not any(save.path in seen.damaged or save.gone for save in older):
        return None
    if not any(save.path in seen.damaged for save in older):
        said = f"{os.path.basename(older[-1].path)} was removed before {name} was whole: all work is lost"
        remedy = "remove the old checkpoint only once the new one has its final name (os.replace)"
        return Discovery(Severity.FAIL, Cause.TORN, said, remedy, _writes(seen))
    said = f"{name} was overwritten in place and is cut off; training begins at step 0: all work is lost"
    remedy = "write to a temporary name in the same folder, then os.replace(temporary, final)"
    return Discovery(Severity.FAIL, Cause.TORN, said, remedy, _writes(seen))


def _never(newest: SavedFile, seen: Observed, lines: tuple[str, ...]) -> Discovery:
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
    return Discovery(Severity.FAIL, Cause.NEVER_RESUMED, said, remedy, (*lines, *_writes(seen)))


def _weights(seen: Observed, steps: Mapping[int, int | None], lines: tuple[str, ...]) -> Discovery:
    if seen.elastic:
        return unknown(
            "the weights before the first step are those of no step (ranks may hold other pieces now)"
        )
    ranks = [rank for rank, step in steps.items() if not step]
    whose = "those of no step" if None in steps.values() else "those of step 0"
    who = "all ranks" if len(ranks) == len(steps) else "rank " + ", ".join(map(str, ranks))
    return Discovery(
        Severity.FAIL,
        Cause.PARAMETERS,
        f"a checkpoint was read, but the weights before the first step are {whose} on {who}:"
        " a part of them is not saved, not loaded, or changed on the way",
        "save and load model.state_dict() whole, on every rank, with strict=True and in its own precision",
        lines,
    )


def _left_out(seen: Observed) -> Discovery | None:
    """The weights were loaded under names that the model does not have; None where that was not seen.

    What the first start left out too (a file of other weights to begin with) is no fault.
    """
    begun = {trace.partial for trace in seen.lives[0].ranks.values()}
    for rank, trace in sorted(seen.restarted.ranks.items()):
        line, missing, unknown_names, name = trace.partial
        if not missing or not unknown_names or trace.partial in begun:
            continue
        return Discovery(
            Severity.FAIL,
            Cause.PARAMETERS,
            f"model.load_state_dict(…, strict=False) at {line} left the weights as they were (rank {rank}):"
            f" the file lacks {missing} names of the model, and has {unknown_names} that the model lacks"
            f" ({name})",
            "save and load the same module, so that names are equal (DDP's begin with module.: save"
            " ddp.module.state_dict()), and load with strict=True",
            _made(seen),
        )
    return None


def _loaded_beside(seen: Observed, one: FirstDifference) -> bool:
    """Whether a part of a later step was loaded where the weights are those of step 0."""
    return one.part in SAVED_AS and bool(seen.restarted.called(SAVED_AS[one.part][0], "load_state_dict"))


WORDS = {
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
}
SAVED_AS = {
    "state": ("optimizer", Cause.OPTIMIZER, "optimizer"),
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


def _difference(
    one: FirstDifference, head: str, seen: Observed, count: tuple[int, int], at: int
) -> Discovery:
    """The cause that a part's difference proves."""
    head = head or f"at step {one.step} also differs: "
    what = f"{head}{WORDS[one.part]} (rank {one.rank}{' ' if one.detail else ''}{one.detail})"
    if one.part in SAVED_AS:
        return _unsaved(one, head, seen, late=one.step > at + 1)
    if one.part == "data":
        return _order(one, what, seen, count)
    if one.part in ("random", "content"):
        return _random(one, head, seen)
    if one.part == "weights":
        said = f"{head}the weights {one.detail} (rank {one.rank})"
        remedy = "save and load the state_dict() of every model that is trained"
        return _part(one, said, Cause.PARAMETERS, remedy, seen)
    if one.part == "averages":
        if one.detail:
            what = (
                f"{head}a copy of the weights (a second network, an average) {one.detail} (rank {one.rank})"
            )
        remedy = "save every copy of the weights that lives on (average, target network), and load it"
        return _part(one, what, Cause.AVERAGES, remedy, seen)
    if one.part == "buffers":
        remedy = (
            "save model.state_dict(), not only model.parameters(): it holds running means and counters too"
        )
        return _part(one, what, Cause.BUFFERS, remedy, seen)
    if one.part == "unseen":
        return unknown(f"{what}; all else that can be seen is equal before", OWN_ROWS, _made(seen))
    return _unexplained(one, head, seen)


def _order(one: FirstDifference, what: str, seen: Observed, count: tuple[int, int]) -> Discovery:
    """The samples are others, or come in another order."""
    repeated, left_out = count
    counts = f"; over the run {repeated} samples are repeated, {left_out} left out" if any(count) else ""
    remedy = COUNT_ON + RESTORE_RANDOM if seen.restarted.ranks[one.rank].drawn_by_hand else SKIP_BATCHES
    if one.detail == OTHERS:
        remedy = f"{OWN_ROWS}; {remedy}"
    if LOST_GRADIENT in one.detail:
        remedy = "save only right after optimizer.step(), where no gradient is accumulated"
    return Discovery(Severity.FAIL, Cause.DATA, what + counts, remedy, _made(seen), one.step)


def _unexplained(one: FirstDifference, head: str, seen: Observed) -> Discovery:
    """Of all that can be seen the weights alone are others after a step: its loss tells where to look."""
    said = f"{head}{WORDS[one.part]} after it (rank {one.rank})"
    remedy = f"{OWN_STATE}, {OWN_GRADIENTS}"
    if one.detail:
        said, remedy = f"{said}; {one.detail}", OWN_GRADIENTS if one.detail == SAME_LOSS else OWN_STATE
    return unknown(f"{said}; all else that can be seen is equal", remedy, _made(seen))


def _random(one: FirstDifference, head: str, seen: Observed) -> Discovery:
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
    return Discovery(Severity.FAIL, Cause.RANDOM, said, remedy, _made(seen), one.step)


def _part(one: FirstDifference, said: str, cause: Cause, remedy: str, seen: Observed) -> Discovery:
    return Discovery(Severity.FAIL, cause, said, remedy, _made(seen), one.step)


def _made(seen: Observed) -> tuple[str, ...]:
    """Where the checkpoint is written and read."""
    return (*_writes(seen), *_reads(seen.restarted, [save.path for save in seen.lives[0].saves]))


def _unsaved(one: FirstDifference, head: str, seen: Observed, late: bool) -> Discovery:
    """A part that has a state_dict: whether it was not saved, or not loaded."""
    name, cause, said = SAVED_AS[one.part]
    saved = seen.lives[0].called(name, "state_dict")
    loaded = seen.restarted.called(name, "load_state_dict")
    words = {"state": "the optimizer's state", "rates": f"the learning rate is {one.detail}"}.get(
        one.part, said
    )
    if one.part == "state" and one.detail.startswith("of "):
        return _one_of_many(one, head, loaded, _made(seen))
    if one.part == "state" and one.detail:
        words += " begins anew"
    if one.part == "rates" and not any(
        step.schedulers for t in seen.restarted.ranks.values() for step in t.steps
    ):
        words += f" (rank {one.rank}): no scheduler of torch's sets it"
        if late:
            words += ", and it was right before this step"
        remedy = (
            "save and restore what decides when the rate changes: the best value, counters of bad evaluations"
            if late
            else "after optimizer.load_state_dict(…), set none of it anew; compute what changes while"
            " training from the number of the step that was loaded"
        )
        return Discovery(Severity.FAIL, cause, f"{head}{words}", remedy, _made(seen), one.step)
    if not loaded:
        why = f"{name}.load_state_dict was not called"
        why += "" if saved else f", nor {name}.state_dict when saving"
    else:
        why = f"{name}.load_state_dict was called at {loaded}, and something changed it afterwards"
    remedy = (
        f"call {name}.load_state_dict(…) after the last line that makes or sets the {name} anew"
        if loaded
        else f"save {name}.state_dict() with the model, and {name}.load_state_dict(…) after both are made"
    )
    lines = ((f"{saved} takes {name}.state_dict()",) if saved else ()) + _made(seen)
    return Discovery(Severity.FAIL, cause, f"{head}{words} (rank {one.rank}): {why}", remedy, lines, one.step)


def _one_of_many(one: FirstDifference, head: str, loaded: str, lines: tuple[str, ...]) -> Discovery:
    """The state of one of several optimizers."""
    called = f"; load_state_dict of one was called at {loaded}" if loaded else ""
    said = f"{head}the state {one.detail} (rank {one.rank}){called}"
    remedy = "save the state_dict() of every optimizer, and load each after it is made"
    return Discovery(Severity.FAIL, Cause.OPTIMIZER, said, remedy, lines, one.step)


# --- notice ---


def _complete(seen: Observed) -> bool:
    """The run that had notice came to the end of its training: the next one finds nothing left to do."""
    last = seen.restarted
    return bool(seen.until and not last.errors and all(one.end == "exit" for one in last.ranks.values()))


def _came_to_its_end(life: Life) -> Discovery:
    """The script may have ended because it was done: nothing is said of the notice but whether it listens."""
    hears = any(trace.steps and trace.steps[-1].hears for trace in life.ranks.values())
    said = f"the script came to its end at step {life.last}, soon after the notice"
    if hears:
        return unknown(f"{said}: give it more to do, and rehearse again")
    return Discovery(Severity.NOTE, Cause.NOTICE_UNHEARD, f"{said}, and does not listen for it")


def _unheard(lost: str) -> Discovery:
    remedy = "clusterrun.training.should_stop(), or a handler for SIGUSR2 that lets the loop save and end"
    said = f"the script does not listen for the notice: {lost}"
    return Discovery(Severity.NOTE, Cause.NOTICE_UNHEARD, said, remedy)


def _notice(known: Reference, seen: Observed) -> tuple[Discovery, ...]:
    """How the script met the notice, where there was one."""
    life, after = seen.lives[0], seen.restarted
    at = max((step for step in resumed(known, after).values() if step is not None), default=None)
    if not seen.until or at is None:
        return ()
    hears = any(trace.steps and trace.steps[-1].hears for trace in life.ranks.values())
    done = max((trace.last for trace in life.ranks.values()), default=0)
    lost = done - at
    if lost <= 0 and (hears or seen.took is not None):
        ended = f"and ended in {seen.took:.1f} s of" if seen.took is not None else "; it was ended after"
        said = f"notice heard, saved {ended} {seen.until:g} s; resumed at step {at}".replace(" ;", ";")
        return (Discovery(Severity.OK, Cause.NONE, said, step=at),)
    if lost <= 0:
        return (_unheard("no step is lost only because it had just saved"),)
    reached = at + max((trace.last for trace in after.ranks.values()), default=0)
    if seen.took is not None and reached <= done:
        return (_came_to_its_end(life),)
    if seen.took is not None:
        said = f"ended at the notice without saving: {lost} steps are lost"
        remedy = "save a checkpoint before ending: if should_stop(): save(); break"
        return (Discovery(Severity.FAIL, Cause.NOTICE_UNSAVED, said, remedy),)
    if not hears:
        return (_unheard(f"{lost} steps are lost"),)
    if done - seen.struck_at <= 2:
        said = f"the save at the notice was not done within {seen.until:g} s: {lost} steps are lost"
        remedy = "give more notice (--notice), or save faster (each rank its part, a local disk first)"
        return (Discovery(Severity.FAIL, Cause.SAVE_TOO_SLOW, said, remedy, _writes(seen)),)
    said = f"the notice reaches a handler, but {done - seen.struck_at} steps later the script had not ended"
    remedy = "test the flag that the handler sets after every step, save, and end with exit code 0"
    return (Discovery(Severity.FAIL, Cause.NOTICE_IGNORED, f"{said}: {lost} steps are lost", remedy),)
