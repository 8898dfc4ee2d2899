"""What a training script may import: when to stop, how far it is, whole checkpoints.

    from clusterrun.training import Checkpoints, accumulation, progress, report, should_stop

Everything works without clusterrun too (alone, under torchrun): then these functions neither read nor write
anything. Every
rank must call these functions, in the same order: where there is a process group they agree through it.
"""

from __future__ import annotations

from .checkpoints import CheckpointRefused, Checkpoints, OldAttempt, latest_checkpoint
from .script import here as _here
from .script import steps_of as _steps_of

__all__ = [
    "CheckpointRefused",
    "Checkpoints",
    "OldAttempt",
    "accumulation",
    "latest_checkpoint",
    "progress",
    "report",
    "save_now",
    "should_stop",
]


def should_stop(every: int = 0) -> bool:
    """Whether to write a checkpoint and end: the time limit or a preemption is near. Stays true.

    The ranks agree about four times a second and at least at every 16th call, or at every
    ``every``-th; between two of these calls the answer is that of the last.
    """
    return _here().should_stop(every)


def save_now(every: int = 0) -> bool:
    """Whether to write a checkpoint at once: true once for each time that somebody asked, and at a notice."""
    return _here().save_now(every)


def progress(step: int, checkpoint: int | None = None) -> None:
    """Say that ``step`` steps are done; also of which step the newest checkpoint is, where others write it.

    Rank 0 tells it to the run: one that gets no further over several attempts is ended.
    """
    _here().progress(step, checkpoint)


def accumulation(global_batch: int, batch: int = 1) -> int:
    """How many batches of ``batch`` samples each rank adds up for one step of ``global_batch`` samples.

    So the step stays the same on any number of ranks. Raises ``ValueError`` if that does not divide.
    """
    return _steps_of(global_batch, batch, _here().place.world)


def report(**values: object) -> None:
    """Say what came out, ``report(loss=0.1, accuracy=0.9)``: numbers and texts, of each name the last one.

    Rank 0 tells it to the run; `clusterrun sweep results` compares the runs of a sweep by it.
    """
    _here().report(values)
