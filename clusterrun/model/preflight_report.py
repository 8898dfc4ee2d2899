"""Define the results of a pre-flight check, from one reading to the whole report."""

from __future__ import annotations

from clusterrun.model import contract
from clusterrun.model.frozen import frozen
from clusterrun.model.states import Word


class Grade(Word):
    """A verdict. ``UNDETERMINED`` means that the check could not decide."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    UNDETERMINED = "undetermined"


WORST_FIRST = (Grade.FAIL, Grade.UNDETERMINED, Grade.WARN, Grade.PASS)


def worst(grades: tuple[Grade, ...]) -> Grade:
    """Return the worst of ``grades``; ``PASS`` if there are none."""
    return min(grades, key=WORST_FIRST.index, default=Grade.PASS)


@frozen
class Finding:
    """The result of one check on one node."""

    check: str
    verdict: Grade
    message: str  # the problem, with its number and limit
    remedy: str = ""
    FORMER_NAMES = {"message": "said"}


@frozen
class NodeReport:
    """One node of the allocation."""

    node: str
    verdict: Grade
    # ``rank`` (trains), ``spare``, ``excluded``, or ``separated``: fit, but not together with the ranks.
    role: str
    findings: tuple[Finding, ...] = ()


@frozen
class LinkReport:
    """A link with a finding."""

    a: str
    b: str
    direction: str  # ``a->b``, ``b->a`` or ``both`` (of the fields' names)
    verdict: Grade
    message: str
    remedy: str = ""
    FORMER_NAMES = {"message": "said"}

    @property
    def ends(self) -> str:
        """Return ``n1 -> n2`` if the finding is about one direction, else ``n1 - n2``."""
        one_way = {"a->b": f"{self.a} -> {self.b}", "b->a": f"{self.b} -> {self.a}"}
        return one_way.get(self.direction, f"{self.a} - {self.b}")


@frozen
class Measurement:
    """One test of one node, or of several nodes together."""

    test: str  # "pair", "set", "half", "table"; of one node: "product", "device", "peers", "burn"
    round: int  # from 0
    nodes: tuple[str, ...]
    outcome: str  # ``passed``, ``failed`` or ``void`` (undecided: a partner was lost)
    seconds: float
    gigabytes_per_second: float | None = None  # bus bandwidth; null if nothing was timed
    message: str = ""
    FORMER_NAMES = {"message": "said"}


@frozen
class Quantity:
    """One measured number, the best of its kind if it was measured several times."""

    node: str
    part: str  # "GPU 3", "GPU 0 -> GPU 1" or "rail 2"
    name: str  # "matrix product", "send", "memory", …
    value: float
    unit: str


@frozen
class TableRow:
    """A collective of one size, as nccl-tests prints it. ``gigabytes_per_second`` is the bus bandwidth."""

    operation: str
    bytes: int
    microseconds: float
    algorithm_gigabytes_per_second: float
    gigabytes_per_second: float


@frozen
class Report:
    """``preflight.json``: the result of one pre-flight check."""

    run_id: str
    cluster: str
    level: str
    verdict: Grade
    at: float  # seconds since the epoch
    seconds: float
    budget: float
    rounds: int
    backend: str  # ``nccl``, ``gloo`` or '' (no collective ran; ``notices`` gives the reason)
    world: tuple[str, ...]  # nodes that train, in rank order
    spares: tuple[str, ...]
    excluded: tuple[str, ...]  # nodes found unfit
    nodes: tuple[NodeReport, ...]
    links: tuple[LinkReport, ...] = ()
    set_message: str = ""  # A problem of all nodes together, if no node and no link is at fault
    tests: tuple[Measurement, ...] = ()
    notices: tuple[str, ...] = ()
    # Defaults of the ranks for variables that the user did not set
    environment: tuple[tuple[str, str], ...] = ()
    quantities: tuple[Quantity, ...] = ()
    table: tuple[TableRow, ...] = ()
    format: int = contract.FORMAT
    FORMER_NAMES = {"set_message": "set_said"}
