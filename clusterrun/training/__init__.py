"""Functions for training scripts: when to stop, progress, results, and complete checkpoints.

    from clusterrun.training import Checkpoints, accumulation, progress, report, should_stop

Everything also works without clusterrun (alone, under torchrun). Then these functions neither read nor write
anything. Every rank must call these functions in the same order, because the ranks of a process group agree
through them.
"""

from __future__ import annotations

from .checkpoints import CheckpointRefused, Checkpoints, OldAttempt, latest_checkpoint
from .script import current_script as _current_script
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
    """Return whether to write a checkpoint and end, because the time limit or a preemption is near.

    It stays true.

    The ranks agree about four times a second and at least at every 16th call, or at every ``every``-th.
    Between two of these calls the last answer is returned. On GPUs the answer arrives one call later, so that
    no step waits for the GPU.
    """
    return _current_script().should_stop(every)


def save_now(every: int = 0) -> bool:
    """Return whether to write a checkpoint at once: true once for each request, and once for a notice."""
    return _current_script().save_now(every)


def progress(step: int, checkpoint: int | None = None) -> None:
    """Report that ``step`` steps are done.

    ``checkpoint``: the step of the newest checkpoint, if others write it.

    Rank 0 sends it to the run. A run without progress over several attempts is ended.
    """
    _current_script().progress(step, checkpoint)


def accumulation(global_batch: int, batch: int = 1) -> int:
    """Return how many batches of ``batch`` samples each rank sums for one step of ``global_batch`` samples.

    The size of a step is then independent of the number of ranks. Raises ``ValueError`` if it does not
    divide.
    """
    return _steps_of(global_batch, batch, _current_script().place.world)


def report(**values: object) -> None:
    """Report results, ``report(loss=0.1, accuracy=0.9)``: numbers and texts.

    The last value of a name counts.

    Rank 0 sends them to the run. `clusterrun sweep results` compares the runs of a sweep by them.
    """
    _current_script().report(values)
