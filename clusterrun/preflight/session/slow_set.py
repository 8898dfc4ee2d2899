"""A set that works, but slower than it should: whether some part of it is to blame; pure."""

from __future__ import annotations

from clusterrun.model.preflight_report import Finding, Grade
from clusterrun.preflight.search.bisect import Bisect, GroupOutcome
from clusterrun.preflight.session import expected_bandwidth
from clusterrun.preflight.session.consistency import NodeFinding
from clusterrun.preflight.session.group_tests import HALF
from clusterrun.preflight.tasks import GroupTask
from clusterrun.preflight.thresholds import for_backend

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from clusterrun.preflight.session.group_test import GroupTest
    from clusterrun.preflight.session.group_tests import GroupTests
    from clusterrun.preflight.session.state import SessionState

    Waits = Iterator[tuple[type, ...]]
    Answer = Generator[tuple[type, ...], None, bool]

LEAST_HALVES = 4
"""Of fewer nodes one half would be a single node, which says nothing of the network."""
LEAST_SECONDS = 6.0
"""With less time left the halves are not tested."""
_LOOK = "look at the links between these and the others: clusterrun check --all-pairs"


def suspected(state: SessionState, trials: GroupTests, trial: GroupTest, pairs_known: bool) -> Answer:
    """Whether somebody may be slow: the set is below its floor, or, where no pair was timed, a half is."""
    if below_floor(state, trial):
        return True
    if pairs_known or len(trial.nodes) < LEAST_HALVES or state.left < LEAST_SECONDS:
        return False
    middle = len(trial.nodes) // 2
    done = yield from _tested(state, trials, (trial.nodes[:middle], trial.nodes[middle:]))
    rates = [one.rate for one in done if one.passed and one.rate is not None]
    limits = for_backend(state.limits, state.backend)
    return len(rates) == len(done) and min(rates) < max(rates) * (1 - limits.slow_few)


def below_floor(state: SessionState, trial: GroupTest) -> bool:
    """Slower than this hardware, or the user's number, lets expect."""
    return trial.rate is not None and trial.rate < expected_bandwidth.floor_of(state, trial.nodes)[0]


def parts(state: SessionState, trials: GroupTests, trial: GroupTest) -> Waits:
    """Which parts of it are below the floor as well: both halves at once, then the halves of those."""
    floor = expected_bandwidth.floor_of(state, trial.nodes)[0]
    bisect = Bisect(trial.nodes, floor)
    while len(trial.nodes) > 2 and state.left > 1.0:
        groups = bisect.next_round()
        if not groups:
            break
        done = yield from _tested(state, trials, groups)
        bisect.take([GroupOutcome(one.nodes, one.passed, one.rate, bool(one.wrong)) for one in done])
    found = [nodes for nodes in bisect.result().subsets if len(nodes) < len(trial.nodes)]
    state.write("slow parts", (NodeFinding(None, _slow_part(state, nodes, floor)) for nodes in found))


def _slow_part(state: SessionState, nodes: Sequence[int], floor: float) -> Finding:
    said = f"{state.names(nodes)} are slow together, twice (limit {floor:.3g} GB/s); the other parts are not"
    return Finding("set", Grade.WARN, said, _LOOK)


def _tested(
    state: SessionState, trials: GroupTests, groups: Sequence[tuple[int, ...]]
) -> Generator[tuple[type, ...], None, list[GroupTest]]:
    state.label = f"parts of the set: {len(groups)}"
    trials.begin(HALF, groups)
    yield (GroupTask,)
    return trials.finish()
