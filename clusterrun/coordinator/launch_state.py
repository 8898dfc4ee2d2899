"""What starts the agents, as the coordinator sees it: whether it lives, and what its end means; pure."""

from __future__ import annotations

from clusterrun.coordinator.actions import LaunchAgents
from clusterrun.coordinator.failures import FailureKind

_NOT_EXECUTED = (126, 127)


class LaunchState:
    """``lives``: a program that started agents runs; ``last_words``: how it ended, for whom it took along."""

    def __init__(self) -> None:
        self.lives = False
        self.last_words = ""

    def begin(self, without: tuple[str, ...]) -> LaunchAgents:
        """Agents are started, but not on the nodes of these names."""
        self.lives, self.last_words = True, ""
        return LaunchAgents(without)


def kind_of_end(code: int) -> FailureKind:
    """A program that cannot be executed will not be next time either; all else may be different then."""
    return FailureKind.START if code in _NOT_EXECUTED else FailureKind.LAUNCHER
