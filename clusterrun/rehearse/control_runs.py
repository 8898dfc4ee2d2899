"""Judge the undisturbed runs: whether the script steps, repeats itself, and how it saves; pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

from clusterrun.model.record import RunStatus
from clusterrun.model.size import sized
from clusterrun.model.states import State
from clusterrun.rehearse.discoveries import Cause, Discovery, unknown
from clusterrun.rehearse.first_difference import PARTS, FirstDifference, differences
from clusterrun.rehearse.rank_files import two_writers
from clusterrun.rehearse.rank_trace import SavedFile, Start, kind_of
from clusterrun.rehearse.resumption import reference

# Report checkpoints that are never removed from this many of one kind on.
MANY_KEPT = 4
# Names of the exceptions of libraries that download something.
NO_NETWORK = (
    *("URLError", "HTTPError", "gaierror", "ConnectionError", "ConnectTimeout", "ConnectError"),
    *("MaxRetryError", "LocalEntryNotFoundError", "OfflineModeIsEnabled"),
)


def control(first: Start, second: Start) -> tuple[Discovery, ...]:
    """Return whether two undisturbed runs are equal, and what is wrong with how checkpoints are written."""
    differs = divergence(first, second)
    number = first.last
    if differs is None:
        same = Discovery(Cause.NONE, f"2 runs of {number} steps, equal to the last bit")
    else:
        subject = ARITHMETIC if differs.part == "parameters" else PARTS[differs.part]
        message = f"2 undisturbed runs differ from step {differs.step} on, rank {differs.rank}: {subject}"
        if differs.detail:
            message += f": {differs.detail}"
        message += "; what is restored is compared by bits,"
        message += " losses after it by the spread of these two runs"
        remedy = _to_repeat(differs, first, second)
        same = Discovery(Cause.NOT_DETERMINISTIC, message, remedy, step=differs.step)
    return (same, *files(first))


INITIAL_WEIGHTS = "the initial weights"
ARITHMETIC = "the arithmetic (samples and random numbers are the same, the weights are not)"


def _to_repeat(differs: FirstDifference, first: Start, second: Start) -> str:
    """Return what would make two undisturbed runs equal. A seed helps only if a generator differs."""
    if differs.detail == INITIAL_WEIGHTS:
        return "call torch.manual_seed(…) before the model is made"
    if differs.part in ("parameters", "rounding"):
        return (
            "torch.use_deterministic_algorithms(True) names operations that do not repeat themselves; if"
            " threads or processes change the same memory, or results are used as they arrive, give them"
            " an order"
        )
    if differs.part in ("data", "content", "unseen"):
        steps = [
            step
            for life in (first, second)
            for step in life.ranks[differs.rank].steps
            if step.n == differs.step
        ]
        if len({tuple(sorted(step.random.items())) for step in steps}) == 1:
            return (
                "the random numbers of Python, NumPy and torch are equal, so a seed for these changes"
                " nothing: seed a generator of your own, sort what os.listdir() and sets return, and let no"
                " thread or process decide the order of samples by its speed"
            )
    return "seed all generators: random.seed(…), numpy.random.seed(…), torch.manual_seed(…)"


def divergence(first: Start, second: Start) -> FirstDifference | None:
    first_reference = reference(first)
    for rank, trace in sorted(second.ranks.items()):
        leads = trace.leads
        if trace.before.get(leads, (0, 0))[0] != first_reference.initial.get(rank, {}).get(leads, (0, 0))[0]:
            return FirstDifference("parameters", 1, rank, INITIAL_WEIGHTS)
    found_differences = differences(first_reference, second, 0)
    return found_differences[0] if found_differences else None


def files(life: Start) -> tuple[Discovery, ...]:
    """Return what is wrong with how the script writes its checkpoints."""
    saves = [save for save in life.saves if save.size]
    writers = two_writers(life)
    if not writers and all(save.step >= life.last for save in saves):
        until = "before the last of" if saves else "within"
        message = f"no checkpoint was written {until} {life.last} steps: a failure costs all of them"
        remedy = "save more often (an option of the script?), or rehearse more steps with --steps"
        return (Discovery(Cause.NO_CHECKPOINT, message, remedy),)
    return tuple(finding for finding in (writers, _never_dropped(life, saves)) if finding)


def _never_dropped(life: Start, saves: Sequence[SavedFile]) -> Discovery | None:
    kinds: dict[str, set[str]] = {}
    sizes = {save.path: save.size for save in saves}
    for save in saves:
        kinds.setdefault(kind_of(save.path), set()).add(save.path)
    for kind, paths in kinds.items():
        if len(paths) >= MANY_KEPT and not any(map(life.dropped, paths)):
            size = sum(sizes[path] for path in paths) / len(paths)
            message = f"{len(paths)} checkpoints {os.path.basename(kind)} of {sized(size)} each, none was "
            message += f"removed: 1000 of them take {sized(1000 * size)}"
            lines = tuple({save.line for save in saves if save.path in paths})
            remedy = "remove all but the newest two or three after each save"
            return Discovery(Cause.NEVER_DROPPED, message, remedy, lines)
    return None


def no_steps(life: Start, status: RunStatus) -> tuple[str, str]:
    """Return why nothing can be rehearsed, and what to do."""
    if life.errors:
        line, kind, message = life.errors[0]
        place = f" at {line}" if line else ""
        first = message.splitlines()[0] if message else ""
        gpus = "CUDA" in message or "cuda" in message or "NCCL" in message
        remedy = "rehearse it with --gpus where there are some, or tell it to use the CPU" if gpus else ""
        if kind in NO_NETWORK:
            remedy = (
                "the download must exist before the rehearsal: load it once, and give the script its path"
            )
        when = f"after {life.last} steps" if life.last else "before its first step"
        return f"the script ends {when}{place}: {kind}: {first}", remedy
    if not life.ranks:
        message = f"no rank was seen ({status.state.value}: {status.reason}): is the command a Python script?"
        return message, "see what the ranks printed: --keep, then clusterrun logs"
    if status.state is State.FAILED:
        remedy = "see what it printed: --keep FOLDER, then cat FOLDER/home/runs/*/attempts/000/*.err"
        return f"the script ends before its first step: {status.reason}", remedy
    message = "no step of a torch optimizer was seen: what this script computes cannot be compared"
    remedy = "it must train with an optimizer of torch's in the processes that clusterrun starts"
    return message, f"{remedy} (--ranks-per-node): ranks that the script starts are not observed"


def too_slow(life: Start, budget: float) -> Discovery:
    """Return the finding for an undisturbed run that the budget ended."""
    if life.last < 1:
        message = f"no optimizer step within --budget {budget:g} s"
        remedy = "see what the ranks printed: --keep, then clusterrun logs; a slow start needs a larger "
        remedy += "--budget"
        return Discovery(Cause.NO_STEPS, message, remedy)
    steps = life.ranks[min(life.ranks)].steps
    seconds_per_step = (steps[-1].at - steps[0].at) / max(1, len(steps) - 1)
    saved = len({save.step for save in life.saves if save.size})
    pace = f"{life.last} steps of {seconds_per_step:.2g} s and {saved} checkpoints"
    pace += f" within --budget {budget:g} s: too few"
    remedy = "rehearse a smaller model or batch, save more often, end runs sooner (--steps), or give more: "
    remedy += f"--budget {2 * budget:g}s"
    return unknown(pace, remedy)
