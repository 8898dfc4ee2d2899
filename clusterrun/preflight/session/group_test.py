"""How one test of a group of nodes went; a value."""

from __future__ import annotations

from clusterrun.model.frozen import frozen


@frozen
class GroupTest:
    """How one test went. ``passed`` is None where it told nothing: a member was lost, or could not begin.

    ``starved``: its ranks waited for processors, so that its rate tells nothing of the network.
    """

    kind: str
    nodes: tuple[int, ...]
    passed: bool | None
    seconds: float
    rate: float | None = None
    ways: tuple[tuple[int, float], ...] = ()
    wrong: str = ""
    why: str = ""
    transports: tuple[str, ...] = ()
    starved: bool = False
