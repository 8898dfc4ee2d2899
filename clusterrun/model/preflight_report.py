"""What a pre-flight check found, from one reading to the whole report; values only, judges nothing."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.states import Word


class Grade(Word):
    """How fit something is, equal to its word; ``UNDETERMINED``: it could not be found out."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNDETERMINED = "undetermined"


WORST_FIRST = (Grade.FAIL, Grade.UNDETERMINED, Grade.WARN, Grade.PASS)


def worst(grades: tuple[Grade, ...]) -> Grade:
    """The worst of ``grades``; ``PASS`` where there are none."""
    return min(grades, key=WORST_FIRST.index, default=Grade.PASS)


@frozen
class Finding:
    """What one check says of one node: what was seen with its number and limit, and what to do about it."""

    check: str
    verdict: Grade
    said: str
    remedy: str = ""


@frozen
class NodeReport:
    """One node of the allocation; ``role`` is ``rank`` (trains), ``spare`` or ``excluded``."""

    node: str
    verdict: Grade
    role: str
    findings: tuple[Finding, ...] = ()


@frozen
class LinkReport:
    """A link with a finding. ``direction`` is ``a->b``, ``b->a`` or ``both`` (of the fields' names)."""

    a: str
    b: str
    direction: str
    verdict: Grade
    said: str
    remedy: str = ""


@frozen
class Measurement:
    """One test that was made, over two nodes or more; a number without its unit is not kept.

    ``test`` says what ("pair", "set", "half", "control", "product"), ``round`` when (from 0).
    ``outcome`` is ``passed``, ``failed`` or ``void`` (told nothing: a partner was lost).
    ``gigabytes_per_second`` is bus bandwidth, null where nothing was timed.
    """

    test: str
    round: int
    nodes: tuple[str, ...]
    outcome: str
    seconds: float
    gigabytes_per_second: float | None = None
    said: str = ""


@frozen
class Report:
    """``preflight.json``: the whole of one pre-flight; ``at`` is seconds since the epoch.

    ``set_said`` is what is wrong with all nodes together where no node and no link is to blame.
    ``world`` are the nodes that train, in rank order; ``excluded`` those found unfit.
    ``environment`` is what was chosen for the ranks, where their user set nothing.
    ``backend`` is ``nccl``, ``gloo`` or empty (no collective was run, and ``notices`` says why).
    """

    run_id: str
    cluster: str
    level: str
    verdict: Grade
    at: float
    seconds: float
    budget: float
    rounds: int
    backend: str
    world: tuple[str, ...]
    spares: tuple[str, ...]
    excluded: tuple[str, ...]
    nodes: tuple[NodeReport, ...]
    links: tuple[LinkReport, ...] = ()
    set_said: str = ""
    tests: tuple[Measurement, ...] = ()
    notices: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    format: int = contract.FORMAT
