"""Recognize that a launcher could not reach Slurm's controller, and decide when to launch again.

The failed launch counts against no budget, and no node is blamed for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterrun.slurm_text.srun_messages import unreached

MOST_SECONDS = 600.0
LONGEST_PAUSE = 10.0
NO_ANSWER = "it did not answer in time"
_WORDS = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Unexpected message received",
    NO_ANSWER,
)


def is_away(lines: Sequence[str]) -> bool:
    """Return whether the output of a Slurm program says that the controller is unreachable.

    A program may print the same about an unreachable node. The controller is reachable then.
    """
    return not unreached(lines) and any(text in line for line in lines for text in _WORDS)


class ControllerAway:
    """Pauses of 1, 2, 4 … 10 seconds for ten minutes. They start again after an agent was reached."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._pause = 1.0

    def reset(self) -> None:
        self._since, self._pause = None, 1.0

    def next_at(self, now: float, lines: Sequence[str]) -> float | None:
        """Return when to launch again after a launcher ended with this output.

        None if the controller was reachable.
        """
        if not is_away(lines):
            return None
        self._since = now if self._since is None else self._since
        if now - self._since > MOST_SECONDS:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return now + pause
