"""What sort of failure the end of a launcher is, by its exit code."""

from __future__ import annotations

from clusterrun.coordinator.failures import FailureKind

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass


_NOT_EXECUTED = (126, 127)


def kind_of_end(code: int) -> FailureKind:
    """A program that cannot be executed will not be next time either; all else may be different then."""
    return FailureKind.START if code in _NOT_EXECUTED else FailureKind.LAUNCHER
