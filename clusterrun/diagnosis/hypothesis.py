"""The result of a rule: a possible cause, the ranks to blame, and how certain the rule is; pure.

A rule declares its certainty, a number between 0 and 100. CONTRIBUTING.md has the scale.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterrun.model.frozen import Any, frozen


@frozen
class Hypothesis:
    """A possible cause.

    kind: the key of its explanation in ``explain.py``
    culprits: ranks to blame
    facts: what the explanation needs beside the table
    final: a longer look would not change it
    later: seconds after which it may be decided; 0: a longer look decides it
    """

    kind: str
    certainty: int
    culprits: tuple[int, ...] = ()
    facts: Mapping[str, Any] = {}
    final: bool = True
    later: float = 0.0


_ABSENT = "a rank is absent, and the others wait for it"
_FIRST_ERROR = "a rank printed an error before the others"
# The least number of each step of the scale, with what it rests on.
_SCALE = (
    (100, "the kernel reports it"),
    (90, "ranks were seen to move"),
    (75, "data of several ranks contradict each other"),
    (56, _ABSENT),
    (30, "derived from stacks, source text or habits"),
    (1, "little is known"),
)


def certainty_in_words(certainty: int, has_crashed: bool = False) -> str:
    """Return ``60 of 100: a rank is absent, and the others wait for it``; '' for 0, which is unknown.

    ``has_crashed``: the verdict is about ranks that ended with an error.
    """
    basis = next((basis for least, basis in _SCALE if certainty >= least), "")
    basis = _FIRST_ERROR if has_crashed and basis == _ABSENT else basis
    return f"{certainty} of 100: {basis}" if basis else ""
