"""The result of a rule: a possible cause, the ranks to blame, and how certain the rule is; pure.

A rule declares its certainty, a number between 0 and 100. CONTRIBUTING.md shows the scale.
"""

from __future__ import annotations

from collections.abc import Callable

from clusterrun.diagnosis.calls import CallTable
from clusterrun.diagnosis.explain_end import with_output
from clusterrun.diagnosis.verdict import Diagnosis
from clusterrun.model.frozen import frozen

Ranks = tuple[int, ...]
# Returns the diagnosis by the table and the ranks to blame. A rule binds the facts that it found.
Explain = Callable[[CallTable, Ranks], Diagnosis]


@frozen
class Hypothesis:
    """A possible cause."""

    explain: Explain
    certainty: int
    culprits: Ranks = ()  # ranks to blame
    final: bool = True  # a longer look would not change it
    later: float = 0.0  # seconds after which it may be decided; 0: a longer look decides it
    # adds what the ranks of an ended run printed
    complete: Callable[[CallTable, Diagnosis], Diagnosis] = with_output


ABSENT = "a rank is absent, and the others wait for it"
DERIVED = "inferred from stacks or source code"
# The other basis of these steps if ranks ended with an error.
AFTER_CRASH = {
    ABSENT: "a rank printed an error before the others",
    DERIVED: "it ended before the others, and no rank printed an error of its own",
}
# The least number of each step of the scale, with what it rests on.
SCALE = (
    (100, "the kernel reports it"),
    (90, "ranks were seen to move"),
    (75, "data of several ranks contradict each other"),
    (56, ABSENT),
    (30, DERIVED),
    (1, "little is known"),
)


def certainty_in_words(certainty: int, has_crashed: bool = False) -> str:
    """Return on what a cause of this certainty rests; '' for 0, which is unknown.

    The number only orders causes, and is no probability.
    ``has_crashed``: the verdict is about ranks that ended with an error.
    """
    basis = next((basis for least, basis in SCALE if certainty >= least), "")
    return AFTER_CRASH.get(basis, basis) if has_crashed else basis
