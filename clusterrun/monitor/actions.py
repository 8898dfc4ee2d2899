"""The actions of the hang detector; values only, carried out by the coordinator."""

from __future__ import annotations

from clusterrun.model.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union


@frozen
class AskObserver:
    """Question ``number`` for the observer on node ``node`` of the allocation."""

    node: int
    number: int
    body: str


@frozen
class Warn:
    """A sentence for whoever looks at the run: noted, and kept among its warnings."""

    text: str


@frozen
class TakeBack:
    """No warning that begins like this holds any more; ``text`` says why."""

    beginning: str
    text: str


@frozen
class Save:
    """A file of the attempt, written whole."""

    name: str
    text: str


@frozen
class EndAttempt:
    """The attempt should be ended: ``restart`` it as after a failed rank, or ``kill`` the run."""

    what: str
    why: str


if TYPE_CHECKING:
    HangDetectorAction = Union[AskObserver, Warn, TakeBack, Save, EndAttempt]
